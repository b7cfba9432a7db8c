"""Does the search without a GPU agree with real NCCL? Two GPUs, ten combinations of topology and settings.

    python bench/nccl_agreement.py FOLDER             both of the following; ends with 1 where anything differs
    python bench/nccl_agreement.py record FOLDER      on a machine with two GPUs and torch; needs nothing else
    python bench/nccl_agreement.py compare FOLDER     anywhere, with the toolkit's Python

record: for every combination two ranks call torch.distributed's all_reduce once a size under NCCL's log, graph dump and
topology dump. Topologies: the machine's own, and changed ones that NCCL is told by NCCL_TOPO_FILE: without NVLink, with
AMD's CPU, and with slow links. Real transports still take what the GPUs have; what is looked at is what NCCL decides.
compare: lets the same libnccl search the dumped topologies without a GPU, and holds that against what NCCL dumped and
logged: ring and tree (channels, speeds, types, orders), its table of latencies and bandwidths, and, for every size,
algorithm, protocol and number of channels. `--nccl` names the library where record's own path is not there.
"""
# ruff: noqa: PLC0415 - a machine that records has torch, and not what the toolkit's modules need

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from tuning.nccl_cost import CostModel

SIZES = (256, *(1 << power for power in range(10, 27)), 14336, 43008, 57344, 86016, 172032, 344064, 700000, 3000000)
SYS = {"NCCL_P2P_LEVEL": "SYS"}
THRESHOLDS = {"NCCL_THREAD_THRESHOLDS": "8 8 64 10 8 64", "NCCL_MIN_NCHANNELS": "16"}
ONE_CHANNEL = {"NCCL_P2P_LEVEL": "PIX", "NCCL_MAX_NCHANNELS": "1"}
RANK_SECONDS = 300
CHOICE = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
TABLE = re.compile(r"AllReduce \|\s*([\d. /|]+)")


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One topology ("own", or one of `changed`) with settings."""

    name: str
    topology: str = "own"
    settings: Mapping[str, str] = field(default_factory=dict)


COMBINATIONS = (
    Combination(name="own"),
    Combination(name="own-p2p-off", settings={"NCCL_P2P_DISABLE": "1"}),
    Combination(name="pcie", topology="pcie"),
    Combination(name="pcie-sys", topology="pcie", settings=SYS),
    Combination(name="pcie-thresholds", topology="pcie", settings={**SYS, **THRESHOLDS}),
    Combination(name="pcie-ll128", topology="pcie", settings={**SYS, "NCCL_PROTO": "LL,LL128,Simple"}),
    Combination(name="pcie-tree", topology="pcie", settings={**SYS, "NCCL_ALGO": "allreduce:tree"}),
    Combination(
        name="pcie-one-channel", topology="pcie", settings={"NCCL_P2P_LEVEL": "PIX", "NCCL_MAX_NCHANNELS": "1"}
    ),
    Combination(name="amd", topology="amd"),
    Combination(name="slow", topology="slow"),
)


def changed(own: str, topology: str) -> str:
    """NCCL's dump of the machine without NVLink ("pcie"); with an AMD CPU too ("amd"); with Gen1 links too ("slow")."""
    root = ET.fromstring(own)  # noqa: S314 - NCCL wrote it, on this machine
    for link in root.iter("nvlink"):
        link.attrib |= {"target": "fffff:ff:ff.f", "count": "0"}
    if topology in ("amd", "slow"):
        for cpu in root.iter("cpu"):
            cpu.attrib |= {"vendor": "AuthenticAMD", "familyid": "175", "modelid": "24"}
    if topology == "slow":
        for device in root.iter("pci"):
            if device.find("gpu") is not None:
                device.attrib |= {"link_speed": "2.5 GT/s PCIe", "link_width": "16"}
    # NCCL's parser reads a blank before "/>" as a nameless attribute, and dumps it.
    return ET.tostring(root, encoding="unicode").replace(" />", "/>")


# ------------------------------------------------------------------------------------------------------------ recording


def record(folder: Path) -> None:
    """Run every combination on two GPUs; ends with an error where one does not run."""
    folder.mkdir(parents=True, exist_ok=True)
    for combination in COMBINATIONS:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NCCL_")},
            **combination.settings,
            "NCCL_CONF_FILE": os.devnull,
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_GRAPH_DUMP_FILE": str(folder / f"{combination.name}.graph.xml"),
            "NCCL_TOPO_DUMP_FILE": str(folder / f"{combination.name}.topology.xml"),
        }
        if combination.topology != "own":
            told = folder / f"{combination.topology}.xml"
            told.write_text(changed((folder / "own.topology.xml").read_text(), combination.topology))
            environment["NCCL_TOPO_FILE"] = str(told)
        run_ranks(folder, combination.name, environment)
        print(f"recorded {combination.name}", flush=True)


