"""A small Debian root file system as a tar archive, made of the machine's own package sources, kept by its inputs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from images.engine_errors import short
from images.engine_work import Progress
from lanewise.errors import InputError, LanewiseError
from lanewise.files import writing

PACKAGES = ("ca-certificates", "python3", "python3-venv")
"""What every base has to have: trust, Python, and pip, which python3-venv brings."""
_SECONDS = 3600
_KILLED_WITH_US = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""debootstrap mounts, and starts dpkg in a chroot: in namespaces of its own none of that outlives us."""
_NOT_KEPT = (
    "etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/cache/apt", "var/lib/apt/lists", "var/log", "tmp",
)  # fmt: skip
"""Of this machine, or fetched again when needed; folders are kept empty."""
_LAST_LINES = 12


@dataclass(frozen=True, kw_only=True)
class AptSource:
    """One package source of the machine.

    Attributes:
        uri: the archive's address.
        suites: e.g. "bookworm", "bookworm-updates".
        components: e.g. "main".
        keyring: file with the keys that sign it; "" where the source names none.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    keyring: str = ""


@dataclass(frozen=True, kw_only=True)
class DebianRoot:
    """A root file system.

    Attributes:
        tar: its archive.
        packages: what is installed, "name:architecture" to version.
        inputs: hash of those.
    """

    tar: Path
    packages: Mapping[str, str]

    @property
    def inputs(self) -> str:
        """Hash of the packages with their versions."""
        return packages_hash(self.packages)


def packages_hash(packages: Mapping[str, str]) -> str:
    """Hash of packages with their versions."""
    return hashlib.sha256(json.dumps(dict(sorted(packages.items()))).encode()).hexdigest()


def debian_root(suite: str, more: Sequence[str], cache: Path, progress: Progress) -> DebianRoot:
    """The kept root file system of that suite and those packages, made first where there is none.

    What is kept stays as it is although Debian moves on; remove the folder below `cache` to have it made anew.

    Args:
        suite: e.g. "bookworm".
        more: packages beside PACKAGES.
        cache: folder for archives.
        progress: is told what is done.

    Raises:
        InputError: debootstrap is missing, this user is not root, or the machine has no Debian package source.
        LanewiseError: debootstrap failed, or there is no space.
    """
    wanted = sorted({*PACKAGES, *more})
    kept = cache / hashlib.sha256(json.dumps([suite, wanted]).encode()).hexdigest()[:16]
    with writing(kept):
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache):
            for abandoned in cache.glob(".making-*"):  # by a run that was killed
                shutil.rmtree(abandoned, ignore_errors=True)
            if not (found := _kept(kept)):
                progress(f"making a base of Debian {suite} with {', '.join(wanted)}")
                _make(suite, wanted, kept, progress)
                found = _kept(kept)
    if not found:
        raise LanewiseError(
            f"the archive {kept / 'root.tar'} does not hold what was written",
            expected="a file system that keeps what it is given",
            todo="check it, remove the folder, and call again",
        )
    return found


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kept(folder: Path) -> DebianRoot | None:
    """What an earlier run made; a damaged archive is removed and made anew."""
    try:
        facts = json.loads((folder / "root.json").read_text(encoding="utf-8"))
        with (folder / "root.tar").open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == facts["sha256"]
        packages = {str(name): str(version) for name, version in facts["packages"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole, packages = False, {}
    if whole:
        return DebianRoot(tar=folder / "root.tar", packages=packages)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _make(suite: str, packages: Sequence[str], target: Path, progress: Progress) -> None:
    source = apt_source(suite, apt_sources())
    if not shutil.which("debootstrap"):
        raise InputError(
            "debootstrap is not installed, which makes a base of Debian packages",
            expected="debootstrap, or a base of a registry",
            todo="apt-get install debootstrap, or name another --base",
        )
    if os.geteuid():
        raise InputError(
            f"user {os.geteuid()} cannot make a base of Debian packages: that mounts and changes root",
            expected="root",
            todo="make it once as root (what is made is kept), or name a --base of a registry",
        )
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent, ignore_cleanup_errors=True) as name:
        root = Path(name, "root")
        keyring = [f"--keyring={source.keyring}"] if source.keyring else []
        command = [*_KILLED_WITH_US, "debootstrap", "--variant=minbase", f"--include={','.join(packages)}", *keyring,
                   suite, str(root), source.uri]  # fmt: skip
        _run(command, f"make a base of Debian {suite}", progress)
        installed = read_status((root / "var/lib/dpkg/status").read_text(encoding="utf-8"))
        _clean(root, suite, source.uri)
        made = Path(name, "made")
        made.mkdir()
        _run(["tar", "--create", f"--file={made / 'root.tar'}", f"--directory={root}", "--sort=name", "--numeric-owner",
              "--one-file-system", "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "."],
             "pack the base", progress)  # fmt: skip
        with (made / "root.tar").open("rb") as file:
            facts = {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "packages": installed}
        (made / "root.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        made.rename(target)


def _run(command: Sequence[str], what: str, progress: Progress) -> None:
    """Run a program, its lines as progress; when we are interrupted, it is killed."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        watchdog = Timer(_SECONDS, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in process.stdout or ():
                lines = [*lines[1 - _LAST_LINES :], line.strip()]
                progress(short(line))
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    if process.returncode:
        raise LanewiseError(
            f"cannot {what}: {command[-1] if command[0] == 'tar' else 'debootstrap'} ended with {process.returncode}: "
            f"{short(' / '.join(lines))}",
            expected="a Debian package source that answers, and room for a few hundred MB",
            todo="check network, package sources and space, and call again",
        )


