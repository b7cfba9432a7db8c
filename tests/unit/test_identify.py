from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Console
from scipy.optimize import linprog

from lanewise.errors import InputError
from tuning.feasible import Bound, Feasible, span_of
from tuning.identify import Known, identify, latency_at, verify_sum
from tuning.speculation_model import Span, exactly, touched_experts
from tuning.speculation_request import Asked, parse_span, predict, question
from tuning.speculation_svg import STEPS, svg
from tuning.speculation_table import TAU, acceptance_from, repairs, slices, table
from tuning.speculation_verbs import predict_speculation
from tuning.speculation_view import Prediction, answer, document, show, span_text

ASKED = Asked(
    model="kimi-k2", gpu="rtx-pro-6000", gpus=8, draft_tokens=3, baseline="82-89", with_speculation="54",
    instead=("custom=38",), accept_length="", per_position="", allreduce=("42KiB=200-250",), run="",
)  # fmt: skip
RUN = Path(__file__).resolve().parents[2] / "docs/runs/h200x2-allreduce.jsonl"


def ask(**changes: object) -> Prediction:
    return predict(question(replace(ASKED, **changes)))


def healthy(**changes: object) -> Prediction:
    """A host in order, of which everything but drafting and experts is known."""
    known = {"baseline": "92.4", "with_speculation": "", "instead": (), "draft_tokens": 4, "accept_length": "2.48"}
    return ask(**known | {"allreduce": ("14336=11.8", "57344=24.8", "172032=59.4")} | changes)


def part(prediction: Prediction, name: str):
    return next(reading for reading in prediction.identified.readings if name in reading.name)


