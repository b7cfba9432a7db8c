"""NCCL through its C API, each candidate on a communicator of its own; the backend of engine `cuda`.

It is called as pynccl, and so vLLM and SGLang, call it: ctypes, on the very stream that is being captured. NCCL reads
NCCL_ALGO and NCCL_PROTO when a communicator is made, so many candidates live in one process.

What NCCL really ran is read from its own log (NCCL_DEBUG_SUBSYS=TUNING names algorithm, protocol and channels of every
call that is enqueued, also of those that are captured; replays log nothing, they are not enqueued). A line costs the
host 3 to 4 us a call (medians of two runs of bench/cuda_findings.py: 24.6 and 26.1 us with the log, 21.6 and 21.7
without), so none must be written while eager calls are timed: all checking and capturing comes first with the log on,
then ncclResetDebugInit (2.26 exports it, 2.23 does not) makes the library read NCCL_DEBUG anew. It works in 2.27.5,
2.28.9 and 2.32.3; whether it did is seen from the log itself: where that goes on growing, eager samples are marked
`logged`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cuda_allreduce import Candidate, Job
    from .cuda_buffers import DTYPES
    from .cuda_gpu import Gpu, open_gpu
    from .cuda_hub import Ranks
    from .cuda_measuring import CHECK_SIZES
    from .cuda_ways import Choice, DeviceError, Refused, Unusable, Way, Work, together
else:
    from cuda_buffers import DTYPES
    from cuda_gpu import Gpu, open_gpu
    from cuda_measuring import CHECK_SIZES
    from cuda_ways import Choice, DeviceError, Refused, Unusable, together

_UNIQUE_ID_BYTES = 128
_SUM = 0
_UNHANDLED_CUDA_ERROR, _REMOTE_ERROR, _IN_PROGRESS = 1, 6, 7
_PREFIXED_ALGORITHMS = 22400  # NCCL_ALGO takes "allreduce:ring" from here on; plain "tree" makes other collectives fail
SYMBOLS = (
    "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclCommGetAsyncError",
    "ncclGetErrorString", "ncclGetLastError",
)  # fmt: skip

# NCCL up to 2.23 logs numbers (src/include/nccl_tuner.h, NCCL_ALGO_* and NCCL_PROTO_*), later releases names.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_CHOICE = re.compile(
    r"NCCL INFO (?:(?P<call>\w+): )?(?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_SYMMETRIC = re.compile(
    r"NCCL INFO (?P<call>\w+) \[Symmetric\]: (?P<bytes>\d+) Bytes -> Kernel (?P<kernel>\w+) nchannels (?P<channels>\d+)"
)


def parse_choices(log: str) -> list[Choice]:
    """What NCCL's TUNING log says of allreduces, in its order.

    Forms that the libraries hold: `43008 Bytes -> Algo 1 proto 0 time 12.3` (2.21), the same with `AllReduce: ` before
    it (2.23), `AllReduce: 43008 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}` (2.26 to 2.30), with
    ` cgaClusterSize 4` behind it (2.32), and for symmetric memory, from 2.27 on,
    `AllReduce [Symmetric]: 43008 Bytes -> Kernel NAME nchannels 4 nthreads 512`.
    """
    choices = []
    for line in log.splitlines():
        if found := _CHOICE.search(line):
            if found["call"] in (None, "AllReduce"):
                channels = None if found["low"] is None else int(found["high"]) - int(found["low"]) + 1
                algorithm, protocol = _name(found["algo"], _ALGORITHMS), _name(found["proto"], _PROTOCOLS)
                choices.append(
                    Choice(bytes=int(found["bytes"]), algorithm=algorithm, protocol=protocol, channels=channels)
                )
        elif (found := _SYMMETRIC.search(line)) and found["call"] == "AllReduce":
            name, channels = found["kernel"].removeprefix("AllReduce_"), int(found["channels"])
            choices.append(Choice(bytes=int(found["bytes"]), algorithm="SYMMETRIC", protocol=name, channels=channels))
    return choices


def _name(text: str, names: tuple[str, ...]) -> str:
    if text.isdigit():
        return names[int(text)] if int(text) < len(names) else text
    return text.upper()


def refusal(algorithm: str, protocol: str, choice: Choice | None) -> str:
    """Why NCCL's choice is not what was asked for, or "".

    Args:
        algorithm: value of NCCL_ALGO, e.g. "ring" or "allreduce:ring"; "" leaves it to NCCL.
        protocol: value of NCCL_PROTO; likewise.
        choice: what the log names; None: it names nothing.
    """
    for asked, ran in ((algorithm, choice and choice.algorithm), (protocol, choice and choice.protocol)):
        if not asked or "^" in asked:
            continue
        if choice is None:
            return f"asked for {asked}, and NCCL's log does not say what it ran"
        if ran not in asked.upper().removeprefix("ALLREDUCE:").split(","):
            return f"asked for {asked}, NCCL ran {choice.algorithm} {choice.protocol}"
    return ""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _UNIQUE_ID_BYTES),)


class Library:
    """One libnccl, with its log."""

    def __init__(self, path: str, log: Path) -> None:
        try:
            # Local and bound to itself: two releases in one process must not take each other's symbols.
            self._c = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        except OSError as error:
            raise Refused(f"libnccl does not load: {error}") from error
        if missing := [name for name in SYMBOLS if not hasattr(self._c, name)]:
            raise Refused(f"{path} is no libnccl: it lacks {len(missing)} symbols, {missing[0]} first")
        self._c.ncclGetErrorString.restype = self._c.ncclGetLastError.restype = ctypes.c_char_p
        self._c.ncclGetLastError.argtypes = [ctypes.c_void_p]
        pointer = ctypes.c_void_p
        self._c.ncclCommInitRank.argtypes = [ctypes.POINTER(pointer), ctypes.c_int, _UniqueId, ctypes.c_int]
        self._c.ncclCommGetAsyncError.argtypes = [pointer, ctypes.POINTER(ctypes.c_int)]
        self.all_reduce = self._c.ncclAllReduce
        self.all_reduce.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer]
        self.path, self.log, self._read, self._noisy = loaded_path(path), log, 0, False
        number = ctypes.c_int()
        self.check("ncclGetVersion", self._c.ncclGetVersion(ctypes.byref(number)))
        self.number = number.value
        self.version = f"{self.number // 10000}.{self.number // 100 % 100}.{self.number % 100}"

    def check(self, call: str, code: int) -> None:
        """Raise where a call failed: DeviceError for what spoils the process, Refused for the rest."""
        if code in (0, _IN_PROGRESS):
            return
        text, last = (value.decode() for value in (self._c.ncclGetErrorString(code), self._c.ncclGetLastError(None)))
        words = f"{call}: {text}" + (f" ({last.strip()})" if last.strip() else "")
        raise (DeviceError if code in (_UNHANDLED_CUDA_ERROR, _REMOTE_ERROR) else Refused)(words)

    def unique_id(self) -> str:
        """A new one, as hexadecimal text."""
        identifier = _UniqueId()
        self.check("ncclGetUniqueId", self._c.ncclGetUniqueId(ctypes.byref(identifier)))
        return bytes(identifier.internal).hex()

    def communicator(self, identifier: str, ranks: Ranks) -> ctypes.c_void_p:
        """This rank's part of a new communicator."""
        handle = ctypes.c_void_p()
        unique = _UniqueId.from_buffer_copy(bytes.fromhex(identifier))
        self.check("ncclCommInitRank", self._c.ncclCommInitRank(ctypes.byref(handle), ranks.size, unique, ranks.rank))
        return handle

    def fault(self, communicator: ctypes.c_void_p) -> None:
        """Raise DeviceError for what NCCL noticed in the background, e.g. that a peer is gone."""
        state = ctypes.c_int()
        self._c.ncclCommGetAsyncError(communicator, ctypes.byref(state))
        if state.value not in (0, _IN_PROGRESS):
            raise DeviceError(f"NCCL, in the background: {self._c.ncclGetErrorString(state.value).decode()}")

    def news(self) -> str:
        """What it logged since this was last asked."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._read)
                added = log.read()
        except FileNotFoundError:
            return ""
        self._read += len(added)
        return added.decode(errors="replace")

    @property
    def logged(self) -> bool:
        """Whether it has gone on writing its log since it was silenced."""
        self._noisy = self._noisy or bool(self.news())
        return self._noisy

    def silence(self) -> None:
        """Make it read NCCL_DEBUG anew, where it can."""
        self.news()
        if hasattr(self._c, "ncclResetDebugInit"):
            self._c.ncclResetDebugInit.restype = None
            self._c.ncclResetDebugInit()


class NcclWay:
    """See Way: a communicator made while the environment named its algorithm and protocol.

    None is ever destroyed: NCCL waits for all ranks there, and the process's end frees everything without waiting.
    """

    in_place = False
    granularity = 1

    def __init__(
        self, gpu: Gpu, library: Library, communicator: ctypes.c_void_p, dtype: int, asked: tuple[str, str]
    ) -> None:
        self._gpu, self.library, self._communicator, self._dtype, self._asked = gpu, library, communicator, dtype, asked
        self.bitwise = "LL128" in asked[1].upper()

    @property
    def library_version(self) -> str:
        """See Way."""
        return self.library.version

    @property
    def logged(self) -> bool:
        """See Way."""
        return self.library.logged

    def call(self, send: int, receive: int, elements: int) -> None:
        """See Way."""
        code = self.library.all_reduce(send, receive, elements, self._dtype, _SUM, self._communicator, self._gpu.stream)
        if code:
            self.library.check("ncclAllReduce", code)

    def capture(self, work: Work) -> Work:
        """See Way."""
        return self._gpu.capture(work)

    def choices(self) -> list[Choice]:
        """See Way."""
        return parse_choices(self.library.news())

    def refuses(self, choice: Choice | None) -> str:
        """See Way."""
        return refusal(*self._asked, choice)

    def watch(self) -> None:
        """See Way."""
        self.library.fault(self._communicator)


class CudaBackend:
    """This rank's GPU, the libraries that the job names, and the ways made of them."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks = job, ranks
        if job.shared_gpu:
            # NCCL refuses two ranks on one GPU of one host: each gets a host of its own, and loopback between them.
            os.environ.update(NCCL_HOSTID=f"lanewise-{ranks.rank}", NCCL_SOCKET_IFNAME="lo")
            os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        self.device = open_gpu(0 if job.shared_gpu else ranks.rank, 1 if job.shared_gpu else ranks.size)
        self._libraries: dict[str, Library | Refused] = {}
        self._torch: Any = None
        if any(candidate.parameters["kind"] != "nccl" for candidate in job.candidates):
            # First of all: torch asks for a libnccl.so.2 by that name and would get any that is there already.
            self._open_torch()
        main = self._library(job.nccl or find_nccl())
        if isinstance(main, Refused):
            raise Unusable(str(main))
        self._main = main

    def _open_torch(self) -> None:
        if TYPE_CHECKING:
            from .cuda_torch import TorchRanks  # noqa: PLC0415 - torch takes seconds, and may be absent
        else:
            from cuda_torch import TorchRanks  # noqa: PLC0415
        try:
            dtype = DTYPES[self._job.dtype]
            elements = max(*CHECK_SIZES, *(message.bytes // dtype.bytes for message in self._job.messages))
            self._torch = TorchRanks(self.device, self._ranks, dtype.name, elements)
        except Exception as error:  # noqa: BLE001 - whatever keeps torch from loading is the candidates' reason
            self._torch = Refused(f"torch cannot be used: {type(error).__name__}: {error}")

    def about(self) -> dict[str, object]:
        """What this rank runs on."""
        found = {**self.device.about(), "nccl": self._main.version, "nccl_path": self._main.path}
        if self._torch is not None and not isinstance(self._torch, Refused):
            found["torch"] = self._torch.version
        return found

    def _library(self, path: str) -> Library | Refused:
        if path not in self._libraries:
            log = Path(os.environ["TMPDIR"]) / f"nccl-{len(self._libraries)}-rank{self._ranks.rank}.log"
            try:
                library = Library(path, log)
            except Refused as refused:
                self._libraries[path] = refused
            else:  # the same file under two names is one library, with one log
                known = (other for other in self._libraries.values() if isinstance(other, Library))
                self._libraries[path] = next((other for other in known if other.path == library.path), library)
        return self._libraries[path]

    def open(self, candidate: Candidate) -> Way:
        """See Backend."""
        parameters = dict(candidate.parameters)
        kind = parameters.pop("kind")
        if kind == "nccl":
            return self._open_nccl(**parameters)
        if isinstance(self._torch, Refused):
            raise self._torch
        library = self._library(self._torch.nccl) if self._torch.nccl else None
        if isinstance(library, Refused):
            raise library
        with _environment("", "", library or self._main):
            way: Way = together(self._ranks, lambda: self._torch.open(kind, library, **parameters))
        return way

    def _open_nccl(self, algo: str = "", proto: str = "", nccl: str = "") -> Way:
        if "LL128" in proto.upper() and not self._job.allow_ll128:
            raise Refused(
                "LL128 wants 128-byte stores to arrive whole; over PCIe it can corrupt data, so not allowed here"
            )
        library = together(self._ranks, lambda: self._loaded(nccl))
        with _environment(algo, proto, library):
            identifier = together(self._ranks, lambda: library.unique_id() if self._ranks.rank == 0 else "")
            identifier = self._ranks.exchange(identifier)[0]
            communicator = together(self._ranks, lambda: library.communicator(identifier, self._ranks))
        return NcclWay(self.device, library, communicator, DTYPES[self._job.dtype].nccl, (algo, proto))

    def _loaded(self, nccl: str) -> Library:
        library = self._library(nccl) if nccl else self._main
        if isinstance(library, Refused):
            raise library
        return library

    def quiet(self) -> None:
        """See Backend: switch all logs off, warnings excepted."""
        os.environ["NCCL_DEBUG"] = "WARN"
        os.environ.pop("NCCL_DEBUG_FILE", None)
        for library in self._libraries.values():
            if isinstance(library, Library):
                library.silence()


@contextmanager
def _environment(algorithm: str, protocol: str, library: Library) -> Iterator[None]:
    """What NCCL finds in the environment while a communicator is made; os.environ writes through to C's."""
    prefixed = algorithm if ":" in algorithm or library.number < _PREFIXED_ALGORITHMS else f"allreduce:{algorithm}"
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": str(library.log)}
    wanted |= {"NCCL_ALGO": prefixed} if algorithm else {}
    wanted |= {"NCCL_PROTO": protocol} if protocol else {}
    before = {name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def find_nccl() -> str:
    """The libnccl that NVIDIA's wheel brought to this Python, else the system's, by name."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder) / "lib/libnccl.so.2"
        if library.is_file():
            return str(library)
    return "libnccl.so.2"


def loaded_path(name: str) -> str:
    """The file behind a library that this process has loaded, found by a part of its path; else the name itself."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = (line.split(None, 5)[5].strip() for line in maps if "/" in line)
        return next((path for path in paths if os.path.realpath(name) == path or name in path), name)
