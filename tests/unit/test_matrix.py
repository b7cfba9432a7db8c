"""The matrix, the lock, and what differs between toolchains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from images.build_plan import BaseKind, Profile
from images.differences import differences
from images.images_view import document, show_all, show_differences, show_one
from images.lock import LOCK, Lock, LockedToolchain, LockedWheel, Resolved, lock_text, read_lock, write_lock
from images.locking import Origins, drift, relock
from images.matrix import Toolchain, find_toolchain, parse_pins, read_toolchains, release
from lanewise import talk
from lanewise.errors import InputError

GOOD = """\
bases:
  from-registry: {kind: registry, reference: "some/cuda:12.8.1", python: "3.12", cuda: "12.8.1", packages: [python3]}
  of-debian: {kind: debian, reference: bookworm, python: "3.11", packages_full: [g++]}
everywhere: {mpi4py: "4.1.2"}
toolchains:
  one:
    cuda: "12.8.1"
    bases: [from-registry, of-debian]
    meaning: first
    pair: two
    arch: {torch: "12.0a"}
    pins: {torch: "2.9.1", nvidia-nccl-cu12: "2.28.9"}
    core: [nvidia-nccl-cu12]
    together: {nvidia-cuda-nvcc-cu12: "12.8.93"}
  two:
    cuda: "13.0"
    bases: [of-debian]
    meaning: second
    pair: one
    arch: {torch: "12.0a"}
    pins: {torch: "2.9.1+cu130", nvidia-nccl-cu13: "2.28.9"}
