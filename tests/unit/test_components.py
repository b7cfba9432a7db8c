from __future__ import annotations

import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from images.build_plan import Base, BaseKind, BuildPlan, ComponentBuild, Profile, Source, SourceKind
from images.builder import Resources, audit_summary, index_access
from images.builder_image import dockerfile
from images.builder_run import Remarks, _lines
from images.components import COMPONENTS, components_for, read_components
from images.jobs import available_memory, job_count, memory_limit
from images.matrix import find_toolchain
from lanewise.errors import InputError

BOOKWORM = Base(name="debian-bookworm", kind=BaseKind.DEBIAN, reference="bookworm", python="3.11")
CUDA = Base(name="cuda", kind=BaseKind.REGISTRY, reference="nvidia/cuda:12.8.1-x", python="3.12", cuda=True)
VERSIONS = dict.fromkeys(
    ("apache-tvm-ffi", "einops", "filelock", "jinja2", "ninja", "numpy", "nvidia-ml-py", "packaging", "requests",
     "setuptools", "tqdm", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cublas", "nvidia-curand", "mscclpp",
     "nvidia-cuda-cupti", "nvidia-nvtx", "nvidia-cufft", "nvidia-cusolver", "nvidia-cusparse", "nvidia-cudnn-cu13"),
    "1.2",
)  # fmt: skip
COMMIT, HASH = "c" * 40, "d" * 64


def all_of(toolchain: str, base: Base = BOOKWORM, **options: object) -> dict[str, ComponentBuild]:
    names = dict.fromkeys(read_components(), "asked for")
    identities = {name: HASH if c.source is SourceKind.WHEEL else COMMIT for name, c in read_components().items()}
    arguments = {"versions": VERSIONS, "identities": identities, **options}
    return {c.name: c for c in components_for(names, find_toolchain(toolchain), base, **arguments)}


def one(name: str, toolchain: str, base: Base = BOOKWORM, **options: object) -> ComponentBuild:
    arguments = {"versions": VERSIONS, "identities": {name: HASH}, **options}
    return components_for({name: "x"}, find_toolchain(toolchain), base, **arguments)[0]


def test_everything_comes_after_what_it_needs_and_needs_only_what_is_rebuilt() -> None:
    order = list(all_of("cu130"))
    assert order.index("nccl") < order.index("torch") < order.index("flashinfer")
    assert all_of("cu130")["torch"].needs == ("nccl",)
    assert one("torch", "cu130").needs == ()


@pytest.mark.parametrize(("toolchain", "base"), [("cu130", BOOKWORM), ("cu130", CUDA), ("cu128", CUDA)])
def test_everything_is_filled_in_and_pinned(toolchain, base) -> None:
    for component in all_of(toolchain, base).values():
        texts = [*component.requires, *component.distributions, *component.environment.values(),
                 component.source.location, component.source.ref]  # fmt: skip
        assert not [text for text in texts if "{" in text]
        assert all(text.count("==") == 1 for text in component.requires)
        assert component.script.startswith("#!/bin/bash\n# Every build script begins")


