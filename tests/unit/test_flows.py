from __future__ import annotations

import random

import pytest

from tuning.flows import Flow, completion, fair_rates

EIGHT = range(8)


def two_switches(pairs: list[tuple[int, int]]) -> list[tuple[str, ...]]:
    """Ways of pairs of eight GPUs behind two switches, four each."""
    return [
        (f"{a}>", f"{b}<") if a // 4 == b // 4 else (f"{a}>", f"{a // 4}^", f"{b // 4}v", f"{b}<") for a, b in pairs
    ]


PORTS = {f"{gpu}{way}": 50.0 for gpu in EIGHT for way in "><"} | {f"{n}{way}": 40.0 for n in (0, 1) for way in "^v"}
ALL_PAIRS = [(a, b) for a in EIGHT for b in EIGHT if a != b]


def test_one_flow_gets_the_narrowest_link_of_its_way() -> None:
    assert fair_rates([("a", "b", "c")], {"a": 3, "b": 1, "c": 2}) == [1]


def test_equal_flows_share_a_link_equally() -> None:
    assert fair_rates([("a",)] * 4, {"a": 10}) == [2.5] * 4


def test_what_a_narrow_flow_leaves_goes_to_the_others() -> None:
    # Bertsekas and Gallager's example: the flow over b is held to 1, so the others of link a get (10 - 1) / 2.
    assert fair_rates([("a", "b"), ("a",), ("a",)], {"a": 10, "b": 1}) == [1, 4.5, 4.5]


def test_filling_goes_on_link_by_link() -> None:
    # b is full at 1 (two flows), then a has 6 - 1 for two flows more.
    assert fair_rates([("a", "b"), ("b",), ("a",), ("a", "c")], {"a": 6, "b": 2, "c": 9}) == [1, 1, 2.5, 2.5]


def test_a_flow_without_links_is_not_held() -> None:
    assert fair_rates([(), ("a",)], {"a": 1}) == [float("inf"), 1]


@pytest.mark.parametrize("seed", range(40))
def test_no_link_carries_more_than_it_can_and_every_flow_is_held_fairly(seed: int) -> None:
    draw = random.Random(seed)
    capacities = {f"l{n}": draw.choice([1.0, 2.5, 7.0, draw.uniform(0.1, 50)]) for n in range(12)}
    ways = [tuple(draw.sample(sorted(capacities), draw.randint(1, 5))) for _ in range(draw.randint(1, 40))]
    rates = fair_rates(ways, capacities)
    load = {link: sum(rate for way, rate in zip(ways, rates, strict=True) if link in way) for link in capacities}
    assert all(load[link] <= capacities[link] * (1 + 1e-9) for link in capacities)
    for way, rate in zip(ways, rates, strict=True):
        # Max-min fairness: some link of its way is full, and no flow there has more.
        assert any(
            load[link] >= capacities[link] * (1 - 1e-6)
            and all(other <= rate * (1 + 1e-6) for links, other in zip(ways, rates, strict=True) if link in links)
            for link in way
        )


def test_all_to_all_over_two_switches_is_held_by_the_uplinks() -> None:
    rates = fair_rates(two_switches(ALL_PAIRS), PORTS)
    cross = [rate for (a, b), rate in zip(ALL_PAIRS, rates, strict=True) if a // 4 != b // 4]
    near = [rate for (a, b), rate in zip(ALL_PAIRS, rates, strict=True) if a // 4 == b // 4]
    assert cross == pytest.approx([40 / 16] * 32)
    assert near == pytest.approx([(50 - 4 * 2.5) / 3] * 24)


def test_the_last_flow_ends_after_the_others_made_room() -> None:
    # 2 and 4 over one link of 2: until 2 each gets 1; the rest of the second, 2, then goes at 2.
    done = completion([Flow(links=("a",), size=2), Flow(links=("a",), size=4)], {"a": 2})
    assert done.time == pytest.approx(3)
    assert (done.busiest, done.busiest_time) == ("a", pytest.approx(3))


def test_a_phase_never_ends_before_its_busiest_link_has_carried_all() -> None:
    draw = random.Random(7)
    for _ in range(20):
        flows = [Flow(links=way, size=draw.uniform(0, 9)) for way in two_switches(draw.sample(ALL_PAIRS, 20))]
        done = completion(flows, PORTS)
        assert done.time >= done.busiest_time * (1 - 1e-9)


def test_one_message_to_everyone_takes_sixteen_messages_on_an_uplink() -> None:
    flows = [Flow(links=way, size=1) for way in two_switches(ALL_PAIRS)]
    done = completion(flows, PORTS)
    assert done.time == pytest.approx(16 / 40)
    assert done.busiest == "0^"


def test_nothing_to_carry_takes_no_time() -> None:
    assert completion([], {}).time == 0
    done = completion([Flow(links=("a",), size=0), Flow(links=(), size=5)], {"a": 1})
    assert (done.time, done.busiest_time) == (0, 0)
