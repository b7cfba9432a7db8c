"""What of an environment decides its servers' arguments: SGLang's release there, its own flags, this machine's GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lanewise.redact import redact_environment
from tuning.plan import Environment
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


def prepare(plan: ServingPlan) -> Mapping[str, Prepared]:
    """That of each environment of a plan, by its name; each of its arms was tried on them.

    Raises:
        InputError: an environment holds no SGLang, or cannot do what an arm wants; or a model is missing.
    """
    found = {environment.name: _prepared(environment) for environment in plan.environments}
    planned(plan, found)
    return found


def _prepared(environment: Environment) -> Prepared:
    release = installed_release(environment)
    return Prepared(
        release=release,
        # To ask the launcher takes a minute; a release that the table holds needs no asking.
        known=None if release in releases() else help_flags(environment),
        gpus=read_gpus(environment.variables.get("CUDA_VISIBLE_DEVICES")),
        variables=environment.variables,
    )


def planned(plan: ServingPlan, prepared: Mapping[str, Prepared]) -> list[dict[str, Any]]:
    """What every server of a plan would be started with, for people and JSON; ports are chosen when it starts.

    Raises:
        InputError: as `prepare`.
    """
    found = []
    for environment in plan.environments:
        one = prepared[environment.name]
        for arm in plan.arms:
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
