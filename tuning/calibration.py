"""Fits a family's costs to measured rows, and says how well that predicts a machine that was left out.

A fit minimises the mean of |ln(predicted / measured)|: its best value is a median, which a few odd rows do not move. A
machine weighs as the root of its number of rows: they are no independent witnesses, but sixteen say more than one.
Beside it stands a pull towards where the fit begins, so that what the rows do not tell (a step's cost in a family of
one step) stays where it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tuning.predict_constants import Costs, Fitted, constants
from tuning.predict_schedules import Shape
from tuning.published import FIT, Row, shape_of

PULL = 0.05
"""Weight of the pull: a factor of 2 in all constants counts as much as a mean error of 3.5 %."""
_UNKNOWN = 2.0
"""Bounds of a family that was never tried on another host: a factor of two either way."""
_SIMPLEX = ((0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, -0.5))
"""Where the search begins: the start, and each constant by half an e-fold beside it."""
_SPREAD = 0.05
_MOST_EFFICIENCY = 1.5
"""Above 1, kernels beat the rates that the links are taken to have; far above, the schedule is not the stated one."""
ShapeOf = Callable[[str, str], Shape]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row, and what a model that had not seen its machine said of it."""

    row: Row
    predicted: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.row.us / self.predicted

    @property
    def error(self) -> float:
        """How far predicted is from measured, as a fraction of what was measured."""
        return abs(self.predicted - self.row.us) / self.row.us


def fit(rows: Sequence[Row], start: Costs, shapes: ShapeOf = shape_of) -> Costs:
    """The costs of a family that explain its rows best; `start` where there are no rows.

    Args:
        rows: measurements of one family.
        start: where the search begins, and what it is pulled to.
        shapes: the schedule of (family, host).
    """
    if not rows:
        return start
    from scipy.optimize import minimize  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - slow to import

    weights = _weights(rows)
    known = [(shapes(row.family, row.host), row, weight) for row, weight in zip(rows, weights, strict=True)]

    def loss(moved: Sequence[float]) -> float:
        costs = _moved(start, moved)
        errors = (weight * abs(math.log(shape.time_us(row.size, costs) / row.us)) for shape, row, weight in known)
        return sum(errors) + PULL * fmean(map(abs, moved))

    options = {"initial_simplex": _SIMPLEX, "xatol": 1e-3, "fatol": 1e-5}
    best = minimize(loss, _SIMPLEX[0], method="Nelder-Mead", options=options)
    return _rounded(_moved(start, best.x))


def _weights(rows: Sequence[Row]) -> list[float]:
    """Weights that sum to 1; those of a machine to something that goes as the root of its rows' number."""
    counts = Counter(row.machine for row in rows)
    each = [1 / math.sqrt(counts[row.machine]) for row in rows]
    return [weight / sum(each) for weight in each]


def _moved(start: Costs, moved: Sequence[float]) -> Costs:
    """The costs so many e-folds away."""
    fixed, step, efficiency = (float(value) for value in moved)
    return Costs(
        fixed_us=start.fixed_us * math.exp(fixed),
        step_us=start.step_us * math.exp(step),
        efficiency=min(_MOST_EFFICIENCY, start.efficiency * math.exp(efficiency)),
    )


def _rounded(costs: Costs) -> Costs:
    """To three digits: no fit tells more."""
    return Costs(**{name: float(f"{value:.3g}") for name, value in vars(costs).items()})


def held_out(rows: Sequence[Row], start: Costs, shapes: ShapeOf = shape_of) -> list[Judged]:
    """Every row of a family, predicted from the other machines' rows; none where there is no second machine."""
    machines = list(dict.fromkeys(row.machine for row in rows))
    if len(machines) < 2:
        return []
    judged = []
    for machine in machines:
        costs = fit([row for row in rows if row.machine != machine], start, shapes)
        judged += [judge(row, costs, shapes) for row in rows if row.machine == machine]
    return judged


def covered(rows: Sequence[Row], start: Costs, shapes: ShapeOf = shape_of) -> list[bool]:
    """For every row of a family: whether bounds from the other machines' rows alone hold for it.

    Neither the constants nor the bounds have seen the row's machine. None where that leaves fewer than two machines.
    """
    found: list[bool] = []
    for machine in dict.fromkeys(row.machine for row in rows):
        others = [row for row in rows if row.machine != machine]
        if ratios := [judged.ratio for judged in held_out(others, start, shapes)]:
            low, high = spread(ratios)
            costs = fit(others, start, shapes)
            found += [low <= judge(row, costs, shapes).ratio <= high for row in rows if row.machine == machine]
    return found


def judge(row: Row, costs: Costs, shapes: ShapeOf = shape_of) -> Judged:
    """What these costs say of a row."""
    return Judged(row=row, predicted=shapes(row.family, row.host).time_us(row.size, costs))


def fit_families(rows: Sequence[Row]) -> Mapping[str, Fitted]:
    """Every family's constants and bounds, from published rows; a family without any takes those of its like."""
    known, found = constants(), by_family(rows, FIT)
    fits = {name: _fit_family(found[name], start) for name, start in known.starts.items()}
    for name, (like, times) in known.likes.items():
        costs = replace(fits[like].costs, efficiency=fits[like].costs.efficiency * times)
        fits[name] = Fitted(costs=_rounded(costs), low=1 / _UNKNOWN, high=_UNKNOWN, hosts=(), rows=0)
    return fits


def _fit_family(rows: Sequence[Row], start: Costs) -> Fitted:
    ratios = [judged.ratio for judged in held_out(rows, start)]
    low, high = spread(ratios) if ratios else (1 / _UNKNOWN, _UNKNOWN)
    return Fitted(
        costs=fit(rows, start),
        low=float(f"{low:.3g}"),
        high=float(f"{high:.3g}"),
        hosts=tuple(sorted({row.machine for row in rows})),
        rows=len(rows),
    )


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which the middle 90 % of ratios lie; 1 is always within."""
    ordered = sorted(ratios)
    return min(1.0, quantile(ordered, _SPREAD)), max(1.0, quantile(ordered, 1 - _SPREAD))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, linear between them (Hyndman and Fan's type 7)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def by_family(rows: Sequence[Row], use: str) -> Mapping[str, list[Row]]:
    """The rows of one use, by family."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.use == use:
            found.setdefault(row.family, []).append(row)
    return found