def run_ranks(folder: Path, name: str, environment: Mapping[str, str]) -> None:
    """Two ranks of one combination; neither outlives the call."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", str(folder), str(rank), port],
            env={**environment, "NCCL_DEBUG_FILE": str(folder / f"{name}.{rank}.log")},
        )
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(timeout=RANK_SECONDS) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(codes):
        sys.exit(f"{name}: the ranks ended with {codes}; NCCL's words are in {folder / name}.*.log")


def rank(folder: Path, number: int, port: str) -> None:
    """One rank: an allreduce of every size; rank 0 also writes down what was run."""
    torch = importlib.import_module("torch")
    collectives = importlib.import_module("torch.distributed")
    torch.cuda.set_device(number)
    collectives.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    for size in SIZES:
        collectives.all_reduce(torch.ones(size // 2, dtype=torch.bfloat16, device="cuda"))
        torch.cuda.synchronize()
    if number == 0:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
        major, minor = torch.cuda.get_device_capability()
        machine = {
            "library": next(iter(re.findall(r"(/\S*libnccl\.so\S*)", mapped)), ""),
            "nccl": f"cu{torch.version.cuda.split('.')[0]}-{'.'.join(map(str, torch.cuda.nccl.version()))}",
            "gpu": torch.cuda.get_device_name(),
            "sm": 10 * major + minor,
        }
        (folder / "machine.json").write_text(json.dumps(machine, indent=1))
    collectives.destroy_process_group()


# ------------------------------------------------------------------------------------------------------------ comparing


def compare(folder: Path, nccl: str) -> int:
    """Hold every combination against the search without a GPU; prints what agrees, and the exit code."""
    from tuning.nccl_library import find_nccl

    machine = json.loads((folder / "machine.json").read_text())
    spec = nccl or (machine["library"] if Path(machine["library"]).is_file() else machine["nccl"])
    label, library = find_nccl(spec, ROOT / ".cache" / "nccl")
    print(f"{machine['gpu']}, NCCL {machine['nccl']}; searched with {label}")
    rows = [held(folder, combination, library, machine["sm"]) for combination in COMBINATIONS]
    graphs, tables = (sum(row[what] for row in rows) for what in ("graphs", "table"))
    right, choices = (sum(row[what] for row in rows) for what in ("right", "choices"))
    print(f"graphs {graphs} of {len(rows)}, tables {tables} of {len(rows)}, choices {right} of {choices}")
    expected = len(SIZES) * len(rows)
    return int(graphs < len(rows) or tables < len(rows) or right < expected or choices < expected)


def held(folder: Path, combination: Combination, library: Path, sm: int) -> dict[str, int]:
    """How much of one combination agrees; what does not is printed."""
    from tuning.nccl_cost import cost_model
    from tuning.nccl_graph import read_graphs
    from tuning.nccl_search import run_search

    name = combination.name
    log = (folder / f"{name}.0.log").read_text(encoding="utf-8", errors="replace")
    topology = (folder / f"{name}.topology.xml").read_text()
    search = run_search(library, topology, settings=combination.settings)
    if not (search.ring and search.tree):
        print(f"{name}: search {search.status}: {search.reason}")
        return {"graphs": 0, "table": 0, "right": 0, "choices": len(SIZES)}
    dumped = read_graphs((folder / f"{name}.graph.xml").read_text(), where=name)
    real = tuple(graph for graph in dumped if graph.id in (search.ring.id, search.tree.id))
    model = cost_model(search.ring, search.tree, release=search.release, ranks=2, sm=sm, settings=combination.settings)
    wrong = list(other_choices(log, model))
    choices = len(CHOICE.findall(log))
    row = {
        "graphs": int(real == search.graphs),
        "table": int(logged_table(log) == priced_table(model)),
        "right": choices - len(wrong),
        "choices": choices,
    }
    print(f"{name}: ring {search.ring}, tree {search.tree}; {row}", *wrong, sep="\n  ")
    if not row["graphs"]:
        print(f"  NCCL's own: {', '.join(map(str, real))}")
    return row


def other_choices(log: str, model: CostModel) -> Iterator[str]:
    """Sizes for which NCCL logged something else than the model takes."""
    for size, algorithm, protocol, low, high in CHOICE.findall(log):
        real = (algorithm.lower(), protocol.lower(), int(high) - int(low) + 1)
        choice = model.choose(int(size))
        ours = (choice.cell.algorithm.lower(), choice.cell.protocol.lower(), choice.channels) if choice else None
        if real != ours:
            yield f"{size} B: NCCL {real}, model {ours}"


def logged_table(log: str) -> list[tuple[float, float]]:
    """Latency (us) and bandwidth (GB/s) of the six cells of Tree and Ring, as NCCL logged them for AllReduce."""
    for found in TABLE.findall(log):
        cells = [cell.split("/") for cell in found.replace(" ", "").strip("|").split("|")]
        if len(cells) >= 6 and all(len(cell) == 2 for cell in cells):
            return [(float(latency), float(bandwidth)) for latency, bandwidth in cells[:6]]
    return []


def priced_table(model: CostModel) -> list[tuple[float, float]]:
    """The same of the model; NCCL logs a bandwidth of 0 for what is barred."""
    return [(round(cell.latency_us, 1), 0.0 if cell.barred else round(cell.gb_s, 1)) for cell in model.cells]


def main() -> int:
    """See the module's text."""
    words = sys.argv[1:]
    if words[:1] == ["rank"]:
        rank(Path(words[1]), int(words[2]), words[3])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("record", "compare", "both"), default="both")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nccl", default="", help="a libnccl.so.2, or a release such as cu13-2.28.9")
    asked = parser.parse_args()
    if asked.what != "compare":
        record(asked.folder.resolve())
    return compare(asked.folder.resolve(), asked.nccl) if asked.what != "record" else 0


if __name__ == "__main__":
    sys.exit(main())
