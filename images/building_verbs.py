"""The verbs that build images and carry them away: they parse, call and print."""

from __future__ import annotations

import json as json_module
import subprocess
import sys
from pathlib import Path

from invoke.context import Context

from images import build, build_view
from images.build_plan import Profile, Source, SourceKind
from images.builder import this_machine
from images.components import read_components
from images.image_build import dockerfile_of
from images.lock import read_lock
from images.matrix import find_toolchain, read_toolchains
from images.plan_view import plan_document, show_plan
from images.planning import Choices
from images.push import push as push_to_registry
from images.push import send
from images.rebuilding import Rebuild
from images.sources_fetch import tree_hash
from images.wheels import missing
from lanewise import talk
from lanewise.engine import connected
from lanewise.errors import InputError
from lanewise.verbs import verb

ROOT = Path(__file__).parents[1]
WORKERS = ROOT / "tuning/workers"
_ENGINE_SECONDS = 600
_MOST_JOBS = 1024
"""More than the CPUs of the largest node; beyond it a number is a slip, and an estimate that divides by it nonsense."""


@verb(
    toolchain="which of images/matrix.yaml",
    profile="core: CUDA's parts, NCCL, Open MPI and the benchmark's workers; full: torch, FlashInfer, SGLang, too",
    base="what to start from (default: the toolchain's first; debian-bookworm needs no registry)",
    rebuild=f"{', '.join(Rebuild)}, or a comma list of components; auto: what the audit calls none or driver JIT, what "
    "a patch touches, and modules that would be compiled at the first request",
    jobs="compiler jobs of a builder container; 0: as many as memory has room for",
    set="COMPONENT.SETTING=VALUE changes a setting of a component's build (may be repeated)",
    source="COMPONENT=FOLDER builds a component from a local tree (may be repeated)",
    mirror="COMPONENT=ADDRESS fetches its sources from there; they are verified all the same (may be repeated)",
    plan="print every command, environment and estimate, and do nothing",
    json="print as JSON",
)
def build_image(
    _context: Context,
    toolchain: str = "",
    profile: str = "full",
    base: str = "",
    rebuild: str = "auto",
    jobs: int = 0,
    set: list[str] | None = None,  # noqa: A002 - the option's name
    source: list[str] | None = None,
    mirror: list[str] | None = None,
    plan: bool = False,
    json: bool = False,
) -> None:
    """Build a toolchain's image, audit and check it, and only then give it its tag: lanewise/TOOLCHAIN:PROFILE."""
    if not toolchain:
        raise InputError(
            "no toolchain is named", expected=f"--toolchain with one of {', '.join(read_toolchains())}", todo="name one"
        )
    if profile not in list(Profile):
        raise InputError(f"--profile is {profile!r}", expected=f"one of {', '.join(Profile)}", todo="correct it")
    if not 0 <= jobs <= _MOST_JOBS:
        raise InputError(f"--jobs is {jobs}", expected=f"0 to {_MOST_JOBS:,}", todo="correct it")
    chosen, lock, resources = find_toolchain(toolchain), read_lock(), this_machine(jobs)
    choices = Choices(
        profile=Profile(profile),
        base=base,
        rebuild=rebuild,
        settings=_settings(set or []),
        sources=_trees(source or []),
    )
    mirrors = dict(_named(text, "mirror") for text in mirror or [])
    if plan:
        made = build.plan_build(chosen, lock, choices, mirrors, talk.say)
        to_fetch = missing(made.wheels)
        by_component = {one.name: resources.jobs_for(one) for one in made.components}
        text = dockerfile_of(made, WORKERS)
        if json:
            talk.put_json(plan_document(made, dockerfile=text, missing=to_fetch, jobs=by_component))
        else:
            sys.stdout.write(show_plan(made, dockerfile=text, missing=to_fetch, jobs=by_component) + "\n")
        return
    with talk.track(f"building {toolchain}") as progress:
        built = build.build(chosen, lock, choices, mirrors, resources, WORKERS, progress.remark)
    talk.put_json(build_view.document(built)) if json else talk.put(build_view.show(built))


@verb(
    "image",
    image="name or id of an image that the engine has",
    registry="host, port and path to push it to, e.g. registry.example:5000/team",
    limit="hosts or groups of the inventory to send it to over ssh, as ansible's --limit takes them",
    inventory="the inventory",
)
def push(
    _context: Context, image: str = "", registry: str = "", limit: str = "", inventory: str = "inventory/hosts.yml"
) -> None:
    """Push IMAGE to a registry and print its reference by digest, or send it to nodes, and prove that it arrived."""
    if not image or bool(registry) == bool(limit):
        raise InputError(
            f"image {image!r}, registry {registry!r}, limit {limit!r}",
            expected="an image, and either --registry or --limit",
            todo="e.g. ./inv push lanewise/cu130:core --registry registry.example:5000/team",
        )
    hosts = _hosts(Path(inventory), limit) if limit else []
    with connected(f"push {image}", seconds=_ENGINE_SECONDS) as client, talk.track(f"pushing {image}") as progress:
        if registry:
            reference = push_to_registry(image, registry, client, progress.remark)
        else:
            send(image, hosts, client, progress.remark)
            reference = ""
    talk.put(reference or f"{image} is on {', '.join(hosts)}")


def _settings(texts: list[str]) -> dict[str, dict[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        where, equals, value = text.partition("=")
        component, dot, name = where.partition(".")
        if not (equals and dot and component and name):
            raise InputError(
                f"--set is {text!r}",
                expected="COMPONENT.SETTING=VALUE, e.g. flashinfer.LANEWISE_MODULES=page",
                todo="correct it",
            )
        settings.setdefault(component, {})[name] = value
    return settings


def _named(text: str, option: str) -> tuple[str, str]:
    component, _, value = text.partition("=")
    if not component or not value:
        raise InputError(f"--{option} is {text!r}", expected="COMPONENT=VALUE, e.g. nccl=../nccl", todo="correct it")
    return component, value


def _trees(texts: list[str]) -> dict[str, Source]:
    named = [_named(text, "source") for text in texts]
    known = read_components()
    if unknown := [component for component, _ in named if component not in known]:  # before a tree is hashed
        raise InputError(
            f"--source names {', '.join(unknown)}", expected=f"some of {', '.join(known)}", todo="correct it"
        )
    return {
        component: Source(kind=SourceKind.TREE, location=folder, identity=tree_hash(Path(folder)))
        for component, folder in named
    }


def _hosts(inventory: Path, limit: str) -> list[str]:
    """The nodes that a limit names, as ssh takes them; ansible reads the inventory."""
    command = [sys.executable, "-m", "ansible", "inventory", "-i", str(inventory), "--list", "--limit", limit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        found = json_module.loads(done.stdout)["_meta"]["hostvars"] if done.returncode == 0 else {}
    except (ValueError, KeyError):
        found = {}
    hosts = [_ssh(name, variables) for name, variables in found.items()]
    if not hosts:
        raise InputError(
            f"the inventory {inventory} has no node for --limit {limit!r} ({' '.join(done.stderr.split())[:200]})",
            expected="a host or group of it",
            todo="see ansible-inventory --graph",
        )
    return hosts


def _ssh(name: str, variables: dict[str, object]) -> str:
    host, user = variables.get("ansible_host", name), variables.get("ansible_user")
    return f"{user}@{host}" if user else str(host)
