"""Proves a new image before it gets its name: what is in it, what it runs with, what it says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from images.audit import Audit, audit
from images.build_plan import BuildPlan
from images.capability import SM120
from images.dockerfile import CACHES, LEFT_OUT, PYTHON, USER, cuda_home, jit_folder, labels
from images.engine_work import Progress, present, run_once
from lanewise.errors import LanewiseError

if TYPE_CHECKING:
    from docker import DockerClient

_SMOKE = Path(__file__).parent / "inside/smoke.py"
_MARK = "@smoke "
_IMPORTS: Mapping[str, str] = {
    "mpi4py": "mpi4py",
    "numpy": "numpy",
    "cuda-bindings": "cuda.bindings.driver",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
    "torch": "torch",
    "triton": "triton",
    "flashinfer-python": "flashinfer",
    "sglang-kernel": "sgl_kernel",
    "sgl-kernel": "sgl_kernel",
    "sglang": "sglang",
}
"""Distribution to what is imported; `nccl` is loaded as the benchmark's worker does."""
_BY_PIP = frozenset({"pip", "setuptools", "wheel"})
"""What a virtual environment may have although no plan names it."""
_NEEDS_A_DRIVER = re.compile(r"libcuda\.so\.1|libnvidia-ml\.so\.1")
"""Of the GPU's driver, which a container gets from its host."""
_TOOLKIT = re.compile(r"nvidia/cu\d+/|nvidia/cuda_nv(?:cc|rtc)/|^usr/local/cuda")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What leaving something out saved.

    Attributes:
        pattern: of paths in site-packages.
        why: why it can be left out.
        files: how many there were.
        bytes: their size.
    """

    pattern: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What is known of an image that was checked.

    Attributes:
        image: its id.
        size: bytes, all layers together.
        audit: its device code.
        saved: what leaving out saved.
        remarks: what a person should know, and what is no fault.
        faults: why the image must not be used.
    """

    image: str
    size: int
    audit: Audit
    saved: tuple[Saved, ...]
    remarks: tuple[str, ...]
    faults: tuple[str, ...]


def check_image(plan: BuildPlan, image: str, client: DockerClient, progress: Progress) -> Checked:
    """All checks, each carried out whatever the others say; nothing is changed.

    Raises:
        UnreachableError, LanewiseError: the engine stops answering or refuses.
    """
    progress("checking labels")
    found = present(image, client)
    if found is None:
        raise LanewiseError(f"there is no image {image}", expected="the image just built", todo="build it again")
    faults = label_faults(plan, found.labels)
    progress("importing in a container without GPU and network")
    answer = _smoked(plan, image, client)
    faults += smoke_faults(plan, answer)
    progress("auditing device code")
    audited = audit(image, capability=SM120, toolchain_cuda=plan.cuda)
    faults += audit_faults(plan, audited)
    return Checked(
        image=image,
        size=int(found.attrs["Size"]),
        audit=audited,
        saved=tuple(Saved(**row) for row in answer.get("left_out", ())),
        remarks=(*plan.remarks, *smoke_remarks(plan, answer)),
        faults=tuple(faults),
    )


def label_faults(plan: BuildPlan, found: Mapping[str, str]) -> list[str]:
    """Labels that are not what the plan says."""
    return [
        f"label {name} is {str(found.get(name))[:100]!r}, not {value[:100]!r}"
        for name, value in labels(plan).items()
        if found.get(name) != value
    ]


def audit_faults(plan: BuildPlan, audited: Audit) -> list[str]:
    """Code that is used and cannot run, damaged files, a missing nvcc that was promised, tools of another CUDA."""
    faults = [f"{library.path} has no code that runs on SM120" for library in audited.missing]
    faults += [f"{fault.path} {fault.error}" for fault in audited.faults]
    if audited.nvcc_missing and cuda_home(plan):
        faults.append("there is no nvcc, although the plan brings one")
    for tool in audited.tools:
        if tool.differs and _TOOLKIT.search(tool.path):
            faults.append(f"{tool.path} is of CUDA {tool.release}, not {plan.cuda}")
    return faults


def imports_of(plan: BuildPlan) -> list[str]:
    """What is imported of what the plan installs, in a fixed order."""
    installed = {wheel.name for wheel in plan.wheels}
    installed |= {canonicalize_name(name) for component in plan.components for name in component.distributions}
    return list(dict.fromkeys(module for name, module in _IMPORTS.items() if name in installed))


def _smoked(plan: BuildPlan, image: str, client: DockerClient) -> dict[str, Any]:
    request = {"imports": imports_of(plan), "left_out": str(LEFT_OUT), "writable": [str(CACHES), str(jit_folder(plan))]}
    command = [str(PYTHON), "-c", _SMOKE.read_text(encoding="utf-8"), json.dumps(request)]
    ran = run_once(client, image, command, key=plan.key, seconds=3600)
    lines = [line for line in ran.output.splitlines() if line.startswith(_MARK)]
    try:
        answer = json.loads(lines[-1].removeprefix(_MARK)) if lines else None
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"error": f"ended with {ran.code}: {ran.errors}"}


