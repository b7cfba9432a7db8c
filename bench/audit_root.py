"""Seconds and memory of auditing a large root file system: python bench/audit_root.py WHEELS [FOLDER]

The wheels in the folder WHEELS are unpacked as environments below opt/ of a root file system in FOLDER (default: the
system's folder for temporary files), again and again until it has 10 GB; then it is audited twice. The first audit
begins
with an empty page cache where this may be emptied (as root), else with what unpacking left there.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from images.audit import audit
from images.capability import Capability

BYTES = 10_000_000_000


def build(wheels: list[Path], root: Path) -> tuple[int, int]:
    """Unpack until there is enough; bytes and files."""
    for name in ("etc", "usr"):
        (root / name).mkdir()
    size = files = 0
    for number, wheel in enumerate(itertools.cycle(wheels)):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / f"opt/env{number}/lib/python3.12/site-packages")
            size += sum(entry.file_size for entry in archive.infolist())
            files += len(archive.infolist())
        if size >= BYTES:
            break
    return size, files


def empty_page_cache() -> str:
    """Try to; says what the cache holds now."""
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "cold"
    return "as unpacked"


def main(wheels: Path, folder: str | None) -> None:
    """Build, audit, print."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        size, files = build(sorted(wheels.glob("*.whl")), Path(temporary))
        print(f"{size / 1e9:.1f} GB in {files:,} files")
        for cache in (empty_page_cache(), "warm"):
            start = time.perf_counter()
            found = audit(temporary, capability=Capability.parse("12.0"))
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            libraries = len(found.libraries)
            print(f"{cache:12} {seconds:6.2f} s, {libraries} libraries with device code, peak RSS {peak:.0f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