"""
WHEEL = LockedWheel(name="torch", version="2.9.1", file="torch-2.9.1-py3-none-any.whl", sha256="a" * 64, size=5)
NOBODY_ANSWERS = Origins(
    digest_of=lambda reference: Resolved(unresolved="nobody answered"),
    commit_of=lambda location, ref: Resolved(unresolved="nobody answered"),
)


def matrix(folder: Path, text: str = GOOD) -> dict[str, Toolchain]:
    (folder / "matrix.yaml").write_text(text)
    return read_toolchains(folder / "matrix.yaml")


def locked(
    *wheels: LockedWheel, python: str = "3.12", core: tuple[str, ...] = (), **unresolved: str
) -> LockedToolchain:
    return LockedToolchain(python=python, wheels=wheels, unresolved=unresolved, core=core)


def lock_of(**toolchains: LockedToolchain) -> Lock:
    return Lock(toolchains={name: {one.python: one} for name, one in toolchains.items()})


def test_the_shipped_matrix_holds_both_toolchains_and_a_matched_pair() -> None:
    toolchains = read_toolchains()
    assert list(toolchains) == ["cu128", "cu130", "cu128-m", "cu130-m"]
    assert toolchains["cu128-m"].pair == "cu130-m"


def test_the_shipped_lock_is_of_the_shipped_matrix() -> None:
    lock = read_lock()
    for name, toolchain in read_toolchains().items():
        for python in toolchain.pythons:
            one = lock.find(name, python)
            assert one is not None
            for pin, version in toolchain.pins_of(Profile.FULL).items():
                assert one.wheel(pin, version) or f"{pin}=={version}" in one.unresolved, (name, python, pin)
            core = toolchain.pins_of(Profile.CORE)
            assert set(core) <= set(one.core) <= {wheel.name for wheel in one.wheels}
            assert "torch" not in one.core
        for base in toolchain.bases:
            assert base.kind is BaseKind.DEBIAN or base.reference in lock.bases


def test_the_lock_keeps_its_bytes() -> None:
    assert lock_text(read_lock()) == LOCK.read_text()


def test_nothing_of_another_cuda_lies_beside_a_toolchains_own() -> None:
    """Left alone, a resolver takes nvcc 13.5 and the C++ headers of 13.3 beside a 13.0 runtime."""
    numbered = re.compile(r"nvidia-(cuda-.*|nvvm|nvjitlink|nvtx)(-cu12)?|cuda-(bindings|python|toolkit)")
    lock = read_lock()
    for name, toolchain in read_toolchains().items():
        for python, one in lock.toolchains[name].items():
            parts = {w.name: w.version for w in one.wheels if numbered.fullmatch(w.name)}
            assert len(parts) >= 7
            assert {what: release(v) for what, v in parts.items() if release(v) != release(toolchain.cuda)} == {}, (
                python
            )
            other = "-cu12" if name.startswith("cu130") else "-cu13"
            assert not [w.name for w in one.wheels if w.name.endswith(other) and "cutlass" not in w.name]


def test_torchvision_is_that_of_torch() -> None:
    """It is bound to torch's ABI: 0.24 goes with torch 2.9, and so on (README of torchvision, table of versions)."""
    for pythons in read_lock().toolchains.values():
        for one in pythons.values():
            versions = {w.name: release(w.version) for w in one.wheels if w.name in ("torch", "torchvision")}
            if "torchvision" in versions:
                assert versions["torchvision"][1] == versions["torch"][1] + 15


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('    cuda: "12.8.1"', "    cuda: 12.8", "12.8, not a version in quotes"),
        ('torch: "2.9.1",', 'torch: "new",', "torch is 'new'"),
        ('python: "3.12"', 'python: "312"', "python is '312'"),
        ('{torch: "12.0a"}', '{torch: "sm_120"}', "arch of torch is 'sm_120'"),
        ('{torch: "2.9.1", nvidia-nccl-cu12', '{torch: "2.9.1", NVIDIA_nccl_cu12', "nvidia-nccl-cu12"),
        ("core: [nvidia-nccl-cu12]", "core: [numpy]", "core names 'numpy'"),
        ("core: [nvidia-nccl-cu12]", "overrides: [numpy]", "overrides names 'numpy'"),
        ("pair: two", "pair: three", "three"),
        ("meaning: first", "means: first", "means"),
        ("toolchains:", "toolchain:", "toolchains"),
        ("toolchains:", "toolchains: [", ""),
        ("[from-registry, of-debian]", "[elsewhere]", "no base 'elsewhere'"),
        ("[from-registry, of-debian]", "[]", "it has no base"),
        ("[of-debian]", "[from-registry]", "brings CUDA 12.8.1, not 13.0"),
        ("kind: debian", "kind: fedora", "fedora"),
    ],
)
def test_a_matrix_that_is_wrong_is_refused_with_what_is_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        matrix(tmp_path, GOOD.replace(old, new, 1))
    assert said in str(caught.value)


def test_a_profile_takes_its_pins_and_its_packages(tmp_path: Path) -> None:
    one = matrix(tmp_path)["one"]
    assert one.pins_of(Profile.CORE) == {
        "mpi4py": "4.1.2",
        "nvidia-cuda-nvcc-cu12": "12.8.93",
        "nvidia-nccl-cu12": "2.28.9",
    }
    assert one.pins_of(Profile.FULL) == {**one.pins_of(Profile.CORE), "torch": "2.9.1"}
    assert (one.python, one.pythons) == ("3.12", ("3.12", "3.11"))
    debian = one.base("of-debian")
    assert (debian.of(Profile.CORE).packages, debian.of(Profile.FULL).packages) == ((), ("g++",))
    assert one.base().of(Profile.CORE, "sha256:1").digest == "sha256:1"
    with pytest.raises(InputError, match="no base 'trixie'") as caught:
        one.base("trixie")
    assert "from-registry, of-debian" in caught.value.expected


def test_an_unknown_toolchain_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="cu129") as caught:
        find_toolchain("cu129")
    assert "cu128, cu130" in caught.value.expected


def test_pins_as_typed() -> None:
    assert parse_pins(["SGLang==0.5.21", "flashinfer_python == 0.6.18"]) == {
        "sglang": "0.5.21",
        "flashinfer-python": "0.6.18",
    }
    for wrong in ("sglang", "sglang=0.5", "==1", "sglang==new", "a b==1"):
        with pytest.raises(InputError, match="is no pin"):
            parse_pins([wrong])


