"""How well step times with speculation are predicted: python bench/speculation_validation.py

Draft and compute constants are fitted on one model and judged on the other, both ways, with only the host's allreduce
curve, the baseline step and the accept length as input. Printed is every pair, fitted ones marked. Beside the form that
the product uses stand the two simpler ones that were tried, and at the end all other cells of the two tables, whose
accept lengths are noisy (published_speculation.yaml says why).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tuning.speculation_calibration import (
    Pair,
    PublishedModel,
    fit,
    more_allreduce_ms,
    predicted_step_ms,
    published,
)

HOST = published()


def model_form(fitted: PublishedModel) -> Callable[[PublishedModel, Pair], float]:
    """The product's form: experts by bytes read, a constant a draft."""
    constants = fit(fitted, HOST)
    print(f"  experts read at {constants.read_efficiency:.0%} of peak bandwidth, {constants.draft_ms:.2f} ms a draft")
    return lambda model, pair: predicted_step_ms(model, HOST, constants, pair)


def added_form(fitted: PublishedModel) -> Callable[[PublishedModel, Pair], float]:
    """What is not allreduce grows by a constant."""
    more = more_allreduce_ms(fitted, HOST.curve)
    added = statistics.median(pair.step_ms - pair.baseline_ms - more for pair in fitted.pairs)
    print(f"  {added:.2f} ms a step")
    return lambda model, pair: pair.baseline_ms + more_allreduce_ms(model, HOST.curve, pair.requests) + added


def factor_form(fitted: PublishedModel) -> Callable[[PublishedModel, Pair], float]:
    """What is not allreduce grows by a factor."""

    def rest(model: PublishedModel, milliseconds: float, rows: int) -> float:
        return milliseconds - model.calls * HOST.curve.at(rows * model.row_bytes) / 1000

    factor = statistics.median(
        rest(fitted, pair.step_ms, fitted.k + 1) / rest(fitted, pair.baseline_ms, 1) for pair in fitted.pairs
    )
    print(f"  x {factor:.2f}")

    def predict(model: PublishedModel, pair: Pair) -> float:
        rows = pair.requests * (model.k + 1)
        grown = factor * rest(model, pair.baseline_ms, pair.requests)
        return grown + model.calls * HOST.curve.at(rows * model.row_bytes) / 1000

    return predict


def show(
    predict: Callable[[PublishedModel, Pair], float], model: PublishedModel, pairs: Iterable[Pair], mark: str
) -> list[float]:
    """Print each pair; the errors of the predicted rates."""
    errors = []
    for pair in pairs:
        step = predict(model, pair)
        rate = 1000 * pair.requests * pair.tau / step
        errors.append(rate / pair.speculating - 1)
        print(
            f"  {mark:7} {model.name:8} {pair.context:>5} x{pair.requests}  without {pair.baseline:5.1f}"
            f"  tau {pair.tau:.2f}"
            f"  step {pair.step_ms:5.2f} ms, predicted {step:5.2f}  rate {pair.speculating:6.1f}, predicted {rate:6.1f}"
            f"  {errors[-1]:+7.1%}"
        )
    return errors


def main() -> None:
    """Both directions, all forms, all pairs."""
    print(f"host: {HOST.host}\n")
    models = list(HOST.models.values())
    for name, form in (
        ("as the product computes", model_form),
        ("constant added", added_form),
        ("factor", factor_form),
    ):
        for fitted in models:
            print(f"{name}: fitted on {fitted.what}")
            predict = form(fitted)
            show(predict, fitted, fitted.pairs, "fitted")
            for judged in models:
                if judged is not fitted:
                    show(predict, judged, judged.pairs, "judged")
                    if form is model_form:
                        errors = [abs(error) for error in show(predict, judged, judged.more, "other")]
                        print(f"  other cells: median {statistics.median(errors):.1%}, largest {max(errors):.1%}")
            print()


if __name__ == "__main__":
    main()
