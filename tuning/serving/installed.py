"""What SGLang an environment holds: its release, and the flags that its launcher itself prints."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping

from lanewise.errors import InputError
from tuning.containers import GRACE_SECONDS, in_container
from tuning.plan import Environment
from tuning.scratch import new_scratch
from tuning.serving.backends import parse_release
from tuning.supervised import Ending, run_supervised

_RELEASE = "import importlib.metadata as m; print('release', m.version('sglang'))"
_SECONDS = 120.0
"""For the release, which imports nothing."""
_HELP_SECONDS = 600.0
"""For the launcher's flags, for which it imports SGLang: half a minute, and minutes from a cold disk."""
_MOST_LINES = 20_000
_OPTION = re.compile(r"  --?[A-Za-z]")
"""How argparse begins an option in its help; descriptions, which name other flags, are indented further."""
_NAME = re.compile(r"--([A-Za-z0-9][A-Za-z0-9_-]*)")
_PLAIN = {"NO_COLOR": "1", "PYTHON_COLORS": "0", "COLUMNS": "200"}


def installed_release(environment: Environment) -> str:
    """SGLang's version, as its distribution says, without importing it.

    Raises:
        InputError: the environment holds none, or its Python does not run, or does not end.
    """
    ok, lines = _said(environment, [environment.python, "-c", _RELEASE], gpus=False, seconds=_SECONDS)
    told = [line.split()[-1] for line in lines if re.fullmatch(r"release \S{1,80}", line)]
    if not ok or not told or parse_release(told[-1]) is None:
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        raise InputError(
            f"environment {environment.name} holds no SGLang: {last.strip()[:300]}",
            expected=f"sglang installed for {environment.python}",
            todo="name another with --image, --toolchain or --python",
        )
    return told[-1]


def help_flags(environment: Environment) -> frozenset[str]:
    """Flags, without dashes, that `python -m sglang.launch_server --help` prints; none where it fails.

    Deprecated flags may be hidden there. It imports SGLang, which takes from half a minute to some minutes.

    Raises:
        InputError: it does not end in time.
    """
    command = [environment.python, "-m", "sglang.launch_server", "--help"]
    ok, lines = _said(environment, command, gpus=True, seconds=_HELP_SECONDS)
    return _flags(lines) if ok else frozenset()


def _flags(lines: Iterable[str]) -> frozenset[str]:
    headers = (re.split(r"\s{2,}", line.strip())[0] for line in lines if _OPTION.match(line))
    return frozenset(name for header in headers for name in _NAME.findall(header))


def _said(environment: Environment, command: list[str], *, gpus: bool, seconds: float) -> tuple[bool, list[str]]:
    """Whether a command of the environment ended well, and what it printed; InputError where it did not end."""
    lines: list[str] = []
    asked = shlex.join(command)

    def feed(line: str) -> bool:
        if len(lines) < _MOST_LINES:
            lines.append(line)
        return False  # so that the time limit is one for the whole

    variables: Mapping[str, str] = {**environment.variables, **_PLAIN}
    if environment.image:
        command = in_container(command, environment, variables=variables, files=[], gpus=gpus)
    ending, code = run_supervised(
        command,
        environment=os.environ if environment.image else {**os.environ, **variables},
        scratch=new_scratch(),
        timeout=seconds,
        feed=feed,
        grace=GRACE_SECONDS if environment.image else 0,
    )
    if ending is not Ending.EXITED:
        raise InputError(
            f"in environment {environment.name}, {asked!r} did not end within {seconds:g} s",
            expected="an SGLang that answers: it is asked for its release, and for its flags where they are not known",
            todo="run that by hand; where a cold disk made it slow, call again",
        )
    return code == 0, lines
