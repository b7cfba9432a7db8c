"""The components that ship, built on a real engine as far as a small machine can."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.build_plan import BuildPlan, ComponentBuild, Profile, Source, SourceKind
from images.builder import Resources, build_components
from images.components import components_for, read_components
from images.lock import read_lock
from images.matrix import find_toolchain
from images.sources_fetch import tree_hash
from images.wheelhouse import BuiltComponent, Wheelhouse
from lanewise.errors import LanewiseError
from tests.containers.conftest import BOOKWORM, CACHE

pytestmark = pytest.mark.network

FLASHINFER_072 = "770550a0aa92b2f10e6c9a1f048dd43713f0f3bb6a12710186fcf8e4e9c99bd8"
SGLANG_0510 = "a854a68b11caf6b4b55c241a44378a7cdede7ede325db85c955f131506703bc6"
CPU_TORCH = "torch==2.13.0+cpu"
"""Compiling FlashInfer asks torch for its C++ ABI and nothing else; the toolchain's own is gigabytes."""
BUILD_TOOLS = {
    "apache-tvm-ffi": "0.1.11", "einops": "0.8.2", "filelock": "4.3.1", "jinja2": "3.1.6", "ninja": "1.13.2",
    "numpy": "2.3.5", "nvidia-ml-py": "13.590.48", "packaging": "26.4", "requests": "2.34.2", "setuptools": "84.2.1",
    "tqdm": "4.70.1", "nvidia-cuda-cccl": "13.0.85", "nvidia-cuda-runtime": "13.0.96", "nvidia-cublas": "13.1.1.3",
    "nvidia-curand": "10.4.0.35",
}  # fmt: skip


@pytest.fixture
def build(engine: Any, python_base: str, tmp_path: Path) -> Callable[..., BuiltComponent]:
    def run(toolchain: str, component: ComponentBuild, stock: Mapping[str, Path] | None = None) -> BuiltComponent:
        plan = BuildPlan(
            toolchain=toolchain, cuda=find_toolchain(toolchain).cuda, arch=find_toolchain(toolchain).arch,
            profile=Profile.FULL, base=BOOKWORM, wheels=(), components=(component,),
        )  # fmt: skip
        built = build_components(
            plan, engine, python_base, Wheelhouse(tmp_path / "wheelhouse"), Resources(cores=2, memory=8 << 30),
            lambda _line: None, cache=CACHE, stock=stock,
        )  # fmt: skip
        return built[component.name]

    return run


def one(name: str, toolchain: str, identity: str, **options: Any) -> ComponentBuild:
    chosen = find_toolchain(toolchain)
    return components_for({name: "test"}, chosen, BOOKWORM, identities={name: identity}, **options)[0]


def test_sglang_is_patched_and_packed_again(build) -> None:
    component = one("sglang", "cu128", SGLANG_0510, versions={})
    assert list(component.patches) == ["001-symm-mem-without-a-table.patch"]
    built = build("cu128", component)
    assert [wheel.path.name for wheel in built.wheels] == ["sglang-0.5.10.post1-py3-none-any.whl"]
    with zipfile.ZipFile(built.wheels[0].path) as wheel:
        text = wheel.read("sglang/srt/distributed/device_communicators/torch_symm_mem.py").decode()
    assert "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES.get(self.device_capability, {})" in text


@pytest.mark.timeout(600)
def test_flashinfers_pcie_ipc_is_compiled_for_sm120(build) -> None:
    component = one(
        "flashinfer", "cu130", FLASHINFER_072, versions=BUILD_TOOLS,
        settings={"flashinfer": {"LANEWISE_MODULES": "pcie_ipc_comm pcie_ipc_ag_rs"}},
    )  # fmt: skip
    stock = CACHE / "wheels" / FLASHINFER_072 / "flashinfer_python-0.7.2-py3-none-any.whl"
    requires = tuple(CPU_TORCH if text.startswith("torch==") else text for text in component.requires)
    try:
        built = build("cu130", replace(component, requires=requires), {"flashinfer-python": stock})
    except LanewiseError as error:
        if CPU_TORCH in str(error):
            pytest.skip(f"no index that pip knows here has {CPU_TORCH}")
        raise
    assert built.before is not None
    assert not built.before["verdicts"]  # nothing compiled for SM120: toolkit JIT
    assert built.after["verdicts"] == {"native": 2}
    assert built.after["code"]["sm_120f"] == 3  # one all-reduce source, one all-gather, one reduce-scatter
    with zipfile.ZipFile(built.wheels[0].path) as wheel:
        assert "flashinfer/data/aot/pcie_ipc_comm/pcie_ipc_comm.so" in wheel.namelist()


# The scripts that nobody ran to the end on the real sources, on fakes that are built by the same commands.

