"""Makes what tests of images need: wheels, plans, and workers, all small and their own."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import parse_wheel_filename

from images.build_plan import Base, BaseKind, BuildPlan, ComponentBuild, Estimate, Profile, Source, SourceKind
from images.lock import LockedWheel

BOOKWORM = Base(name="debian-bookworm", kind=BaseKind.DEBIAN, reference="bookworm", python="3.11")
CUDA = Base(
    name="cuda-12.8.1",
    kind=BaseKind.REGISTRY,
    reference="nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04",
    python="3.12",
    digest="sha256:" + "ab" * 32,
    cuda=True,
)


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], *, requires: str = "") -> Path:
    """A pure wheel with these files, and a RECORD that is right."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in whole.items()
    ]
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in (whole | {f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()}).items():
            archive.writestr(zipfile.ZipInfo(member), data)  # of 1980: the same files make the same wheel
    return path


def locked(path: Path) -> LockedWheel:
    """What the lock would say of a file."""
    name, version, *_ = parse_wheel_filename(path.name)
    data = path.read_bytes()
    return LockedWheel(
        name=str(name), version=str(version), file=path.name, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )


def named_wheel(name: str, version: str) -> LockedWheel:
    """A wheel of the lock that no file belongs to."""
    digest = hashlib.sha256(f"{name}{version}".encode()).hexdigest()
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, file=file, sha256=digest, size=1000)


def component(name: str = "nccl", **changes: object) -> ComponentBuild:
    """A component that is rebuilt."""
    fields: dict[str, object] = {
        "name": name,
        "distributions": ("nvidia-nccl-cu13",),
        "version": "2.30.7",
        "source": Source(kind=SourceKind.GIT, location="https://example.org/nccl", identity="c" * 40, ref="v2.30.7-1"),
        "script": "make",
        "why": "asked for",
        "estimate": Estimate(cpu_minutes=1, gb_per_job=1, source="none"),
    }
    return ComponentBuild(**{**fields, **changes})  # type: ignore[arg-type]


def make_plan(**changes: object) -> BuildPlan:
    """The plan of a core image of CUDA 13 on Debian."""
    fields: dict[str, object] = {
        "toolchain": "cu130",
        "cuda": "13.0",
        "arch": {"torch": "12.0a", "flashinfer": "12.0f"},
        "profile": Profile.CORE,
        "base": BOOKWORM,
        "wheels": (
            named_wheel("cuda-bindings", "13.0.3"),
            named_wheel("mpi4py", "4.1.1"),
            named_wheel("nvidia-cuda-nvcc", "13.0.88"),
            named_wheel("nvidia-nccl-cu13", "2.30.7"),
        ),
    }
    return BuildPlan(**{**fields, **changes})  # type: ignore[arg-type]


def make_workers(folder: Path, text: str = "print('worker')\n") -> Path:
    """A folder with one worker."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.py").write_text(text, encoding="utf-8")
    return folder