def _clean(root: Path, suite: str, uri: str) -> None:
    for name in _NOT_KEPT:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
            path.mkdir(mode=0o1777 if name == "tmp" else 0o755)
            path.chmod(0o1777 if name == "tmp" else 0o755)
        else:
            path.unlink(missing_ok=True)
    # A private mirror's address may hold a password, which must not get into a layer.
    line = f"deb {uri} {suite} main\n" if "@" not in uri else ""
    (root / "etc/apt/sources.list").write_text(line, encoding="utf-8")


def read_status(text: str) -> dict[str, str]:
    """What dpkg's status file calls installed: "name:architecture" to version."""
    stanzas = (dict(re.findall(r"^([A-Za-z-]+): (.*)$", stanza, re.MULTILINE)) for stanza in text.split("\n\n"))
    return {
        f"{stanza['Package']}:{stanza['Architecture']}": stanza["Version"]
        for stanza in stanzas
        if stanza.get("Status") == "install ok installed"
    }


def apt_source(suite: str, sources: Sequence[AptSource]) -> AptSource:
    """The machine's source of a suite; where it has none of that suite, the archive of its own Debian.

    Raises:
        InputError: there is neither.
    """
    usable = [s for s in sources if s.uri.startswith(("http://", "https://", "file:")) and "main" in s.components]
    exact = [s for s in usable if suite in s.suites]
    archive = [s for s in usable if s.uri.rstrip("/").endswith("/debian")]
    if not (exact or archive):
        raise InputError(
            f"this machine has no package source that has Debian {suite}",
            expected="a source with component main in /etc/apt/sources.list or sources.list.d",
            todo="add one, or name a --base of a registry",
        )
    return (exact or archive)[0]


def apt_sources(folder: Path = Path("/etc/apt")) -> list[AptSource]:
    """The machine's package sources, in both formats that apt reads (sources.list(5))."""
    found: list[AptSource] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if path.suffix == ".list":
            found += [source for line in text.splitlines() if (source := _one_line(line))]
        elif path.suffix == ".sources":
            found += [source for stanza in re.split(r"\n\s*\n", text) for source in _stanza(stanza)]
    return found


def _one_line(line: str) -> AptSource | None:
    match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
    if not match:
        return None
    options = dict(word.partition("=")[::2] for word in (match[1] or "").split())
    return AptSource(
        uri=match[2],
        suites=(match[3],),
        components=tuple(match[4].split()),
        keyring=_keyring(options.get("signed-by", "")),
    )


def _stanza(text: str) -> list[AptSource]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    fields = {
        name.lower(): value.strip()
        for name, value in re.findall(r"(?m)^([A-Za-z-]+):((?:.|\n[ \t])*)", "\n".join(lines))
    }
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
        return []
    return [
        AptSource(
            uri=uri,
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            keyring=_keyring(fields.get("signed-by", "")),
        )
        for uri in fields.get("uris", "").split()
    ]


def _keyring(value: str) -> str:
    """A source may also hold the key's text or its fingerprint, which debootstrap does not take."""
    return value if re.fullmatch(r"/\S+", value) else ""