NVCC = "nvcc -shared -Xcompiler -fPIC -cudart none"
FAKE_MAKEFILE = f"""\
src.build:
\tmkdir -p $(BUILDDIR)/lib $(BUILDDIR)/include
\t{NVCC} $(NVCC_GENCODE) -o $(BUILDDIR)/lib/libnccl.so.2.30.7 fake.cu
\tln -s libnccl.so.2.30.7 $(BUILDDIR)/lib/libnccl.so
\tcp nccl.h $(BUILDDIR)/include
"""
FAKE_KERNEL = """\
extern "C" const char *build = "NCCL version 2.30.7 compiled with CUDA 13.0";
__global__ void fake(int *x) { *x = 1; }
"""
FAKE_SETUP = f"""\
import os
import subprocess
from pathlib import Path
from setuptools import setup
from setuptools.command.build_py import build_py


class Build(build_py):
    def run(self):
        super().run()
        for name in ("sm90/common_ops.so", "sm100/common_ops.so", "flash_ops.so", "flashmla_ops.so"):
            target = Path(self.build_lib, "PACKAGE", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            launcher = ["launch"] if "launch" in os.environ.get("CMAKE_ARGS", "") else []
            subprocess.run([*launcher, *"{NVCC}".split(), "-gencode=arch=compute_90,code=sm_90",
                            "-gencode=arch=compute_120a,code=sm_120a", "-o", target, "fake.cu"], check=True)


setup(name="DISTRIBUTION", version="VERSION", packages=["PACKAGE"], cmdclass={{"build_py": Build}})
"""


def fake_project(folder: Path, distribution: str, package: str, version: str) -> None:
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / "fake.cu").write_text(FAKE_KERNEL)
    (folder / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools"]\n')
    setup = FAKE_SETUP.replace("PACKAGE", package).replace("DISTRIBUTION", distribution).replace("VERSION", version)
    (folder / "setup.py").write_text(setup)


def on_a_fake(name: str, folder: Path) -> ComponentBuild:
    """The component with its own script and environment, on a fake's sources, without what only the real ones need."""
    source = Source(kind=SourceKind.TREE, location=str(folder), identity=tree_hash(folder))
    left_out = dict.fromkeys(("mscclpp", *(name for c in read_components().values() for name in c.toolkit)), "0.9.0")
    made = one(name, "cu130", "", versions={**left_out, **BUILD_TOOLS}, sources={name: source})
    needed = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl",
              "nvidia-nccl", "setuptools", "wheel")  # fmt: skip
    requires = tuple(text for text in made.requires if text.startswith(needed))
    return replace(made, requires=requires, packages=("ccache", "g++", "make", "patch", "python3-dev"))


def contents(built: BuiltComponent) -> set[str]:
    with zipfile.ZipFile(built.wheels[0].path) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_nccls_script_makes_a_wheel_that_takes_the_place_of_nvidias(build, tmp_path) -> None:
    folder = tmp_path / "fake-nccl"
    folder.mkdir()
    for name, text in (("Makefile", FAKE_MAKEFILE), ("fake.cu", FAKE_KERNEL), ("nccl.h", "")):
        (folder / name).write_text(text)
    built = build("cu130", on_a_fake("nccl", folder))
    assert [wheel.path.name for wheel in built.wheels] == ["nvidia_nccl_cu13-2.30.7-py3-none-linux_x86_64.whl"]
    assert contents(built) == {"nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/nccl.h"}
    assert {"sm_120", "compute_120"} <= set(built.after["code"])


def test_sglang_kernels_script_leaves_sm120_alone_and_drops_what_it_never_loads(build, tmp_path) -> None:
    fake_project(tmp_path / "fake" / "sgl-kernel", "sglang-kernel", "sgl_kernel", "0.4.10")
    built = build("cu130", on_a_fake("sglang-kernel", tmp_path / "fake"))
    assert contents(built) == {"sgl_kernel/__init__.py", "sgl_kernel/sm100/common_ops.so"}
    assert set(built.after["code"]) == {"sm_120a"}


@pytest.mark.parametrize(("name", "version"), [("torch", "2.14.1"), ("mscclpp", "0.9.0")])
def test_the_scripts_of_torch_and_mscclpp_make_a_wheel(build, tmp_path, name, version) -> None:
    fake_project(tmp_path / "fake", name, name, version)
    built = build("cu130", on_a_fake(name, tmp_path / "fake"))
    assert built.wheels[0].path.name == f"{name}-{version}-py3-none-any.whl"


def test_the_lock_still_names_what_these_tests_are_about() -> None:
    toolchains = read_lock().toolchains.values()
    hashes = {wheel.sha256 for pythons in toolchains for lock in pythons.values() for wheel in lock.wheels}
    assert {FLASHINFER_072, SGLANG_0510} <= hashes