@pytest.mark.parametrize("change", [{"sha256": "xyz"}, {"file": "../../torch.whl"}, {"file": "torch.tar"}])
def test_a_lock_that_is_wrong_is_refused(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "lock.yaml"
    write_lock(lock_of(one=locked(WHEEL)), path)
    assert read_lock(path) == lock_of(one=locked(WHEEL))
    for name, value in change.items():
        path.write_text(path.read_text().replace(str(getattr(WHEEL, name)), str(value)))
    with pytest.raises(InputError, match="cannot be understood"):
        read_lock(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1), ("name", "../torch"), ("name", "--torch"), ("name", "Torch"), ("name", []),
        ("version", 2.9), ("version", ""), ("version", "--index-url=x"), ("version", "\x1b[31m"), ("version", {}),
        ("size", -1), ("size", "5"), ("size", 1.5), ("size", True), ("size", 10**30),
    ],
)  # fmt: skip
def test_a_wheel_that_was_edited_by_hand_is_refused(tmp_path: Path, field: str, value: object) -> None:
    document = yaml.safe_load(lock_text(lock_of(one=locked(WHEEL))))
    document["toolchains"]["one"]["3.12"]["wheels"][0][field] = value
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="cannot be understood"):
        read_lock(tmp_path / "lock.yaml")


@pytest.mark.parametrize("core", [["numpy"], [1], [None], [[]], 5])
def test_a_core_that_is_no_part_of_the_wheels_is_refused(tmp_path: Path, core: object) -> None:
    document = yaml.safe_load(lock_text(lock_of(one=locked(WHEEL))))
    document["toolchains"]["one"]["3.12"]["core"] = core
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="cannot be understood"):
        read_lock(tmp_path / "lock.yaml")


def test_a_digest_that_yaml_takes_for_a_number_is_text_again(tmp_path: Path) -> None:
    (tmp_path / "lock.yaml").write_text("toolchains: {}\nbases: {some/cuda: {digest: 12}}\n")
    lock = read_lock(tmp_path / "lock.yaml")
    assert lock.bases == {"some/cuda": Resolved(value="12")}
    assert drift(lock, Lock()) == ["some/cuda: 12 -> none"]


def test_all_of_a_lock_is_read_back(tmp_path: Path) -> None:
    lock = Lock(
        toolchains={"one": {"3.11": locked(WHEEL, python="3.11", core=("torch",)), "3.12": locked(gone="nowhere")}},
        bases={"some/cuda:1": Resolved(value="sha256:1"), "some/cuda:2": Resolved(unresolved="nobody answered")},
        commits={"https://example.org/a.git": {"v1": Resolved(value="abc"), "2": Resolved(unresolved="no such tag")}},
        patches={"torch/001-a.patch": "f" * 64},
    )
    write_lock(lock, tmp_path / "lock.yaml")
    assert read_lock(tmp_path / "lock.yaml") == lock
    assert lock.commit("https://example.org/a.git", "v1") == Resolved(value="abc")
    assert lock.commit("https://example.org/b.git", "v1") is None


def test_a_lock_of_one_python_and_no_bases_is_read_for_what_it_holds(tmp_path: Path) -> None:
    wheel = "{name: a, version: '1', file: a-1-py3-none-any.whl, sha256: " + "a" * 64 + ", size: 1}"
    (tmp_path / "lock.yaml").write_text(
        f"toolchains:\n  one:\n    python: '3.12'\n    unresolved: {{}}\n    wheels: [{wheel}]\n"
    )
    lock = read_lock(tmp_path / "lock.yaml")
    assert lock.find("one", "3.12") is not None
    assert lock.find("one", "3.11") is None
    assert not lock.bases