def text_of(prediction: Prediction, width: int = 200) -> str:
    console = Console(width=width, force_terminal=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(show(prediction))
    return captured.get()


# ------------------------------------------------------------------------------------------ the campaign's rates


def test_the_campaigns_rates_identify_two_ratios() -> None:
    step, even = ask().relations
    assert span_text(step.span, 2) == "1.42"
    assert span_text(even.span, 2) == "1.52-1.65"


def test_what_the_campaigns_rates_do_not_identify_stays_a_range() -> None:
    prediction = ask()
    free = {reading.name for reading in prediction.identified.readings if not reading.is_known}
    assert free == {reading.name for reading in prediction.identified.readings}
    tau = part(prediction, "accept length").span
    assert 1.5 < tau.low < 1.7
    assert tau.high == pytest.approx(3)
    assert part(prediction, "step with speculation").span.high == pytest.approx(3000 / 54)
    assert part(prediction, "allreduce of 14,336").span.low == pytest.approx(0)


def test_custom_allreduce_costs_64_us_times_the_accept_length() -> None:
    (penalty,) = ask(accept_length="2").penalties
    assert span_text(penalty.span, 0) == "128"


def test_speculation_was_slower_whatever_the_accept_length_is() -> None:
    cell = next(cell for cell in ask().cells if (cell.k, cell.requests) == (2, 1))
    assert span_text(cell.rate, 1) == "54.0"
    assert span_text(cell.gain, 2) == "0.61-0.66"


def test_the_cheapest_way_to_the_accept_length_is_to_read_it() -> None:
    settling = ask().identified.settling
    assert [one.minutes for one in settling["accept length"]] == [1]
    assert [one.minutes for one in settling["drafting"]] == [1, 20]


def test_an_accept_length_settles_what_it_promised() -> None:
    before, after = ask(), ask(accept_length="2.25")
    assert part(after, "step with speculation").is_known
    assert part(after, "drafting").span.high < part(before, "drafting").span.high
    # The one assignment that fits these rates (docs/speculation-model.md) lies within every range.
    assert part(after, "allreduce of 14,336").span.low <= 67 <= part(after, "allreduce of 14,336").span.high
    rest = ("everything else", "rows add", "drafting")
    assert sum(part(after, name).span.low for name in rest) <= 13.6 <= sum(part(after, n).span.high for n in rest)


def test_known_values_never_leave_their_ranges() -> None:
    """Rates are made from known parts; whatever of them is told, the ranges hold the truth."""
    draw = random.Random(3)
    for _ in range(25):
        k = draw.randrange(1, 5)
        tau, a1, slope, c1, draft = (draw.uniform(*ends) for ends in ((1, k + 1), (10, 80), (0, 60), (4, 9), (0, 9)))
        am, growth = a1 + slope, k * 0.97
        experts = draw.uniform(0.9, 2.3)
        base, step = 0.122 * a1 + c1, 0.122 * am + c1 + experts * growth + draft
        known = Known(
            calls=122, row_bytes=14336, k=k, baseline=exactly(1000 / base), speculating=exactly(1000 * tau / step),
            tau=exactly(tau) if draw.random() < 0.5 else None,
            latencies={14336: Span(low=a1 - 1, high=a1 + 1)} if draw.random() < 0.5 else {},
            floor_ms=3.0, experts_ms=Span(low=0.83, high=2.4), growth=growth,
        )  # fmt: skip
        truth = dict(zip(("accept", "14,336 b", "everything", "drafting"), (tau, a1, c1, draft), strict=True))
        found = identify(known)
        for name, value in truth.items():
            span = next(reading.span for reading in found.readings if name in reading.name)
            assert span.low - 1e-6 <= value <= span.high + 1e-6, name


# ------------------------------------------------------------------------------------------------- the machinery


def test_corners_reach_as_far_as_linear_programming_says() -> None:
    draw = np.random.default_rng(4)
    names = ("x", "y", "z")
    for trial in range(30):
        rows = draw.normal(size=(5, 3))
        limits = draw.uniform(0.2, 1, size=5)
        bounds = [Bound(why=n, weights={n: 1}, span=Span(low=-1, high=1)) for n in names]
        bounds += [
            Bound(why=str(i), weights=dict(zip(names, row, strict=True)), span=Span(low=-np.inf, high=limit))
            for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
        ]
        if trial % 2:
            bounds.append(Bound(why="plane", weights={"x": 1, "y": -1}, span=exactly(0.1)))
        corners = Feasible(unknowns=names, bounds=tuple(bounds)).corners()
        wanted = draw.normal(size=3)
        equal = {"A_eq": [[1, -1, 0]], "b_eq": [0.1]} if trial % 2 else {}
        best = [linprog(s * wanted, A_ub=rows, b_ub=limits, bounds=[(-1, 1)] * 3, **equal) for s in (1, -1)]
        span = span_of(corners @ wanted)
        assert (span.low, span.high) == pytest.approx((best[0].fun, -best[1].fun), abs=1e-6)


def test_nothing_satisfies_bounds_that_exclude_each_other() -> None:
    bounds = [Bound(why=str(v), weights={"x": 1}, span=exactly(v)) for v in (1.0, 2.0)]
    assert len(Feasible(unknowns=("x",), bounds=tuple(bounds)).corners()) == 0


def test_slices_lie_at_their_accept_length() -> None:
    for one in slices(ask().identified):
        assert one.corners[:, TAU] == pytest.approx(one.tau)


def test_latencies_between_measured_sizes_are_known_and_others_are_not() -> None:
    known = {100: Span(low=1, high=2), 300: Span(low=3, high=6)}
    assert latency_at(known, 200) == Span(low=2, high=4)
    assert latency_at(known, 301) is None
    assert latency_at({100: Span(low=1, high=2)}, 100) == Span(low=1, high=2)


# ----------------------------------------------------------------------------------------------------- forecasts


def test_a_healthy_host_is_forecast_around_what_was_published() -> None:
    """Kimi-K2.6 with 3 drafts on the published host: 122.0 tokens per second at an accept length of 2.48."""
    cell = next(cell for cell in healthy().cells if (cell.k, cell.requests) == (3, 1))
    assert cell.rate.low < 122.0 < cell.rate.high
    assert cell.rate.high / cell.rate.low < 1.5
    assert cell.gain.low > 1


def test_where_everything_is_known_cells_are_the_formulas() -> None:
    """a = 10 us + 5 us a row beyond the first, 100 calls; 6 ms for one row, 1 ms of it experts; 2 ms for 2 drafts."""
    sizes = {rows * 1000: exactly(5.0 + 5 * rows) for rows in (1, 3, 300)}
    known = Known(
        calls=100, row_bytes=1000, k=2, baseline=exactly(1000 / 7), tau=exactly(2.5), latencies=sizes, floor_ms=1.0,
        experts_ms=exactly(1.0), growth=touched_experts(3, 16, 4) - 1, draft_ms=exactly(2.0),
    )  # fmt: skip
    carried = acceptance_from(known, (0.9, 0.6))
    for cell in table(known, slices(identify(known)), carried, lambda rows: touched_experts(rows, 16, 4)):
        rows, requests = cell.requests * (cell.k + 1), cell.requests
        base = 0.1 * (5 + 5 * requests) + 5 + touched_experts(requests, 16, 4)
        step = 0.1 * (5 + 5 * rows) + 5 + touched_experts(rows, 16, 4) + cell.k
        assert (cell.step_ms.low, cell.step_ms.high) == pytest.approx((step, step))
        assert cell.baseline.low == pytest.approx(1000 * requests / base)
        assert cell.break_even.high == pytest.approx(step / base)
        for end in ("low", "high"):
            tau = getattr(cell.tau, end)
            assert getattr(cell.rate, end) == pytest.approx(1000 * requests * tau / step)
            assert getattr(cell.gain, end) == pytest.approx(tau * base / step)


def test_more_drafts_stop_paying() -> None:
    rates = [cell.rate.high for cell in healthy().cells if cell.requests == 1]
    assert max(rates) == max(rates[:4])


def test_larger_allreduces_than_measured_are_marked() -> None:
    marked = {(cell.k, cell.requests): cell.extrapolated for cell in healthy().cells}
    assert not marked[3, 1]
    assert marked[8, 32]


def test_a_faster_allreduce_gives_more_and_the_break_even_one_gives_the_baseline() -> None:
    prediction = ask(accept_length="2.33", baseline="85")
    rates = [repair.rate for repair in prediction.repairs]
    assert [rate.high for rate in rates] == sorted((rate.high for rate in rates), reverse=True)
    even = prediction.break_even_us
    (at_even,) = repairs(prediction.known, slices(prediction.identified), [even.low])
    assert at_even.rate.low <= 85.01 <= at_even.rate.high + 0.02


def test_positions_tell_the_accept_length_of_fewer_drafts() -> None:
    prediction = healthy(accept_length="", per_position="0.645,0.393,0.24")
    carried = acceptance_from(prediction.known, (0.645, 0.393, 0.24))
    assert carried(2.278, 2) == exactly(1 + 0.645 + 0.393)
    assert carried(2.278, 5).low == pytest.approx(2.278)
    assert 2.278 < carried(2.278, 5).high < 2.6


def test_a_run_file_of_gpus_gives_its_graph_latencies() -> None:
    latencies = question(replace(ASKED, allreduce=(), run=str(RUN))).known.latencies
    assert sorted(latencies) == [14_336, 28_672, 43_008, 57_344, 1_048_576]
    assert 6 < latencies[43_008].low < 9


def test_noise_between_two_measured_sizes_is_no_contradiction() -> None:
    assert healthy(allreduce=("14336=7.5", "57344=7.4"))


def test_verify_sum_is_a_pass_without_drafting() -> None:
    known = question(ASKED).known
    assert verify_sum(known) == {"allreduce_m": 1, "compute_1": 1, "experts": known.growth}


def test_a_dense_model_has_no_experts_to_read(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 32000, "intermediate_size": 11008}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"num_attention_heads": 32}))
    prediction = healthy(model=str(path), allreduce=("8192=10", "32768=12"), baseline="120", gpus=2)
    assert part(prediction, "rows add").span == exactly(0)
    assert "dense" in " ".join(prediction.assumptions)


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"baseline": ""}, "--baseline is missing"),
        ({"baseline": "-82"}, "'-82'"),
        ({"baseline": "89-82"}, "'89-82'"),
        ({"baseline": "nan"}, "'nan'"),
        ({"baseline": "9" * 5_000}, "--baseline"),
        ({"with_speculation": "0"}, "'0'"),
        ({"accept_length": "3.5"}, "3.5"),
        ({"accept_length": "2", "per_position": "0.8,0.5"}, "both given"),
        ({"per_position": "0.5,0.8"}, "0.5,0.8"),
        ({"per_position": "0.5"}, "0.5"),
        ({"per_position": "a,b"}, "a,b"),
        ({"draft_tokens": 1}, "--draft-tokens is 1"),
        ({"draft_tokens": 10}, "--draft-tokens is 10"),
        ({"gpus": 1}, "--gpus is 1"),
        ({"baseline": "900000"}, "the baseline rate"),
        ({"gpu": "h100"}, "'h100'"),
        ({"model": "llama"}, "'llama'"),
        ({"allreduce": ("43008",)}, "43008"),
        ({"allreduce": ("-4=3",)}, "-4=3"),
        ({"allreduce": ("42 parsecs=3",)}, "parsecs"),
        ({"instead": ("custom",)}, "custom"),
        ({"instead": ("a\nb=3",)}, "--instead"),
        ({"with_speculation": ""}, "--instead"),
        ({"with_speculation": "", "instead": (), "allreduce": ()}, "nothing bounds"),
        ({"run": "/no/such.jsonl"}, "/no/such.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_value(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(**changes)
    assert says in caught.value.what
    assert len(caught.value.what) < 600
    assert caught.value.expected
    assert caught.value.todo


def test_a_size_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="42KiB=12"):
        ask(allreduce=("43008=225", "42KiB=12"))