def test_each_is_told_to_compile_for_sm120_in_its_own_words() -> None:
    told = {name: c.environment for name, c in all_of("cu130").items()}
    assert told["torch"]["TORCH_CUDA_ARCH_LIST"] == "12.0a"  # torch refuses 12.0f
    assert told["flashinfer"]["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert told["sglang-kernel"]["LANEWISE_ONLY"] == "120"
    assert "-DMSCCLPP_GPU_ARCHS=120" in told["mscclpp"]["CMAKE_ARGS"]
    assert told["nccl"]["NVCC_GENCODE"].count("120") == 4
    assert one("flashinfer", "cu128", CUDA).environment["FLASHINFER_CUDA_ARCH_LIST"] == "12.0a"


def test_the_versions_are_the_toolchains() -> None:
    made = all_of("cu130")
    assert {name: made[name].version for name in ("torch", "nccl", "flashinfer", "sglang", "sglang-kernel")} == {
        "torch": "2.14.1", "nccl": "2.30.7", "flashinfer": "0.7.2", "sglang": "0.5.23", "sglang-kernel": "0.4.10",
    }  # fmt: skip
    assert made["nccl"].source == Source(
        kind=SourceKind.GIT, location="https://github.com/NVIDIA/nccl.git", identity=COMMIT, ref="v2.30.7-1"
    )
    assert made["sglang-kernel"].source.ref == "v0.5.23"
    assert made["nccl"].distributions == ("nvidia-nccl-cu13",)
    assert "nvidia-nccl-cu13==2.30.7" in one("torch", "cu130").requires


def test_what_is_rebuilt_is_not_fetched_from_the_index_as_well() -> None:
    assert "torch==2.14.1" in one("flashinfer", "cu130").requires
    assert not [text for text in all_of("cu130")["flashinfer"].requires if text.startswith("torch==")]
    assert not [text for text in all_of("cu130")["torch"].requires if text.startswith("nvidia-nccl")]


def test_a_local_version_is_an_indexs_and_not_a_tag() -> None:
    made = one("torch", "cu130-m", CUDA)
    assert (made.version, made.source.ref) == ("2.9.1", "v2.9.1")


def test_cuda_comes_from_wheels_of_the_toolchain_where_the_base_has_none() -> None:
    made = one("nccl", "cu130")
    assert made.environment["LANEWISE_CUDA_FROM"] == "wheels"
    assert "nvidia-cuda-nvcc==13.0.88" in made.requires
    on_cuda = one("nccl", "cu130", CUDA)
    assert on_cuda.environment["LANEWISE_CUDA_FROM"] == "base"
    assert not [text for text in on_cuda.requires if text.startswith("nvidia-")]
    assert one("sglang", "cu130").environment["LANEWISE_CUDA_FROM"] == "none"


def test_cuda_12_has_no_nvcc_on_the_index_and_so_needs_a_base_that_has() -> None:
    for name in ("torch", "nccl", "flashinfer", "sglang-kernel", "mscclpp"):
        with pytest.raises(InputError, match=r"no nvcc for CUDA 12\.8\.1") as caught:
            one(name, "cu128")
        assert "--base" in caught.value.todo
    assert one("sglang", "cu128").source.kind is SourceKind.WHEEL


def test_what_was_never_run_end_to_end_is_marked() -> None:
    untried = {name for name, component in read_components().items() if component.untried}
    assert untried == {"torch", "nccl", "sglang-kernel", "mscclpp"}


def test_patches_are_those_of_the_version() -> None:
    assert list(one("sglang", "cu128").patches) == ["001-symm-mem-without-a-table.patch"]
    assert one("sglang", "cu130").patches == {}


def test_settings_change_what_a_component_lets_be_changed() -> None:
    made = one("flashinfer", "cu130", settings={"flashinfer": {"LANEWISE_MODULES": "page"}})
    assert made.environment["LANEWISE_MODULES"] == "page"
    with pytest.raises(InputError, match="no setting 'FLASHINFER_CUDA_ARCH_LIST'") as caught:
        one("flashinfer", "cu130", settings={"flashinfer": {"FLASHINFER_CUDA_ARCH_LIST": "9.0"}})
    assert "LANEWISE_MODULES" in caught.value.expected


def test_other_sources_can_be_named() -> None:
    tree = Source(kind=SourceKind.TREE, location="/src/nccl", identity=HASH)
    assert one("nccl", "cu130", sources={"nccl": tree}, identities={}).source == tree


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"identities": {}}, "what its wheel is held against"),
        ({"versions": {}}, "'apache-tvm-ffi'"),
        ({"settings": {"nope": {}}}, "no component 'nope'"),
    ],
)
def test_what_is_missing_is_named(options, says) -> None:
    with pytest.raises(InputError) as caught:
        one("flashinfer", "cu130", **options)
    assert says in caught.value.what


def test_an_unknown_component_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="no component 'vllm'") as caught:
        one("vllm", "cu130")
    assert "flashinfer" in caught.value.expected