def test_what_moved_in_a_lock_is_told() -> None:
    newer = replace(WHEEL, version="2.10.0", sha256="b" * 64)
    assert drift(lock_of(one=locked(WHEEL)), lock_of(one=locked(newer))) == [
        "one (Python 3.12): torch 2.9.1 (aaaaaaaa) -> 2.10.0 (bbbbbbbb)"
    ]
    assert drift(Lock(), lock_of(one=locked())) == ["one: not locked yet"]
    assert drift(lock_of(one=locked()), Lock()) == ["one: no longer in the matrix"]
    assert drift(lock_of(one=locked(python="3.11")), lock_of(one=locked())) == [
        "one (Python 3.11): no longer in the matrix",
        "one (Python 3.12): not locked yet",
    ]
    assert drift(lock_of(one=locked(WHEEL)), lock_of(one=locked(WHEEL, torch="gone"))) == [
        "one (Python 3.12): unresolved: torch"
    ]
    assert drift(lock_of(one=locked(WHEEL)), lock_of(one=locked(WHEEL, core=("torch",)))) == [
        "one (Python 3.12): core takes other wheels: torch"
    ]
    assert drift(
        Lock(bases={"a:1": Resolved(value="sha256:12")}), Lock(bases={"a:1": Resolved(value="sha256:34")})
    ) == ["a:1: 12 -> 34"]
    assert drift(Lock(), Lock(commits={"url": {"v1": Resolved(unresolved="nobody")}}, patches={"a/1": "f" * 64})) == [
        "url v1: none -> unresolved (nobody)",
        "patch a/1: none -> ffffffffffff",
    ]
    assert not drift(lock_of(one=locked(WHEEL)), lock_of(one=locked(WHEEL)))


def test_locking_again_keeps_what_nobody_asked_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, str]] = []

    def fake_resolve(toolchain: Toolchain, python: str, keep: dict[str, str]) -> LockedToolchain:
        kept.append(keep)
        return locked(python=python)

    monkeypatch.setattr("images.locking.resolve", fake_resolve)
    toolchains = {"two": matrix(tmp_path)["two"]}
    old = lock_of(two=locked(WHEEL, replace(WHEEL, name="other"), python="3.11"), gone=locked())
    for upgrade in ((), ("other",), ("all",)):
        new = relock(list(toolchains.values()), toolchains, old, upgrade, NOBODY_ANSWERS, lambda *told: None)
        assert list(new.toolchains) == ["two"]
    relock(list(toolchains.values()), toolchains, Lock(), (), NOBODY_ANSWERS, lambda *told: None)
    assert kept == [{"torch": "2.9.1", "other": "2.9.1"}, {"torch": "2.9.1"}, {}, {}]


def test_toolchains_that_were_not_chosen_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.locking.resolve", lambda toolchain, python, keep: locked(python=python))
    toolchains = matrix(tmp_path)
    old = lock_of(one=locked(WHEEL))
    told: list[tuple[int, int, str]] = []
    new = relock([toolchains["two"]], toolchains, old, (), NOBODY_ANSWERS, lambda *step: told.append(step))
    assert new.toolchains["one"] == old.toolchains["one"]
    assert new.find("two", "3.11") == locked(python="3.11")
    assert told == [(0, 2, "two for Python 3.11"), (1, 2, "digests and commits")]


