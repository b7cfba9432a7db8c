"""Pushing and sending, with a fake engine and a fake ssh; the real registry is in tests/containers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from images.push import push, send
from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.fake_engine import LOST, FakeEngine, FakeImage

DIGEST = "sha256:" + "a" * 64
NAME = "lanewise/cu130:core"
ELSEWHERE = f"reg:5000/team/{NAME}"


def quiet(_line: str) -> None:
    pass


def engine_with(events: list[object], *, registry: dict[str, str] | None = None) -> FakeEngine:
    engine = FakeEngine(events=events, registry={ELSEWHERE: DIGEST} if registry is None else registry)
    engine.names[NAME] = FakeImage(NAME, labels={"lanewise.plan": "p"})
    return engine


def test_a_push_gives_the_reference_by_digest_and_leaves_no_name_behind() -> None:
    engine = engine_with([{"status": "Preparing"}, {"aux": {"Tag": "core", "Digest": DIGEST}}])
    assert push(NAME, "reg:5000/team", engine, quiet) == f"reg:5000/team/lanewise/cu130@{DIGEST}"
    assert list(engine.names) == [NAME]


def test_a_name_that_was_there_stays() -> None:
    engine = engine_with([{"aux": {"Digest": DIGEST}}])
    engine.names[ELSEWHERE] = FakeImage(NAME)
    push(NAME, "reg:5000/team", engine, quiet)
    assert set(engine.names) == {NAME, ELSEWHERE}


@pytest.mark.parametrize(
    ("events", "registry", "kind", "says"),
    [
        ([{"aux": {"Digest": DIGEST}}], {ELSEWHERE: "sha256:other"}, LanewiseError, "is sha256:other in the registry"),
        ([{"aux": {"Digest": DIGEST}}], {}, LanewiseError, "unauthorized"),
        ([{"error": "denied: http://u:topsecret@reg"}], None, LanewiseError, "denied"),
        ([{"status": "Preparing"}], None, LanewiseError, "named no digest"),
        ([LOST], None, UnreachableError, "stopped answering"),
    ],
)
def test_a_push_that_fails_says_why_and_leaves_no_name(
    events: list[object], registry: dict[str, str] | None, kind: type[LanewiseError], says: str
) -> None:
    engine = engine_with(events, registry=registry)
    with pytest.raises(kind, match=says) as caught:
        push(NAME, "reg:5000/team", engine, quiet)
    assert "topsecret" not in str(caught.value)
    assert list(engine.names) == [NAME]


@pytest.mark.parametrize(
    "registry", ["", "https://reg", "-x", "reg:port", "me:topsecret@reg:5000", "reg/", "reg/UP", "a b"]
)
def test_what_is_no_registry_is_refused_and_no_password_shown(registry: str) -> None:
    with pytest.raises(InputError, match="is no registry") as caught:
        push(NAME, registry, engine_with([]), quiet)
    assert "topsecret" not in str(caught.value)


def test_only_an_image_with_a_name_can_be_pushed() -> None:
    engine = engine_with([])
    engine.names["sha256:1"] = FakeImage("sha256:1")
    with pytest.raises(InputError, match="has no name"):
        push("sha256:1", "reg", engine, quiet)
    with pytest.raises(InputError, match="no image 'other'"):
        push("other", "reg", engine, quiet)


# ---------------------------------------------------------------------------------------------------------------- ssh

FAKE_SSH = """#!/bin/sh
# A fake ssh: what the node has lies in $NODES/<host>, as its docker image inspect would print it.
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
echo "$host: $*" >> "$NODES/calls"
case "$host" in
    down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;;
    dies) [ "$2" = load ] && { echo "client_loop: send disconnect" >&2; exit 255; };;
    full) [ "$2" = load ] && { head -c 4 > /dev/null; echo "no space left on device" >&2; exit 1; };;
esac
case "$1 $2" in
    "docker image") [ -e "$NODES/$host" ] || { echo "Error: No such image" >&2; exit 1; }; cat "$NODES/$host";;
    "docker load") cat > "$NODES/$host.got"; cp "$NODES/loaded" "$NODES/$host";;
esac
"""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(FAKE_SSH)
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "nodes").mkdir()
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", str(tmp_path / "nodes"))
    (tmp_path / "nodes/loaded").write_text(json.dumps([FakeImage(NAME, labels={"lanewise.plan": "p"}).attrs]))
    return tmp_path / "nodes"


def test_a_node_gets_the_archive_once(nodes: Path) -> None:
    for _ in range(2):
        send(NAME, ["me@node1"], engine_with([]), quiet)
    assert (nodes / "me@node1.got").read_bytes() == b"archive of " + NAME.encode()
    assert (nodes / "calls").read_text().count("docker load") == 1


def test_what_a_node_loaded_is_held_against_what_was_sent(nodes: Path) -> None:
    (nodes / "loaded").write_text(
        json.dumps([FakeImage(NAME, labels={"lanewise.plan": "p"}, layers=["sha256:9"]).attrs])
    )
    with pytest.raises(LanewiseError, match="node1: what it loaded is not what was sent"):
        send(NAME, ["node1"], engine_with([]), quiet)


def test_nodes_that_fail_do_not_keep_the_others_from_it(nodes: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        send(NAME, ["down", "node1", "full", "dies"], engine_with([]), quiet)
    assert "3 of 4 nodes" in caught.value.what
    assert "down: ssh: connect to host down port 22: No route to host" in caught.value.what
    assert "full: no space left on device" in caught.value.what
    assert (nodes / "node1.got").exists()


def test_a_node_without_room_is_no_unreachable_node(nodes: Path) -> None:
    engine = engine_with([])
    engine.names[NAME].save = lambda named: iter([b"x" * (1 << 20)] * 8)  # more than a pipe holds
    with pytest.raises(LanewiseError, match="no space") as caught:
        send(NAME, ["full"], engine, quiet)
    assert type(caught.value) is LanewiseError


def test_an_engine_that_dies_while_it_is_read_is_no_fault_of_the_node(nodes: Path) -> None:
    def dying(named: str):
        yield b"begun"
        raise LOST

    engine = engine_with([])
    engine.names[NAME].save = dying
    with pytest.raises(UnreachableError, match="engine stopped answering"):
        send(NAME, ["node1"], engine, quiet)


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "", "$(x)"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="is no host"):
        send(NAME, [host], engine_with([]), quiet)
