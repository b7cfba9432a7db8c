"""Runs NCCL's own topology search inside a libnccl, with no GPU, and says what it found. Standard library only.

    python nccl_search.py LIBNCCL TOPOLOGY.xml RANK[,RANK...] RELEASE[,RELEASE...]

It loads the library, so it is started under a watchdog and limits itself: internal functions may crash or loop.
Lines on standard output that begin with "nccl-search " hold JSON events; NCCL's own log goes to standard error.

The functions are internal (src/graph/), but the wheels keep their symbol table. It is read here from the ELF file; the
mangled names hold the types of the arguments, so that another signature is another name. Beside them it relies on

- `struct ncclXml` beginning with `int maxIndex, maxNodes` (src/graph/xml.h), and
- `struct ncclTopoGraph` beginning with `int id, pattern, crossNic, collNet, minChannels, maxChannels`, then its results
  with `int nChannels` first (src/include/graph.h).

The outcome itself is not read from memory: NCCL writes it as a graph file ($NCCL_GRAPH_DUMP_FILE). What NCCL asks for
on one node is asked for here too (src/init.cc): up to 32 channels of the ring, and of the tree as many as the ring has.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import resource
import struct
import sys
from typing import Any, NoReturn

MARK = "nccl-search "
_ADDRESS_SPACE = 8 << 30
_FILE_BYTES = 16 << 20
_CPU_SECONDS = 600
_XML_BYTES = 256 << 20
"""For `struct ncclXml`: 256 nodes of about 10 kB each, with room to spare; pages that are not touched cost nothing."""
_XML_NODES = 256
"""NCCL_TOPO_XML_MAX_NODES, src/graph/xml.h."""
_GRAPH_BYTES = 16 << 20
_N_CHANNELS_AT = 24
"""Offset of `nChannels` in `struct ncclTopoGraph`: six ints before it."""
_MAX_CHANNELS = 32
"""MAXCHANNELS / 2, src/init.cc."""
_RING, _BALANCED_TREE = 4, 1
"""NCCL_TOPO_PATTERN_*, src/include/graph.h."""
_FUNCTIONS = {
    "xml": "_Z22ncclTopoGetXmlFromFilePKcP7ncclXmli",
    "system": "_Z24ncclTopoGetSystemFromXmlP7ncclXmlPP14ncclTopoSystemm",
    "paths": "_Z20ncclTopoComputePathsP14ncclTopoSystemP8ncclComm",
    "init": "_Z18ncclTopoSearchInitP14ncclTopoSystem",
    "compute": "_Z15ncclTopoComputeP14ncclTopoSystemP13ncclTopoGraph",
    "dump": "_Z18ncclTopoDumpGraphsP14ncclTopoSystemiPP13ncclTopoGraph",
}
_CHECK_P2P = "_Z16ncclTopoCheckP2pP8ncclCommP14ncclTopoSystemii"
"""Followed by "Pi" and an "S3_" for each further pointer: three results in 2.26, four from 2.28, five from 2.31."""
_GET_VERSION = "ncclGetVersion"
_VOID = ctypes.c_void_p


def main(arguments: list[str]) -> int:
    """Do what the module says; the exit code is 0 however the search ended, as long as it was told."""
    library, topology, ranks, known = arguments
    _limit()
    events = _Events()
    nccl = ctypes.CDLL(library)
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    release = f"{version.value // 10_000}.{version.value // 100 % 100}.{version.value % 100}"
    events.say("release", release=release)
    if release not in known.split(","):
        return 0
    symbols = read_symbols(library)
    missing = [name for name in (*_FUNCTIONS.values(), _GET_VERSION) if name not in symbols]
    if missing or not any(map(_is_p2p_check, symbols)):
        events.fail("symbols", f"its symbol table does not hold {(*missing, _CHECK_P2P)[0]}")
    bias = _address(nccl.ncclGetVersion) - symbols[_GET_VERSION]
    _search(_Internals(symbols, bias, events), events, topology.encode(), [int(rank) for rank in ranks.split(",")])
    return 0


class _Events:
    """Standard output, kept for events: NCCL logs there too, and is led to standard error."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def say(self, event: str, **fields: object) -> None:
        """Tell an event, a line of JSON."""
        self._stream.write(MARK + json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()

    def fail(self, step: str, reason: str) -> NoReturn:
        """Tell why there will be no outcome, and end."""
        self.say("failed", step=step, reason=reason)
        raise SystemExit(0)


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, _ADDRESS_SPACE),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CPU, _CPU_SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address(function: Any) -> int:  # noqa: ANN401 - ctypes' function pointer type is private
    address = ctypes.cast(function, _VOID).value
    assert address
    return address