def test_numbers_that_exclude_each_other_are_named() -> None:
    """At 250 us the allreduces alone take 30.5 ms: more than a whole step at an accept length of 1.5."""
    with pytest.raises(InputError) as caught:
        ask(accept_length="1.5", allreduce=("43008=250",))
    assert "the accept length" in caught.value.what
    assert "the allreduce of 43,008 bytes" in caught.value.what
    assert "the baseline rate" not in caught.value.what


@pytest.mark.parametrize("text", ["", "1-", "-", "1-2-3", "1e3", "٣", "1,000", "inf"])
def test_spans_are_plain_numbers(text: str) -> None:
    with pytest.raises(InputError):
        parse_span(text, "--baseline")


# ------------------------------------------------------------------------------------------------- what is shown


def test_the_text_says_that_it_is_predicted_and_what_was_assumed() -> None:
    shown = text_of(ask())
    for words in ("Predicted, not measured", "1.42", "1.52-1.65", "54 -", "read the accept length", "Assumed"):
        assert words in shown


def numbers(text: str) -> Counter[str]:
    return Counter(word for word in text.split() if re.fullmatch(r"[(\d.,)!-]{2,}", word))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_no_rate_is_shortened_on_a_narrow_console(width: int) -> None:
    prediction = ask()
    shown = text_of(prediction, width)
    assert "\u2026" not in shown
    assert numbers(shown) >= numbers(text_of(prediction))
    tables = [line for line in shown.splitlines() if line.startswith(("requests", "part", "32 ", "drafting "))]
    assert all(len(line) <= max(width, 80) for line in tables)


