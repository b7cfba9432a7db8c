"""What makes a function a verb of the command line: options with help, errors as text and exit code."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Self

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from lanewise import talk
from lanewise.errors import ExitCode, InputError, LanewiseError

Verb = Callable[..., ExitCode | None]


class _NumberType(type):
    """Makes `Number` look like int to invoke, whose help then says INT."""

    def __eq__(cls, other: object) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)


class Number(int, metaclass=_NumberType):
    """An option's whole number; what is none ends as an error in three parts instead of a traceback."""

    def __new__(cls, value: str | int) -> Self:
        """Parse what was typed."""
        try:
            return super().__new__(cls, value)
        except ValueError:
            error = InputError(f"{value!r} is given for a number", expected="a whole number, e.g. 4", todo="correct it")
            raise Exit(f"error: {error}", code=int(error.exit_code)) from None


def verb(*positional: str, **help_texts: str) -> Callable[[Verb], Task[Any]]:
    """Make a function an invoke task: help for every option with its default, errors as text and exit code.

    A function with a parameter such as `*files` takes any number of words by position.

    Args:
        positional: options that may also be given by position.
        help_texts: help for every option, and for those words.
    """

    def decorate(function: Verb) -> Task[Any]:
        signature = inspect.signature(function)
        options = list(signature.parameters.values())[1:]
        if {option.name for option in options} != set(help_texts):
            raise TypeError(f"{function.__name__}: every option has a help text, and no others")

        words_typed = _bare_words(function.__name__, options)
        any_number = next((option for option in options if option.kind is option.VAR_POSITIONAL), None)
        options = [option for option in options if option is not any_number]
        if any_number:  # invoke has no arguments without a number: as many are declared as words were typed
            typed = tuple(f"{any_number.name}_{number}" for number in range(1, words_typed + 1))
            options = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in typed] + options
            texts = {**help_texts, **dict.fromkeys(typed, help_texts[any_number.name])}
        else:
            typed, texts = positional[:words_typed], help_texts

        @functools.wraps(function)
        def run(context: Context, /, **kwargs: Any) -> None:  # noqa: ANN401 - invoke passes what it parsed
            words = [kwargs.pop(name) for name in typed] if any_number else []
            if code := guarded(function, context, *words, **kwargs):
                raise Exit(code=int(code))

        required = dict.fromkeys(typed, inspect.Parameter.empty)
        parameters = [p.replace(default=required.get(p.name, _parsed(p.default))) for p in options]
        context = next(iter(signature.parameters.values()))
        run.__signature__ = signature.replace(parameters=[context, *parameters])  # type: ignore[attr-defined]
        made: Task[Any] = task(
            help={option.name: _with_default(texts[option.name], option.default) for option in options},
            iterable=[option.name for option in options if option.default is None],
            positional=list(typed),
            auto_shortflags=False,
        )(run)
        return made

    return decorate


def _parsed(default: object) -> object:
    return Number(default) if type(default) is int else default


def _bare_words(name: str, options: list[inspect.Parameter]) -> int:
    """How many words without an option the user typed for a verb.

    invoke has no optional positional arguments: either they are demanded, or not taken. So what is demanded is what
    was typed.
    """
    words = sys.argv[1:]
    verb_name = name.replace("_", "-")
    if verb_name not in words:
        return 0
    with_value = {"--" + option.name.replace("_", "-") for option in options if option.default is not False}
    count, rest = 0, iter(words[words.index(verb_name) + 1 :])
    for word in rest:
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            count += 1
    return count


def _with_default(text: str, default: object) -> str:
    if default in ("", None, False, inspect.Parameter.empty):
        return text
    return f"{text} (default: {default})"


def guarded(function: Verb, *args: Any, **kwargs: Any) -> ExitCode | int | None:  # noqa: ANN401 - as above
    """The one place where errors become text on stderr and an exit code."""
    talk.open_standard_streams()
    try:
        code = function(*args, **kwargs)
        sys.stdout.flush()
        return code
    except LanewiseError as error:
        talk.say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        talk.say("interrupted: nothing is left running; what was finished is kept")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout left, as `head` does
        _discard_stdout()
        return ExitCode.DONE
    except OSError as error:
        _discard_stdout()
        talk.say(
            f"error: {error}\n  expected: disk, permissions and output in order\n  next:     mend it and call again"
        )
        return ExitCode.FAILED


def _discard_stdout() -> None:
    """What is still buffered for a reader that left must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
