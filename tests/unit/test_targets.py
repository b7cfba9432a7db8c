"""Going through targets: every regular file once, nothing outside, nothing unpacked; archives that lie are refused."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker.errors
import pytest
import requests

from images import container
from images.contents import DamagedError, Member
from images.targets import Target, TargetKind, find_target, walk
from lanewise.engine import EngineState
from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.makers_elf import fake_tar, fake_zip

FILES = {"a.so": b"a" * 100, "pkg/b.py": b"print()", "pkg/empty": b""}


def everything(path: str, size: int) -> bool:
    return True


def read_all(target: Path | str) -> dict[str, bytes | str]:
    """Contents by path, or what is wrong with them."""

    def content(member: Member) -> bytes | str:
        try:
            return member.read(1 << 20)
        except DamagedError as error:
            return str(error)

    with closing(walk(find_target(str(target)), everything)) as members:
        return {member.path: content(member) for member in members}


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def filled(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, data in files.items():
        written(folder / name, data)
    return folder


# --------------------------------------------------------------------------------------------------------------- kinds


def test_what_a_path_is_is_told(tmp_path: Path) -> None:
    kinds = {
        written(tmp_path / "lib.so", b"x"): TargetKind.FILE,
        written(tmp_path / "a.whl", fake_zip(FILES)): TargetKind.WHEEL,
        written(tmp_path / "zip-by-content", fake_zip(FILES)): TargetKind.WHEEL,
        written(tmp_path / "broken.whl", b"x"): TargetKind.WHEEL,
        written(tmp_path / "r.tar", fake_tar(FILES)): TargetKind.ARCHIVE,
        written(tmp_path / "r.tgz", fake_tar(FILES, mode="w:gz")): TargetKind.ARCHIVE,
        filled(tmp_path / "root", {"etc/a": b"", "usr/b": b""}): TargetKind.ROOT,
        filled(tmp_path / "venv", {"pyvenv.cfg": b""}): TargetKind.ENVIRONMENT,
        filled(tmp_path / "prefix", {"lib/python3.12/site-packages/x.py": b""}): TargetKind.ENVIRONMENT,
        filled(tmp_path / "target", {"torch-2.9.1.dist-info/METADATA": b""}): TargetKind.ENVIRONMENT,
        filled(tmp_path / "folder", {"x": b""}): TargetKind.FOLDER,
    }
    assert {path: find_target(str(path)).kind for path in kinds} == kinds


@pytest.mark.parametrize("name", ["lmsysorg/sglang:v0.5.9-cu128", "sglang", "localhost:5000/x@sha256:" + "0" * 64])
def test_what_is_no_path_is_an_image(name: str) -> None:
    assert find_target(name) == Target(name=name, kind=TargetKind.IMAGE)


@pytest.mark.parametrize("name", ["", "/no/such", "./no", "no.whl", "x\0y", "/dev/null", "a" * 5000])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        find_target(name)


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_a_wheel_and_an_archive_give_the_same_files(tmp_path: Path) -> None:
    assert read_all(filled(tmp_path / "f")) == FILES
    assert read_all(written(tmp_path / "a.whl", fake_zip(FILES))) == FILES
    assert read_all(written(tmp_path / "s.whl", fake_zip(FILES, method=zipfile.ZIP_STORED))) == FILES
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        assert read_all(written(tmp_path / f"{mode[2:]}.tar", fake_tar(FILES, mode=mode))) == FILES


def test_a_single_file_has_its_name(tmp_path: Path) -> None:
    assert read_all(written(tmp_path / "lib.so", b"x")) == {"lib.so": b"x"}


def test_only_what_is_wanted_is_handed_out(tmp_path: Path) -> None:
    target = find_target(str(filled(tmp_path / "f")))
    assert [member.path for member in walk(target, lambda path, size: size > 50)] == ["a.so"]


def test_links_are_not_followed_and_what_they_point_to_counts_once(tmp_path: Path) -> None:
    outside = written(tmp_path / "outside/secret.so", b"x")
    folder = filled(tmp_path / "f")
    (folder / "a.so.1").symlink_to("a.so")
    (folder / "out").symlink_to(outside.parent)
    (folder / "out.so").symlink_to(outside)
    (folder / "pkg/loop").symlink_to("..")
    (folder / "dangling").symlink_to("nowhere")
    os.link(folder / "a.so", folder / "hard.so")
    os.mkfifo(folder / "pipe.so")
    assert read_all(folder) == FILES


def test_the_target_itself_may_be_a_link(tmp_path: Path) -> None:
    filled(tmp_path / "f")
    (tmp_path / "link").symlink_to("f")
    assert read_all(tmp_path / "link") == FILES


def test_a_root_file_systems_kernel_interfaces_are_left_alone(tmp_path: Path) -> None:
    files = {"etc/a": b"", "usr/b": b"", "proc/kcore": b"x", "sys/x": b"x", "dev/y": b"x", "opt/proc/z": b"z"}
    assert set(read_all(filled(tmp_path / "r", files))) == {"etc/a", "usr/b", "opt/proc/z"}
    assert set(read_all(filled(tmp_path / "f", {"proc/x": b"", "y": b""}))) == {"proc/x", "y"}


def test_names_that_are_no_text_can_be_shown(tmp_path: Path) -> None:
    written(tmp_path / "f/x", b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/f/\xff.so")).write_bytes(b"y")
    assert read_all(tmp_path / "f") == {"x": b"", "\N{REPLACEMENT CHARACTER}.so": b"y"}


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, locked = os.scandir, str(filled(tmp_path / "f") / "pkg")

    def refusing(path: str) -> object:
        if path == locked:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert read_all(tmp_path / "f") == {"a.so": FILES["a.so"], "pkg": "cannot be listed (Permission denied)"}


def test_a_file_that_vanishes_is_told(tmp_path: Path) -> None:
    folder = filled(tmp_path / "f")
    members = list(walk(find_target(str(folder)), everything))
    (folder / "a.so").unlink()
    with pytest.raises(DamagedError, match="No such file"):
        members[0].read(1000)


def test_more_than_the_limit_is_not_read(tmp_path: Path) -> None:
    (member,) = walk(find_target(str(written(tmp_path / "x.so", b"12345"))), everything)
    with pytest.raises(DamagedError, match="5 bytes are more than the 4"):
        member.read(4)


# ---------------------------------------------------------------------------------------------------------------- zip

CENTRAL = b"PK\x01\x02"


def patched(files: dict[str, bytes], changes: dict[int, tuple[str, int]], *, number: int = 0, **how: int) -> bytes:
    """A zip archive of which fields of a member's directory entry are overwritten, by their offset."""
    data = bytearray(fake_zip(files, **how))
    at = -1
    for _ in range(number + 1):
        at = data.index(CENTRAL, at + 1)
    for offset, (layout, value) in changes.items():
        struct.pack_into(layout, data, at + offset, value)
    return bytes(data)


