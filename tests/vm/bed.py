"""The test bed: a Debian machine with a simulated server's PCI tree, made once, back to a clean boot in two seconds."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.debian_root import apt_source, apt_sources
from images.wheels import cache_folder
from lanewise.errors import LanewiseError
from tests.vm.machine import QEMU, BedError, Machine
from tests.vm.server import Server, make_server

SUITE = "bookworm"
PROGRAMS = (
    QEMU, "qemu-img", "mmdebstrap", "sfdisk", "mke2fs", "gcc", "make", "ssh", "ssh-keygen", "unshare", "setpriv",
)  # fmt: skip
"""README.md names the packages."""
READY = "ready"
"""Name of the snapshot."""
NAME = "bed"
USER_WRITES = "/sys/module/pcisim/parameters/user_writes"
"""Writes to configuration spaces by processes, since the module was loaded or the count set to 0."""
BOOT_SECONDS = 600
"""An idle machine takes 18, one with a load of 40 takes a minute."""
_LOCK = "lock"
_HERE = Path(__file__).parent
_DISK_INPUTS = ("pcisim", "disk", "config_space.py", "server.py")
_ALONE = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""Mounts and processes end with the command, and that with us."""


def missing() -> str:
    """Why there can be no bed here, or nothing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return f"the virtual machine needs {', '.join(absent)}"
    return "the virtual machine's disk is made by root" if os.geteuid() else ""


@dataclass(frozen=True, kw_only=True)
class Bed:
    """The bed below one folder; disk and snapshot stay there between runs.

    Attributes:
        machine: the process.
        lasting: whether it outlives this process.
        progress: is told in a line what is done.
    """

    machine: Machine
    lasting: bool
    progress: Callable[[str], None]

    @property
    def _folder(self) -> Path:
        return self.machine.folder

    def ready(self) -> None:
        """Have the machine run as it was after its first boot; what is not there yet is made.

        Raises:
            BedError: the disk cannot be made, or the machine does not start.
        """
        if self.machine.pid:
            self.reset()
            return
        disk_of = _hash_of(_DISK_INPUTS, SUITE)
        self._keep("disk-of", disk_of, self._make_disk)
        version = _run([QEMU, "--version"])
        if not self._keep("snapshot-of", _hash_of(["machine.py"], disk_of + version), self._make_snapshot):
            self.machine.start(snapshot=READY, lasting=self.lasting)
            self._wait(BOOT_SECONDS)

    def reset(self) -> None:
        """Bring the running machine back to the snapshot: memory, disk and registers."""
        self.machine.monitor(f"loadvm {READY}")
        self._wait(BOOT_SECONDS)

    def load(self, server: Server) -> None:
        """Put another PCI tree in place of the one that is there, as after a power cycle."""
        firmware = "/lib/firmware/pcisim/topology.bin"
        self.ssh(f"cat > {firmware} && rmmod pcisim && modprobe pcisim", stdin=server.image())

    def boot(self) -> None:
        """Power is back after `machine.stop()`: it boots from its disk, with another port for SSH."""
        self.machine.start(lasting=self.lasting)
        self.wait_until_booted()

    def reboot(self) -> None:
        """Boot it as its administrator would, and wait until it is up again."""
        before = self.boot_id()
        self.ssh("systemctl reboot", check=False)
        self.wait_until_booted(since=before)

    def boot_id(self) -> str:
        """Differs from boot to boot; nothing where it goes down just now."""
        return self.ssh("cat /proc/sys/kernel/random/boot_id", check=False)

    def ssh(self, command: str, *, stdin: bytes = b"", seconds: float = 300, check: bool = True) -> str:
        """Output of a shell command, run as root.

        Raises:
            BedError: it ends with another status than 0, unless `check` is false, or not within `seconds`.
        """
        try:
            done = subprocess.run(
                [*self.ssh_command(), command], input=stdin, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BedError(f"{command[:200]!r} took longer than {seconds:.0f} s") from error
        if done.returncode and check:
            raise BedError(f"{command[:200]!r} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]!r}")
        return done.stdout.decode(errors="replace").strip()

    def ssh_command(self) -> list[str]:
        """The command that opens a shell in it; what is to run there may follow."""
        options = {"BatchMode": "yes", "ConnectTimeout": "5", **self._ssh_options()}
        return [
            "ssh", "-q", "-F", "/dev/null", "-i", str(self._folder / "id"), "-p", str(self.machine.port),
            *(part for name, value in options.items() for part in ("-o", f"{name}={value}")), "root@127.0.0.1",
        ]  # fmt: skip

    def host(self) -> dict[str, Any]:
        """The machine's variables in an Ansible inventory."""
        options = " ".join(f"-o {name}={value}" for name, value in self._ssh_options().items())
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.machine.port,
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self._folder / "id"),
            "ansible_ssh_common_args": f"-F /dev/null {options}",
        }

    def _ssh_options(self) -> dict[str, str]:
        return {"HostKeyAlias": NAME, "UserKnownHostsFile": str(self._folder / "known_hosts")}

    def _wait(self, seconds: float) -> None:
        """Until SSH answers; a snapshot wakes up with the time it was made at, so the clock is set."""
        began = time.monotonic()
        while True:
            try:
                self.ssh(f"date -s @{time.time():.0f}", seconds=10)
            except BedError:
                late = time.monotonic() - began > seconds
                if late or not self.machine.pid:
                    console = self.machine.console()
                    self.machine.stop()
                    raise BedError(f"no SSH after {time.monotonic() - began:.0f} s; the console: {console}") from None
                time.sleep(0.2)
            else:
                return

    def wait_until_booted(self, *, since: str = "") -> None:
        """Until SSH answers, in another boot than `since`, and units have been started, well or not.

        Raises:
            BedError: that takes longer than BOOT_SECONDS.
        """
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            self._wait(deadline - time.monotonic())
            if self.boot_id() not in (since, ""):
                break
            time.sleep(0.5)
        self.ssh("systemctl is-system-running --wait || true", seconds=BOOT_SECONDS)

    def _keep(self, name: str, inputs: str, make: Callable[[], None]) -> bool:
        """Make a thing anew if it was made of other inputs, as a file of that name says; whether it was made."""
        note = self._folder / name
        if note.exists() and note.read_text() == inputs:
            return False
        note.unlink(missing_ok=True)
        make()
        note.write_text(inputs)
        return True

    def _make_disk(self) -> None:
        self.progress("making the disk (a minute)")
        for old in self._folder.iterdir():
            if old.name != _LOCK:
                old.unlink()
        try:
            source = apt_source(SUITE, apt_sources())
        except LanewiseError as error:
            raise BedError(error.what) from error
        for key in ("id", "host_key"):
            _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", str(self._folder / key)])
        public = " ".join((self._folder / "host_key.pub").read_text().split()[:2])
        (self._folder / "known_hosts").write_text(f"{NAME} {public}\n")
        (self._folder / "topology.bin").write_bytes(make_server().image())
        paths = [str(self._folder / name) for name in ("id.pub", "host_key", "topology.bin", "disk.raw")]
        _run([*_ALONE, str(_HERE / "disk/make_disk"), SUITE, source.uri, source.keyring, *paths])

    def _make_snapshot(self) -> None:
        """Boot for the first time, settle, and keep that; the machine runs on."""
        self.progress("first boot (a minute)")
        self.machine.overlay.unlink(missing_ok=True)
        backing = ["-b", str(self._folder / "disk.raw"), "-F", "raw"]
        _run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(self.machine.overlay)])
        self.machine.start(lasting=self.lasting)
        self.wait_until_booted()
        # The first grub.cfg and initramfs were made before all of /etc was there; a node has those of its own tools.
        self.ssh(f"update-grub && update-initramfs -u && sync && dmesg --clear && echo 0 > {USER_WRITES}")
        self.machine.monitor(f"savevm {READY}")
        if READY not in self.machine.monitor("info snapshots"):
            raise BedError("QEMU kept no snapshot")


@contextmanager
def open_bed(*, lasting: bool = False, progress: Callable[[str], None] = lambda _line: None) -> Iterator[Bed]:
    """The clone's bed, which one process at a time may have; unless it is lasting, its machine ends with the block.

    Raises:
        BedError: it is in use.
    """
    folder = cache_folder().parent / "vm"
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError("the bed is in use by another process") from None
        if machine.pid and not lasting:
            raise BedError(f"the bed runs for somebody, as process {machine.pid}; python -m tests.vm stop")
        try:
            yield Bed(machine=machine, lasting=lasting, progress=progress)
        finally:
            if not lasting:
                machine.stop()


def _hash_of(names: Iterable[str], more: str) -> str:
    digest = hashlib.sha256(more.encode())
    for name in names:
        path = _HERE / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(_HERE)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:].decode(errors="replace")
        raise BedError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return done.stdout.decode()
