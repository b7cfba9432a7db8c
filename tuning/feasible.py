"""The values that unknowns can have together: a polytope by its corners. Pure.

Sums of unknowns, and ratios of sums with a positive denominator, have their extremes over a polytope at corners
(Charnes and Cooper 1962, doi:10.1002/nav.3800090303, for ratios): so corners answer every question asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuning.speculation_model import Span

Numbers: TypeAlias = NDArray[np.float64]
_TOLERANCE = 1e-7
_SINGULAR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A sum of unknowns that lies within a span; an end may be infinite.

    Attributes:
        why: the fact or assumption behind it.
        weights: of each unknown in the sum.
        span: where the sum lies.
    """

    why: str
    weights: Mapping[str, float]
    span: Span


@dataclass(frozen=True, kw_only=True)
class Feasible:
    """Unknowns and what bounds them. Together the bounds must leave none of them without end."""

    unknowns: tuple[str, ...]
    bounds: tuple[Bound, ...]

    def with_bounds(self, more: Sequence[Bound]) -> Feasible:
        """The same with more bounds."""
        return replace(self, bounds=(*self.bounds, *more))

    def row(self, weights: Mapping[str, float]) -> Numbers:
        """A sum's weights in the order of the unknowns."""
        return np.array([weights.get(name, 0.0) for name in self.unknowns])

    def corners(self) -> Numbers:
        """All corners, a row each; no rows where nothing satisfies all bounds."""
        equal, values, rows, limits = self._system()
        free = len(self.unknowns) - len(equal)
        choices = list(combinations(range(len(rows)), free))
        if not choices:
            return np.empty((0, len(self.unknowns)))
        chosen = np.array(choices, dtype=int).reshape(len(choices), free)
        left = np.concatenate([np.broadcast_to(equal, (len(choices), *equal.shape)), rows[chosen]], axis=1)
        right = np.concatenate([np.broadcast_to(values, (len(choices), len(values))), limits[chosen]], axis=1)
        solvable = np.abs(np.linalg.det(left)) > _SINGULAR
        points = np.linalg.solve(left[solvable], right[solvable][..., None])[..., 0]
        scale = _TOLERANCE * (1 + np.abs(points).max(axis=1, initial=0))
        inside = (points @ rows.T <= limits + scale[:, None]).all(axis=1)
        found: Numbers = np.unique(points[inside].round(9), axis=0)
        return found

    def _system(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Equations and inequalities (sum <= limit), in rows of length 1; an equation that others imply becomes two."""
        equal: list[Numbers] = []
        values: list[float] = []
        rows: list[Numbers] = []
        limits: list[float] = []
        for bound in self.bounds:
            row = self.row(bound.weights)
            length = float(np.linalg.norm(row))
            low, high = bound.span.low / length, bound.span.high / length
            if low == high and np.linalg.matrix_rank(np.array([*equal, row / length])) > len(equal):
                equal.append(row / length)
                values.append(low)
                continue
            for sign, limit in ((1.0, high), (-1.0, -low)):
                if np.isfinite(limit):
                    rows.append(sign * row / length)
                    limits.append(limit)
        size = len(self.unknowns)
        return (
            np.array(equal).reshape(-1, size),
            np.array(values),
            np.array(rows).reshape(-1, size),
            np.array(limits),
        )


def span_of(values: NDArray[Any]) -> Span:
    """From the least to the largest of some values."""
    return Span(low=float(values.min()), high=float(values.max()))
