from __future__ import annotations

from pathlib import Path

from lanewise.redact import Redactor
from tuning.nccl_settings import conf_files, effective_settings, parse_conf


def test_lines_are_read_exactly_as_nccl_reads_them() -> None:
    text = "# NCCL_A=1\nNCCL_B=2\n NCCL_C=3\nNCCL_D = 4\nNCCL_E\nNCCL_F==eth0\nNCCL_B=9\nNCCL_G="
    assert parse_conf(text) == {"NCCL_B": "2", " NCCL_C": "3", "NCCL_D ": " 4", "NCCL_F": "=eth0", "NCCL_G": ""}


def test_environment_wins_over_users_file_over_system_file(tmp_path: Path) -> None:
    own, system = tmp_path / "own", tmp_path / "system"
    own.write_text("NCCL_ALGO=Ring\nNCCL_PROTO=LL\nOTHER=1\n")
    system.write_text("NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_P2P_LEVEL=SYS\n")
    found = effective_settings({"NCCL_ALGO": "NVLS", "PATH": "/bin"}, [own, tmp_path / "missing", system])
    assert [(s.name, s.value, s.source) for s in found] == [
        ("NCCL_ALGO", "NVLS", "environment"),
        ("NCCL_P2P_LEVEL", "SYS", str(system)),
        ("NCCL_PROTO", "LL", str(own)),
    ]
    assert found[0].hidden == (f"{own}: Ring", f"{system}: Tree")


def test_a_named_file_replaces_the_home_file(tmp_path: Path) -> None:
    assert conf_files({"NCCL_CONF_FILE": "/x/y.conf"}, tmp_path / "etc") == [Path("/x/y.conf"), tmp_path / "etc"]
    assert [path.name for path in conf_files({}, tmp_path / "etc")][-2:] == [".nccl.conf", "etc"]
    assert conf_files({"NCCL_CONF_FILE": ""})[-1] == Path("/etc/nccl.conf")


def test_a_file_that_cannot_be_read_is_said_to_be_unknown(tmp_path: Path) -> None:
    (setting,) = effective_settings({}, [tmp_path])
    assert (setting.name, setting.value) == (str(tmp_path), "unknown")


def test_secrets_are_hidden_also_in_files_and_in_what_lost(tmp_path: Path) -> None:
    own, system = tmp_path / "own", tmp_path / "system"
    own.write_text("NCCL_PROXY_PASSWORD=hunter22\nNCCL_NET=ghp_abcdefghijklmnopqrstuvwxyz\n")
    system.write_text("NCCL_PROXY_PASSWORD=hunter33\nNCCL_NET=s3cr3t-value\nNCCL_ALGO=Ring\n")
    found = effective_settings({}, [own, system], Redactor({"MY_TOKEN": "s3cr3t-value"}))
    assert [(s.name, s.value, s.hidden) for s in found] == [
        ("NCCL_ALGO", "Ring", ()),
        ("NCCL_NET", "<redacted>", (f"{system}: <redacted>",)),
        ("NCCL_PROXY_PASSWORD", "<redacted>", (f"{system}: <redacted>",)),
    ]
    assert "hunter" not in str(effective_settings({}, [own, system]))
