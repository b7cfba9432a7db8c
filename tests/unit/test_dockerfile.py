"""The generated Dockerfile, what goes with it, and what runs inside an image."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from images import image_view
from images.audit import Audit, CompiledAtRunTime
from images.build_plan import BuildPlan
from images.capability import Capability
from images.context import ContextFile, save, tar_stream
from images.dockerfile import dockerfile, environment, jit_folder, labels
from images.examine import Tool
from images.image_build import dockerfile_of, recipe_files, requirements
from images.image_checks import Checked, Saved, audit_faults, imports_of, label_faults, smoke_faults, smoke_remarks
from images.inside.trim import trim
from images.targets import Target, TargetKind
from lanewise.errors import InputError, LanewiseError
from tests.unit.makers_images import BOOKWORM, CUDA, component, locked, make_plan, make_wheel, make_workers, named_wheel

GOLDEN = Path(__file__).parent / "golden"
SMOKE = Path(__file__).parents[2] / "images/inside/smoke.py"
FULL_CU128 = make_plan(
    toolchain="cu128",
    cuda="12.8.1",
    arch={"torch": "12.0a", "flashinfer": "12.0a"},
    base=CUDA,
    wheels=(named_wheel("nvidia-nccl-cu12", "2.27.5"), named_wheel("torch", "2.9.1")),
    components=(
        component("sglang-kernel", distributions=("sglang-kernel",), version="0.4.1", patches={"1.patch": "d" * 64}),
    ),
    left_out={"sgl_kernel/flash_ops*": "FlashAttention 3: majors 8 and 9", "flashinfer_cubin/*": "all are for 10.x"},
    environment={"SGLANG_ENABLE_X": "a \"b\" $c"},
    remarks=("one thing that it cannot do",),
)  # fmt: skip


@pytest.mark.parametrize(("name", "plan"), [("core-cu130", make_plan()), ("full-cu128", FULL_CU128)])
def test_the_text_is_the_golden_one(name: str, plan: BuildPlan) -> None:
    """Where the change is meant: write the new text to the file, and read the difference once more."""
    assert dockerfile(plan, "e" * 64) == (GOLDEN / f"{name}.Dockerfile").read_text()


def test_the_order_in_which_a_plan_was_made_changes_nothing() -> None:
    other = replace(
        FULL_CU128, left_out=dict(reversed(FULL_CU128.left_out.items())), arch=dict(reversed(FULL_CU128.arch.items()))
    )
    assert dockerfile(other, "") == dockerfile(FULL_CU128, "")


def test_what_an_image_compiles_is_kept_apart_by_plan() -> None:
    one, other = make_plan(), make_plan(wheels=())
    assert jit_folder(one) != jit_folder(other)
    caches = [name for name, value in environment(one).items() if str(jit_folder(one)) in value]
    assert {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR", "TORCH_EXTENSIONS_DIR"} <= {*caches}
    assert "HF_HOME" not in caches


def test_cuda_home_is_where_an_nvcc_is_or_not_set() -> None:
    assert environment(make_plan())["CUDA_HOME"].endswith("/python3.11/site-packages/nvidia/cu13")
    assert environment(FULL_CU128)["CUDA_HOME"] == "/usr/local/cuda"
    no_nvcc = replace(FULL_CU128, base=BOOKWORM, wheels=(named_wheel("nvidia-cuda-nvcc-cu12", "12.8.93"),))
    assert "CUDA_HOME" not in environment(no_nvcc)
    assert "stubs" not in dockerfile(no_nvcc, "")


@pytest.mark.parametrize(
    "variables", [{"NCCL_VERSION": "2.30.7"}, {"A B": "1"}, {"A": "1\nRUN rm -rf /"}, {"": "1"}]
)  # fmt: skip
def test_variables_that_must_not_be_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(InputError):
        dockerfile(make_plan(environment=variables), "")


@pytest.mark.parametrize("remark", ["a\nRUN rm -rf /", "a\rRUN b"])
def test_no_text_of_a_plan_becomes_an_instruction(remark: str) -> None:
    text = dockerfile(make_plan(remarks=(remark,), left_out={"a/*": remark}), "")
    assert not [line for line in re.split(r"[\r\n]", text) if line.startswith(("RUN rm", "RUN b"))]


def test_labels_say_what_is_rebuilt() -> None:
    said = labels(FULL_CU128)
    assert json.loads(said["lanewise.components"]) == {
        "nvidia-nccl-cu12": {"built": "stock", "version": "2.27.5"},
        "sglang-kernel": {"built": "rebuilt", "version": "0.4.1"},
        "torch": {"built": "stock", "version": "2.9.1"},
    }
    assert json.loads(said["lanewise.patches"]) == {"sglang-kernel": {"1.patch": "d" * 64}}
    assert said["lanewise.plan"] == FULL_CU128.key
    assert "lanewise.build" not in said  # containers would inherit it, and be taken for leftovers


def test_a_changed_worker_makes_another_recipe(tmp_path: Path) -> None:
    one = dockerfile_of(make_plan(), make_workers(tmp_path / "a"))
    assert one == dockerfile_of(make_plan(), make_workers(tmp_path / "b"))
    assert one != dockerfile_of(make_plan(), make_workers(tmp_path / "c", "changed"))
    with pytest.raises(LanewiseError, match="no workers"):
        dockerfile_of(make_plan(), tmp_path / "none")


def test_the_context_is_a_tar_archive_with_nothing_of_this_machine(tmp_path: Path) -> None:
    big = tmp_path / "big.whl"
    big.write_bytes(b"x" * 3_000_001)
    files = [*recipe_files(make_plan(), make_workers(tmp_path / "w")), ContextFile(path="wheels/big.whl", content=big)]
    stream = b"".join(tar_stream(files))
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [file.path for file in files]
        assert {(member.uid, member.mtime, member.uname, member.mode) for member in members} == {(0, 0, "", 0o644)}
        content = archive.extractfile("wheels/big.whl")
        assert content
        assert content.read() == big.read_bytes()
    save(files, tmp_path / "saved")
    assert (tmp_path / "saved/workers/worker.py").exists()
    assert not (tmp_path / "saved/wheels").exists()


def test_a_wheel_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(b"x" * 5_000_000)
    stream = tar_stream([ContextFile(path="a", content=path)])
    next(stream)
    with path.open("r+b") as file:
        file.truncate(10)
    with pytest.raises(LanewiseError, match="bytes early"):
        list(stream)
    with pytest.raises(LanewiseError, match="No such file"):
        list(tar_stream([ContextFile(path="a", content=tmp_path / "none.whl")]))


def test_requirements_hold_every_wheel_with_its_hash(tmp_path: Path) -> None:
    stock = make_wheel(tmp_path, "demo", "1.0", {"demo.py": b""})
    built = make_wheel(tmp_path, "nvidia-nccl-cu13", "2.30.7", {"x.py": b""})
    plan = make_plan(wheels=(locked(stock),), components=(component(),))
    assert requirements(plan, [built, stock]) == (
        f"demo==1.0 --hash=sha256:{locked(stock).sha256}\n"
        f"nvidia-nccl-cu13==2.30.7 --hash=sha256:{locked(built).sha256}\n"
    )
    stranger = make_wheel(tmp_path, "other", "1.0", {})
    for wheels, says in (
        ([stock], "nccl is built to"),
        ([built], "lack demo"),
        ([built, stock, stranger], "other-1.0"),
    ):
        with pytest.raises(LanewiseError, match=says):
            requirements(plan, wheels)


# ------------------------------------------------------------------------------------------------------------- inside


def unpacked(tmp_path: Path) -> Path:
    wheel = make_wheel(
        tmp_path / "wheels", "demo", "1.0",
        {"demo/__init__.py": b"", "demo/sm90/a.so": b"x" * 100, "demo/sm90/b.so": b"y" * 50, "demo/keep.so": b"z"},
    )  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def test_what_is_left_out_goes_and_record_stays_right(tmp_path: Path) -> None:
    site = unpacked(tmp_path)
    report = trim(site, {"demo/sm90/*": "for 9.0", "nothing/*": "not here", "demo/sm90/b*": "met before"})
    assert [(row["pattern"], row["files"], row["bytes"]) for row in report] == [
        ("demo/sm90/*", 2, 150), ("demo/sm90/b*", 0, 0), ("nothing/*", 0, 0),
    ]  # fmt: skip
    assert not (site / "demo/sm90").exists()
    record = (site / "demo-1.0.dist-info/RECORD").read_text()
    assert "sm90" not in record
    assert all((site / line.split(",")[0]).exists() for line in record.splitlines())


def test_a_pattern_of_everything_leaves_the_metadata(tmp_path: Path) -> None:
    site = unpacked(tmp_path)
    trim(site, {"*": "all"})
    assert [path.name for path in site.iterdir()] == ["demo-1.0.dist-info"]


def test_the_smoke_program_says_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "left_out.json").write_text("[]")
    (tmp_path / "broken_module.py").write_text("raise ImportError('broken on purpose')")
    request = {
        "imports": ["json", "broken_module", "no_such_module"],
        "left_out": str(tmp_path / "left_out.json"),
        "writable": [str(tmp_path), "/proc/1"],
    }
    done = subprocess.run(
        [sys.executable, "-c", SMOKE.read_text(), json.dumps(request)],
        capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1].removeprefix("@smoke "))
    assert answer["imports"]["json"] == {"nccl": []}
    assert "broken on purpose" in answer["imports"]["broken_module"]["error"]
    assert "no_such_module" in answer["imports"]["no_such_module"]["error"]
    assert answer["versions"]["pytest"]
    assert answer["writable"][str(tmp_path)]


def test_what_runs_inside_an_image_needs_nothing_of_ours() -> None:
    allowed = sys.stdlib_module_names | {"nvidia", "mpi4py"}
    for path in SMOKE.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed


# ------------------------------------------------------------------------------------------------------------- checks

PLAN = make_plan(
    left_out={"flashinfer_cubin/*": "for 10.x"}, components=(component(),), overrides=("nvidia-nccl-cu13",)
)
LIBRARY = "/opt/lanewise/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"


def answer(**changes: object) -> dict[str, object]:
    good: dict[str, object] = {
        "user": 10001,
        "versions": {"cuda_bindings": "13.0.3", "mpi4py": "4.1.1", "nvidia-cuda-nvcc": "13.0.88",
                     "nvidia.nccl.cu13": "2.30.7", "pip": "23.0.1"},
        "imports": {"nccl": {"nccl": [LIBRARY], "version": 23007, "code": 0}, "mpi4py": {"nccl": []}},
        "nccl": {"recorded": [{"owner": "nvidia-nccl-cu13", "hash": "sha256=good"}],
                 "mapped": {LIBRARY: "sha256=good"}},
        "pip": [],
        "left_out": [],
        "writable": {"/var/cache/lanewise": True},
    }  # fmt: skip
    return {**good, **changes}


def test_an_image_that_is_as_planned_has_no_faults() -> None:
    assert smoke_faults(PLAN, answer()) == []
    assert label_faults(PLAN, labels(PLAN) | {"maintainer": "the base's"}) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"user": 0}, "runs as user 0"),
        ({"writable": {"/var/cache/lanewise": False}}, "/var/cache/lanewise cannot be written to"),
        ({"imports": {"torch": {"error": "undefined symbol: ncclCommX"}}}, "torch cannot be imported: undefined"),
        ({"versions": {**answer()["versions"], "mpi4py": "4.0"}}, "mpi4py is 4.0, not 4.1.1"),
        ({"versions": {"pip": "1"}}, "cuda-bindings is missing"),
        ({"versions": {**answer()["versions"], "evil": "1"}}, "evil 1 is in it"),
        ({"versions": {**answer()["versions"], "nvidia-nccl-cu13": "2.27.5"}}, "nvidia-nccl-cu13 is 2.27.5"),
        ({"nccl": {"recorded": [{"owner": "nvidia-nccl-cu13", "hash": "sha256=good"}],
                   "mapped": {"/usr/lib/libnccl.so.2": "sha256=other"}}}, "/usr/lib/libnccl.so.2 is loaded as NCCL"),
        ({"nccl": {"recorded": [{"owner": "a", "hash": "x"}, {"owner": "b", "hash": "y"}], "mapped": {}}}, "owned by"),
        ({"imports": {"torch": {"nccl": [LIBRARY, "/usr/lib/libnccl.so.2"]}}}, "torch has 2 libnccl loaded"),
        ({"imports": {"nccl": {"nccl": [LIBRARY], "version": 22705}}}, "NCCL says that it is 22705, not 23007"),
        ({"pip": ["sglang 0.5 requires torch, which is not installed."]}, "pip check: sglang"),
        ({"pip": ["torch 2.9 has requirement numpy>=3, but you have numpy 2.3.5."]}, "pip check: torch"),
        ({"error": "ended with 137: killed"}, "did not end"),
    ],
)  # fmt: skip
def test_what_is_not_as_planned_is_named(changes: dict[str, object], says: str) -> None:
    assert [fault for fault in smoke_faults(PLAN, answer(**changes)) if says in fault]


def test_what_is_meant_is_a_remark_and_no_fault() -> None:
    said = answer(
        imports={"sgl_kernel": {"error": "ImportError: libcuda.so.1: cannot open shared object file"}},
        pip=["sglang 0.5.10.post1 requires flashinfer-cubin, which is not installed.",
             "torch 2.9.1 has requirement nvidia-nccl-cu13==2.27.5, but you have nvidia-nccl-cu13 2.30.7."],
    )  # fmt: skip
    assert smoke_faults(PLAN, said) == []
    assert len(smoke_remarks(PLAN, said)) == 3


def test_a_wrong_label_is_named() -> None:
    assert "lanewise.plan is 'other'" in label_faults(PLAN, labels(PLAN) | {"lanewise.plan": "other"})[0]
    assert len(label_faults(PLAN, {})) == len(labels(PLAN))


def test_only_what_is_installed_is_imported() -> None:
    assert imports_of(PLAN) == ["mpi4py", "cuda.bindings.driver", "nccl"]
    assert imports_of(replace(PLAN, wheels=(named_wheel("torch", "2.9.1"),), components=())) == ["torch"]


def test_a_missing_nvcc_is_a_fault_only_where_it_was_promised() -> None:
    found = Audit(
        target=Target(name="x", kind=TargetKind.IMAGE),
        capability=Capability(major=12, minor=0),
        compiled_at_run_time=(CompiledAtRunTime(package="flashinfer", sources=3),),
    )
    assert audit_faults(PLAN, found) == ["there is no nvcc, although the plan brings one"]
    assert audit_faults(replace(PLAN, wheels=()), found) == []
    tools = (
        Tool(path="site-packages/nvidia/cu13/bin/nvcc", name="nvcc", release="13.5", differs=True),
        Tool(path="site-packages/triton/backends/nvidia/bin/ptxas", name="ptxas", release="12.9", differs=True),
    )
    assert audit_faults(PLAN, replace(found, tools=tools)) == [
        "site-packages/nvidia/cu13/bin/nvcc is of CUDA 13.5, not 13.0"
    ]


def test_a_checked_image_is_shown_with_what_was_saved() -> None:
    found = Audit(target=Target(name="x", kind=TargetKind.IMAGE), capability=Capability(major=12, minor=0))
    rows = (
        Saved(pattern="a/*", why="for 9.0", files=2, bytes=3_000_000),
        Saved(pattern="b", why="?", files=0, bytes=0),
    )
    checked = Checked(image="sha256:1", size=2_500_000_000, audit=found, saved=rows, remarks=("r",), faults=())
    text = io.StringIO()
    Console(file=text, width=100).print(image_view.show(PLAN, checked))
    for part in (PLAN.tag, "2.50 GB", "a/*", "3.0", "none there", "remark: r"):
        assert part in text.getvalue()
    assert json.loads(json.dumps(image_view.document(PLAN, checked)))["left_out"][0]["bytes"] == 3_000_000