def test_the_first_sentence_says_whether_speculation_pays_and_from_where_on() -> None:
    first = text_of(ask()).splitlines()[0]
    assert first.startswith("No (predicted): with 2 drafts a step one request runs at 0.61-0.66 of the rate without")
    assert "from an accept length of 2.41-4.94 on (3 is the most)" in first
    assert "an allreduce of 43,008 bytes below 21-149 us" in first
    assert answer(healthy()).startswith("Yes (predicted): with 3 drafts")
    assert answer(ask(with_speculation="", instead=(), accept_length="")).startswith("Open (predicted)")


def test_what_no_draft_and_no_allreduce_reaches_is_said_so() -> None:
    prediction = ask()
    cells = [replace(cell, break_even=Span(low=9.5, high=10)) for cell in prediction.cells]
    said = answer(replace(prediction, cells=tuple(cells), break_even_us=Span(low=-9, high=-1)))
    assert "would take an accept length above 9.50-10.00, and 3 is the most" in said
    assert "no allreduce of 43,008 bytes is fast enough" in said


def test_parts_are_known_or_not_and_the_legend_explains_only_marks_that_appear() -> None:
    prediction = ask()
    shown = text_of(prediction)
    assert "known?" in shown
    assert re.search(r"^drafting +\S+ ms +no ", shown, re.MULTILINE)
    assert re.search(r"^accept length +\S+ +yes +$", text_of(ask(accept_length="2.25")), re.MULTILINE)
    assert "+ faster" not in shown
    assert "! above" not in shown
    assert "- slower than without speculation, ? open, ~ allreduces larger" in shown
    assert "+ faster than without speculation" in text_of(healthy())


def test_the_document_is_marked_as_predicted_and_plain_json() -> None:
    made = json.loads(json.dumps(document(ask()), allow_nan=False))
    assert made["kind"] == "predicted"
    assert len(made["table"]) == 48
    assert all(cell["rate"]["low"] <= cell["rate"]["high"] for cell in made["table"])
    assert {row["name"] for row in made["parts"] if not row["known"]}


@pytest.mark.parametrize("prediction", [ask(), healthy()], ids=["campaign", "healthy"])
def test_the_picture_is_one_svg_without_script_and_names_the_break_even(prediction: Prediction) -> None:
    known = replace(prediction.known, tau=None)
    text = svg(known, slices(identify(known), steps=STEPS))
    root = ET.fromstring(text)
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint({"script", "image", "a"})
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "break-even" in text
    assert "predicted" in text


def test_the_verb_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.svg"
    predict_speculation(
        Context(), baseline="82-89", with_speculation="54", allreduce=["43008=200-250"], svg=str(picture), json=True
    )
    assert json.loads(capsys.readouterr().out)["kind"] == "predicted"
    assert picture.read_text().startswith("<svg")
    with pytest.raises(Exit) as ended:
        predict_speculation(Context(), baseline="fast")
    assert ended.value.code == 2
