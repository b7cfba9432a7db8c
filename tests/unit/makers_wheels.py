"""Makes small wheels and a lock that names them, for tests; real pip reads them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from images.lock import LockedToolchain, LockedWheel
from images.matrix import Toolchain


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> LockedWheel:
    """A wheel with these files, as pip and the toolkit read it."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nA description.\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    data = path.read_bytes()
    return LockedWheel(
        name=name, version=version, file=path.name, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )


def make_toolchain(wheels: list[LockedWheel]) -> tuple[Toolchain, LockedToolchain]:
    """A toolchain that pins these wheels, and its lock."""
    toolchain = Toolchain(
        name="small",
        cuda="12.8.1",
        python="3.12",
        meaning="for tests",
        arch={"flashinfer": "12.0a"},
        pins={wheel.name: wheel.version for wheel in wheels},
    )
    return toolchain, LockedToolchain(python="3.12", wheels=tuple(wheels), unresolved={})