def smoke_faults(plan: BuildPlan, answer: Mapping[str, Any]) -> list[str]:
    """What the container said that it must not."""
    if "error" in answer:
        return [f"the checks inside the image did not end: {answer['error']}"]
    faults = [
        f"{name} cannot be imported: {result['error']}"
        for name, result in answer["imports"].items()
        if "error" in result and not _NEEDS_A_DRIVER.search(result["error"])
    ]
    faults += [f"{path} cannot be written to" for path, writable in answer["writable"].items() if not writable]
    if answer["user"] != USER:
        faults.append(f"it runs as user {answer['user']}, not {USER}")
    checks: list[Callable[[BuildPlan, Mapping[str, Any]], list[str]]] = [_version_faults, _nccl_faults, _pip_faults]
    return [*faults, *(fault for check in checks for fault in check(plan, answer))]


def _version_faults(plan: BuildPlan, answer: Mapping[str, Any]) -> list[str]:
    found = {str(canonicalize_name(name)): str(version) for name, version in answer["versions"].items()}
    wanted = {wheel.name: wheel.version for wheel in plan.wheels}
    faults = [
        f"{name} is {found.get(name) or 'missing'}, not {version}"
        for name, version in wanted.items()
        if found.get(name) != version
    ]
    rebuilt = {str(canonicalize_name(name)): c for c in plan.components for name in c.distributions}
    for name, component in rebuilt.items():
        if name in found and Version(found[name]).public != Version(component.version).public:
            faults.append(f"{name} is {found[name]}, not a build of {component.version}")
    strangers = found.keys() - wanted.keys() - rebuilt.keys() - _BY_PIP
    return faults + [f"{name} {found[name]} is in it, of which the plan knows nothing" for name in sorted(strangers)]


def _nccl_faults(plan: BuildPlan, answer: Mapping[str, Any]) -> list[str]:
    """The NCCL that runs has to be the file that the plan's wheel recorded, whoever loads it, and no second one."""
    owners = answer["nccl"]["recorded"]
    if len(owners) != 1:
        return [f"libnccl is owned by {[owner['owner'] for owner in owners]}"] if owners else []
    faults = [
        f"{path} is loaded as NCCL and is not the file of {owners[0]['owner']}"
        for path, digest in answer["nccl"]["mapped"].items()
        if digest != owners[0]["hash"]
    ]
    for name in ("nccl", "torch"):
        result = answer["imports"].get(name, {"error": ""})
        if "error" not in result and len(result["nccl"]) != 1:
            faults.append(f"{name} has {len(result['nccl'])} libnccl loaded: {', '.join(result['nccl'])}")
    loaded = answer["imports"].get("nccl", {}).get("version")
    wanted = _nccl_version(plan)
    if loaded is not None and wanted and loaded != wanted:
        faults.append(f"NCCL says that it is {loaded}, not {wanted}")
    return faults


def _nccl_version(plan: BuildPlan) -> int:
    """As ncclGetVersion says it (nccl.h, NCCL_VERSION): 2.30.7 is 23007."""
    versions = [wheel.version for wheel in plan.wheels if wheel.name.startswith("nvidia-nccl-")]
    versions += [c.version for c in plan.components if any(n.startswith("nvidia-nccl-") for n in c.distributions)]
    if not versions:
        return 0
    major, minor, patch = (*Version(versions[0]).release, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch


_MISSING = re.compile(r"\S+ \S+ requires (\S+), which is not installed\.")
_OTHER = re.compile(r"(\S+) \S+ has requirement (.+), but you have (\S+) (\S+)\.")


def _pip_faults(plan: BuildPlan, answer: Mapping[str, Any]) -> list[str]:
    return [f"pip check: {line}" for line in answer["pip"] if not _meant(plan, line)]


def _meant(plan: BuildPlan, line: str) -> bool:
    """Whether a complaint of pip is what the plan wants: a payload left out as a whole, or a pin that overrides."""
    left_out = {canonicalize_name(pattern.partition("/")[0]) for pattern in plan.left_out}
    if match := _MISSING.fullmatch(line):
        return canonicalize_name(match[1]) in left_out
    match = _OTHER.fullmatch(line)
    return match is not None and canonicalize_name(match[3]) in plan.overrides


def smoke_remarks(plan: BuildPlan, answer: Mapping[str, Any]) -> list[str]:
    """What the container said that is no fault."""
    needs = [
        f"{name} was not imported: it needs the GPU's driver, and there was none"
        for name, result in answer.get("imports", {}).items()
        if _NEEDS_A_DRIVER.search(str(result.get("error", "")))
    ]
    return needs + [f"pip check, as meant: {line}" for line in answer.get("pip", ()) if _meant(plan, line)]
