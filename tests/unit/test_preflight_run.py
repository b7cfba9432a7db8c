"""From wheels, environments and archives to a report: one broken package hides nothing of the others."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from images import wheels as wheels_module
from images.conditions import Evidence
from images.lock import Lock, LockedToolchain, LockedWheel, write_lock
from images.matrix import Toolchain
from images.preflight import Report
from images.preflight_run import preflight_installed, preflight_wheels, write_report
from images.preflight_view import document, explain, markdown, show, side_by_side
from images.rules import Approach, Group, Rule, Verdict
from images.wheels import WheelError, check, fetch, kept
from lanewise import talk
from lanewise.errors import InputError, LanewiseError
from tests.unit.makers_wheels import make_toolchain, make_wheel

SGLANG = {"sglang/__init__.py": "", "sglang/tables.py": "SIZES = {9: 1}\nSIZES[12]\n"}
TORCH = {"torch/cpp_extension.py": "ARCHES = ['9.0', '12.0']\n"}


def rule(name: str, condition: str, parameters: dict, verdict: Verdict) -> Rule:
    return Rule(
        id=name,
        when=((condition, parameters),),
        verdict=verdict,
        why="because | so",
        source="read",
        error="KeyError: 12",
    )


def approach(name: str, *rules: Rule) -> Approach:
    return Approach(id=name, name=f"approach {name}", group=Group.ALLREDUCE, switch="--on", rules=rules)


APPROACHES = (
    approach("table", rule("lacks", "dict", {"file": "sglang/tables.py", "name": "SIZES", "lacks": 12}, Verdict.FAILS)),
    approach(
        "arches",
        rule("has", "constant", {"file": "torch/cpp_extension.py", "name": "ARCHES", "has": "12.0"}, Verdict.STARTS),
    ),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for its index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("LANEWISE_CACHE", str(tmp_path / "cache"))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return folder


def locked(tmp_path: Path, wheels: list[LockedWheel]) -> tuple[Toolchain, Path]:
    toolchain, lock = make_toolchain(wheels)
    write_lock(Lock(toolchains={toolchain.name: {lock.python: lock}}), tmp_path / "lock.yaml")
    return toolchain, tmp_path / "lock.yaml"


def verdicts(report: Report) -> dict[str, Verdict]:
    return {finding.approach.id: finding.verdict for finding in report.findings}


def test_wheels_are_fetched_once_and_judged(tmp_path: Path, index: Path) -> None:
    wheels = [make_wheel(index, "sglang", "0.5.9", SGLANG), make_wheel(index, "torch", "2.9.1", TORCH)]
    toolchain, lock = locked(tmp_path, wheels)
    report = preflight_wheels(toolchain, APPROACHES, 8, lock)
    assert verdicts(report) == {"table": Verdict.FAILS, "arches": Verdict.STARTS}
    assert report.versions == {"sglang": "0.5.9", "torch": "2.9.1"}
    assert not report.remarks
    for wheel in wheels:
        (index / wheel.file).unlink()
    assert verdicts(preflight_wheels(toolchain, APPROACHES, 8, lock)) == verdicts(report), "from the cache"


def test_an_index_with_another_file_is_told_and_hides_nothing_else(tmp_path: Path, index: Path) -> None:
    wheels = [make_wheel(index, "sglang", "0.5.9", SGLANG), make_wheel(index, "torch", "2.9.1", TORCH)]
    toolchain, lock = locked(tmp_path, wheels)
    make_wheel(index, "sglang", "0.5.9", {"sglang/tables.py": "SIZES = {9: 1, 12: 2}\n"})
    report = preflight_wheels(toolchain, APPROACHES, 8, lock)
    assert verdicts(report) == {"table": Verdict.UNKNOWN, "arches": Verdict.STARTS}
    assert "another hash than the lock" in report.findings[0].reason
    assert any("sglang cannot be read" in remark for remark in report.remarks)
    assert not kept(wheels[0]).exists()


def test_a_kept_wheel_that_was_changed_is_noticed(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    toolchain, lock = locked(tmp_path, [wheel])
    fetch(wheel, "3.12")
    data = bytearray(kept(wheel).read_bytes())
    data[-30] ^= 1
    kept(wheel).write_bytes(data)
    assert "sha256" in str(check([wheel])["sglang"])
    report = preflight_wheels(toolchain, APPROACHES, 8, lock)
    assert verdicts(report)["table"] is Verdict.UNKNOWN


def test_what_the_index_does_not_have_is_told(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    (index / wheel.file).unlink()
    with pytest.raises(WheelError, match=r"cannot fetch sglang 0\.5\.9"):
        fetch(wheel, "3.12")
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_what_a_killed_fetch_left_is_gone_with_the_next(index: Path) -> None:
    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    left = kept(wheel).parent / ".fetch-killed"
    left.mkdir(parents=True)
    (left / wheel.file).write_bytes(b"half of it")
    fetch(wheel, "3.12")
    assert list(kept(wheel).parent.iterdir()) == [kept(wheel)]
    assert not check([wheel])


def test_a_disk_that_is_full_ends_it_instead_of_leaving_verdicts_unknown(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 2, "", "OSError: [Errno 28] No space left on device\n")

    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    toolchain, lock = locked(tmp_path, [wheel])
    monkeypatch.setattr(subprocess, "run", fake_pip)
    with pytest.raises(LanewiseError, match="no space left while writing"):
        preflight_wheels(toolchain, APPROACHES, 8, lock)


def test_two_runs_fetch_a_wheel_once(index: Path) -> None:
    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    data = (index / wheel.file).read_bytes()
    (index / wheel.file).unlink()  # a second download would fail
    kept(wheel).parent.mkdir(parents=True)
    other = os.open(kept(wheel).parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fetch, wheel, "3.12")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        kept(wheel).write_bytes(data)
        os.close(other)
        waiting.result(timeout=30)
    assert not check([wheel])


def test_a_fetch_that_hangs_is_ended(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(index, "sglang", "0.5.9", SGLANG)
    monkeypatch.setattr(wheels_module, "_SECONDS", 0.01)
    with pytest.raises(WheelError, match="no end within"):
        fetch(wheel, "3.12")


def test_a_wheel_that_is_no_zip_is_one_fault_of_many(tmp_path: Path, index: Path) -> None:
    torch = make_wheel(index, "torch", "2.9.1", TORCH)
    broken = make_wheel(index, "sglang", "0.5.9", SGLANG)
    data = (index / broken.file).read_bytes()[:-40]
    cut = replace(broken, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    toolchain, lock = locked(tmp_path, [cut, torch])
    kept(cut).parent.mkdir(parents=True)
    kept(cut).write_bytes(data)
    report = preflight_wheels(toolchain, APPROACHES, 8, lock)
    assert verdicts(report) == {"table": Verdict.UNKNOWN, "arches": Verdict.STARTS}
    assert "zip archive" in report.findings[0].reason


def test_wheels_that_come_along_are_read_where_rules_look_into_them(tmp_path: Path, index: Path) -> None:
    sglang = make_wheel(index, "sglang", "0.5.9", SGLANG)
    torch = make_wheel(index, "torch", "2.9.1", TORCH)
    other = make_wheel(index, "other", "1.0", {"other/__init__.py": ""})
    toolchain, _ = make_toolchain([sglang])
    lock = LockedToolchain(python="3.12", wheels=(sglang, torch, other), unresolved={})
    write_lock(Lock(toolchains={toolchain.name: {lock.python: lock}}), tmp_path / "lock.yaml")
    known = rule("other", "package", {"name": "other", "at_least": "1.0"}, Verdict.STARTS)
    report = preflight_wheels(toolchain, (*APPROACHES, approach("along", known)), 8, tmp_path / "lock.yaml")
    assert verdicts(report) == {"table": Verdict.FAILS, "arches": Verdict.STARTS, "along": Verdict.STARTS}
    assert not kept(other).exists(), "nothing is fetched of which only the version counts"


# ------------------------------------------------------------------------------------------------- what is installed


def install(root: Path, files: dict[str, str], name: str, version: str) -> None:
    info = root / f"{name}-{version}.dist-info" / "METADATA"
    for path, text in {**{root / inside: text for inside, text in files.items()}, info: ""}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def environment(folder: Path) -> Path:
    site = folder / "lib/python3.12/site-packages"
    install(site, SGLANG, "sglang", "0.5.21")
    install(site, TORCH, "torch", "2.9.1")
    (folder / "pyvenv.cfg").write_text("")
    return folder


def toolchain() -> Toolchain:
    return Toolchain(
        name="small", cuda="12.8.1", python="3.12", meaning="", arch={}, pins={"sglang": "0.5.9", "b12x": "1"}
    )


def test_an_environment_is_judged_and_held_against_the_pins(tmp_path: Path) -> None:
    report = preflight_installed(str(environment(tmp_path / "env")), toolchain(), APPROACHES, 4)
    assert verdicts(report) == {"table": Verdict.FAILS, "arches": Verdict.STARTS}
    assert report.findings[0].evidence == (Evidence(file="sglang/tables.py", line=1, text="SIZES has 9"),)
    assert report.remarks == ("sglang is 0.5.21; small pins 0.5.9", "b12x is missing; small pins 1")


def test_an_archive_of_a_root_file_system_reads_the_same(tmp_path: Path) -> None:
    environment(tmp_path / "root/opt/venv")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "root", arcname=".")
    report = preflight_installed(str(tmp_path / "root.tar"), toolchain(), APPROACHES, 8)
    assert verdicts(report) == {"table": Verdict.FAILS, "arches": Verdict.STARTS}


def test_an_editable_install_is_found_where_its_sources_are(tmp_path: Path) -> None:
    root = tmp_path / "root"
    install(root / "usr/lib/python3/dist-packages", TORCH, "torch", "2.9.1")
    install(root / "work/sglang/python", SGLANG, "elsewhere", "0")
    (root / "etc").mkdir()
    assert verdicts(preflight_installed(str(root), toolchain(), APPROACHES, 8))["table"] is Verdict.FAILS


def test_packages_of_which_only_the_presence_counts_are_found(tmp_path: Path) -> None:
    install(environment(tmp_path / "env") / "lib/python3.12/site-packages", {"extra/__init__.py": ""}, "extra", "1.0")
    there = approach("extra", rule("extra", "file", {"path": "extra/*"}, Verdict.STARTS))
    assert verdicts(preflight_installed(str(tmp_path / "env"), toolchain(), (there,), 8)) == {"extra": Verdict.STARTS}


def test_a_package_that_is_installed_twice_cannot_be_judged(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for place in ("usr/lib/python3/dist-packages", "opt/venv/lib/python3.12/site-packages"):
        install(root / place, SGLANG, "sglang", "0.5.9")
    (root / "etc").mkdir()
    report = preflight_installed(str(root), toolchain(), APPROACHES, 8)
    assert verdicts(report)["table"] is Verdict.UNKNOWN
    assert "installed more than once" in report.findings[0].reason


def test_sources_that_are_no_text_or_cannot_be_parsed_are_named(tmp_path: Path) -> None:
    site = environment(tmp_path / "env") / "lib/python3.12/site-packages"
    (site / "sglang/tables.py").write_bytes(b"SIZES = {9: '\xff'}")
    (site / "torch/cpp_extension.py").write_text("ARCHES = [")
    report = preflight_installed(str(tmp_path / "env"), toolchain(), APPROACHES, 8)
    assert [finding.verdict for finding in report.findings] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert "not UTF-8 text" in report.findings[0].reason
    assert "torch/cpp_extension.py: line 1" in report.findings[1].reason


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"", "no Name and Version"),
        (b"Name: sglang\nVersion: \x1b[31mnew\n", r"its version is '\x1b[31mnew'"),
        (b"Name: sglang\nVersion: " + 9000 * b"1", "its version is '1111"),
    ],
)
def test_a_package_whose_metadata_is_damaged_is_not_called_absent(tmp_path: Path, metadata: bytes, said: str) -> None:
    site = environment(tmp_path / "env") / "lib/python3.12/site-packages"
    next(site.glob("sglang-*.dist-info/METADATA")).write_bytes(metadata)
    absent = approach("absent", rule("absent", "package", {"name": "sglang", "present": False}, Verdict.ABSENT))
    report = preflight_installed(str(tmp_path / "env"), toolchain(), (*APPROACHES, absent), 8)
    assert verdicts(report) == {"table": Verdict.FAILS, "arches": Verdict.STARTS, "absent": Verdict.UNKNOWN}
    assert said in report.findings[2].reason
    assert any(said in remark for remark in report.remarks)


def test_an_environment_without_any_of_the_packages_is_refused(tmp_path: Path) -> None:
    install(tmp_path / "env/lib/python3.12/site-packages", {"pip/__init__.py": ""}, "pip", "24.0")
    with pytest.raises(InputError, match="holds no package that could be judged"):
        preflight_installed(str(tmp_path / "env"), toolchain(), APPROACHES, 8)


def test_a_single_file_is_nothing_that_packages_are_installed_in(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("text")
    with pytest.raises(InputError, match="is a file"):
        preflight_installed(str(tmp_path / "some.txt"), toolchain(), APPROACHES, 8)


# ------------------------------------------------------------------------------------------------------------- views


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return preflight_installed(str(environment(tmp_path / "env")), toolchain(), APPROACHES, 8)


def test_every_view_shows_verdict_and_reason(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    talk.put(show(report))
    talk.put(explain(report, report.findings[0]))
    talk.put(side_by_side([report, report]))
    shown = capsys.readouterr().out
    assert "1 starts, 1 fails" in shown
    assert "ends in  KeyError: 12" in shown
    assert "evidence sglang/tables.py:1: SIZES has 9" in shown
    assert "remark: b12x is missing" in shown


def test_markdown_keeps_its_columns(report: Report) -> None:
    lines = markdown([report, report]).splitlines()
    assert lines[0] == "| Approach | small | small |"
    assert lines[2].count(" | ") == 2, "a bar in a text is escaped"
    assert report.date[:10] in lines[-1]


def test_the_document_is_written_whole(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "deep" / "preflight.json")
    written = json.loads((tmp_path / "deep" / "preflight.json").read_text())
    assert written == json.loads(json.dumps(document(report)))
    assert written["findings"][0]["evidence"] == [{"file": "sglang/tables.py", "line": 1, "text": "SIZES has 9"}]
