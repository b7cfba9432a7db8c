from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from images.components import read_components
from images.patching import PATCHES, patches_for, read_patches
from lanewise.errors import InputError

GOOD = """\
Why: a table lacks SM120,
 and is indexed all the same
Upstream: https://example.invalid/pull/1
Versions: >=0.5.9,<0.5.14
---
diff --git a/package/file.py b/package/file.py
--- a/package/file.py
+++ b/package/file.py
@@ -1 +1 @@
-one
+two
"""


def written(tmp_path: Path, text: str, name: str = "001-a.patch") -> Path:
    folder = tmp_path / "sglang"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return tmp_path


def test_a_patch_says_why_for_what_and_what_it_changes(tmp_path) -> None:
    (patch,) = read_patches("sglang", written(tmp_path, GOOD))
    assert patch.why == "a table lacks SM120, and is indexed all the same"
    assert patch.upstream == "https://example.invalid/pull/1"
    assert patch.files == ("package/file.py",)
    assert patch.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.5.8", False), ("0.5.9", True), ("0.5.10.post1", True), ("0.5.14", False), ("0.5.10rc1", True)],
)
def test_a_patch_is_for_some_versions(tmp_path, version, fits) -> None:
    assert bool(patches_for("sglang", version, written(tmp_path, GOOD))) == fits


def test_patches_are_in_the_order_of_their_numbers(tmp_path) -> None:
    for name in ("010-z.patch", "002-b.patch", "001-c.patch"):
        written(tmp_path, GOOD, name)
    assert [p.name for p in patches_for("sglang", "0.5.9", tmp_path)] == ["001-c.patch", "002-b.patch", "010-z.patch"]


def test_a_component_without_a_folder_has_no_patches(tmp_path) -> None:
    assert read_patches("torch", tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("Why: a", "Why: \nNot: a"), "has the line 'Not: a"),
        (GOOD.replace("Upstream", "Upstairs"), "has the line 'Upstairs"),
        (GOOD.replace("Upstream: https://example.invalid/pull/1\n", ""), "lacks Upstream"),
        (GOOD.replace("Versions: >=0.5.9,<0.5.14", "Versions: all"), "Versions is 'all'"),
        (GOOD.replace("Why:", "Why: x\nWhy:"), "has the line 'Why:"),
        (GOOD.replace("\n---\n", "\n"), "has the line 'diff"),
        (GOOD[: GOOD.index("@@")], "no unified diff"),
        (GOOD[: GOOD.index("diff")], "no unified diff"),
        (GOOD.replace("b/package/file.py", "b/../../etc/passwd"), "outside the sources"),
        (GOOD.replace("+++ b/package/file.py", "+++ /etc/passwd"), "outside the sources"),
        ("", "lacks Why, Upstream, Versions"),
    ],
)
def test_a_patch_without_its_header_or_its_diff_is_refused(tmp_path, text, says) -> None:
    with pytest.raises(InputError) as caught:
        read_patches("sglang", written(tmp_path, text))
    assert says in caught.value.what
    assert "001-a.patch" in caught.value.what


@pytest.mark.parametrize("name", ["a.patch", "1-a.patch", "001-A.patch", "001-a.diff", "001-a.patch.orig"])
def test_a_name_without_a_number_is_refused(tmp_path, name) -> None:
    with pytest.raises(InputError, match="number and words"):
        read_patches("sglang", written(tmp_path, GOOD, name))


def test_what_ships_can_be_read_and_is_of_components_that_there_are() -> None:
    components = {folder.name for folder in PATCHES.iterdir()}
    assert components <= set(read_components())
    assert all(read_patches(component) for component in components)
