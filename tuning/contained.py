"""Runs one command in a container of an image and leaves no container behind, whatever happens to this process.

    python -I contained.py --image ID --python PATH [--gpus] [--set NAME=VALUE ...] [--file PATH ...]
                           [--publish PORT] [--mount FOLDER ...] [--scratch FOLDER] -- COMMAND ...

COMMAND runs in the image, below a copy of supervisor.py, with its output on stdout and stderr; this ends with its exit
code. Each --file is copied to /lanewise, --python is the image's own interpreter. The container has no network but
loopback and no privileges, and runs as the image's user, or as nobody where that is root.

With --publish, COMMAND is a server: its PORT is reached at 127.0.0.1:PORT of this machine, and nowhere else from
outside. For that the container is on the engine's default bridge, as `docker run --publish 127.0.0.1:PORT:PORT` has it:
it can then reach out, and other containers of that bridge can reach it. The host's own network would give it every
service that listens on this machine's loopback, and show the sockets of its ranks, which listen on all interfaces, to
the whole network; no network but loopback would need a relay of our own beside what is measured. --mount lets it read
a folder of this machine, at the same path. --scratch lets it write to one: it is made here and removed with the
container. Whoever the container's user is can write there, so the folder above it has to be private.

Two lifelines hold. Standard input, where it is a pipe, is this process's: when it closes, the container is removed by
force. The connection to the engine is the container's: when it breaks, because this process was killed, the engine
closes the container's standard input, its supervisor ends everything, and the engine removes the container by itself
(AutoRemove).

It is a program of its own, of the standard library and the docker SDK only, started by the supervisor of this machine.
The SDK is imported where it is used: the harness takes constants from here, and needs none of it on a machine without
an engine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import select
import signal
import stat
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from requests import Response

FOLDER = PurePosixPath("/lanewise")
"""Where in the container the copied files lie."""
RUN_LABEL, HOST_LABEL = "lanewise.run", "lanewise.host"
"""The scratch folder that the supervisor of this machine holds locked while the container may live, and this machine's
name: by the two, a later run knows a container whose run is gone."""
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_LIFELINE = 0
_CHUNK = 1 << 16
_FRAME = 8
"""Bytes before each piece of output: the stream's number, three zeros, the length in four bytes (Docker Engine API,
"Attach to a container", stream format)."""
_TMP = "/tmp"  # noqa: S108 - the container's own
_NOBODY = "65534:65534"
_ROOTS = ("", "0", "root")
_SHARED_MEMORY = 16 << 30
"""Bytes that /dev/shm may grow to; a limit, no reservation. Docker's own 64 MiB is too little for NCCL's and Open MPI's
segments."""
_FILTERED = ["SYS_NICE", "SYS_PTRACE"]
"""Capabilities that a user who is not root does not get, but which open the engine's filter of system calls: mbind and
its like, with which memory is placed, and process_vm_readv, with which Open MPI copies between ranks. (Docker 20.10.24
refuses each without the capability, so ranks would not do what they do outside.)"""
_CANNOT_RUN = 125  # as `docker run` has it
_ENDED = 128 + signal.SIGTERM  # as the supervisor has it
_MOST_WORDS = 400


def main(arguments: list[str]) -> int:
    """Do what the module says; the exit code."""
    import docker  # noqa: PLC0415 - as the module says
    from docker.errors import APIError, DockerException  # noqa: PLC0415
    from requests.exceptions import RequestException  # noqa: PLC0415

    options = _parse(arguments)
    started = False
    try:
        client = docker.from_env()
        if options.scratch:
            options.scratch.mkdir()
            options.scratch.chmod(0o777)  # what mkdir is told, the umask takes away
        container = _create(client, options)
        try:
            stream, code = _start(client, container)
            started = True
            if _pass_on(stream):
                return int(code.json()["StatusCode"])
            return _ENDED
        finally:
            with suppress(APIError):  # 404 or 409: it is gone, or going
                container.remove(force=True)
            if options.scratch:
                # Not shutil.rmtree, which gives up where a thousand folders lie in one another.
                subprocess.run(["rm", "-rf", "--", options.scratch], check=False, stderr=subprocess.DEVNULL)
    except (DockerException, RequestException, OSError) as error:
        why = f"no container: {getattr(error, 'explanation', None) or error}"[:_MOST_WORDS]
        # As a worker reports that nothing can run here; one that has begun is not spoken for.
        told = why if started else "@lanewise " + json.dumps({"event": "failed", "reason": why})
        print(told, flush=True)  # noqa: T201
        return _CANNOT_RUN


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--file", action="append", default=[], type=Path)
    parser.add_argument("--publish", type=int)
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _create(client: DockerClient, options: argparse.Namespace) -> Container:
    """A container with the files in it, not yet started."""
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit  # noqa: PLC0415

    user = client.images.get(options.image).attrs["Config"].get("User") or ""
    # Not `volumes`: for those an engine that does not see this file system makes empty folders on its own.
    mounts = [Mount(folder, folder, type="bind", read_only=True) for folder in options.mount]
    if options.scratch:
        mounts.append(Mount(str(options.scratch), str(options.scratch), type="bind"))
    container = client.containers.create(
        options.image,
        entrypoint=[options.python, "-I", "-S", str(FOLDER / _SUPERVISOR.name), "--"],
        command=options.command,
        environment=[f"HOME={_TMP}", f"TMPDIR={_TMP}", *options.set],
        labels={RUN_LABEL: os.environ.get("TMPDIR", ""), HOST_LABEL: platform.node()},
        working_dir=_TMP,
        user=_NOBODY if user.partition(":")[0] in _ROOTS else user,
        stdin_open=True,  # with StdinOnce: closed as soon as the connection to this process ends
        auto_remove=True,
        **_reached(options.publish),
        mounts=mounts,
        shm_size=_SHARED_MEMORY,
        # For GPUs only: NCCL may pin memory for network cards; an engine that may not raise it could start nothing.
        ulimits=[Ulimit(name="memlock", soft=-1, hard=-1)] if options.gpus else [],
        cap_drop=["ALL"],
        cap_add=_FILTERED,
        security_opt=["no-new-privileges"],
        device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if options.gpus else [],
        healthcheck={"test": ["NONE"]},  # the image's own would run beside what is measured
        log_config=LogConfig(type="none"),  # what comes through the connection needs no copy on the engine's disk
    )
    try:
        if not container.put_archive("/", _archive([_SUPERVISOR, *options.file])):
            raise OSError("the engine takes no files into a container")
    except BaseException:
        container.remove(force=True)
        raise
    return container


def _reached(port: int | None) -> dict[str, Any]:
    """Options of a container that can be reached at a port of this machine's loopback, or not at all."""
    if port is None:
        return {"network_mode": "none", "tmpfs": {_TMP: "mode=1777"}}
    # exec: a server compiles kernels and loads them from there; the engine's own choice is noexec.
    return {
        "network_mode": "bridge", "ports": {f"{port}/tcp": ("127.0.0.1", port)}, "tmpfs": {_TMP: "mode=1777,exec"}
    }  # fmt: skip


