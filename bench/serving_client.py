"""The load client's own error, against a fake server that writes down when its steps really were.

    python bench/serving_client.py [REPEATS]          default 20, about four minutes

counters: 32 requests at steps of 2 ms, replies not streamed. Step time and accept length from two scrapes of /metrics,
    against the fake's steps between them.
gaps: 8 streams at steps of 10 ms. Step time from the times of chunks, as `bench-speculative` computes it; and the error
    of each single gap.
streams: 32 streams at 2 ms, which is more than a server of Python and this client can do: both are Python, and share
    this machine. What is computed holds as long as chunks stand for steps that are counted elsewhere.

Each line: median and 95th percentile over the repeats. Beside them how well the fake kept its own plan.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.serving.servers import Running, fake_server
from tuning.serving.client import generate, metrics
from tuning.serving.counters import Metrics, parse_metrics, window
from tuning.serving.prompts import token_prompts
from tuning.serving.served import Answer, Load
from tuning.serving.waves import Wave, measured_pass

FLAGS = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2")
SCRAPE_AFTER, SCRAPE_FOR = 0.5, 2.0
"""Seconds: until all requests decode, and between two scrapes."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """True times of decode steps of so many requests, and the tokens of each."""

    times: tuple[float, ...]
    tokens: tuple[int, ...]
    running: int

    @property
    def ms(self) -> float:
        """Mean step."""
        return 1000 * (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @property
    def accept_length(self) -> float:
        """Tokens a step and request."""
        return sum(self.tokens) / len(self.tokens) / self.running


def true_steps(fake: Running, running: int, *, begin: float, end: float) -> Steps:
    """The fake's steps with so many requests, in a span of time."""
    steps = [step for step in fake.truth() if step["running"] == running and begin <= step["time"] <= end]
    return Steps(
        times=tuple(step["time"] for step in steps), tokens=tuple(step["tokens"] for step in steps), running=running
    )


def scrape(url: str) -> tuple[float, Metrics]:
    """Counters, and the middle of the time in which they were read."""
    begin = time.perf_counter()
    text = metrics(url)
    return (begin + time.perf_counter()) / 2, parse_metrics(text)


def by_counters(fake: Running, running: int) -> dict[str, float]:
    """Scrapes while non-streamed requests run; relative errors."""
    load = Load(prompts=token_prompts(length=8, vocabulary=32_000).prompts[:running], max_tokens=4000, stream=False)
    thread = threading.Thread(target=generate, args=(fake.url, load), kwargs={"concurrency": running, "timeout": 60})
    first, before_all = scrape(fake.url)
    thread.start()
    time.sleep(SCRAPE_AFTER)
    begin, before = scrape(fake.url)
    time.sleep(SCRAPE_FOR)
    end, after = scrape(fake.url)
    thread.join()
    last, after_all = scrape(fake.url)
    seen, whole = window(before, after), window(before_all, after_all)
    true = true_steps(fake, running, begin=begin, end=end)
    true_whole = true_steps(fake, running, begin=first, end=last)
    return {
        "step time": (seen.step_ms(end - begin) or 0) / true.ms - 1,
        "accept length within": (seen.tokens_per_pass or 0) / running / true.accept_length - 1,
        "accept length of whole requests": (whole.accept_length or 0) / true_whole.accept_length - 1,
        "fake against its plan": true.ms / planned_ms(fake, running) - 1,
    }


def by_streams(fake: Running, running: int, tokens: int) -> dict[str, float]:
    """One wave of streams; relative errors, and of single gaps in ms."""
    load = Load(prompts=token_prompts(length=8, vocabulary=32_000).prompts[:running], max_tokens=tokens)
    begin, before = scrape(fake.url)
    answers = generate(fake.url, load, concurrency=running, timeout=60).answers
    end, after = scrape(fake.url)
    seen = window(before, after)
    wave = Wave(answers=answers, tokens=seen.generation_tokens, passes=seen.verify_calls)
    done = measured_pass([wave], speculative=True, counters=True, keep_gaps=False)
    true = true_steps(fake, running, begin=begin, end=end)
    errors = sorted(abs(error) for answer in answers for error in gap_errors(answer, true.times))
    chunks = sum(answer.request.chunks - 1 for answer in answers)
    return {
        "step time": done.step_ms / true.ms - 1,
        "accept length": done.accept_length / true.accept_length - 1,
        "a single gap, median, ms": statistics.median(errors),
        "a single gap, 95 %, ms": errors[int(0.95 * len(errors))],
        "steps a chunk, less 1": sum(answer.request.verify_passes or 0 for answer in answers) / chunks - 1,
        "sending of all, ms": 1000 * (max(answer.sent for answer in answers) - min(answer.sent for answer in answers)),
        "fake against its plan": true.ms / planned_ms(fake, running) - 1,
    }


def gap_errors(answer: Answer, times: Sequence[float]) -> list[float]:
    """Each gap between chunks less the time between the two steps that they tell of, ms."""
    arrivals = list(itertools.accumulate((gap / 1000 for gap in answer.request.gaps_ms), initial=answer.first))
    steps = [bisect_right(times, arrival) - 1 for arrival in arrivals]
    return [
        1000 * (arrivals[i + 1] - arrivals[i] - (times[steps[i + 1]] - times[steps[i]]))
        for i in range(len(arrivals) - 1)
        if steps[i] >= 0
    ]


def planned_ms(fake: Running, running: int) -> float:
    """The step that the fake meant to make."""
    planned: float = next(step["planned_ms"] for step in fake.truth() if step["running"] == running)
    return planned


def show(title: str, step_ms: float, repeats: int, measure: Callable[[Running], dict[str, float]]) -> None:
    """Start a fake for each repeat, measure, print medians and 95th percentiles."""
    model = {"calls": 0, "compute_ms": step_ms, "compute_ms_per_row": 0.0, "draft_ms": 0.0}
    found: list[dict[str, float]] = []
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as folder, fake_server(Path(folder), *FLAGS, seed=seed, **model) as fake:
            found.append(measure(fake))
    print(f"\n{title}")
    for name in found[0]:
        values = sorted(abs(each[name]) for each in found)
        scale, unit = (1, "") if name.endswith("ms") else (100, " %")
        middle, most = statistics.median(values) * scale, values[math.ceil(0.95 * len(values)) - 1] * scale
        print(f"  {name:32} median {middle:7.3f}{unit}   95 % {most:7.3f}{unit}")


def main(repeats: int) -> None:
    """All three."""
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}")
    print(f"{repeats} repeats, each on a fresh fake")
    show("counters: 32 requests, 2 ms", 2.0, repeats, lambda fake: by_counters(fake, 32))
    show("gaps: 8 streams, 10 ms", 10.0, repeats, lambda fake: by_streams(fake, 8, 600))
    show("streams: 32 streams, 2 ms", 2.0, repeats, lambda fake: by_streams(fake, 32, 1500))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
