"""Reads NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE); RCCL's is of the same form.

The form is that of NCCL 2.26 to 2.32 (src/graph/xml.cc, topo.cc). It shows neither host bridges nor ports.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from xml.etree.ElementTree import Element, ParseError, iterparse

from lanewise.errors import InputError
from tuning.topology import MAX_DEPTH, MAX_NODES, MAX_TEXT, Topology
from tuning.topology_links import Link, generation_of, link_of
from tuning.topology_nodes import Cpu, Device, Extra, FabricLink, Gpu, Nic, Node, OtherDevice, PciIds, Switch, bus_id

_FABRICS = ("nvlink", "xgmi", "c2c")
PCI_KEYS = {
    "class": "pci_class",
    "vendor": "vendor",
    "device": "device",
    "subsystem_vendor": "subsystem_vendor",
    "subsystem_device": "subsystem_device",
}
GPU_PREFIX = "gpu."
"""Marks, in a GPU's `extra`, attributes of its <gpu> element; the others are of its <pci>."""
_NOT_IN_XML = (
    "host bridges and ports, which NCCL's XML leaves out: GPUs of one CPU without a common switch are PHB or NODE",
    "ACS and P2P state, which NCCL's XML leaves out",
)
_MAX_ELEMENTS = 4 * MAX_NODES
_MAX_ATTRIBUTES = 32
"""Twice as many as NCCL takes (MAX_ATTR_COUNT in NCCL's src/graph/xml.h)."""
_INTEGER = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", re.ASCII)


def parse_xml(text: str, *, name: str, source: str) -> Topology:
    """A topology from NCCL's XML.

    Args:
        text: the file's content.
        name: the topology's name.
        source: where it is from, for errors.

    Raises:
        InputError: not such XML, or a value that cannot be.
    """
    reading = _Reading(source=source)
    root = _elements(text, source)
    if root.tag != "system":
        hint = "; this is a graph file, what NCCL's search found" if root.tag == "graphs" else ""
        raise _wrong(source, f"begins with <{root.tag[:40]}>{hint}", "<system>")
    for element in root:
        if element.tag == "cpu":
            _read_cpu(element, reading)
        else:
            reading.pass_over(element)
    return Topology(
        name=name, source=source, nodes=_numbered(reading.nodes), unknown=tuple(dict.fromkeys(reading.unknown))
    )


@dataclass(kw_only=True)
class _Reading:
    """What has been read of a file so far."""

    source: str
    nodes: list[Node] = field(default_factory=list)
    unknown: list[str] = field(default_factory=lambda: list(_NOT_IN_XML))

    def pass_over(self, element: Element) -> None:
        self.unknown.append(f"what <{element.tag[:40]}> elements mean; they were passed over")


def _wrong(source: str, problem: str, expected: str) -> InputError:
    return InputError(
        f"topology {source} {problem}", expected=expected, todo="mend the file, or dump it anew with NCCL"
    )