def _archive(files: list[Path]) -> bytes:
    """The files as a tar archive, for everybody to read whatever their modes are here."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder = tarfile.TarInfo(FOLDER.name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for file in files:
            content = file.read_bytes()
            entry = tarfile.TarInfo(f"{FOLDER.name}/{file.name}")
            entry.size, entry.mode = len(content), 0o444
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _start(client: DockerClient, container: Container) -> tuple[Any, Response]:
    """Start the container; the connection to its streams, and the answer that will be its exit code.

    Both are asked for before it starts, so that nothing it says or does is missed: it removes itself when it ends.
    """
    stream = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    api = client.api
    where = f"{api.base_url}/v{api.api_version}/containers/{container.id}/wait"
    # Not `container.wait`, which returns at the end only; the engine sends the answer's head at once.
    code = api.post(where, params={"condition": "removed"}, stream=True, timeout=(api.timeout, None))
    code.raise_for_status()
    container.start()
    return stream, code


def _pass_on(stream: Any) -> bool:  # noqa: ANN401 - a raw socket, a TLS one, or an SSH channel
    """Pass output on until the container ends; False where this process's lifeline closed first."""
    from docker.utils import socket as docker_socket  # noqa: PLC0415

    outputs = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    watched = [stream]
    if stat.S_ISFIFO(os.fstat(_LIFELINE).st_mode):  # called by hand it is a terminal, or /dev/null
        watched.append(_LIFELINE)
    pending = b""
    while True:
        ready, _, _ = select.select(watched, [], [])
        if _LIFELINE in ready and not os.read(_LIFELINE, _CHUNK):
            return False
        if stream in ready:
            chunk = docker_socket.read(stream, _CHUNK)
            if chunk == b"":
                return True
            pieces, pending = _pieces(pending + (chunk or b""))
            for number, piece in pieces:
                outputs[number].write(piece)
                outputs[number].flush()


def _pieces(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Whole pieces of output, each with its stream's number (1 or 2), and the bytes that are no whole piece yet."""
    pieces = []
    while len(data) >= _FRAME and len(data) >= (end := _FRAME + int.from_bytes(data[4:_FRAME])):
        pieces.append((data[0], data[_FRAME:end]))
        data = data[end:]
    return pieces, data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
