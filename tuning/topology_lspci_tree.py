"""Reads a PCI tree from `lspci -tv`: its shape and names, but no links, NUMA nodes, ACS state or numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lanewise.errors import InputError
from tuning.topology import Topology
from tuning.topology_nodes import Cpu, PciIds
from tuning.topology_pci import BRIDGE_CLASS, NVIDIA, P2P_OPEN, PciFunction, build_tree, by_address, describe_unknown

_ROOT = re.compile(r"^[ |]*[-+\\]-?[+]?-?\[[0-9a-f]{4,8}:[0-9a-f]{2}\]", re.ASCII | re.MULTILINE)
_DRAWN = re.compile(
    r"(?P<branch>[+\\])|\[(?P<domain>[0-9a-f]{4,8}):(?P<root>[0-9a-f]{2})\]"
    r"|(?P<slot>[0-9a-f]{2}\.[0-7])(?P<bridge>-\[(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\])?(?P<name>  .*)?|[-| ]",
    re.ASCII,
)
_NO_GPU = re.compile(r"Audio|USB|UCSI|NVSwitch|bridge", re.IGNORECASE)
_NETWORK = re.compile(r"Mellanox|ConnectX|Ethernet|Network|Infiniband", re.IGNORECASE)


def looks_like_lspci_tree(text: str) -> bool:
    """Whether a line draws a root bus."""
    return bool(_ROOT.search(text))


def parse_lspci_tree(text: str, *, name: str, source: str) -> Topology:
    """A topology from `lspci -tv`.

    Raises:
        InputError: a line is not drawn as lspci draws it (cut, or with its blanks lost), or no GPU of NVIDIA is named.
    """
    functions = by_address(_functions(text, source), source)
    if not any(function.is_gpu for function in functions.values()):
        raise InputError(
            f"topology {source} names no GPU of NVIDIA among {len(functions)} devices",
            expected="the whole of `lspci -tv`; without -v it has no names",
            todo="record it anew with `sudo lspci -D -nn -vvv`, which shows links as well",
        )
    nodes = build_tree(functions, cpu=Cpu(id=""), numa_nodes=(), source=source)
    missing = "the CPUs' models and compute capability, which lspci does not show"
    return Topology(name=name, source=source, nodes=nodes, unknown=(*describe_unknown(nodes), missing, P2P_OPEN))


def _functions(text: str, source: str) -> Iterator[PciFunction]:
    """Walk the drawing: a branch sign's column says on which bus what follows it is."""
    buses: dict[int, tuple[str, str, str]] = {}  # column of a branch sign: domain, bus, what leads to that bus
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        here = ("", "", "")
        drawn = -1
        for token in _tokens(line):
            drawn = token.end()
            if token["branch"]:
                here = buses.setdefault(token.start(), here) if here == ("", "", "") else here
                buses[token.start()] = here
            elif token["root"]:
                here = (token["domain"], token["root"], f"pci{token['domain']}:{token['root']}")
            elif token["slot"]:
                if not here[1]:
                    raise _wrong(source, number)
                function = _function(token, *here)
                yield function
                here = (here[0], token["bus"] or "", function.address)
        if drawn < len(line.rstrip()):
            raise _wrong(source, number)


def _tokens(line: str) -> Iterator[re.Match[str]]:
    """The drawing's pieces from the left, as far as they can be read."""
    at = 0
    while token := _DRAWN.match(line, at):
        yield token
        at = token.end()
        if at >= len(line):
            return


def _function(token: re.Match[str], domain: str, bus: str, parent: str) -> PciFunction:
    name = (token["name"] or "").strip()
    gpu = name.startswith("NVIDIA") and not _NO_GPU.search(name)
    kind = (
        f"{BRIDGE_CLASS}00" if token["bridge"] else "0x030200" if gpu else "0x020000" if _NETWORK.search(name) else ""
    )
    return PciFunction(
        address=f"{domain}:{bus}:{token['slot']}",
        parent=parent,
        ids=PciIds(pci_class=kind, vendor=NVIDIA if name.startswith("NVIDIA") else ""),
        name=name[:100],
    )


def _wrong(source: str, number: int) -> InputError:
    return InputError(
        f"topology {source}, line {number}, is not drawn as lspci draws it",
        expected="the whole output of `lspci -tv`, with its blanks",
        todo="record it anew, into a file instead of over a terminal's clipboard",
    )
