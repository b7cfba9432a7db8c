"""What a user names, as environments; images are looked up by a fake."""

from __future__ import annotations

import pytest

from lanewise.errors import InputError
from tuning import environments
from tuning.container_images import Image
from tuning.environments import asked_environments, parse_environment, spelled
from tuning.plan import Environment


def fake_id(name: str) -> str:
    return "sha256:" + name.encode().hex().ljust(64, "0")[:64]


@pytest.fixture(autouse=True)
def fake_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("find_image", "toolchain_image"):
        monkeypatch.setattr(environments, function, lambda name, *_: Image(id=fake_id(name), tags=(name,), labels={}))


def asked(*texts: str, **more: object) -> tuple[Environment, ...]:
    return asked_environments(texts, **{"python": "", "host_python": lambda: "/host/python", **more})  # type: ignore[arg-type]


def test_this_machine_is_measured_where_nothing_is_named() -> None:
    assert asked() == (Environment(name="host", python="/host/python"),)


def test_images_and_toolchains_take_their_own_python() -> None:
    assert asked(images=["me/x:1"], toolchains=["cu130"]) == (
        Environment(name="me-x-1", python="/opt/lanewise/bin/python3", image=fake_id("me/x:1")),
        Environment(name="cu130", python="/opt/lanewise/bin/python3", image=fake_id("cu130")),
    )


def test_this_machine_and_images_go_together() -> None:
    found = asked("here", "box image=me/x NCCL_ALGO=ring python=/usr/bin/python3", toolchains=["cu130"])
    assert [(env.name, env.python, bool(env.image)) for env in found] == [
        ("here", "/host/python", False), ("box", "/usr/bin/python3", True), ("cu130", "/opt/lanewise/bin/python3", True)
    ]  # fmt: skip
    assert found[1].variables == {"NCCL_ALGO": "ring"}


def test_python_is_for_all_that_name_none() -> None:
    found = asked("here", "own python=/own", images=["x"], python="/named")
    assert [env.python for env in found] == ["/named", "/own", "/named"]


def test_the_interpreter_of_this_machine_is_not_looked_for_where_it_is_not_needed() -> None:
    asked(images=["x"], host_python=lambda: pytest.fail("it takes seconds"))


@pytest.mark.parametrize(
    "text",
    ["host", "tcp OMPI_MCA_btl=self,tcp", "box image=sha256:00 python=/x/python3", "a 'B=with blank' C=d"],
)
def test_an_environment_can_be_spelled_out(text: str) -> None:
    made = parse_environment(text)
    assert parse_environment(spelled(made)) == made


@pytest.mark.parametrize(
    "text", ["", "a b", "'", "no/name", "x image", "x =1", "x HF_TOKEN=abcdefgh", "x A=hf_0123456789abcdef01", "é"]
)
def test_what_is_no_environment_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_environment(text)
