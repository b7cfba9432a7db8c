"""Finds another release of NCCL to measure beside an environment's own: by path, or from its wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lanewise.errors import InputError, LanewiseError
from lanewise.files import writing

_RELEASE = re.compile(r"(?:(cu1[23])-)?(\d+\.\d+\.\d+(?:\.post\d+)?)", re.ASCII)
_MEMBER = "nvidia/nccl/lib/libnccl.so.2"
_SECONDS = 600


def find_nccl(spec: str, cache: Path) -> tuple[str, Path]:
    """A label and the libnccl for a path or a release such as "2.28.9", "cu12-2.27.5" or "cu13-2.30.7".

    A release is fetched once as the wheel nvidia-nccl-cu12 or -cu13 (cu13 where none is named), with pip, into `cache`;
    the wheel is opened, not installed.

    Raises:
        InputError: neither a file nor the form of a release.
        LanewiseError: the wheel cannot be had, or holds no libnccl.
    """
    if "/" in spec or ".so" in spec:
        path = Path(os.path.realpath(os.path.expanduser(spec)))  # noqa: PTH111 - pathlib raises over ~nobody and loops
        if not path.is_file():
            raise InputError(f"there is no libnccl at {spec}", expected="a libnccl.so.2", todo="check the path")
        return _label(path), path
    if not (match := _RELEASE.fullmatch(spec)):
        raise InputError(
            f"--nccl is {spec!r}",
            expected="a path to a libnccl.so.2, or a release such as 2.28.9, cu12-2.27.5 or cu13-2.30.7",
            todo="correct it",
        )
    build, release = match.group(1) or "cu13", match.group(2)
    label = f"{build}-{release}"
    library = cache / label / "libnccl.so.2"
    if not library.is_file():
        _fetch(f"nvidia-nccl-{build}=={release}", library)
    return label, library


def _label(path: Path) -> str:
    """A name for a library given by path: its folder's where the file has the usual name."""
    stem = path.parent.name if path.name.startswith("libnccl.so") else path.name.removesuffix(".so")
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem)


def _fetch(requirement: str, library: Path) -> None:
    with writing(library):
        library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        found = _download(requirement, Path(folder))
        try:
            with zipfile.ZipFile(found) as wheel, writing(library):
                extracted = wheel.extract(_MEMBER, folder)
                os.replace(extracted, library)  # noqa: PTH105 - whole or not at all
        except (KeyError, zipfile.BadZipFile) as error:
            raise LanewiseError(
                f"{found.name} holds no {_MEMBER} ({error})", expected="NCCL's wheel", todo="name a path instead"
            ) from error


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--dest", str(folder), requirement]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _unfetched(requirement, f"no end within {_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise _unfetched(requirement, (done.stderr.strip().splitlines() or ["pip said nothing"])[-1])
    return wheels[0]


def _unfetched(requirement: str, why: str) -> LanewiseError:
    return LanewiseError(
        f"cannot fetch {requirement}: {why}",
        expected="a wheel on the Python index that pip is set up for",
        todo="check network, release and build (cu12-2.27.5 has no cu13), or name a libnccl.so.2 by path",
    )
