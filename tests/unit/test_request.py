from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from lanewise.engine import EngineState, engine_state
from lanewise.errors import InputError, LanewiseError
from tuning import provenance, pythons, survey
from tuning.container_images import Image
from tuning.engines import ENGINES
from tuning.nccl_library import find_nccl
from tuning.plan import Environment
from tuning.request import Request, make_plan, words

HERE = (Environment(name="here", python=sys.executable),)


def asked(**changes: object) -> Request:
    fields: dict[str, object] = {"engine": "mpi", "environments": HERE, "workload": "kimi-k2"}
    return Request(**{**fields, **changes})  # type: ignore[arg-type]


def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(provenance, "node_record", lambda: {"gpus": [{"index": n} for n in range(count)]})


def test_mpi_takes_four_ranks_eager_and_its_margin(tmp_path: Path) -> None:
    plan = make_plan(asked(), tmp_path)
    assert (plan.ranks, plan.modes, plan.working_sets, plan.margin) == (4, ("eager",), ("warm",), 0.10)
    assert plan.seed
    assert make_plan(asked(seed=7, margin=0.2, ranks=2), tmp_path).seed == 7


def test_cuda_takes_a_rank_a_gpu_and_all_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 8)
    plan = make_plan(asked(engine="cuda"), tmp_path)
    assert (plan.ranks, len(plan.cases), plan.margin) == (8, 8, 0.05)
    assert not [c for c in plan.candidates if "ll128" in c.name], "LL128 can corrupt data: only where it is named"
    assert (plan.cases[0].message.name, plan.kind(plan.slices[0])) == ("baseline", "graph, warm")
    groups = {launch.group: sorted(launch.process_environment) for launch in plan.schedule()}
    assert groups == {0: [], 1: ["NCCL_P2P_DISABLE"], 2: ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]}


def test_cuda_on_one_gpu_is_refused_unless_ranks_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 1)
    with pytest.raises(InputError, match="1 NVIDIA GPUs"):
        make_plan(asked(engine="cuda"), tmp_path)
    assert make_plan(asked(engine="cuda", shared_gpu=True), tmp_path).ranks == 2


def test_the_cuda_job_says_all_that_the_worker_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 2)
    library = tmp_path / "libs" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    plan = make_plan(asked(engine="cuda", candidates="ring_ll", nccl=(str(library),)), tmp_path)
    (launch, *_) = plan.schedule()
    job = ENGINES["cuda"]().job(plan, launch)  # type: ignore[attr-defined]
    assert [c["key"] for c in job["candidates"]] == ["default#0", "default#1", "ring_ll#0", "nccl-libs#0"]
    assert job["candidates"][2]["parameters"] == {"kind": "nccl", "algo": "allreduce:ring", "proto": "LL", "nccl": ""}
    assert job["candidates"][3]["parameters"]["nccl"] == str(library)
    assert (job["ranks"], job["shared_gpu"], job["allow_ll128"], job["dtype"]) == (2, False, False, "bfloat16")
    assert job["messages"][1] == {"name": "verify", "bytes": 43_008, "calls": 122}


def test_multicast_stays_off_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "0")
    variables = ENGINES["cuda"]().variables(tmp_path)
    assert (variables["NCCL_NVLS_ENABLE"], variables["NVSHMEM_DISABLE_NVLS"]) == ("0", "0")


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"shared_gpu": True}, "--shared-gpu"), ({"nccl": ("2.28.9",)}, "--nccl"),
     ({"allow_ll128": True}, "--allow-ll128"), ({"engine": "cuda", "modes": ("graf",), "shared_gpu": True}, "graf"),
     ({"engine": "cuda", "working_sets": ("",), "shared_gpu": True}, "working sets are"),
     ({"engine": "cuda", "candidates": "nccl-2.28.9", "shared_gpu": True}, "no candidate")],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    changes = {k: () if k == "nccl" and changes.get("engine") == "cuda" else v for k, v in changes.items()}
    if "nccl" in changes:
        changes["nccl"] = (str(Path(__file__)),)
    with pytest.raises(InputError) as caught:
        make_plan(asked(**changes), tmp_path)
    assert says in caught.value.what


def test_words() -> None:
    assert words("graph, eager") == ("graph", "eager")


def test_a_library_by_path_is_named_after_its_folder(tmp_path: Path) -> None:
    library = tmp_path / "my build" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    assert find_nccl(str(library), tmp_path) == ("my-build", library)
    for spec in ("/no/libnccl.so.2", "2.28", "latest", "cu11-2.28.9", ""):
        with pytest.raises(InputError):
            find_nccl(spec, tmp_path)