@pytest.mark.parametrize(
    "text",
    ["", "[]", "name: [", "source: nope", "!!python/object/apply:os.system ['touch PWNED']", "unknown: 1",
     (COMPONENTS / "nccl.yaml").read_text().replace("wheel==0.48.0", "wheel"),
     (COMPONENTS / "nccl.yaml").read_text().replace("g++", "g++; reboot"),
     (COMPONENTS / "nccl.yaml").read_text().replace("settings:", "settings:\n  NOPE: x"),
     (COMPONENTS / "nccl.yaml").read_text() + "needs: [nope]\n"],
)  # fmt: skip
def test_a_file_that_is_no_component_is_refused_and_runs_nothing(tmp_path, monkeypatch, text) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("prelude.sh", "x.sh"):
        (tmp_path / name).write_text("true\n")
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError):
        read_components(tmp_path)
    assert not (tmp_path / "PWNED").exists()


def test_the_key_follows_what_decides_a_build_and_nothing_else() -> None:
    def key(component: ComponentBuild, needed: str = "1") -> str:
        nccl = replace(one("nccl", "cu130"), version=needed)
        plan = BuildPlan(
            toolchain="t", cuda="13.0", arch={}, profile=Profile.FULL, base=BOOKWORM, wheels=(),
            components=(nccl, component),
        )  # fmt: skip
        return plan.component_key(component.name)

    torch = replace(one("torch", "cu130"), needs=("nccl",))
    assert key(torch) == key(replace(torch, why="another reason", untried=False))
    changed = [replace(torch, script="other"), replace(torch, patches={"001-a.patch": HASH}),
               replace(torch, environment={}), replace(torch, requires=())]  # fmt: skip
    assert len({key(torch), key(torch, needed="2"), *map(key, changed)}) == 6


@pytest.mark.parametrize("script", sorted(COMPONENTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash(script) -> None:
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize(
    ("only", "given", "left"),
    [
        ("120", "-gencode=arch=compute_90,code=sm_90 -gencode arch=compute_120a,code=sm_120a -O3",
         "-O3 -gencode=arch=compute_120a,code=sm_120a"),
        ("120", "--generate-code=arch=compute_90,code=sm_90 --generate-code arch=compute_120,code=[sm_120,compute_120]",
         "--generate-code=arch=compute_120,code=[sm_120,compute_120]"),
        ("120", "-gencode=arch=compute_90a,code=sm_90a x.cu", "x.cu -gencode=arch=compute_90a,code=sm_90a"),
        ("120", "-O2 -c x.cpp", "-O2 -c x.cpp"),
        ("", "-gencode=arch=compute_90,code=sm_90 -gencode arch=compute_120,code=sm_120",
         "-gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_120,code=sm_120"),
        ("", "--generate-dependencies-with-compile -MF x.d -c x.cu", "-MD -MF x.d -c x.cu"),
        ("", "--generate-nonsystem-dependencies-with-compile --dependency-output x.d", "-MMD -MF x.d"),
    ],
)  # fmt: skip
def test_the_compiler_launcher_leaves_only_the_code_that_is_wanted_and_says_what_ccache_understands(
    tmp_path, only, given, left
) -> None:
    prelude = (COMPONENTS / "prelude.sh").read_text()
    launcher = tmp_path / "launch"
    launcher.write_text(prelude.partition("<<'LAUNCHER'\n")[2].partition("\nLAUNCHER\n")[0])
    fake_ccache = tmp_path / "ccache"
    fake_ccache.write_text('#!/bin/sh\necho "$@"\n')
    for path in (launcher, fake_ccache):
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LANEWISE_ONLY": only}
    done = subprocess.run(
        [launcher, "nvcc", *given.split()], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"nvcc {left}"


GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "memory", "gb_per_job", "jobs"),
    [(2, 23 * GIB, 8, 2), (64, 23 * GIB, 8, 2), (64, 512 * GIB, 8, 63), (128, 2048 * GIB, 8, 128), (8, 2 * GIB, 8, 1),
     (8, 11 * GIB, 8, 1), (8, 11 * GIB - 1, 8, 1), (8, 19 * GIB - 1, 8, 1), (8, 19 * GIB, 8, 2), (8, 0, 8, 1)],
)  # fmt: skip
def test_memory_decides_how_many_compilers_run(cores, memory, gb_per_job, jobs) -> None:
    assert job_count(cores=cores, memory=memory, gb_per_job=gb_per_job) == jobs


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GIB),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 8 * GIB),
        ({"memory.max": f"{4 * GIB}\n", "memory.current": f"{GIB}\n"}, 3 * GIB),
        ({"memory.max": f"{4 * GIB}\n", "memory.current": f"{5 * GIB}\n"}, 0),
        ({"memory/memory.limit_in_bytes": f"{2 * GIB}\n", "memory/memory.usage_in_bytes": "0\n"}, 2 * GIB),
        ({"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n", "memory/memory.usage_in_bytes": "0\n"}, 8 * GIB),
    ],
)
def test_a_control_group_can_leave_less_than_the_machine(tmp_path, files, available) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path / "meminfo", tmp_path) == available


