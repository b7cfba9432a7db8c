"""The command line as a user meets it: listing, help, errors in three parts, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.context import Context

from lanewise.verbs import verb

ROOT = Path(__file__).resolve().parents[2]
VERBS = [
    *("build-image", "lock", "images", "audit", "preflight", "push"),
    *("record", "campaign", "bench-allreduce", "compare", "report", "check", "test", "workload"),
    *("topology", "nccl-plan", "predict", "predict-speculation", "predict-memory", "diagnose", "verdicts"),
]


def inv(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def test_list_has_every_verb() -> None:
    listed = inv("--list").stdout
    assert [verb for verb in VERBS if f"  {verb}  " not in listed] == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_describes_every_option(verb: str) -> None:
    shown = inv(verb, "--help")
    assert shown.returncode == 0
    options = [line for line in shown.stdout.splitlines() if line.startswith("  -")]
    assert all(len(line.split(None, 1)) == 2 for line in options)


def test_help_shows_defaults() -> None:
    shown = " ".join(inv("bench-allreduce", "--help").stdout.split())
    for default in ("(default: kimi-k2)", "(default: 5)", "(default: mpi;"):
        assert default in shown


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["compare", "--run", "/no/such.jsonl"], 2, "/no/such.jsonl"),
        (["compare", "ring", "--run", "x"], 2, "x"),
        (["compare", "--fail-on", "slower"], 2, "slower"),
        (["compare", "--run", "a", "--run", "b", "--run", "c"], 2, "3 times"),
        (["bench-allreduce", "--workload", "llama"], 2, "kimi-k2"),
        (["bench-allreduce", "--candidates", "rign"], 2, "'rign'"),
        (["bench-allreduce", "--engine", "rocm"], 2, "rocm"),
        (["bench-allreduce", "--ranks", "1"], 2, "--ranks is 1"),
        (["bench-allreduce", "--launches", "-1"], 2, "--launches is -1"),
        (["bench-allreduce", "--python", "/no/python"], 2, "/no/python"),
        (["bench-allreduce", "--resume", "/no/such.jsonl"], 2, "/no/such.jsonl"),
        (["bench-allreduce", "--environment", "a", "--environment", "a"], 2, "each once"),
        (["bench-allreduce", "--environment", "../x"], 2, "is no name"),
        (["bench-allreduce", "--environment", "ring"], 2, "an environment and a candidate"),
        (["bench-allreduce", "--environment", "a b"], 2, "no assignment"),
        (["bench-allreduce", "--margin", "200"], 2, "200"),
        (["record", "--root", "/no/such"], 2, "/no/such"),
        (["bench-allreduce", "--python", "/usr/bin/env"], 2, "/usr/bin/env"),
        (["workload", "--config", "/no/config.json"], 2, "/no/config.json"),
        (["workload", "--config", "x", "--name", "y"], 2, "both"),
        (["workload", "--name", "nope"], 2, "'nope'"),
        (["test", "--level", "everything"], 2, "everything"),
        (["bench-allreduce", "--ranks", "many"], 2, "many"),
    ],
)
def test_bad_input_ends_with_three_parts_and_the_right_code(
    arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    done = inv(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("expected:") == 1
    assert done.stderr.count("next:") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_workload_derives_122_calls_of_43008_bytes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 61, "hidden_size": 7168}}))
    done = inv("workload", "--config", "config.json", "--draft-tokens", "3", cwd=tmp_path)
    assert done.returncode == 0
    (tmp_path / "mine.yaml").write_text(done.stdout)
    document = json.loads(inv("workload", "--name", "./mine.yaml", "--json", cwd=tmp_path).stdout)
    assert [(m["calls"], m["bytes"]) for m in document["messages"]] == [(122, 14_336), (122, 43_008)]


def test_record_is_json_of_this_node() -> None:
    assert json.loads(inv("record").stdout)["schema"].startswith("lanewise.node-record/")


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m invoke workload | true"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr


def test_a_verb_takes_any_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple] = []

    def gather(_context: Context, *files: str, json: bool = False) -> None:
        taken.append((files, json))

    monkeypatch.setattr(sys, "argv", ["inv", "gather", "a", "--json", "b"])
    made = verb(files="files", json="as JSON")(gather)
    assert [argument.name for argument in made.get_arguments()] == ["files_1", "files_2", "json"]
    made.body(Context(), files_1="a", files_2="b", json=True)
    assert taken == [(("a", "b"), True)]
    monkeypatch.setattr(sys, "argv", ["inv", "gather"])
    verb(files="files", json="as JSON")(gather).body(Context(), json=False)
    assert taken[1] == ((), False)


def test_an_option_may_be_called_what_invoke_calls_its_own() -> None:
    """predict-memory has --context, the tokens of a request."""
    taken: list[int] = []

    def predict(_context: Context, context: int = 8192) -> None:
        taken.append(context)

    verb(context="tokens")(predict).body(Context(), context=16)
    assert taken == [16]