def test_a_release_is_fetched_once_from_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "nvidia_nccl_cu12-2.27.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", b"ELF")
        archive.writestr("nvidia_nccl_cu12-2.27.5.dist-info/METADATA", "Name: nvidia-nccl-cu12\nVersion: 2.27.5\n")
        archive.writestr("nvidia_nccl_cu12-2.27.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("nvidia_nccl_cu12-2.27.5.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    label, library = find_nccl("cu12-2.27.5", tmp_path / "cache")
    assert (label, library.read_bytes()) == ("cu12-2.27.5", b"ELF")
    wheel.unlink()
    assert find_nccl("cu12-2.27.5", tmp_path / "cache")[1] == library, "from the cache"
    with pytest.raises(LanewiseError, match="cannot fetch nvidia-nccl-cu13"):
        find_nccl("2.28.9", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "cu13-2.28.9").iterdir())


def test_a_python_with_cuda_is_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("broken", 1), ("good", 0)):
        (tmp_path / name).mkdir()
        python = tmp_path / name / "python3"
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
    own = os.path.dirname(sys.executable)  # noqa: PTH120
    monkeypatch.setenv("PATH", os.pathsep.join([own, str(tmp_path / "broken"), str(tmp_path / "good")]))
    assert pythons.find_cuda_python() == str(tmp_path / "good" / "python3")
    monkeypatch.setenv("PATH", str(tmp_path / "broken"))
    assert pythons.find_cuda_python() is None, "the toolkit's own environment has no CUDA"


def test_the_survey_says_what_is_skipped_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    state = engine_state()
    assert not state.present
    fake_gpus(monkeypatch, 0)
    here = survey.survey("", state, ["a", "b"], {})
    assert here.engine == "mpi"
    assert here.environments == (
        Environment(name="a", python=sys.executable), Environment(name="b", python=sys.executable)
    )  # fmt: skip
    assert any("two are needed" in line for line in here.skipped)
    assert any("no Docker engine" in line for line in here.found)
    assert any(line.startswith("images of the toolchains: no Docker engine") for line in here.skipped)
    fake_gpus(monkeypatch, 4)
    monkeypatch.setattr(survey, "find_cuda_python", lambda: None)
    assert survey.survey("", state, ["a"], {}).engine == "mpi"
    box = survey.survey("/opt/python", state, ["a"], {})
    assert (box.engine, box.environments) == ("cuda", (Environment(name="a", python="/opt/python"),))


def fake_image(digit: str) -> Image:
    return Image(id="sha256:" + digit * 64, tags=(f"lanewise/{digit}:core",), labels={})


@pytest.mark.parametrize(("gpus", "engine"), [(0, "mpi"), (1, "mpi"), (8, "cuda")])
def test_the_survey_takes_the_images_where_all_toolchains_have_one(
    monkeypatch: pytest.MonkeyPatch, gpus: int, engine: str
) -> None:
    fake_gpus(monkeypatch, gpus)
    monkeypatch.setattr(survey, "find_cuda_python", lambda: pytest.fail("images bring their own"))
    images = {"a": fake_image("a"), "b": fake_image("b")}
    there = survey.survey("", EngineState(present=True, detail="fake engine"), ["a", "b"], images)
    assert (there.engine, [env.image for env in there.environments]) == (engine, [i.id for i in images.values()])
    assert {env.python for env in there.environments} == {"/opt/lanewise/bin/python3"}
    assert not any("images" in line for line in there.skipped)
    assert "image lanewise/a:core of a" in there.found


def test_the_survey_says_which_toolchain_lacks_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 0)
    state = EngineState(present=True, detail="fake engine")
    part = survey.survey("", state, ["a", "b"], {"a": fake_image("a")})
    assert [env.image for env in part.environments] == ["", ""], "an image and a host do not compare as toolchains"
    assert any("none of b (./inv build-image --toolchain b)" in line for line in part.skipped)
    both = {"a": fake_image("a"), "b": fake_image("b")}
    named = survey.survey(sys.executable, state, ["a", "b"], both)
    assert [env.image for env in named.environments] == ["", ""]
    assert any("--python" in line for line in named.skipped)


@pytest.mark.parametrize(
    ("in_images", "gpus", "engine"), [(True, 2, "cuda"), (True, 1, "mpi"), (False, 2, "mpi"), (False, 0, "mpi")]
)
def test_the_engine_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, in_images: bool, gpus: int, engine: str
) -> None:
    fake_gpus(monkeypatch, gpus)
    assert survey.default_engine(in_images=in_images) == engine


def test_a_library_of_this_machine_is_not_measured_in_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 2)
    inside = (Environment(name="box", python="python3", image="sha256:" + "0" * 64),)
    with pytest.raises(InputError, match=r"--nccl together with images \(box\)"):
        make_plan(asked(engine="cuda", environments=inside, nccl=("2.28.9",)), tmp_path)
    assert make_plan(asked(engine="cuda", environments=inside), tmp_path).environments == inside
