"""Asks where names that can move lead: a registry's tag to its digest, a git repository's ref to its commit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from packaging.version import Version

from images.build_plan import Base, BaseKind, Profile, SourceKind
from images.components import components_for, read_components
from images.lock import Resolved
from images.locking import Origins
from images.matrix import Toolchain
from images.patching import read_patches
from lanewise.engine import connected, engine_state

if TYPE_CHECKING:
    from docker import DockerClient

_SECONDS = 60
NO_ENGINE = "no container engine answered, which would ask the registry"
NO_REGISTRY = "the registry did not answer"
NO_TAG = "the registry has no such tag"
NO_SERVER = "the git server did not answer"
NO_REF = "the repository has no such tag or branch"


_ANY_BASE = Base(name="any", kind=BaseKind.REGISTRY, reference="any", python="3.12", cuda=True)
"""Where a component's sources are does not depend on the base."""


@contextmanager
def engine_if_any() -> Iterator[DockerClient | None]:
    """A connection to the container engine; None where none answers."""
    if engine_state().present:
        with connected("ask a registry", seconds=_SECONDS) as client:
            yield client
    else:
        yield None


def origins(toolchains: Iterable[Toolchain], client: DockerClient | None) -> Origins:
    """All that these toolchains' components are built from and patched with, and who is asked for it.

    Args:
        toolchains: whose.
        client: the engine through which registries are asked; None where none answers.

    Raises:
        InputError: a component or a patch is not what it has to be.
    """
    patches = [patch for name in read_components() for patch in read_patches(name)]
    return Origins(
        refs=list(dict.fromkeys(ref for toolchain in toolchains for ref in git_refs(toolchain))),
        patches={f"{patch.component}/{patch.name}": patch.sha256 for patch in patches},
        digest_of=partial(digest_of, client=client),
        commit_of=commit_of,
    )


def git_refs(toolchain: Toolchain) -> list[tuple[str, str]]:
    """Address and ref of the git repositories that a toolchain's components are built from."""
    wanted = {
        name: ""
        for name, component in read_components().items()
        if component.source is SourceKind.GIT and component.cuda.contains(toolchain.cuda)
    }
    builds = components_for(
        wanted,
        without_local_versions(toolchain),
        _ANY_BASE,
        versions={**toolchain.pins_of(Profile.FULL), **toolchain.from_source},
        identities=dict.fromkeys(wanted, "not asked yet"),
    )
    return [(build.source.location, build.source.ref) for build in builds]


def without_local_versions(toolchain: Toolchain) -> Toolchain:
    """As it is built from source: +cu130 tells wheels apart that were built for other CUDAs; no repository has it."""
    return replace(toolchain, pins={name: Version(version).public for name, version in toolchain.pins.items()})


def digest_of(reference: str, client: DockerClient | None) -> Resolved:
    """The digest of a registry's image, as its engine is told; nothing is pulled.

    Reasons are the same words on every machine, so that a lock does not change with the one that it is written on.
    """
    if client is None:
        return Resolved(unresolved=NO_ENGINE)
    from docker.errors import DockerException, NotFound  # noqa: PLC0415 - a quarter of a second, only where it is used
    from requests.exceptions import RequestException  # noqa: PLC0415

    try:
        return Resolved(value=str(client.images.get_registry_data(reference).id))
    except NotFound:
        return Resolved(unresolved=NO_TAG)
    except (DockerException, RequestException):
        return Resolved(unresolved=NO_REGISTRY)


def commit_of(location: str, ref: str) -> Resolved:
    """The commit that a tag or branch of a git repository names; an annotated tag's own commit is looked through."""
    # Credential helpers and prompts of the user's would wait for an answer that never comes.
    command = ["git", "-c", "credential.helper=", "-c", "protocol.ext.allow=never", "ls-remote", "--", location,
               f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}"]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Resolved(unresolved=NO_SERVER)
    if done.returncode:
        return Resolved(unresolved=NO_SERVER)
    lines = (line.partition("\t") for line in done.stdout.splitlines())
    found = {name: commit for commit, _, name in lines}
    names = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}")
    commit = next((found[name] for name in names if name in found), "")
    return Resolved(value=commit) if commit else Resolved(unresolved=NO_REF)