def test_digests_and_commits_stay_until_they_are_asked_to_move(tmp_path: Path) -> None:
    toolchains = matrix(tmp_path)
    answers = Origins(
        refs=[("url", "v1")],
        digest_of=lambda reference: Resolved(value="sha256:new"),
        commit_of=lambda location, ref: Resolved(value="new"),
    )
    silence = replace(NOBODY_ANSWERS, refs=[("url", "v1")])

    def asked(old: Lock, origins: Origins, *upgrade: str) -> tuple[Resolved, Resolved | None]:
        new = relock([], toolchains, old, upgrade, origins, lambda *told: None)
        assert list(new.bases) == ["some/cuda:12.8.1"]
        return new.bases["some/cuda:12.8.1"], new.commit("url", "v1")

    first, unknown = Resolved(value="old"), Resolved(unresolved="a reason")
    locked_once = Lock(bases={"some/cuda:12.8.1": first}, commits={"url": {"v1": first}})
    new_digest, new_commit = Resolved(value="sha256:new"), Resolved(value="new")
    assert asked(locked_once, answers) == (first, first)
    assert asked(locked_once, answers, "from-registry") == (new_digest, first)
    assert asked(locked_once, answers, "v1") == (first, new_commit)
    assert asked(locked_once, answers, "all") == (new_digest, new_commit)
    assert asked(locked_once, silence, "all") == (first, first)
    assert asked(Lock(), silence)[0].unresolved == "nobody answered"
    before = Lock(bases={"some/cuda:12.8.1": unknown}, commits={"url": {"v1": unknown}})
    assert asked(before, silence) == (unknown, unknown)
    assert asked(before, answers) == (new_digest, new_commit)


# ------------------------------------------------------------------------------------------------------- differences


def test_what_differs_and_what_follows_from_it() -> None:
    a, b = find_toolchain("cu128"), find_toolchain("cu130")
    found = differences(a, b, Lock())
    assert {row.what: (row.a, row.b) for row in found.named}["sglang"] == ("0.5.10.post1", "0.5.23")
    assert "sm_120f" in found.named[0].meaning
    assert "not CUDA's alone" in found.conclusion
    assert "Python 3.12" in found.same


def test_a_matched_pair_differs_in_cuda_alone() -> None:
    found = differences(find_toolchain("cu128-m"), find_toolchain("cu130-m"), Lock())
    assert [row.what for row in found.named] == ["CUDA"]
    assert "matched pair" in found.conclusion


def test_the_same_toolchain_differs_in_nothing() -> None:
    one = find_toolchain("cu128")
    found = differences(one, one, Lock())
    assert (found.named, found.conclusion) == ((), "it is the same toolchain")


def test_wheels_that_come_along_are_held_against_each_other(tmp_path: Path) -> None:
    toolchains = matrix(tmp_path)
    numpy = replace(WHEEL, name="numpy")
    one, two = locked(numpy), locked(replace(numpy, version="3.0"), python="3.11")
    found = differences(toolchains["one"], toolchains["two"], lock_of(one=one, two=two))
    assert [(row.what, row.a, row.b) for row in found.further] == [("numpy", "2.9.1", "3.0")]
    partly = lock_of(one=one, two=locked(python="3.11", torch="nowhere"))
    assert not differences(toolchains["one"], toolchains["two"], partly).further


def test_views_name_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    toolchains, lock = read_toolchains(), read_lock()
    talk.put(show_all(toolchains.values()))
    talk.put(show_one(toolchains["cu130-m"], lock))
    talk.put(show_one(toolchains["cu130"], Lock()))
    a, b = toolchains["cu128"], toolchains["cu130"]
    talk.put(show_differences(a, b, differences(a, b, lock)))
    shown = capsys.readouterr().out
    for text in (
        "0.5.10.post1",
        "unresolved: torch==2.9.1+cu130",
        "not locked: run",
        "wheels that come along differ",
        "nvidia/cuda:13.0.3-cudnn-devel-ubuntu24.04",
        "Python 3.11: core 14 wheels",
    ):
        assert text in shown


def test_a_program_gets_pythons_and_digests(tmp_path: Path) -> None:
    toolchains = matrix(tmp_path)
    lock = replace(lock_of(one=locked(WHEEL)), bases={"some/cuda:12.8.1": Resolved(value="sha256:1")})
    one = document(toolchains, lock, with_wheels=True)["one"]
    assert one["locked"]["3.12"]["wheels"][0]["name"] == "torch"
    assert one["digests"]["some/cuda:12.8.1"]["value"] == "sha256:1"
    assert "locked" not in document(toolchains, lock, with_wheels=False)["one"]
