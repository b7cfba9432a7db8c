"""Filters that read a node's record, and NCCL's files, for the roles and plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

UNKNOWN = "unknown"
_VOLATILE = {
    "schema", "unread", "read_at", "pstate", "temperature_c", "throttle_reasons", "clock_sm_mhz", "clock_memory_mhz",
    "pcie_generation", "current_link_speed_gts", "aer_correctable", "aer_nonfatal", "aer_fatal", "runtime_status",
    "memory_bytes", "vm.min_free_kbytes",
}  # fmt: skip
"""Fields that differ from one reading, or one boot, to the next although nobody set anything.

A NUMA node's memory, and so what is kept free, differed by some MB between two boots of one machine."""
_MOST = 200
"""More differences than a person reads; the records have them all."""


def nccl_conf(text: str) -> dict[str, str]:
    """NAME=value lines exactly as NCCL reads them: nothing is trimmed, '#' comments only at a line's start.

    Source: https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc
    """
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(name, value)
    return settings


def runtime_state(record: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of driver, open modules, engine, toolkit and CDI: `state` (ok, missing or unknown) and `found`."""
    driver, container = _mapping(record.get("driver")), _mapping(record.get("container"))
    docker, cdi = _mapping(container.get("docker")), container.get("cdi", UNKNOWN)
    module = driver.get("kernel_module", UNKNOWN)
    return {
        "driver": _state(driver.get("version", UNKNOWN)),
        "open_kernel_modules": _state(None if module == "proprietary" else module),
        "docker": _state(docker.get("version", UNKNOWN) if docker.get("present", UNKNOWN) is not False else None),
        "nvidia_container_toolkit": _state(container.get("nvidia_toolkit", UNKNOWN)),
        "cdi": _state(UNKNOWN if cdi == UNKNOWN else ", ".join(str(one.get("path")) for one in cdi) or None),
    }


def _state(found: Any) -> dict[str, str]:  # noqa: ANN401 - whatever the record holds
    state = "unknown" if found == UNKNOWN else "missing" if found is None else "ok"
    return {"state": state, "found": str(found) if state == "ok" else ""}


def _mapping(value: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
    return value if isinstance(value, Mapping) else {}


def p2p_facts(record: Mapping[str, Any]) -> str:
    """What an engine's verdict that two GPUs can, or cannot, reach each other rests on, as one text."""
    driver, iommu = _mapping(record.get("driver")), _mapping(record.get("iommu"))
    pci = record.get("pci")
    ports = (
        [f"{one.get('address')} {one.get('acs_control')}" for one in map(_mapping, pci)]
        if isinstance(pci, list)
        else [UNKNOWN]
    )
    modules = _mapping(_mapping(record.get("kernel")).get("modules"))
    return "\n".join(
        [
            f"driver {driver.get('version')} {driver.get('kernel_module')}",
            f"iommu {iommu.get('mode')}",
            *(f"{name} {modules[name]}" for name in sorted(modules) if name.startswith("nvidia")),
            *ports,
        ]
    )


def record_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fields of two node records that differ, but for those that never stay: `field`, `before`, `after`."""
    found = list(_differences("", before, after))
    more = len(found) - _MOST
    return found[:_MOST] + ([{"field": f"and {more} more", "before": None, "after": None}] if more > 0 else [])


def _differences(field: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    before, after = _by_name(before), _by_name(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in _VOLATILE:
                yield from _differences(f"{field}.{key}".lstrip("."), before.get(key), after.get(key))
    elif before != after:
        yield {"field": field, "before": before, "after": after}


def _by_name(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A list of devices by their addresses, of nodes by their ids: a card that is gone is one difference."""
    for key in ("address", "id", "name"):
        if isinstance(value, list) and value and all(isinstance(one, Mapping) and key in one for one in value):
            return {str(one[key]): one for one in value}
    return value


class FilterModule:
    """What Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {
            "nccl_conf": nccl_conf,
            "runtime_state": runtime_state,
            "p2p_facts": p2p_facts,
            "record_differences": record_differences,
        }
