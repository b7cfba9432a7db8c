from __future__ import annotations

import json
import time

import pytest

from lanewise.redact import Redactor, is_secret, redact_environment

SECRET = "s3cr3t-value-42"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "APIKEY", "DB_PASSWORD", "DB_PWD",
     "NGC_API_KEY", "MY_KEY", "SSH_PRIVATE_THING", "SESSION_COOKIE", "GITHUB_PAT", "SENTRY_DSN", "SSHPASS",
     "DB_CREDS", "ARTIFACTORY_CRED", "NCCL_PROXY_PASSWORD"],
)  # fmt: skip
def test_secret_names_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "PWD", "OLDPWD", "NCCL_ALGO", "KEYBOARD", "MONKEY", "LD_PRELOAD", "SACRED_PATH", "BYPASS", "NCCL_IB_PKEY"],
)
def test_ordinary_names_are_kept(name: str) -> None:
    assert not is_secret(name)


def test_values_of_secret_variables_go_wherever_they_stand() -> None:
    environment = {"HF_TOKEN": SECRET, "NCCL_X": f"--auth={SECRET}", "PWD": "/home/me/project"}
    assert SECRET not in str(redact_environment(environment))
    redact = Redactor(environment)
    assert redact(f"failed: GET {SECRET} in /home/me/project") == "failed: GET <redacted> in /home/me/project"


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijklmnopqrstuv",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "sk-abcdefghijklmnop1234567890",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123",
        "https://me:hunter22@example.org/simple",
        "Authorization: Bearer abc.def",
        "password=hunter22",
        "--api-key=hunter22hunter",
        '"token": "hunter22"',
        "AIzaSyhunter22hunter22hunter22hunter22x",
        '{"authorization": "Bearer hunter22"}',
        "{'Authorization': 'Bearer hunter22'}",
        '"{\\"authorization\\": \\"Basic hunter22\\"}"',
        '"{\\"token\\": \\"hunter22\\"}"',
        "authorization = token hunter22",
        "Bearer hunter22hunter22hunter22",
        "-----BEGIN PRIVATE KEY-----\nhunter22\n-----END PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\\nhunter22\\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secrets_known_by_their_form(text: str) -> None:
    redacted = Redactor({})(f"before {text} after")
    assert "<redacted>" in redacted
    assert "hunter22" not in redacted
    assert redacted.startswith("before")
    assert redacted.endswith("after")


def test_the_argument_after_a_secret_option_is_hidden() -> None:
    assert Redactor({}).all(["serve", "--api-key", "abc", "--port", "30000"]) == [
        "serve", "--api-key", "<redacted>", "--port", "30000",
    ]  # fmt: skip


def test_an_option_after_one_that_takes_no_argument_is_no_secret() -> None:
    command = ["--skip-tokenizer-init", "--dtype", "bfloat16"]
    assert Redactor({}).all(command) == command
    assert Redactor({}).all(["--token", "--hunter2"]) == ["--token", "<redacted>"], "some parsers take it for the value"


def test_a_number_of_tokens_is_no_secret() -> None:
    command = ["--max-new-tokens", "64", "--speculative-num-draft-tokens", "3"]
    assert Redactor({}).all(command) == command
    assert Redactor({}).all(["--api-tokens", "abc", "--token", "123"]) == [
        "--api-tokens",
        "<redacted>",
        "--token",
        "<redacted>",
    ]


def test_ordinary_commands_stay_as_they_are() -> None:
    command = [
        "/usr/bin/mpirun",
        "-np",
        "4",
        "python",
        "tuning/workers/mpi_allreduce.py",
        '{"key": "ring#0", "seed": 1}',
    ]
    assert Redactor({"HOME": "/root", "HF_TOKEN": "abc"}).all(command) == command


PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabcdefghijkl+/\nMIIEmnopqrstuvwx==\nshort\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n    "])
def test_every_line_of_a_secret_with_several_is_hidden(ending: str) -> None:
    redact = Redactor({"DEPLOY_KEY": PEM.replace("\n", ending), "NOTES": "an ordinary\ntext of lines"})
    assert redact("x MIIEabcdefghijkl+/ y") == "x <redacted> y"
    assert redact("MIIEmnopqrstuvwx==\n") == "<redacted>\n"
    assert redact("a short, ordinary text of lines") == "a short, ordinary text of lines"


def test_a_secret_is_found_where_json_writes_it_otherwise() -> None:
    redact = Redactor({"MY_PASSWORD": 'pä"ss\\word'})
    for plain in (True, False):
        assert redact(json.dumps(["x", 'pä"ss\\word'], ensure_ascii=plain)) == '["x", "<redacted>"]'


def test_a_key_that_nobody_declared_is_hidden_line_by_line() -> None:
    lines = ["reading", *PEM.split("\n")[:2], "WARN: rank 1 talks", *PEM.split("\n")[2:], "done"]
    hidden = Redactor({}).all(lines)
    assert "MIIE" not in str(hidden)
    assert "short" not in str(hidden)
    assert (hidden[0], hidden[3], hidden[-1]) == ("reading", "WARN: rank 1 talks", "done")


def test_a_key_without_end_hides_the_rest_of_its_text() -> None:
    assert Redactor({})("x -----BEGIN EC PRIVATE KEY-----\nMIIE and more").endswith("KEY-----<redacted>")


@pytest.mark.parametrize(
    "unit", ["a", '"', "-----BEGIN PRIVATE KEY-----", "token", "authorization ", "eyJaaaaaaaaa.", "://a:"]
)
def test_long_lines_are_searched_in_reasonable_time(unit: str) -> None:
    started = time.monotonic()
    Redactor({})(unit * (200_000 // len(unit)))
    assert time.monotonic() - started < 2


def test_public_keys_stay() -> None:
    text = "-----BEGIN PUBLIC KEY-----\nMIIEabcdefghijkl\n-----END PUBLIC KEY-----"
    assert Redactor({}).all(text.split("\n")) == text.split("\n")
