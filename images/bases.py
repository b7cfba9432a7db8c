"""What images start from: a registry's image by its digest, or one made of the machine's own Debian packages."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.build_plan import Base, BaseKind
from images.context import ContextFile, tar_stream
from images.debian_root import PACKAGES, debian_root, packages_hash
from images.engine_errors import LOG_IN, asking, refused, short
from images.engine_work import Progress, build, present, run_once
from lanewise.errors import InputError, LanewiseError, UnreachableError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

INPUTS_LABEL = "lanewise.base.inputs"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PROBE = (
    "import json, sys, venv, ensurepip;"
    "print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'pip': ensurepip.version()}))"
)


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base that the engine has.

    Attributes:
        id: its image id.
        digest: of a registry base, as locked; else "".
        inputs: hash of the Debian packages with versions that were put in here; "" where none were.
    """

    id: str
    digest: str
    inputs: str


def ensure_base(base: Base, client: DockerClient, cache: Path, progress: Progress) -> BaseImage:
    """Have the base in the engine, and prove that it has the Python that the plan is for, with venv and pip.

    Args:
        base: which.
        client: the engine.
        cache: folder in which archives of Debian bases are kept.
        progress: is told what is done.

    Raises:
        InputError: the base is not locked, cannot be made here, or lacks Python, venv or pip.
        UnreachableError: the engine or its registry does not answer.
        LanewiseError: the registry has another digest; the base cannot be made.
    """
    made = (
        _of_debian(base, client, cache, progress)
        if base.kind is BaseKind.DEBIAN
        else _of_registry(base, client, progress)
    )
    _check_python(base, made, client)
    return made


def _of_debian(base: Base, client: DockerClient, cache: Path, progress: Progress) -> BaseImage:
    root = debian_root(base.reference, base.packages, cache / "bases", progress)
    name = f"lanewise-base/{base.name}"
    tag = root.inputs[:12]
    if not (image := present(f"{name}:{tag}", client)):
        progress(f"importing {name}:{tag}")
        with asking(f"import the base {name}"):
            changes = [f"LABEL {INPUTS_LABEL}={root.inputs}", 'CMD ["bash"]']
            client.api.import_image(src=str(root.tar), repository=name, tag=tag, changes=changes)
        image = present(f"{name}:{tag}", client)
    return BaseImage(id=_id(image, f"import the base {name}"), digest="", inputs=root.inputs)


def _of_registry(base: Base, client: DockerClient, progress: Progress) -> BaseImage:
    if not _DIGEST.fullmatch(base.digest):
        raise InputError(
            f"base {base.name} ({base.reference}) is not locked: its digest is {base.digest[:100] or 'unresolved'}",
            expected="sha256:... in images/lock.yaml, so that the same plan starts from the same bytes",
            todo="./inv lock where the registry can be reached, or another --base",
        )
    pulled = _pulled(base, client, progress)
    if not base.packages:
        return BaseImage(id=pulled, digest=base.digest, inputs="")
    return _with_packages(base, pulled, client, progress)


def repository(reference: str) -> str:
    """A reference without tag and digest; a colon before a slash belongs to a port."""
    name = reference.partition("@")[0]
    return name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name


def _pulled(base: Base, client: DockerClient, progress: Progress) -> str:
    locked = f"{repository(base.reference)}@{base.digest}"
    image = present(locked, client)
    if not image:
        progress(f"pulling {locked}")
        try:
            with asking(f"pull {locked}", todo=f"{LOG_IN}; a --base of Debian packages needs no registry"):
                image = client.images.pull(locked)
        except LanewiseError as error:
            if drifted := _drift(base, client):
                raise drifted from error
            raise
    digests = image.attrs.get("RepoDigests") or []
    if not any(digest.endswith(base.digest) for digest in digests):
        raise LanewiseError(
            f"base {base.name}: the engine pulled {', '.join(digests) or 'an image without digest'}",
            expected=f"{base.digest}, as the lock says",
            todo="find out what stands between engine and registry; nothing was built",
        )
    return str(image.id)


def _drift(base: Base, client: DockerClient) -> LanewiseError | None:
    """The error where the registry has the tag, but what was locked is gone; None where it does not tell."""
    try:
        with asking(f"ask for the digest of {base.reference}"):
            now = str(client.images.get_registry_data(base.reference).id)
    except LanewiseError:
        return None
    if now == base.digest:
        return None
    return LanewiseError(
        f"base {base.name}: the registry no longer has {base.digest}; {base.reference} is now {now}",
        expected=f"{base.digest}, as images/lock.yaml says",
        todo="./inv lock to take what is there now, or ask whoever keeps the registry for the old one",
    )


def _with_packages(base: Base, pulled: str, client: DockerClient, progress: Progress) -> BaseImage:
    """The registry's image with the packages that it lacks, e.g. Python: nvidia/cuda has none."""
    wanted = sorted(base.packages)
    tag = f"lanewise-base/{base.name}:{hashlib.sha256(json.dumps([base.digest, wanted]).encode()).hexdigest()[:12]}"
    image = present(tag, client)
    if not image:
        progress(f"adding {', '.join(wanted)} to {base.name}")
        build(
            client,
            tar_stream([ContextFile(path="Dockerfile", content=_adding(wanted).encode())]),
            what=f"add packages to the base {base.name}",
            arguments={"BASE": pulled},
            network="default",
            progress=progress,
            tag=tag,
        )
        image = present(tag, client)
    made = _id(image, f"add packages to the base {base.name}")
    listed = run_once(client, made, ["dpkg-query", "--show", "--showformat=${Package}:${Architecture} ${Version}\\n"])
    packages = dict(line.split(" ", 1) for line in listed.output.splitlines() if " " in line)
    return BaseImage(id=made, digest=base.digest, inputs=packages_hash(packages))


def _adding(packages: list[str]) -> str:
    return (
        "ARG BASE\nFROM ${BASE}\n"
        "RUN apt-get update \\\n"
        f" && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(packages)} \\\n"
        " && rm -rf /var/lib/apt/lists/*\n"
    )


def _check_python(base: Base, made: BaseImage, client: DockerClient) -> None:
    try:
        ran = run_once(client, made.id, ["python3", "-I", "-c", _PROBE], seconds=60)
    except UnreachableError:
        raise
    except LanewiseError as error:  # there is no python3 that could be started
        raise _lacks_python(base, error.what) from error
    try:
        found = str(json.loads(ran.output)["python"])
    except (ValueError, KeyError, TypeError):
        raise _lacks_python(base, ran.errors or f"python3 ended with {ran.code}") from None
    if found != base.python:
        raise InputError(
            f"base {base.name} ({base.reference}) has Python {found}",
            expected=f"{base.python}, for which the wheels were resolved",
            todo="correct python of this base in images/matrix.yaml, and run ./inv lock",
        )


def _lacks_python(base: Base, why: str) -> InputError:
    return InputError(
        f"base {base.name} ({base.reference}) lacks python3 with venv and pip: {short(why)}",
        expected=f"Python {base.python} with the modules venv and ensurepip",
        todo=f"add {' and '.join(PACKAGES[1:])} to the packages of this base in images/matrix.yaml",
    )


def _id(image: Image | None, what: str) -> str:
    if image is None or not image.id:
        raise refused(what, "the engine said done, and has no such image")
    return str(image.id)
