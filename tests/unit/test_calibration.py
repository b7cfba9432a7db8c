from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from tuning.calibration import covered, fit, fit_families, held_out, judge, quantile, spread
from tuning.predict_constants import Costs, constants, fitted
from tuning.predict_schedules import FAMILIES, Shape
from tuning.published import CHECK, FIT, PATHOLOGICAL, Row, fabric_of, published, shape_of

TRUTH = Costs(fixed_us=6, step_us=0.5, efficiency=0.7)
START = Costs(fixed_us=3, step_us=1, efficiency=1)
SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23)


def fake_shape(_family: str, host: str) -> Shape:
    """A ring of as many steps as the host's name says."""
    steps = int(host)
    return Shape(steps=steps, latency_us=steps * 0.8, us_per_byte=3e-5, overlapped=True)


def fake_rows(noise: float = 0.0, odd: float = 1.0) -> list[Row]:
    """Five sizes on three machines, as `TRUTH` has it; the first row is `odd` times too slow."""
    draw = random.Random(1)
    rows = [
        Row(
            host=host,
            machine=host,
            family="fake",
            size=size,
            us=fake_shape("", host).time_us(size, TRUTH) * math.exp(draw.gauss(0, noise)),
        )
        for host in ("6", "14", "30")
        for size in SIZES
    ]
    rows[0] = Row(host="6", machine="6", family="fake", size=SIZES[0], us=rows[0].us * odd)
    return rows


def errors(rows: list[Row], costs: Costs) -> list[float]:
    return [judge(row, costs, fake_shape).error for row in rows]


def test_a_fit_finds_what_rows_were_made_with() -> None:
    costs = fit(fake_rows(), START, fake_shape)
    assert max(errors(fake_rows(), costs)) < 0.03
    assert costs.efficiency == pytest.approx(TRUTH.efficiency, rel=0.05)


def test_an_odd_row_does_not_move_a_fit() -> None:
    costs = fit(fake_rows(odd=6.0), START, fake_shape)
    assert max(errors(fake_rows(), costs)) < 0.08


def test_noise_costs_about_as_much_as_there_is() -> None:
    costs = fit(fake_rows(noise=0.1), START, fake_shape)
    assert sum(errors(fake_rows(), costs)) / 15 < 0.1


def test_without_rows_a_fit_stays_where_it_begins() -> None:
    assert fit([], START) == START


def test_one_row_is_met() -> None:
    row = fake_rows()[3]
    assert errors([row], fit([row], START, fake_shape))[0] < 0.02


def test_a_machine_is_judged_by_the_others_alone() -> None:
    rows = fake_rows()
    spoilt = [Row(**{**vars(row), "us": row.us * 3}) if row.machine == "30" else row for row in rows]
    judged = {row.row.machine: row.ratio for row in held_out(spoilt, START, fake_shape)}
    assert judged["30"] == pytest.approx(3, rel=0.1)  # had it been seen, the fit would have come to meet it


def test_one_machine_alone_is_not_judged() -> None:
    rows = [row for row in fake_rows() if row.machine == "6"]
    assert held_out(rows, START, fake_shape) == []
    assert covered(rows, START, fake_shape) == []


def test_bounds_of_others_hold_where_machines_are_alike_and_not_where_one_differs() -> None:
    rows = fake_rows(noise=0.02)
    assert sum(covered(rows, START, fake_shape)) >= 12
    spoilt = [Row(**{**vars(row), "us": row.us * 3}) if row.machine == "30" else row for row in rows]
    assert sum(covered(spoilt, START, fake_shape)) <= 10


def test_spread_leaves_out_a_twentieth_at_either_end_and_holds_one() -> None:
    low, high = spread([n / 100 for n in range(50, 151)])
    assert (low, high) == (pytest.approx(0.55), pytest.approx(1.45))
    assert spread([2.0, 3.0])[0] == 1
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3


def test_the_constants_that_ship_are_what_the_rows_give() -> None:
    assert fit_families(published()) == fitted()


def test_every_published_row_is_whole_and_has_its_source() -> None:
    for row in published():
        assert row.source.startswith("https://")
        assert row.us > 0
        assert row.size > 0
        assert row.family in FAMILIES or row.family == "none"


def test_rows_to_compare_are_of_hosts_whose_topology_is_told() -> None:
    compared = [row for row in published() if row.use in (FIT, CHECK, PATHOLOGICAL)]
    assert len(compared) > 180
    assert all(not shape_of(row.family, row.host).unable for row in compared)
    assert {len(fabric_of(row.host).gpus) for row in compared} == {2, 4, 8, 16}


def test_what_is_fitted_is_neither_eager_nor_broken_nor_fused() -> None:
    uses = Counter(row.use for row in published() if row.family in constants().starts)
    assert uses[FIT] == sum(found.rows for found in fitted().values())
    assert not [row for row in published() if row.use == FIT and row.host == "asus-8"]


def test_a_family_of_one_machine_is_unvalidated_and_bounded_by_two() -> None:
    for name, found in fitted().items():
        assert found.validated == (len(found.hosts) > 1)
        assert found.validated or (found.low, found.high) == (0.5, 2.0), name
    assert fitted()["nccl-ring-ll"].validated
    assert not fitted()["hierarchical"].validated


def test_held_out_ring_ll_is_within_a_quarter_at_the_median() -> None:
    rows = [row for row in published() if row.use == FIT and row.family == "nccl-ring-ll"]
    found = sorted(judged.error for judged in held_out(rows, constants().starts["nccl-ring-ll"]))
    assert quantile(found, 0.5) < 0.25


def test_no_published_row_beats_the_physical_floor() -> None:
    compared = [row for row in published() if row.use in (FIT, CHECK, PATHOLOGICAL)]
    nearest = min(row.us / fabric_of(row.host).floor.time_us(row.size) for row in compared)
    assert 1 < nearest < 1.5  # a floor that nobody comes near would not be one
