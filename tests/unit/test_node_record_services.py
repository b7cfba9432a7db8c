"""Services and the container runtime: fake programs on PATH, and trees built here."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from playbooks.module_utils import node_record_command
from playbooks.module_utils.node_record import read_node
from playbooks.module_utils.node_record_container import container
from playbooks.module_utils.node_record_services import UNITS, service_memlock, services, unit_memlock, units
from playbooks.module_utils.node_record_tree import UNKNOWN, Tree
from tests.unit.makers_node import fake_node, fake_program, reason, unknowns, write


def block(load="loaded", active="active", enabled="enabled", limit="LimitMEMLOCK=infinity\n"):
    return f"{limit}LoadState={load}\nActiveState={active}\nUnitFileState={enabled}\n"


SHOWN = {
    "nvidia-persistenced.service": block(),
    "docker.service": block(active="failed", limit="LimitMEMLOCK=8388608\n"),
    "irqbalance.service": block("not-found", "inactive", ""),
    "lanewise-pci.service": block("masked", "inactive", "masked"),
    "nvidia-cdi-refresh.path": block(enabled="", limit=""),
}


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """A fake systemctl that answers as it was asked, in that order."""

    def make(shown):
        cases = "".join(f"{name}) printf '%s\\n' '{text}';;\n" for name, text in shown.items())
        script = (
            "case $2 in --property=DefaultLimitMEMLOCK) echo DefaultLimitMEMLOCK=18446744073709551615; exit;; esac\n"
            f"shift 2\nfor unit; do case $unit in\n{cases}esac; done\n"
        )
        fake_program(tmp_path, monkeypatch, "systemctl", script)
        return Tree(None)

    return make


def test_every_unit_is_told_as_systemd_has_it(systemctl):
    shown = units(systemctl(SHOWN))
    assert services(shown) == {
        "nvidia-persistenced": {"active": "active", "enabled": "enabled"},
        "docker": {"active": "failed", "enabled": "enabled"},
        "irqbalance": None,
        "lanewise-pci": {"active": "inactive", "enabled": "masked"},
        "nvidia-cdi-refresh.path": {"active": "active", "enabled": None},
    }
    assert [unit_memlock(shown, name) for name in ("docker", "nvidia-persistenced", "irqbalance")] == [
        8388608,
        "unlimited",
        None,
    ]


def test_the_limit_of_services_is_the_one_in_force(systemctl):
    assert service_memlock(systemctl(SHOWN)) == "unlimited"


@pytest.mark.parametrize(
    "shown",
    [
        {name: SHOWN[name] for name in list(SHOWN)[:4]},
        {**SHOWN, "docker.service": "no properties\n"},
        {**SHOWN, "docker.service": "LoadState=loaded\nActiveState=\n"},
    ],
    ids=["too few", "odd", "empty"],
)
def test_answers_of_another_kind_are_unknown_as_a_whole(systemctl, shown):
    tree = systemctl(shown)
    assert tree.ask("services", units, tree) == UNKNOWN


def test_a_systemctl_that_hangs_is_left_behind_with_all_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(node_record_command, "SECONDS", 0.3)
    fake_program(tmp_path, monkeypatch, "systemctl", f"sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    started = time.monotonic()
    record = read_node()
    assert time.monotonic() - started < 20
    assert record["services"] == UNKNOWN
    assert "no end within 0.3 s" in reason(record, "services")
    assert {entry["field"] for entry in record["unread"]} == unknowns(record)
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "cwd")  # leads nowhere once it ended
    while child.exists() and time.monotonic() - started < 20:
        time.sleep(0.01)
    assert not child.exists()


def test_a_failing_command_is_quoted(tmp_path, monkeypatch):
    fake_program(tmp_path, monkeypatch, "systemctl", "echo 'no systemd here'; exit 1")
    assert "status 1, no systemd here" in reason(read_node(), "services")


# container runtime


@pytest.fixture
def root(tmp_path):
    root = fake_node(tmp_path / "node")
    (root / "usr/bin").mkdir(parents=True)
    return root


def runtime(root):
    return read_node(str(root))["container"]


def test_a_node_without_a_container_runtime(root):
    assert runtime(root) == {
        "docker": {"present": False, "version": None, "daemon": {}},
        "nvidia_toolkit": None,
        "cdi": [],
    }


def test_what_is_installed_below_another_root_is_not_asked_for_its_version(root):
    write(root, {"usr/bin/dockerd": "", "usr/bin/nvidia-ctk": ""})
    record = read_node(str(root))
    assert record["container"]["docker"]["present"] is True
    assert (record["container"]["docker"]["version"], record["container"]["nvidia_toolkit"]) == (UNKNOWN, UNKNOWN)
    assert "not run for another root" in reason(record, "container.nvidia_toolkit")


def test_versions_are_what_the_programs_call_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr("playbooks.module_utils.node_record_container.FOLDERS", (f"{tmp_path}/bin".lstrip("/"),))
    fake_program(tmp_path, monkeypatch, "dockerd", "echo Docker version 28.5.1, build f8215cc")
    fake_program(
        tmp_path, monkeypatch, "nvidia-ctk", "echo NVIDIA Container Toolkit CLI version 1.18.0; echo commit: abc"
    )
    found = container(Tree(None))
    assert (found["docker"]["version"], found["nvidia_toolkit"]) == ("28.5.1", "1.18.0")


def test_settings_of_the_daemon_are_those_that_matter(root):
    settings = {
        "default-shm-size": "16g",
        "default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}},
        "exec-opts": ["native.cgroupdriver=systemd"],
        "features": {"cdi": True},
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
        "proxies": {"http-proxy": "http://user:geheim@proxy"},
        "registry-mirrors": ["https://mirror"],
    }
    write(root, {"etc/docker/daemon.json": json.dumps(settings)})
    daemon = runtime(root)["docker"]["daemon"]
    kept = ("default-shm-size", "default-ulimits", "exec-opts", "features")
    assert daemon == {**{key: settings[key] for key in kept}, "runtimes": ["nvidia"]}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        "[]",
        "{",
        '{"features": {"x": NaN}}',
        '{"features": {"x": 1e999}}',
        '{"features": ' + '{"a":' * 100 + "1" + "}" * 101,
        '{"default-shm-size": ' + "9" * 4000 + "}",
        '{"runtimes": 5}',
        '{"x": "' + "x" * 70_000 + '"}',
    ],
    ids=["deep", "list", "torn", "nan", "infinite", "nested", "long number", "runtimes", "huge"],
)
def test_an_odd_daemon_file_is_unknown_and_the_record_stays_json(root, text):
    write(root, {"etc/docker/daemon.json": text})
    record = read_node(str(root))
    assert record["container"]["docker"]["daemon"] == UNKNOWN
    json.loads(json.dumps(record, allow_nan=False))


CDI = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/dri/card1
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""


def test_cdi_specifications_are_counted_in_the_order_of_search(root):
    spec = {"kind": "vendor.com/net", "devices": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
    write(root, {"run/cdi/nvidia.yaml": CDI, "etc/cdi/net.json": json.dumps(spec), "etc/cdi/README": "no"})
    assert runtime(root)["cdi"] == [
        {"path": "/etc/cdi/net.json", "kind": "vendor.com/net", "devices": 3},
        {"path": "/run/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": 2},
    ]


@pytest.mark.parametrize(
    ("text", "kind", "devices"),
    [
        ('kind: "a/b"\ndevices:\n  - name: a\n  - name: b\n    mounts:\n      - x\nother:\n  - c\n', "a/b", 2),
        ("devices:\nkind: a/b\n", "a/b", 0),
        ("kind: a/b\ndevices: [{name: x}]\n", "a/b", UNKNOWN),
        ("odd", UNKNOWN, UNKNOWN),
        ("x" * (1024 * 1024 + 1), UNKNOWN, UNKNOWN),
    ],
    ids=["indented", "none", "flow", "odd", "huge"],
)  # fmt: skip
def test_forms_of_cdi_specifications(root, text, kind, devices):
    write(root, {"etc/cdi/x.yaml": text})
    record = read_node(str(root))
    assert record["container"]["cdi"] == [{"path": "/etc/cdi/x.yaml", "kind": kind, "devices": devices}]
    assert {entry["field"] for entry in record["unread"]} == unknowns(record)


def test_a_json_specification_of_other_kinds_of_values_is_unknown(root):
    write(root, {"etc/cdi/a.json": '{"kind": 5, "devices": 5}', "etc/cdi/b.json": '{"devices": "abc"}'})
    first, second = runtime(root)["cdi"]
    assert (first["kind"], first["devices"]) == (UNKNOWN, UNKNOWN)
    assert (second["kind"], second["devices"]) == (UNKNOWN, 0)


def test_a_folder_full_of_specifications_is_not_gone_through(root):
    write(root, {f"etc/cdi/{number}.json": "{}" for number in range(65)})
    assert runtime(root)["cdi"] == UNKNOWN


def test_every_unit_of_the_record_is_asked_for():
    assert set(SHOWN) == set(UNITS.values())
