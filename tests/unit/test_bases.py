"""Bases, and the engine's answers, with a fake engine; the real one is in tests/containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from docker.errors import APIError

from images import debian_root
from images.bases import ensure_base, repository
from images.build_plan import Base, BaseKind
from images.debian_root import apt_source, apt_sources, packages_hash, read_status
from images.engine_work import alone, build, run_once
from images.image_build import check_space
from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.fake_engine import LOST, FakeEngine, FakeImage
from tests.unit.makers_images import BOOKWORM, make_plan

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
BASE = Base(name="cuda", kind=BaseKind.REGISTRY, reference="reg:5000/cuda:13", python="3.12", digest=DIGEST, cuda=True)
PYTHON = '{"python": "3.12", "pip": "24.0"}'


def quiet(_line: str) -> None:
    pass


# ----------------------------------------------------------------------------------------------------------- registry


def test_a_registry_base_is_pulled_by_its_digest_and_once(tmp_path: Path) -> None:
    engine = FakeEngine(registry={f"reg:5000/cuda@{DIGEST}": DIGEST, "reg:5000/cuda:13": OTHER}, says=PYTHON)
    first = ensure_base(BASE, engine, tmp_path, quiet)
    engine.registry.clear()
    assert ensure_base(BASE, engine, tmp_path, quiet) == first
    assert first.digest == DIGEST


def test_drift_names_both_digests(tmp_path: Path) -> None:
    with pytest.raises(LanewiseError) as caught:
        ensure_base(BASE, FakeEngine(registry={"reg:5000/cuda:13": OTHER}, says=PYTHON), tmp_path, quiet)
    assert DIGEST in caught.value.what
    assert OTHER in caught.value.what


def test_a_registry_that_refuses_shows_no_password(tmp_path: Path) -> None:
    with pytest.raises(LanewiseError, match="pull") as caught:
        ensure_base(BASE, FakeEngine(says=PYTHON), tmp_path, quiet)
    assert "topsecret" not in str(caught.value)


def test_another_digest_than_the_locked_one_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine(says=PYTHON)
    engine.names[f"reg:5000/cuda@{DIGEST}"] = FakeImage("sha256:1", digests=[f"reg:5000/cuda@{OTHER}"])
    with pytest.raises(LanewiseError, match=OTHER):
        ensure_base(BASE, engine, tmp_path, quiet)


@pytest.mark.parametrize("digest", ["", "latest", "sha256:12"])
def test_a_base_that_is_not_locked_is_refused(digest: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not locked"):
        ensure_base(replace(BASE, digest=digest), FakeEngine(), tmp_path, quiet)


@pytest.mark.parametrize(
    ("said", "says"), [("", "lacks python3"), ("{}", "lacks python3"), ('{"python": "3.13"}', "has Python 3.13")]
)
def test_a_base_without_the_right_python_is_refused(said: str, says: str, tmp_path: Path) -> None:
    engine = FakeEngine(registry={f"reg:5000/cuda@{DIGEST}": DIGEST}, says=said)
    with pytest.raises(InputError, match=says):
        ensure_base(BASE, engine, tmp_path, quiet)
    assert engine.removed == ["c"]


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("a/b:1", "a/b"),
        ("h:5000/a", "h:5000/a"),
        ("h:5000/a:1", "h:5000/a"),
        ("a@sha256:00", "a"),
        ("a:1@sha256:0", "a"),
    ],
)
def test_a_repository_is_a_reference_without_tag_and_digest(reference: str, name: str) -> None:
    assert repository(reference) == name


# ------------------------------------------------------------------------------------------------------------- debian


def sources(folder: Path, **files: str) -> Path:
    (folder / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        (folder / "sources.list.d" / name.replace("__", ".")).write_text(text)
    return folder


def test_package_sources_are_read_in_both_formats(tmp_path: Path) -> None:
    folder = sources(
        tmp_path,
        a__sources="# a comment\nTypes: deb deb-src\nURIs: http://m/debian\nSuites: bookworm bookworm-updates\n"
        "Components: main\nSigned-By: /usr/share/k.gpg\n\n"
        "Types: deb\nEnabled: no\nURIs: http://off\nSuites: x\n",
        b__list="deb [arch=amd64 signed-by=/k2.gpg] https://n/debian trixie main contrib # why\n"
        "# deb http://o x main\n",
        c__sources="Types: deb\nURIs: http://p/debian\nSuites: sid\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP-----\n x\n",
        d__save="deb http://saved/debian x main\n",
    )
    (folder / "sources.list").write_text("deb-src http://src/debian bookworm main\n")
    assert [(s.uri, s.suites, s.keyring) for s in apt_sources(folder)] == [
        ("http://m/debian", ("bookworm", "bookworm-updates"), "/usr/share/k.gpg"),
        ("https://n/debian", ("trixie",), "/k2.gpg"),
        ("http://p/debian", ("sid",), ""),
    ]


def test_the_source_of_the_suite_comes_before_any_other_of_debian(tmp_path: Path) -> None:
    folder = sources(
        tmp_path,
        a__list="deb http://sec/debian-security bookworm-security main\ndeb http://m/debian trixie main\n"
        "deb http://n/debian bookworm main\ndeb cdrom:[x]/ bookworm main\n",
    )
    found = apt_sources(folder)
    assert apt_source("bookworm", found).uri == "http://n/debian"
    assert apt_source("forky", found).uri == "http://m/debian"
    with pytest.raises(InputError, match="no package source"):
        apt_source("bookworm", found[:1])


def test_only_what_is_installed_counts() -> None:
    text = (
        "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.0\nDescription: x\n Package: no\n\n"
        "Package: b\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 2\n\n"
    )
    assert read_status(text) == {"a:amd64": "1.0"}
    assert packages_hash({"a": "1", "b": "2"}) == packages_hash({"b": "2", "a": "1"})


def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of debootstrap and tar: files where theirs would be."""
    commands: list[str] = []

    def fake_run(command: list[str], what: str, progress: object) -> None:
        commands.append(next(word for word in command if word in ("debootstrap", "tar")))
        if command[0] == "tar":
            Path(command[2].removeprefix("--file=")).write_bytes(b"archive")
            return
        root = Path(command[-2])
        for folder in ("etc/apt", "var/lib/dpkg", "var/log", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "etc/hostname").write_text("this-machine")
        (root / "var/lib/dpkg/status").write_text(
            "Package: python3\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3.11.2-1\n\n"
        )

    monkeypatch.setattr(debian_root, "_run", fake_run)
    monkeypatch.setattr(debian_root, "apt_sources", lambda: [debian_root.AptSource(
        uri="http://u:pw@m/debian", suites=("bookworm",), components=("main",))])  # fmt: skip
    monkeypatch.setattr(debian_root.os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/sbin/debootstrap")
    return commands


def test_a_debian_base_is_made_once_and_a_damaged_archive_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = made(monkeypatch)
    abandoned = tmp_path / "bases/.making-x"
    abandoned.mkdir(parents=True)
    engine = FakeEngine(says=PYTHON.replace("3.12", "3.11"))
    first = ensure_base(BOOKWORM, engine, tmp_path, quiet)
    assert ensure_base(BOOKWORM, engine, tmp_path, quiet) == first
    assert commands == ["debootstrap", "tar"]
    assert first.inputs == packages_hash({"python3:amd64": "3.11.2-1"})
    assert not abandoned.exists()
    (archive,) = (tmp_path / "bases").glob("*/root.tar")
    archive.write_bytes(b"damaged")
    assert ensure_base(BOOKWORM, engine, tmp_path, quiet) == first
    assert commands == ["debootstrap", "tar"] * 2


def test_more_packages_make_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = made(monkeypatch)
    engine = FakeEngine(says=PYTHON.replace("3.12", "3.11"))
    ensure_base(BOOKWORM, engine, tmp_path, quiet)
    ensure_base(replace(BOOKWORM, packages=("g++",)), engine, tmp_path, quiet)
    assert len(commands) == 4


def test_a_base_needs_debootstrap_and_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    monkeypatch.setattr(debian_root.os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="user 1000"):
        ensure_base(BOOKWORM, FakeEngine(), tmp_path, quiet)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(InputError, match="debootstrap is not installed"):
        ensure_base(BOOKWORM, FakeEngine(), tmp_path, quiet)
    assert not list((tmp_path / "bases").glob("*/root.tar"))


def test_a_program_that_fails_says_so_without_passwords(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", "echo E: http://u:topsecret@m/debian is not there; exit 3"]
    with pytest.raises(LanewiseError, match="ended with 3") as caught:
        debian_root._run(command, "make a base", quiet)
    assert "is not there" in caught.value.what
    assert "topsecret" not in str(caught.value)


def test_an_interrupted_program_is_ended() -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        debian_root._run(["/bin/sh", "-c", "echo begun; exec sleep 60"], "make a base", interrupt)


ORPHANS = """
import sys
from images import debian_root
command = [*debian_root._KILLED_WITH_US, "sh", "-c", "sleep {seconds} & echo begun; wait"]
debian_root._run(command, "make a base", lambda line: print(line, flush=True))
"""


def running(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [str(path)] if path.read_bytes() == f"sleep\0{word}\0".encode() else []
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root, as debootstrap does")
def test_what_makes_a_base_dies_with_the_run_that_is_killed() -> None:
    seconds = f"{300 + time.monotonic_ns() % 1_000_000 / 1_000_000:.6f}"
    command = [sys.executable, "-c", ORPHANS.format(seconds=seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert running(seconds)
        process.kill()
    until = time.monotonic() + 10
    while running(seconds) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(seconds)


# ------------------------------------------------------------------------------------------------------------- engine


def built(events: list[object], progress=quiet) -> tuple[FakeEngine, object]:
    engine = FakeEngine(events=events)
    try:
        return engine, build(
            engine, [b"tar"], what="build x", arguments={}, network="none", progress=progress
        )  # fmt: skip
    except (LanewiseError, KeyboardInterrupt) as error:
        return engine, error


def test_a_build_gives_the_last_image_and_closes_the_answer() -> None:
    events = [{"stream": "Step 1/2 : A\n"}, {"aux": {"ID": "sha256:1"}}, {"stream": "\n"}, {"aux": {"ID": "sha256:2"}}]
    engine, image = built(events)
    assert image == "sha256:2"
    assert engine.answer.closed
    assert engine.api.hooks["response"] == []


@pytest.mark.parametrize(
    ("events", "kind", "says"),
    [
        ([{"stream": "Step 3/9 : RUN pip\n"}, {"stream": "ERROR: no such wheel\n"}, {"error": "returned code 1"}],
         LanewiseError, "no such wheel"),
        ([{"stream": "Step 3/9 : COPY\n"}, {"error": "write /x: no space left on device"}], LanewiseError, "no space"),
        ([{"stream": "Step 3/9 : COPY\n"}, LOST], UnreachableError, "stopped answering"),
        ([ConnectionResetError(104, "reset")], UnreachableError, "stopped answering"),
        ([APIError("server error")], LanewiseError, "server error"),
        ([{"stream": "Step 1/1\n"}], LanewiseError, "named no image"),
    ],
)  # fmt: skip
def test_a_build_that_fails_says_where(events: list[object], kind: type[LanewiseError], says: str) -> None:
    engine, error = built(events)
    assert type(error) is kind
    assert says in str(error)
    assert engine.answer.closed


def test_an_interrupted_build_lets_the_engine_go() -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    engine, error = built([{"stream": "Step 1/2 : A\n"}], interrupt)
    assert isinstance(error, KeyboardInterrupt)
    assert engine.answer.closed


def test_a_program_that_does_not_end_is_not_the_engines_fault() -> None:
    with pytest.raises(LanewiseError, match="did not end within 1 s") as caught:
        run_once(FakeEngine(waits=requests.exceptions.ConnectionError("Read timed out.")), "x", ["sleep"], seconds=1)
    assert type(caught.value) is LanewiseError
    with pytest.raises(UnreachableError):
        run_once(FakeEngine(waits=LOST), "x", ["sleep"], seconds=1)


def test_two_runs_do_not_build_the_same(tmp_path: Path) -> None:
    with (
        alone("k" * 64, tmp_path),
        alone("other", tmp_path),
        pytest.raises(LanewiseError, match="another run"),
        alone("k" * 64, tmp_path),
    ):
        pass
    with alone("k" * 64, tmp_path):
        pass


def test_facts_of_an_archive_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    root = debian_root.debian_root("bookworm", [], tmp_path, quiet)
    facts = json.loads((root.tar.parent / "root.json").read_text())
    assert facts["packages"] == {"python3:amd64": "3.11.2-1"}


def test_a_build_that_has_no_room_is_not_begun(tmp_path: Path) -> None:
    engine, wheel = FakeEngine(), tmp_path / "a.whl"
    with wheel.open("wb") as file:
        file.truncate(1 << 43)  # sparse: it takes no room itself
    with pytest.raises(LanewiseError, match="GB free, and building"):
        check_space(make_plan(), [wheel], engine)
    engine.info = lambda: {"DockerRootDir": "/not/on/this/machine"}
    check_space(make_plan(), [wheel], engine)
