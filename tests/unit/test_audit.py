"""The audit: verdicts, what is used, tools and NCCL, exit codes, what is shown."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from images.audit import Audit, audit, exit_code
from images.audit_view import document, show
from images.binary_strings import NCCL_STRINGS, TOOL_STRINGS, StringFinder
from images.capability import Capability, Verdict
from images.unused import read_unused
from lanewise.errors import ExitCode, InputError
from tests.unit.makers_elf import PTX, fake_cubin, fake_elf, fake_entry, fake_library, fake_static_library, fake_zip

BLACKWELL = Capability.parse("12.0")
NATIVE = fake_library(fake_entry(90), fake_entry(120, "a"))
JIT = fake_library(fake_entry(80), fake_entry(80, kind=PTX))
NONE = fake_library(fake_entry(80), fake_entry(90, "a"))


def audited(tmp_path: Path, files: Mapping[str, bytes], *, cuda: str = "", capability: str = "12.0") -> Audit:
    for name, data in files.items():
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return audit(str(tmp_path / "t"), capability=Capability.parse(capability), toolchain_cuda=cuda)


def printed(found: Audit) -> str:
    screen = Console(file=io.StringIO(), width=200)
    screen.print(show(found))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


# ------------------------------------------------------------------------------------------------------------- an audit


def test_libraries_have_verdicts_worst_and_largest_first(tmp_path: Path) -> None:
    found = audited(tmp_path, {"a.so": NATIVE, "b.so.1": JIT, "c.so": NONE, "d.so": fake_library(), "bin/prog": JIT})
    assert [(x.path, x.verdict) for x in found.libraries] == [
        ("c.so", Verdict.NONE), ("b.so.1", Verdict.DRIVER_JIT), ("a.so", Verdict.NATIVE),
    ]  # fmt: skip
    assert found.others == 1
    assert [str(code.target) for code in found.libraries[2].code] == ["sm_90", "sm_120a"]
    assert (found.libraries[2].size, found.libraries[2].device_bytes) == (len(NATIVE), 128)


def test_programs_without_an_ending_are_looked_at(tmp_path: Path) -> None:
    program = fake_library(fake_entry(120, payload=b"x" * 5000))
    assert [x.path for x in audited(tmp_path, {"bin/all_reduce_perf": program}).libraries] == ["bin/all_reduce_perf"]


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a.so": NATIVE}, None),
        ({"a.so": JIT}, None),
        ({"a.so": fake_library()}, None),
        ({"a.so": NATIVE, "b.so": NONE}, ExitCode.ANSWER_IS_NO),
        ({"a.so": NATIVE[:-9]}, ExitCode.FAILED),
        ({"a.so": NATIVE[:-9], "b.so": NONE}, ExitCode.FAILED),
        ({"x.a": fake_static_library(NONE), "y.o": NONE}, None),
        ({"pkg/csrc/a.cu": b""}, None),
        ({"etc/x": b"", "usr/y": b"", "opt/pkg/a.cu": b""}, ExitCode.ANSWER_IS_NO),
        ({"etc/x": b"", "usr/local/cuda/bin/nvcc": b"#!/bin/sh", "opt/pkg/a.cu": b""}, None),
        ({"etc/x": b"", "usr/include/cub/a.cuh": b""}, None),
    ],
)
def test_the_exit_code_says_whether_what_is_used_can_run(
    files: dict[str, bytes], code: ExitCode | None, tmp_path: Path
) -> None:
    found = audited(tmp_path, files)
    assert exit_code(found) is code
    json.dumps(document(found))
    assert printed(found)


def test_a_damaged_file_hides_no_other(tmp_path: Path) -> None:
    found = audited(tmp_path, {"bad.so": NATIVE[:-9], "good.so": NATIVE})
    assert [x.path for x in found.libraries] == ["good.so"]
    assert [(x.path, "section headers" in x.error) for x in found.faults] == [("bad.so", True)]
    assert "damaged: bad.so declares" in printed(found)


@pytest.mark.parametrize("data", [NATIVE[:-9], b"", b"text", b"\x7fELF\x01\x01" + bytes(90)])
def test_a_single_file_that_is_damaged_or_of_another_kind_is_an_input_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x\.so"):
        audit(str(path), capability=BLACKWELL)


def test_a_folder_and_a_wheel_give_the_same_audit(tmp_path: Path) -> None:
    files = {"p/a.so": NATIVE, "p/b.so": JIT, "p/k.cubin": fake_cubin(90), "p/x.cu": b"", "p/bad.so": NATIVE[:-9]}
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(fake_zip(files))
    mapped = audited(tmp_path, files)
    streamed = audit(str(wheel), capability=BLACKWELL)
    assert streamed.libraries == mapped.libraries
    assert streamed.faults == mapped.faults
    assert streamed.compiled_at_run_time == mapped.compiled_at_run_time


@pytest.mark.parametrize("name", ["p/k.cubin", "p/lib.so", "p/bin/ptxas", "p/l.a"])
def test_a_checksum_is_checked_of_all_that_is_understood(name: str, tmp_path: Path) -> None:
    long = b"code" * 5000  # zipfile reads some way ahead
    content = {
        "p/k.cubin": fake_cubin(120, code=long),
        "p/lib.so": fake_library(fake_entry(120, payload=long)),
        "p/bin/ptxas": tool(b"12.8", b"12.8.93", long),
        "p/l.a": fake_static_library(fake_cubin(120, code=long)),
    }
    data = bytearray(fake_zip({name: content[name]}, method=0))
    data[data.index(b"code")] ^= 1
    (tmp_path / "a.whl").write_bytes(data)
    (fault,) = audit(str(tmp_path / "a.whl"), capability=BLACKWELL).faults
    assert (fault.path, "CRC" in fault.error) == (name, True)


def test_loose_cubins_of_a_package_are_one_line(tmp_path: Path) -> None:
    files = {f"pkg/cubins/{n}/k.cubin": fake_cubin(100) for n in range(50)} | {"pkg/k.cubin": fake_cubin(120)}
    (library,) = audited(tmp_path, files).libraries
    assert (library.path, library.files, library.verdict) == ("pkg/**/*.cubin", 51, Verdict.NATIVE)
    assert [(str(code.target), code.count) for code in library.code] == [("sm_100", 50), ("sm_120", 1)]


def test_sources_are_counted_by_package(tmp_path: Path) -> None:
    site = "opt/v/lib/python3.12/site-packages"
    found = audited(tmp_path, {
        f"{site}/flashinfer/data/csrc/a.cu": b"", f"{site}/flashinfer/data/include/b.cuh": b"",
        f"{site}/sglang/jit_kernel/csrc/c.cuh": b"", f"{site}/torch/include/ATen/d.cuh": b"",
        f"{site}/nvidia/cu13/include/cccl/e.cuh": b"", "usr/local/cuda/include/f.cuh": b"", "workspace/x/g.cu": b"",
        "alone.cu": b"",
    })  # fmt: skip
    assert {package.package: package.sources for package in found.compiled_at_run_time} == {
        "flashinfer": 2, "sglang": 1, "workspace": 1,
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- what is used


@pytest.mark.parametrize(
    ("path", "on", "used"),
    [
        ("sgl_kernel/flash_ops.abi3.so", "12.0", False), ("sgl_kernel/flash_ops.abi3.so", "9.0", True),
        ("sgl_kernel/flash_ops.abi3.so", "8.9", True), ("sgl_kernel/sm90/common_ops.abi3.so", "12.0", False),
        ("sgl_kernel/sm90/common_ops.abi3.so", "9.0", True), ("sgl_kernel/sm100/common_ops.abi3.so", "12.0", True),
        ("sgl_kernel/flashmla_ops.abi3.so", "12.0", False), ("deep_ep/_C.so", "12.0", False),
        ("deep_ep/_C.so", "10.0", True), ("flashinfer_cubin/cubins/x.so", "12.0", False),
        ("my_sgl_kernel/flash_ops.abi3.so", "12.0", True), ("torch/lib/libtorch_cuda.so", "12.0", True),
    ],
)  # fmt: skip
def test_what_a_gpu_never_uses_is_known(path: str, on: str, used: bool, tmp_path: Path) -> None:
    for folder in ("", "usr/lib/python3/dist-packages/", "work/checkout/python/"):
        found = audited(tmp_path / (folder or "top"), {folder + path: NONE}, capability=on)
        assert (found.libraries[0].unused is None) is used, folder


def test_a_packages_own_copy_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    found = audited(tmp_path, {"lib/site-packages/mine/sgl_kernel/flash_ops.so": NONE})
    assert found.libraries[0].missing


def test_every_row_of_the_table_says_why_and_where_from() -> None:
    table = read_unused()
    assert len(table) >= 8
    assert all(row.paths and row.why and row.source for row in table)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("unused: [{paths: [a]}]")
    with pytest.raises(InputError, match="cannot be understood"):
        read_unused(tmp_path / "t.yaml")


# ----------------------------------------------------------------------------------------------------- tools and NCCL

RELEASE = b"\0Cuda compilation tools, release %s, V%s\0"


def tool(release: bytes, build: bytes, text: bytes = b"") -> bytes:
    return fake_library(text=RELEASE % (release, build) + text + b"code" * 2000)


TRITON = "site-packages/triton/backends/nvidia/bin"


def test_compilers_are_held_against_the_toolchain(tmp_path: Path) -> None:
    found = audited(tmp_path, {
        "cuda/bin/nvcc": tool(b"12.8", b"12.8.93"), "cuda/nvvm/bin/cicc": tool(b"12.8", b"12.8.61"),
        "x/libnvrtc.so.13": tool(b"13.0", b"13.0.88"),
        f"{TRITON}/ptxas": tool(b"12.8", b"12.8.93", b"sm_120a\0sm_11\0"),
        f"{TRITON}/ptxas-blackwell": tool(b"13.3", b"13.3.33", b"sm_120f\0sm_121\0sm_120\0"),
        "notbin/ptxas": tool(b"11.0", b"11.0.1"), "x/bin/nvcc": b"#!/bin/sh",
    }, cuda="12.8.1")  # fmt: skip
    assert {t.path.rpartition("/")[2]: (t.build, t.differs, t.role, t.targets) for t in found.tools[:4]} == {
        "nvcc": ("12.8.93", False, "", ()),
        "cicc": ("12.8.61", False, "", ()),
        "ptxas": ("12.8.93", False, "Triton's, below 10.0", ("120a",)),
        "ptxas-blackwell": ("13.3.33", True, "Triton's, from 10.0 on", ("120", "120f", "121")),
    }
    assert {(t.name, t.build, t.differs) for t in found.tools[4:]} == {
        ("nvcc", "", False),
        ("libnvrtc", "13.0.88", True),
    }
    assert "ptxas-blackwell (Triton's, from 10.0 on) 13.3.33 differs" in re.sub(" +", " ", printed(found))


def test_triton_with_one_assembler_uses_it_for_everything(tmp_path: Path) -> None:
    (found,) = audited(tmp_path, {f"{TRITON}/ptxas": tool(b"12.8", b"12.8.93")}).tools
    assert (found.role, found.differs) == ("Triton's", False)


def test_nccl_says_what_it_was_built_with(tmp_path: Path) -> None:
    text = b"\0NCCL version %s, but\0NCCL version 2.27.5 compiled with CUDA 12.9\n\0"
    library = fake_elf([(".rodata", text), (".nv_fatbin", NATIVE[:0] or b"x")])
    files = {"nvidia/nccl/lib/libnccl.so.2": library, "nvidia/nccl/lib/libnccl-net.so": library}
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(fake_zip(files))
    for found in (audited(tmp_path, files), audit(str(wheel), capability=BLACKWELL)):
        (build,) = found.nccl
        assert (build.path, build.version, build.cuda) == ("nvidia/nccl/lib/libnccl.so.2", "2.27.5", "12.9")


def test_text_is_found_across_pieces() -> None:
    text = b"x" * 500 + b"NCCL version 2.30.7 compiled with CUDA 13.3\n" + b"y" * 500
    for size in (1, 7, 100, 2000):
        finder = StringFinder(NCCL_STRINGS)
        for start in range(0, len(text), size):
            finder.feed(text[start : start + size])
        assert finder.nccl == ("2.30.7", "13.3"), size


def test_of_several_versions_none_is_the_tools_own() -> None:
    finder = StringFinder(TOOL_STRINGS)
    finder.feed(RELEASE % (b"12.8", b"12.8.93") + RELEASE % (b"12.9", b"12.9.86"))
    assert finder.tool is None


def test_the_document_holds_everything_and_is_json(tmp_path: Path) -> None:
    files = {"a.so": NATIVE, "sgl_kernel/flash_ops.so": NONE, "bin/nvcc": tool(b"12.8", b"12.8.93"), "p/a.cu": b""}
    made = json.loads(json.dumps(document(audited(tmp_path, files, cuda="12.8"))))
    assert made["capability"] == "12.0"
    native, unused = made["libraries"]
    assert native["code"][1] == {
        "target": "sm_120a", "sm": 120, "suffix": "a", "kind": "SASS", "count": 1, "bytes": 64,
    }  # fmt: skip
    assert unused["unused"]["why"]
    assert (made["missing"], made["tools"][0]["build"]) == ([], "12.8.93")
    assert made["compiled_at_run_time"] == [{"package": "p", "sources": 1, "unused": None}]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.so": NATIVE}, "all that is in use runs natively"),
        ({"a.so": NATIVE, "b.so": JIT}, "compiled by the driver first"),
        ({"a.so": NONE, "b.so": NONE}, "2 libraries in use without code"),
        ({"a.so": NATIVE, "b.so": NATIVE[:-9]}, "1 damaged file"),
        ({"etc/x": b"", "usr/y": b"", "opt/p/a.cu": b""}, "no nvcc, which is needed; compiled at run time: opt"),
        ({"x": b""}, "no compiled device code in use"),
        ({"p/a.cu": b""}, "compiled at run time: p"),
    ],
)
def test_the_verdict_comes_first(files: dict[str, bytes], says: str, tmp_path: Path) -> None:
    assert says in printed(audited(tmp_path, files)).splitlines()[0]


def test_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in printed(audited(tmp_path, {"a\x1b[2J.so": NATIVE, "b\x1b.so": NATIVE[:-9]}))


def test_every_row_of_the_table_holds_for_sources_and_libraries_alike(tmp_path: Path) -> None:
    """A row is a key where sources are counted by package."""
    for number, row in enumerate(read_unused()):
        folder = row.paths[0].split("*")[0].rstrip("/.") or "package"
        files = {f"site-packages/{folder}/kernel{end}": content for end, content in ((".cu", b""), (".so", NONE))}
        audited(tmp_path / str(number), files)