FLAGS, METHOD, CRC, PACKED, SIZE, OFFSET = 8, 10, 16, 20, 24, 42


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no end record"),
        (b"PK\x05\x06", "no end record"),
        (fake_zip(FILES)[:-30], "no end record"),
        (fake_zip(FILES)[60:], "zip archive"),
        (fake_zip({"/etc/passwd": b"x"}), "'/etc/passwd' has no place"),
        (fake_zip({"x": b"1"}).replace(b"x", b"\0"), "'' has no place"),
        (fake_zip({"a/../../x": b"x"}), "has no place"),
        (patched(FILES, {SIZE: ("<I", 1 << 31)}), "promises 2,147,483,648 bytes from"),
        (patched(FILES, {PACKED: ("<I", 1 << 20)}), "overlaps the next one"),
        (patched(FILES, {OFFSET: ("<I", 0)}, number=1), "overlaps the next one"),
    ],
)
def test_a_zip_archive_that_lies_is_refused_as_a_whole(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_all(written(tmp_path / "a.whl", data))


def test_a_directory_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    data = bytearray(fake_zip(FILES))
    struct.pack_into("<HI", data, len(data) - 12, 3, 100 << 20)
    with pytest.raises(InputError, match="104,857,600 bytes"):
        read_all(written(tmp_path / "a.whl", bytes(data)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({FLAGS: ("<H", 1)}, "is encrypted"),
        ({METHOD: ("<H", 99)}, "is compressed by method 99"),
        ({METHOD: ("<H", 14)}, "is compressed by method 14"),
        ({CRC: ("<I", 1)}, "CRC"),
        ({SIZE: ("<I", 150)}, "early"),
        ({SIZE: ("<I", 50)}, "CRC"),
    ],
)
def test_a_damaged_member_is_told_and_hides_no_other(
    changes: dict[int, tuple[str, int]], says: str, tmp_path: Path
) -> None:
    found = read_all(written(tmp_path / "a.whl", patched(FILES, changes)))
    assert says in str(found.pop("a.so"))
    assert found == {name: data for name, data in FILES.items() if name != "a.so"}


def test_damaged_compressed_data_is_told(tmp_path: Path) -> None:
    data = fake_zip({"a.so": bytes(range(256)) * 50})
    data = data[:60] + b"\xff" * 40 + data[100:]
    assert "cannot be decompressed" in str(read_all(written(tmp_path / "a.whl", data))["a.so"])


# ---------------------------------------------------------------------------------------------------------------- tar


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_are_relative_to_the_root(form: int, tmp_path: Path) -> None:
    long = "d" * 90 + "/" + "n" * 90
    data = fake_tar({"./usr/a": b"1", "/etc/b": b"2", long: b"3"}, form=form)
    assert read_all(written(tmp_path / "r.tar", data)) == {"usr/a": b"1", "etc/b": b"2", long: b"3"}


def test_what_is_not_read_is_passed_over(tmp_path: Path) -> None:
    data = fake_tar({"big": b"x" * 3_000_000, "a.so": b"a"})
    target = find_target(str(written(tmp_path / "r.tar", data)))
    found = {member.path: member.read(10) for member in walk(target, lambda path, size: size < 10)}
    assert found == {"a.so": b"a"}


def test_links_and_devices_of_an_archive_are_left_out(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            entry = tarfile.TarInfo(f"entry{kind.decode()}")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    assert read_all(written(tmp_path / "r.tar", made.getvalue())) == {}


def header(name: str = "x", *, size: bytes = b"00000000000", kind: bytes = b"0") -> bytes:
    """A tar header with a right checksum, whatever stands in it."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


SPARSE_MAP = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n25 GNU.sparse.realsize=9\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (fake_tar(FILES)[:700], "tar archive"),
        (header(size=b"77777777777") + b"x" * 5000, "tar archive"),
        (header(size=b"\x80" + bytes(3) + b"\x7f" * 8) + b"x" * 5000, "ends in the middle"),
        (header(size=b"\xff" * 12) + b"x" * 5000, "tar archive"),
        (header(kind=b"L", size=b"00040000000") + b"n" * (9 << 20), "megabytes of names"),
        (header(kind=b"x", size=b"00040000000") + b"n" * (9 << 20), "megabytes of names"),
        (fake_tar(FILES)[: 512 * 4], "without an end mark"),
        (fake_tar({"z": bytes(30 << 20)}, mode="w:xz"), "more than 1,032 times"),
        (header(kind=b"x", size=b"00000000105") + SPARSE_MAP.ljust(512, b"\0") + header(size=b"00000001000")
         + b"9" * 512, "tar archive"),
        (header(kind=b"x", size=b"00000000000") * 3000, "tar archive"),
        (b"\x1f\x8b" + b"x" * 1000, "tar archive"),
        (b"BZh9" + b"x" * 1000, "tar archive"),
        (fake_tar(FILES, mode="w:gz")[:-20], "tar archive"),
        (fake_tar({"oci-layout": b"{}", "blobs/sha256/0": b"x"}), "is a saved image"),
        (fake_tar({"0123/layer.tar": b"x"}), "is a saved image"),
    ],
)  # fmt: skip
def test_a_tar_archive_that_lies_is_refused(data: bytes, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / "r.tar", data)
    with pytest.raises(InputError, match=says):
        list(walk(Target(name=str(path), kind=TargetKind.ARCHIVE), everything))


def test_a_sparse_member_is_told(tmp_path: Path) -> None:
    block = bytearray(header(kind=b"S", size=b"00000000000"))
    block[386:410] = b"00000000000\0" * 2
    block[483:495] = b"00000001000\0"
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    assert read_all(written(tmp_path / "r.tar", bytes(block) + bytes(10240))) == {"x": "is stored sparsely"}


# --------------------------------------------------------------------------------------------------------------- image


class FakeEngine:
    """Stands for the docker SDK's client: one image, and a note of what happens to the container."""

    def __init__(self, *, fails: Exception | None = None) -> None:
        self.containers = self
        self.fails = fails
        self.done: list[str] = []

    def create(self, image: str, command: list[str]) -> FakeEngine:
        if image == "missing":
            raise docker.errors.ImageNotFound("no such image")
        if image == "Bad Name":
            refusal = requests.Response()
            refusal.status_code = 400
            raise docker.errors.APIError("bad request", response=refusal, explanation="invalid reference format")
        self.done.append("created")
        return self

    def export(self) -> Iterator[bytes]:
        data = fake_tar({"usr/a.so": b"a" * 5000, "etc/b": b"b"})
        for start in range(0, len(data), 700):
            if self.fails and start > 1500:
                raise self.fails
            yield data[start : start + 700]

    def remove(self, force: bool) -> None:
        self.done.append("removed")

    def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(container, "engine_state", lambda: EngineState(present=True, detail="fake"))
    monkeypatch.setattr("docker.from_env", lambda timeout: fake)
    return fake


def test_an_image_is_read_from_a_container_that_is_removed(engine: FakeEngine) -> None:
    assert read_all("an-image:1") == {"usr/a.so": b"a" * 5000, "etc/b": b"b"}
    assert engine.done == ["created", "removed", "closed"]


@pytest.mark.parametrize(
    ("fails", "ends"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ConnectionError("gone"), UnreachableError),
        (docker.errors.APIError("no"), LanewiseError),
    ],
)
def test_the_container_is_removed_however_it_ends(
    engine: FakeEngine, fails: Exception, ends: type[BaseException]
) -> None:
    engine.fails = fails
    with pytest.raises(ends):
        read_all("an-image:1")
    assert engine.done == ["created", "removed", "closed"]


def test_the_container_is_removed_when_the_walk_is_left_early(engine: FakeEngine) -> None:
    with closing(walk(find_target("an-image:1"), everything)) as members:
        next(members)
    assert engine.done == ["created", "removed", "closed"]


def test_an_image_that_is_not_there_is_an_input_error(engine: FakeEngine) -> None:
    with pytest.raises(InputError, match="'missing'"):
        read_all("missing")
    assert engine.done == ["closed"]


def test_a_name_that_no_image_can_have_is_an_input_error(engine: FakeEngine) -> None:
    with pytest.raises(InputError, match=r"'Bad Name'.*invalid reference format"):
        read_all("Bad Name")
    assert engine.done == ["closed"]


def test_without_an_engine_an_image_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "engine_state", lambda: EngineState(present=False, detail="no Docker engine"))
    with pytest.raises(UnreachableError, match="no Docker engine"):
        read_all("an-image:1")