def test_a_container_never_gets_all_of_the_memory() -> None:
    assert memory_limit(8 * GIB) == 7 * GIB
    assert memory_limit(GIB // 2) == GIB


def test_jobs_that_the_user_asks_for_are_used() -> None:
    component = one("nccl", "cu130")
    assert Resources(cores=64, memory=9 * GIB).jobs_for(component) == 2
    assert Resources(cores=64, memory=9 * GIB, jobs=7).jobs_for(component) == 7


def test_builders_are_told_of_the_users_index_and_see_the_files_that_it_names(tmp_path) -> None:
    (tmp_path / "ca.pem").write_text("")
    variables, paths = index_access(
        {
            "PIP_INDEX_URL": "https://index.example.invalid/simple", "PIP_CERT": str(tmp_path / "ca.pem"),
            "PIP_FIND_LINKS": f"{tmp_path} /nonexistent", "PIP_CONSTRAINT": "c.txt", "HF_TOKEN": "secret",
            "HOME": "/root", "SSL_CERT_FILE": "",
        }
    )  # fmt: skip
    assert set(variables) == {"PIP_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS"}
    assert paths == (tmp_path, tmp_path / "ca.pem")


def test_the_summary_of_no_wheels_is_empty() -> None:
    assert audit_summary([]) == {
        "size": 0, "device_bytes": 0, "code": {}, "verdicts": {}, "missing": [], "sources": 0
    }  # fmt: skip


def test_every_script_is_of_a_component() -> None:
    others = {"prelude.sh", "supervise.sh"}
    assert {path.stem for path in COMPONENTS.glob("*.sh") if path.name not in others} == set(read_components())
    assert Path(COMPONENTS / "prelude.sh").is_file()


def test_what_a_build_says_is_cut_into_lines_however_it_comes() -> None:
    pieces = [b"one\nt", b"wo\r\n", b"10%\r20%\r", b"x" * 70_000, b"y\nend"]
    assert list(_lines(iter(pieces))) == [b"one", b"two", b"10%", b"20%", b"x" * 70_000, b"y", b"end"]


def test_a_remark_comes_at_most_twice_a_second() -> None:
    said: list[str] = []
    remarks = Remarks(said.append, "[1/2] nccl 2.30.7")
    for number in range(1000):
        remarks(f"line {number}")
    assert said == ["[1/2] nccl 2.30.7 0:00: line 0"]


def test_the_builders_dockerfile_installs_what_is_asked_for_in_one_layer() -> None:
    assert dockerfile("sha256:abc", ("make", "g++")) == (
        "FROM sha256:abc\n"
        "RUN apt-get update -qq"
        " && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends g++ make"
        " && rm -rf /var/lib/apt/lists/*\n"
        'LABEL lanewise.builder="g++ make"\n'
    )
    assert "RUN" not in dockerfile("sha256:abc", ())