def _elements(text: str, source: str) -> Element:
    """The root element; entities and odd sizes are refused before they can grow (ElementTree expands entities)."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise _wrong(source, "declares a document type or entities", "plain elements; NCCL reads no others")
    depth = count = 0
    root: Element | None = None
    try:
        for event, element in iterparse(io.StringIO(text), events=("start", "end")):  # noqa: S314 - see above
            depth += 1 if event == "start" else -1
            count += event == "start"
            root = element if root is None else root
            if depth > MAX_DEPTH + 2 or count > _MAX_ELEMENTS:
                bounds = f"at most {MAX_DEPTH + 2} levels and {_MAX_ELEMENTS:,} elements"
                raise _wrong(source, f"has {count:,} elements in {depth} levels and more to come", bounds)
    except (ParseError, ValueError, LookupError) as error:
        raise _wrong(source, f"is not XML that can be read: {str(error)[:100]}", "NCCL's topology XML") from error
    if root is None:
        raise _wrong(source, "is empty", "NCCL's topology XML")
    return root


def _text(element: Element, key: str, reading: _Reading, *, needed: bool = False) -> str:
    value = element.get(key, "")
    if len(value) > MAX_TEXT:
        raise _wrong(reading.source, f"has a {key} of {len(value):,} characters", f"at most {MAX_TEXT}, as NCCL")
    if needed and not value:
        raise _wrong(reading.source, f"has a <{element.tag[:40]}> without {key}", f"a {key}")
    return value


def _number(element: Element, key: str, reading: _Reading) -> int | None:
    value = _text(element, key, reading)
    if not value:
        return None
    if not _INTEGER.fullmatch(value):
        raise _wrong(reading.source, f"has {key}={value[:40]!r} in <{element.tag[:40]}>", "a whole number")
    return int(value)


def _extra(element: Element, known: tuple[str, ...], reading: _Reading) -> Extra:
    """The attributes that the model does not know."""
    beside = [key for key in element.keys() if key not in known]  # noqa: SIM118 - elements are no mappings
    if len(beside) > _MAX_ATTRIBUTES:
        raise _wrong(
            reading.source, f"has a <{element.tag[:40]}> of {len(beside)} attributes", f"at most {_MAX_ATTRIBUTES}"
        )
    return tuple((key[:MAX_TEXT], _text(element, key, reading)) for key in beside)


def _bus_id(element: Element, key: str, reading: _Reading) -> str:
    text = _text(element, key, reading, needed=True)
    if (found := bus_id(text)) is None:
        raise _wrong(reading.source, f"has {key}={text[:40]!r}", "a bus id such as 0000:3b:00.0")
    return found


def _read_cpu(element: Element, reading: _Reading) -> None:
    numa = _number(element, "numaid", reading)
    if numa is None:
        raise _wrong(reading.source, "has a <cpu> without numaid", "a NUMA node's number, or -1")
    cpu = Cpu(
        id=f"cpu{numa}" if numa >= 0 else "cpu",
        numa=numa if numa >= 0 else None,
        several=numa < 0,
        arch=_text(element, "arch", reading),
        vendor=_text(element, "vendor", reading),
        family=_number(element, "familyid", reading),
        model=_number(element, "modelid", reading),
        affinity=_text(element, "affinity", reading),
        extra=_extra(element, ("numaid", "arch", "vendor", "familyid", "modelid", "affinity"), reading),
    )
    if any(node.id == cpu.id for node in reading.nodes):
        raise _wrong(
            reading.source, f"has two <cpu> of numaid {numa}", "each once; a file that joins several hosts is not read"
        )
    reading.nodes.append(cpu)
    for number, below in enumerate(element):
        if below.tag == "pci":
            _read_pci(below, cpu.id, reading)
        elif below.tag == "nic":
            nets = tuple(_net(net, reading) for net in below)
            reading.nodes.append(Nic(id=f"{cpu.id}-nic{number}", parent=cpu.id, nets=nets))
        else:
            reading.pass_over(below)


def _read_pci(element: Element, parent: str, reading: _Reading) -> None:
    ids = PciIds(**{name: _text(element, key, reading) for key, name in PCI_KEYS.items()})
    known = ("busid", *PCI_KEYS, "link_speed", "link_width")
    device = Device(
        id=_bus_id(element, "busid", reading),
        parent=parent,
        ids=ids,
        link=_link(element, reading),
        extra=_extra(element, known, reading),
    )
    if len(reading.nodes) >= MAX_NODES:
        raise _wrong(reading.source, f"has more than {MAX_NODES:,} devices", "the devices of one node")
    reading.nodes.append(_typed(element, device, reading))
    for below in element:
        if below.tag == "pci":
            _read_pci(below, device.id, reading)
        elif below.tag not in ("gpu", "nic", "pcilink"):
            reading.pass_over(below)


def _link(element: Element, reading: _Reading) -> Link:
    speed, width = _text(element, "link_speed", reading), _number(element, "link_width", reading)
    found = _SPEED.match(speed)
    generation = generation_of(float(found[1])) if found else None
    if found and generation is None:
        raise _wrong(reading.source, f"has link_speed={speed!r}", "a speed of PCIe, or none")
    return link_of(f"topology {reading.source}: {element.get('busid')}", generation=generation, width=width)


def _typed(element: Element, device: Device, reading: _Reading) -> Device:
    """The device as what it is: by its child elements, else by its class, as ncclTopoAddPci goes about it."""
    fields = vars(device)
    gpus, nics = element.findall("gpu"), element.findall("nic")
    pci_class = device.ids.pci_class
    if len(gpus) > 1:
        raise _wrong(reading.source, f"splits {device.id} into {len(gpus)} GPUs", "whole GPUs; partitions are not read")
    if gpus or pci_class.startswith("0x03"):
        return _gpu(gpus[0] if gpus else None, fields, reading)
    if nics or pci_class.startswith("0x02"):
        return Nic(**fields, nets=tuple(_net(net, reading) for nic in nics for net in nic))
    if pci_class.startswith("0x0680") or not (pci_class or element.findall("pci")):
        if not pci_class:
            reading.unknown.append("the class of some devices: GPUs may be among them, NCCL fills it in on the node")
        return OtherDevice(**fields)
    return Switch(**fields, peers=tuple(_bus_id(link, "target", reading) for link in element.findall("pcilink")))


def _net(element: Element, reading: _Reading) -> tuple[str, Extra]:
    return element.tag[:MAX_TEXT], _extra(element, (), reading)


_UNNUMBERED = -1


def _gpu(element: Element | None, fields: dict[str, object], reading: _Reading) -> Gpu:
    if element is None:
        reading.unknown.append("numbers and compute capability of some GPUs; they are numbered in the file's order")
        return Gpu(**fields, index=_UNNUMBERED, rank=_UNNUMBERED)  # type: ignore[arg-type]
    index, rank = _number(element, "dev", reading), _number(element, "rank", reading)
    known = ("dev", "rank", "sm", "gdr")
    extra = tuple((f"{GPU_PREFIX}{key}", value) for key, value in _extra(element, known, reading))
    return Gpu(
        **{**fields, "extra": (*fields["extra"], *extra)},  # type: ignore[arg-type, misc]
        index=_UNNUMBERED if index is None else index,
        rank=_UNNUMBERED if rank is None else rank,
        sm=_number(element, "sm", reading),
        gdr=_number(element, "gdr", reading) or 0,
        fabric=tuple(_fabric(below, reading) for below in element if below.tag in _FABRICS),
    )


def _fabric(element: Element, reading: _Reading) -> FabricLink:
    count = _number(element, "count", reading)
    return FabricLink(
        kind=element.tag,
        target="" if element.tag == "c2c" else _target(element, reading),
        count=1 if count is None else count,
        target_class=_text(element, "tclass", reading),
        extra=_extra(element, ("target", "count", "tclass"), reading),
    )


def _target(element: Element, reading: _Reading) -> str:
    """The other end; NVML names an NVSwitch that a virtual machine does not see in forms that are no bus id."""
    text = _text(element, "target", reading, needed=True).lower()
    return bus_id(text) or text


def _numbered(nodes: list[Node]) -> tuple[Node, ...]:
    """GPUs that the file does not number get the numbers left over, in the file's order."""
    gpus = [node for node in nodes if isinstance(node, Gpu)]
    free = iter(sorted(set(range(len(gpus))) - {gpu.index for gpu in gpus}))
    free_ranks = iter(sorted(set(range(len(gpus))) - {gpu.rank for gpu in gpus}))
    numbers = {
        gpu.id: (
            next(free, gpu.index) if gpu.index == _UNNUMBERED else gpu.index,
            next(free_ranks, gpu.rank) if gpu.rank == _UNNUMBERED else gpu.rank,
        )
        for gpu in gpus
    }
    return tuple(
        replace(node, index=numbers[node.id][0], rank=numbers[node.id][1]) if isinstance(node, Gpu) else node
        for node in nodes
    )
