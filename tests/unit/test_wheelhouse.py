from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from images.wheelhouse import BuiltComponent, Wheelhouse
from lanewise.errors import LanewiseError

KEY = "a" * 64
FIELDS = {"name": "nccl", "version": "2.30.7", "seconds": 3.5, "jobs": 2, "before": None, "after": {"size": 3}}


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


def built(wheelhouse: Wheelhouse, key: str = KEY, content: bytes = b"a wheel") -> BuiltComponent:
    with wheelhouse.building(key) as folder:
        (folder / "out").mkdir()
        (folder / "out" / "nccl-2.30.7-py3-none-any.whl").write_bytes(content)
        (folder / "out" / "scratch.txt").write_text("not kept")
        return wheelhouse.keep(folder / "out", FIELDS, key)


def names(wheelhouse: Wheelhouse) -> list[str]:
    return sorted(path.name for path in wheelhouse.folder.iterdir())


def test_what_was_built_is_found_under_its_key_and_no_other(wheelhouse) -> None:
    made = built(wheelhouse)
    found = wheelhouse.find(KEY)
    assert found is not None
    assert found.reused
    assert not made.reused
    assert [wheel.path.read_bytes() for wheel in found.wheels] == [b"a wheel"]
    assert (found.name, found.version, found.seconds, found.jobs, found.after) == (
        "nccl",
        "2.30.7",
        3.5,
        2,
        {"size": 3},
    )
    assert wheelhouse.find("b" * 64) is None
    assert names(wheelhouse) == [KEY, f"{KEY}.lock"]
    assert sorted(p.name for p in (wheelhouse.folder / KEY).iterdir()) == ["built.json", "nccl-2.30.7-py3-none-any.whl"]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: flipped(folder / "nccl-2.30.7-py3-none-any.whl"),
        lambda folder: (folder / "nccl-2.30.7-py3-none-any.whl").write_bytes(b""),
        lambda folder: (folder / "nccl-2.30.7-py3-none-any.whl").unlink(),
        lambda folder: (folder / "built.json").unlink(),
        lambda folder: (folder / "built.json").write_text("{"),
        lambda folder: (folder / "built.json").write_text("[]"),
        lambda folder: (folder / "built.json").write_text("{}"),
        lambda folder: (folder / "built.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_what_is_damaged_is_said_and_built_again(wheelhouse, harm) -> None:
    built(wheelhouse)
    harm(wheelhouse.folder / KEY)
    said: list[str] = []
    assert wheelhouse.find(KEY, said.append) is None
    assert len(said) == 1
    assert "built again" in said[0]
    built(wheelhouse, content=b"anew")
    found = wheelhouse.find(KEY)
    assert found is not None
    assert found.wheels[0].path.read_bytes() == b"anew"


@pytest.mark.parametrize("change", [{"key": "b" * 64}, {"wheels": []}, {"wheels": [{"file": "../x.whl"}]}])
def test_a_record_that_is_not_of_this_folder_is_not_believed(wheelhouse, change) -> None:
    built(wheelhouse)
    record = wheelhouse.folder / KEY / "built.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    assert wheelhouse.find(KEY) is None


def test_a_build_that_fails_leaves_nothing(wheelhouse) -> None:
    def failing() -> None:
        with wheelhouse.building(KEY) as folder:
            (folder / "half.whl").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert wheelhouse.find(KEY) is None
    assert names(wheelhouse) == [f"{KEY}.lock"]


def test_a_build_without_a_wheel_is_an_error(wheelhouse) -> None:
    with wheelhouse.building(KEY) as folder, pytest.raises(LanewiseError, match="left no wheel"):
        wheelhouse.keep(folder, FIELDS, KEY)


def test_what_a_killed_run_left_is_gone_when_the_key_is_built_again(wheelhouse) -> None:
    left = wheelhouse.folder / f".{KEY}-killed"
    other = wheelhouse.folder / f".{'b' * 64}-alive"
    for folder in (left, other):
        folder.mkdir(parents=True)
    built(wheelhouse)
    assert not left.exists()
    assert other.exists()  # somebody else's, who may be at it


def hold(folder: Path, has: multiprocessing.Event, go: multiprocessing.Event) -> None:  # type: ignore[valid-type]
    with Wheelhouse(folder).building(KEY):
        has.set()
        go.wait(20)


def test_two_runs_do_not_build_the_same_at_once(wheelhouse) -> None:
    context = multiprocessing.get_context("spawn")
    has, go = context.Event(), context.Event()
    other = context.Process(target=hold, args=(wheelhouse.folder, has, go))
    other.start()
    try:
        assert has.wait(20)
        said: list[str] = []

        def told(line: str) -> None:
            said.append(line)
            go.set()  # only now does the other end

        with wheelhouse.building(KEY, told) as folder:
            assert folder.is_dir()
        assert said == ["another run builds it already: waiting for that"]
    finally:
        go.set()
        other.join(20)
        other.close()


def test_a_wheelhouse_that_cannot_be_written_to_is_an_error_by_name(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LanewiseError, match="cannot write"), Wheelhouse(tmp_path / "file").building(KEY):
        pass


def test_what_is_no_key_is_a_programming_error(wheelhouse) -> None:
    for wrong in ("", "../../etc", KEY.upper(), KEY + "a"):
        with pytest.raises(ValueError, match="no key"):
            wheelhouse.find(wrong)


def test_a_wheelhouse_can_be_moved(wheelhouse, tmp_path) -> None:
    built(wheelhouse)
    shutil.move(wheelhouse.folder, tmp_path / "elsewhere")
    found = Wheelhouse(tmp_path / "elsewhere").find(KEY)
    assert found is not None
    assert found.wheels[0].path.parent == tmp_path / "elsewhere" / KEY