class _Internals:
    """The library's internal functions, each of which returns NCCL's result code."""

    def __init__(self, symbols: dict[str, int], bias: int, events: _Events) -> None:
        self._symbols = symbols
        self._bias = bias
        self._events = events

    def call(self, step: str, *values: object) -> None:
        """Call one of `_FUNCTIONS`; a result other than ncclSuccess ends the search, and is told."""
        self._events.say("step", step=step)
        code = self._function(_FUNCTIONS[step])(*values)
        if code:
            self._events.fail(step, f"NCCL returned {code}")

    def p2p(self, system: ctypes.c_void_p, one: int, other: int) -> bool:
        """Whether NCCL would connect two ranks by P2P (ncclTopoCheckP2p; obeys NCCL_P2P_LEVEL and NCCL_P2P_DISABLE)."""
        name = next(name for name in self._symbols if _is_p2p_check(name))
        answer = ctypes.c_int()
        nothing = [_VOID(None)] * 4  # further results, each of which may be left out
        if code := self._function(name)(_VOID(None), system, one, other, ctypes.byref(answer), *nothing):
            self._events.fail("p2p", f"NCCL returned {code}")
        return bool(answer.value)

    def _function(self, name: str) -> Any:  # noqa: ANN401
        return ctypes.CFUNCTYPE(ctypes.c_int)(self._bias + self._symbols[name])


def _search(nccl: _Internals, events: _Events, topology: bytes, ranks: list[int]) -> None:
    xml_memory, xml = _zeroed(_XML_BYTES)
    struct.pack_into("ii", xml_memory, 0, 0, _XML_NODES)
    system = _VOID()
    nccl.call("xml", ctypes.c_char_p(topology), xml, 1)
    nccl.call("system", xml, ctypes.byref(system), ctypes.c_uint64(0))
    nccl.call("paths", system, _VOID(None))
    pairs = [[one, other] for one in ranks for other in ranks if other < one and nccl.p2p(system, one, other)]
    events.say("p2p", pairs=pairs)
    nccl.call("init", system)
    ring_memory, ring = _zeroed(_GRAPH_BYTES)
    struct.pack_into("6i", ring_memory, 0, 0, _RING, 0, 0, 1, _MAX_CHANNELS)
    nccl.call("compute", system, ring)
    (channels,) = struct.unpack_from("i", ring_memory, _N_CHANNELS_AT)
    tree_memory, tree = _zeroed(_GRAPH_BYTES)
    struct.pack_into("6i", tree_memory, 0, 1, _BALANCED_TREE, 0, 0, channels, channels)
    nccl.call("compute", system, tree)
    nccl.call("dump", system, 2, (_VOID * 2)(ring, tree))
    events.say("done", ring_channels=channels, settings=_settings_in_force())


def _zeroed(size: int) -> tuple[mmap.mmap, ctypes.c_void_p]:
    memory = mmap.mmap(-1, size)
    return memory, _VOID(ctypes.addressof(ctypes.c_char.from_buffer(memory)))


def _settings_in_force() -> list[str]:
    """Names of the NCCL_ variables in the C environment, where NCCL adds those of its files; os.environ is a copy."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries = itertools.takewhile(bool, (environ[index] for index in itertools.count()))
    return sorted(name.decode("ascii", "replace") for entry in entries if (name := _name(entry)).startswith(b"NCCL_"))


def _name(entry: bytes) -> bytes:
    return entry.partition(b"=")[0]


def _is_p2p_check(symbol: str) -> bool:
    return symbol.startswith(_CHECK_P2P + "Pi") and "." not in symbol


def read_symbols(path: str) -> dict[str, int]:
    """Names and addresses in the symbol table (.symtab) of a library that this process has loaded; empty if stripped.

    Only names that begin with one of those that are looked for are kept. Layout: elf(5), 64-bit and little-endian, as
    all machines with NCCL are.
    """
    wanted = tuple(name.encode() for name in (*_FUNCTIONS.values(), _CHECK_P2P, _GET_VERSION))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
        (sections_at,) = struct.unpack_from("<Q", data, 0x28)
        entry_size, count = struct.unpack_from("<HH", data, 0x3A)
        # type, offset, size, link (which section holds the names)
        sections = []
        for index in range(count):
            _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, sections_at + index * entry_size)
            sections.append((kind, offset, size, link))
        symbols: dict[str, int] = {}
        for kind, offset, size, link in sections:
            if kind != 2:  # SHT_SYMTAB
                continue
            names = data[sections[link][1] : sections[link][1] + sections[link][2]]
            for name_at, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", data[offset : offset + size]):
                if section and names.startswith(wanted, name_at):
                    symbols[names[name_at : names.index(b"\0", name_at)].decode("ascii", "replace")] = value
    return symbols


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
