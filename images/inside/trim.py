"""Removes what a plan leaves out from site-packages, keeps every RECORD right, and says what was saved.

Run while an image is made: `python3 trim.py SITE_PACKAGES LEFT_OUT REPORT`. LEFT_OUT is JSON: pattern of paths within
site-packages (`*` also matches `/`) to why. REPORT becomes JSON: a list of pattern, why, files and bytes.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path


def trim(site: Path, left_out: dict[str, str]) -> list[dict[str, object]]:
    """Remove the files; a distribution's own metadata stays, so that it still counts as installed."""
    files = sorted(
        path for path in site.rglob("*") if (path.is_file() or path.is_symlink()) and ".dist-info" not in str(path)
    )
    report: list[dict[str, object]] = []
    removed: set[str] = set()
    for pattern, why in sorted(left_out.items()):
        matches = [
            path
            for path in files
            if (name := path.relative_to(site).as_posix()) not in removed and fnmatchcase(name, pattern)
        ]
        size = sum(path.lstat().st_size for path in matches)
        for path in matches:
            path.unlink()
            _remove_empty(path.parent, site)
        removed |= {path.relative_to(site).as_posix() for path in matches}
        report.append({"pattern": pattern, "why": why, "files": len(matches), "bytes": size})
    _mend_records(site, removed)
    return report


def _remove_empty(folder: Path, site: Path) -> None:
    while folder != site and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _mend_records(site: Path, removed: set[str]) -> None:
    for record in sorted(site.glob("*.dist-info/RECORD")) if removed else ():
        rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
        kept = [row for row in rows if row and row[0] not in removed]
        if len(kept) != len(rows):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(kept)
            record.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    _site, _left_out, _report = map(Path, sys.argv[1:])
    _done = trim(_site, json.loads(_left_out.read_text(encoding="utf-8")))
    _report.write_text(json.dumps(_done, indent=1) + "\n", encoding="utf-8")
    for _row in _done:
        sys.stdout.write(f"left out {_row['pattern']}: {_row['files']} files, {_row['bytes']} bytes\n")
