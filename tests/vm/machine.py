"""A QEMU process: started, spoken to by its monitor, ended. Software emulation only, and nothing but loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

QEMU = "qemu-system-x86_64"
_COMM = QEMU[:15]
"""The kernel keeps 15 characters of a process's name."""
_MEMORY_MB = 768
_PROMPT = b"(qemu) "
_SECONDS_TO_END = 10


class BedError(Exception):
    """The bed cannot be made, does not start, or does not do what was asked."""


class Machine:
    """One machine, which another process may have started.

    Args:
        folder: of overlay, monitor, console log, pid file and port file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None  # where it is ours

    @property
    def overlay(self) -> Path:
        """The disk with what the guest wrote; snapshots are in it."""
        return self.folder / "overlay.qcow2"

    @property
    def port(self) -> int:
        """Port of SSH on 127.0.0.1."""
        return int((self.folder / "port").read_text())

    @property
    def pid(self) -> int:
        """Process id, 0 where it does not run: a pid file of old may name a process of others."""
        try:
            pid = int((self.folder / "pid").read_text())
            name, state = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")[::2]
        except (OSError, ValueError):
            return 0
        return pid if name == _COMM and not state.startswith("Z") else 0

    def start(self, *, snapshot: str = "", lasting: bool = False) -> None:
        """Start it, from power on or from a snapshot.

        Args:
            snapshot: its name.
            lasting: it outlives this process, as a command line wants it; else it dies with it, however that dies.

        Raises:
            BedError: it runs already, or QEMU ends at once.
        """
        if self.pid:
            raise BedError(f"the machine runs already: process {self.pid}; python -m tests.vm stop")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (self.folder / "port").write_text(f"{port}\n")
        tied = [] if lasting else ["setpriv", "--pdeathsig", "KILL"]
        command = [*tied, QEMU, *self._arguments(port), *(["-loadvm", snapshot] if snapshot else [])]
        with (self.folder / "qemu.log").open("wb") as log:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.folder / "pid").write_text(f"{process.pid}\n")
        deadline = time.monotonic() + 60
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise BedError(f"QEMU did not start: {(self.folder / 'qemu.log').read_text(errors='replace')[-500:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, if it runs; what the guest has not written is lost, as when power fails."""
        if pid := self.pid:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _SECONDS_TO_END
            while self.pid and time.monotonic() < deadline:
                time.sleep(0.05)
            with suppress(ProcessLookupError):
                if self.pid:
                    os.kill(pid, signal.SIGKILL)
        if self._process:
            self._process.wait()
            self._process = None
        for name in ("pid", "monitor", "port"):
            (self.folder / name).unlink(missing_ok=True)

    def monitor(self, command: str) -> str:
        """What QEMU's monitor answers.

        Raises:
            BedError: the monitor is gone.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(120)
                connection.connect(str(self.folder / "monitor"))
                _until_prompt(connection)
                connection.sendall(f"{command}\n".encode())
                answer = _until_prompt(connection)
        except OSError as error:
            raise BedError(f"no answer from QEMU's monitor to {command!r}: {error}") from error
        return "\n".join(answer.decode(errors="replace").replace("\r", "").split("\n")[1:-1])

    def console(self) -> str:
        """The end of what the guest said on its console."""
        return (self.folder / "console.log").read_text(errors="replace")[-2000:]

    def _answers(self) -> bool:
        try:
            return "VM status" in self.monitor("info status")
        except BedError:
            return False

    def _arguments(self, port: int) -> Sequence[str]:
        half = _MEMORY_MB // 2
        return (
            "-name", "lanewise-bed", "-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none",
            # Never KVM: it may be there and yet not run a kernel that was not made for it.
            "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "qemu64,+rdrand,-svm",
            "-m", str(_MEMORY_MB), "-smp", "2,sockets=2,cores=1",
            "-object", f"memory-backend-ram,id=m0,size={half}M", "-numa", "node,cpus=0,memdev=m0",
            "-object", f"memory-backend-ram,id=m1,size={half}M", "-numa", "node,cpus=1,memdev=m1",
            "-device", "intel-iommu,intremap=off",  # which has Linux turn ACS on at each boot
            "-drive", f"if=none,id=root,file={self.overlay},format=qcow2,cache=unsafe,discard=unmap",
            "-device", "virtio-blk-pci,drive=root,bootindex=0,addr=2",
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22,restrict=on",
            "-device", "virtio-net-pci,netdev=net,romfile=,addr=3",
            "-device", "virtio-rng-pci,addr=4",
            "-serial", f"file:{self.folder / 'console.log'}",
            "-monitor", f"unix:{self.folder / 'monitor'},server=on,wait=off",
        )  # fmt: skip


def _until_prompt(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(_PROMPT):
        if not (more := connection.recv(65536)):
            raise ConnectionResetError("it closed the connection")
        answer += more
    return answer
