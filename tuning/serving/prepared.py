"""What of an environment decides its servers' arguments: SGLang's release there, its own flags, this machine's GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lanewise.errors import InputError
from lanewise.redact import redact_environment
from tuning.plan import Environment
from tuning.serving.backends import parse_release
from tuning.serving.flags import Arguments, arguments, releases
from tuning.serving.gpus import GpuFacts, read_gpus
from tuning.serving.installed import help_flags, installed_release
from tuning.serving.plan import ServingPlan
from tuning.serving.ports import Ports
from tuning.serving.server_command import server_command
from tuning.serving.spec import ServerSpec

_PORTS = Ports(http=30_000, nccl=30_001)
"""Stand-ins for ports that are chosen when a server starts."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is known of an environment before a server is started in it.

    Attributes:
        release: of SGLang, as its distribution says.
        known: flags that the launcher itself prints, of a release that the toolkit's table lacks; None of others.
        gpus: this machine's; None where nvidia-smi tells nothing.
        variables: that the environment sets, which switch things in SGLang as a spec's own do.
    """

    release: str
    known: frozenset[str] | None
    gpus: GpuFacts | None
    variables: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, spec: ServerSpec, ports: Ports) -> Arguments:
        """A server's arguments.

        Raises:
            InputError: this release, or these GPUs, cannot do what the spec wants.
        """
        spec = replace(spec, environment={**self.variables, **spec.environment})
        return arguments(spec, self.release, port=ports.http, nccl_port=ports.nccl, gpus=self.gpus, known=self.known)


def prepare(plan: ServingPlan, doing: Callable[[str], None] = lambda _: None) -> Mapping[str, Prepared]:
    """That of each environment of a plan, by its name; each of its arms was tried on them.

    Args:
        plan: what is to run.
        doing: told what takes long.

    Raises:
        InputError: an environment holds no SGLang, or cannot do what an arm wants; or a model is missing.
    """
    found = {environment.name: _prepared(environment, doing) for environment in plan.environments}
    planned(plan, found)
    return found


def _prepared(environment: Environment, doing: Callable[[str], None]) -> Prepared:
    release = installed_release(environment)
    known = None
    if _needs_asking(release):
        doing(f"{environment.name}: asking the launcher of SGLang {release} for its flags, which can take a minute")
        known = help_flags(environment)
    return Prepared(
        release=release,
        known=known,
        gpus=read_gpus(environment.variables.get("CUDA_VISIBLE_DEVICES")),
        variables=environment.variables,
    )


def _needs_asking(release: str) -> bool:
    """Whether the table lacks a release; one older than the table is refused whatever it says."""
    version, oldest = parse_release(release), parse_release(releases()[0])
    return release not in releases() and bool(version and oldest and version > oldest)


def planned(plan: ServingPlan, prepared: Mapping[str, Prepared]) -> list[dict[str, Any]]:
    """What every server of a plan would be started with, for people and JSON; ports are chosen when it starts.

    Raises:
        InputError: as `prepare`.
    """
    found = []
    for environment in plan.environments:
        one = prepared[environment.name]
        for arm in plan.arms:
            _require_models(arm.spec)
            made = one.arguments(arm.spec, _PORTS)
            command = server_command(environment, made.argv, variables=made.variables, port=_PORTS.http)
            found.append(
                {
                    "environment": environment.name,
                    "image": environment.image,
                    "arm": arm.name,
                    "concurrencies": list(arm.concurrencies),
                    "release": one.release,
                    "variables": redact_environment({**environment.variables, **made.variables}),
                    "command": command,
                    "notes": list(made.notes),
                }
            )
    return found


_MODEL_FILES = ("config.json", "params.json")
"""What says what a model is: Hugging Face's, Mistral's."""


def _require_models(spec: ServerSpec) -> None:
    """Refuse a folder that holds no model: a server would find out after a minute."""
    for option, path in (("--model", spec.model), ("--draft", spec.speculation.draft if spec.speculation else "")):
        folder = Path(path).expanduser()
        if path and folder.is_dir() and not any((folder / name).is_file() for name in _MODEL_FILES):
            raise InputError(
                f"{option} is {path}, a folder without config.json",
                expected="a model as Hugging Face has them: config.json beside the weights",
                todo="name the folder that holds it; in the hub's cache that is snapshots/REVISION",
            )
