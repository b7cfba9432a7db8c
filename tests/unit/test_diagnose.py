"""From evidence to causes, their ranking, what a repair is worth, and the verb."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.causes import causes, expected
from tuning.diagnose import NAMED, Diagnosis, Verdict, diagnose, log10_likelihood
from tuning.diagnose_verbs import parse_measured, parse_number, worth_of
from tuning.diagnose_view import FIRST_COMMAND, document, first_step, show
from tuning.evidence import Evidence, Latency, Reading, Sign, gather
from tuning.evidence_log import log_signs
from tuning.repair_worth import repair_worth
from tuning.topology_read import read_topology
from tuning.workload import Message, load_workload

ROOT = Path(__file__).resolve().parents[2]
ROWS = (14_336, 28_672, 43_008, 57_344)
CAMPAIGN = Latency(size=43_008, us=225, where="--measured")


def latency(size: int, us: float, mode: str = "graph") -> Latency:
    return Latency(size=size, us=us, mode=mode, where="m")


def fine(size: int) -> float:
    return 21 + 0.05 * size / 1024


def told(*names: str, **changes: object) -> Reading:
    signs = tuple(Sign(name=name, text="as a test has it", where="f") for name in names)
    fields: dict[str, object] = {"path": "f", "kind": "fake", "said": (), "signs": signs}
    return Reading(**{**fields, **changes})  # type: ignore[arg-type]


def top(diagnosis: Diagnosis) -> str:
    return diagnosis.ranked[0].cause.id


def points(diagnosis: Diagnosis, cause: str) -> float:
    return next(ranked.points for ranked in diagnosis.ranked if ranked.cause.id == cause)


# ------------------------------------------------------------------------------------------------------------- verdicts


def test_the_campaigns_latency_alone_is_a_fault_that_no_cause_is_named_for() -> None:
    diagnosis = diagnose(gather([], measured=[CAMPAIGN]))
    assert diagnosis.verdict is Verdict.FAULT
    assert diagnosis.named == ()
    assert 7 < diagnosis.judged[0].excess < 8
    assert first_step(diagnosis)[0] == FIRST_COMMAND
    assert "14, 28, 42 and 56 KiB in one graph" in first_step(diagnosis)[1]


@pytest.mark.parametrize(("ranks", "us"), [(2, 6.2), (4, 12.9), (8, 24.2), (16, 36.4)])
def test_published_healthy_times_are_healthy(ranks: int, us: float) -> None:
    diagnosis = diagnose(gather([], measured=[latency(14_336, us)], ranks=ranks))
    assert (diagnosis.verdict, diagnosis.slow) == (Verdict.HEALTHY, ())


def test_calls_from_the_host_may_take_longer() -> None:
    assert diagnose(gather([], measured=[latency(12_288, 59.7, "eager")])).verdict is Verdict.HEALTHY
    assert diagnose(gather([], measured=[latency(12_288, 59.7, "graph")])).verdict is Verdict.FAULT
    assert diagnose(gather([], measured=[latency(12_288, 160, "eager")])).verdict is Verdict.FAULT


def test_nothing_to_go_by_is_no_verdict_of_health() -> None:
    assert diagnose(Evidence()).verdict is Verdict.UNJUDGED


def test_other_gpus_and_large_messages_are_not_judged_and_it_says_so() -> None:
    h200 = told(models=frozenset({"NVIDIA H200"}))
    diagnosis = diagnose(gather([h200], measured=[CAMPAIGN]))
    assert (diagnosis.judged, diagnosis.verdict) == ((), Verdict.HEALTHY)
    assert "H200" in diagnosis.notes[0]
    large = diagnose(gather([], measured=[latency(64 << 20, 3000.0)]))
    assert (large.judged, large.verdict) == ((), Verdict.UNJUDGED)
    assert "bandwidth" in large.notes[0]


CURVES = {
    "eager-or-skew": lambda size: ("eager", fine(size) + 150),
    "failed-search": lambda size: ("graph", 44 + 0.04 * size / 1024),
    "protocol-switch": lambda size: ("graph", fine(size) * (3 if size > 30_000 else 1)),
    "write-collapse": lambda size: ("graph", 7 + 16 * size / 2700),
}


@pytest.mark.parametrize("cause", CURVES)
def test_times_at_four_sizes_put_the_right_cause_on_top(cause: str) -> None:
    measured = [latency(size, us, mode) for size in ROWS for mode, us in [CURVES[cause](size)]]
    diagnosis = diagnose(gather([], measured=measured))
    assert diagnosis.verdict is Verdict.FAULT
    assert top(diagnosis) == cause


def test_slow_only_when_called_from_the_host_names_launching() -> None:
    both = [
        latency(size, fine(size) + (200 if mode == "eager" else 0), mode)
        for size in ROWS
        for mode in ("graph", "eager")
    ]
    diagnosis = diagnose(gather([], measured=both))
    assert [ranked.cause.id for ranked in diagnosis.named] == ["eager-or-skew"]
    assert points(diagnosis, "eager-or-skew") > 15  # healthy times in a graph do not speak against it


def test_slow_in_a_graph_speaks_against_launching() -> None:
    loose = points(diagnose(gather([], measured=[CAMPAIGN])), "eager-or-skew")
    graph = points(diagnose(gather([], measured=[latency(43_008, 225)])), "eager-or-skew")
    assert graph < loose - 8


@pytest.mark.parametrize("cause", causes(), ids=lambda cause: cause.id)
def test_each_cause_is_named_by_its_strongest_sign_and_lowered_by_what_speaks_against_it(cause: object) -> None:
    strongest = max(cause.signs, key=cause.signs.get)
    diagnosis = diagnose(gather([told(strongest)]))
    assert top(diagnosis) == cause.id
    if cause.id != "write-collapse":  # of which files only show the risk; it takes times to name it
        assert points(diagnosis, cause.id) >= NAMED
    for sign in (name for name, value in cause.signs.items() if value < 0):
        assert points(diagnose(gather([told(strongest, sign)])), cause.id) < points(diagnosis, cause.id)


def test_a_sign_seen_twice_is_no_more_evidence() -> None:
    once, twice = (diagnose(gather([told("acs-redirect")] * times)) for times in (1, 2))
    assert points(once, "acs-or-iommu") == points(twice, "acs-or-iommu")


def test_a_predicted_risk_alone_is_no_fault() -> None:
    assert diagnose(gather([told("split-broadcom-switch", "pairs-beyond-default-level")])).verdict is Verdict.HEALTHY


def test_a_risk_and_times_that_fit_it_name_it() -> None:
    measured = [latency(size, 7 + 16 * size / 2700) for size in ROWS]
    named = diagnose(gather([told("split-broadcom-switch")], measured=measured)).named
    assert [ranked.cause.id for ranked in named] == ["write-collapse"]


def test_every_sign_of_the_catalogue_is_one_that_something_shows() -> None:
    code = "".join(path.read_text() for path in sorted((ROOT / "tuning").glob("*.py")))
    shown = {entry.sign for entry in log_signs()} | {"chose-simple-when-small", "chose-ll-when-small"}
    signs = {sign for cause in causes() for sign in cause.signs}
    assert [sign for sign in sorted(signs) if sign not in shown and f'"{sign}"' not in code] == []


def test_releases_speak_with_the_node_that_they_run_on() -> None:
    turin = read_topology("8gpu-2switch-2socket-turin")
    old, new = (told(releases=frozenset({release})) for release in ((2, 30, 7), (2, 31, 2)))
    assert points(diagnose(gather([old], topology=turin)), "failed-search") >= NAMED
    assert points(diagnose(gather([new], topology=turin)), "failed-search") < NAMED
    assert points(diagnose(gather([old], topology=read_topology("8gpu-2switch-1socket"))), "failed-search") < NAMED
    sm120 = frozenset({"NVIDIA RTX PRO 6000 Blackwell Server Edition"})
    bare = told(releases=frozenset({(2, 26, 2)}), models=sm120)
    assert top(diagnose(gather([bare]))) == "wrong-nccl"


def test_noise_of_a_quarter_rarely_makes_a_healthy_host_faulty_or_a_broken_one_healthy() -> None:
    draw = random.Random(5)
    wrong = 0
    for _ in range(100):
        noise = [draw.lognormvariate(0, 0.25) for _ in ROWS]
        healthy = [latency(size, fine(size) * n) for size, n in zip(ROWS, noise, strict=True)]
        broken = [latency(size, 8 * fine(size) * n) for size, n in zip(ROWS, noise, strict=True)]
        wrong += diagnose(gather([], measured=healthy)).verdict is Verdict.FAULT
        assert diagnose(gather([], measured=broken)).verdict is Verdict.FAULT
    assert wrong <= 20


def test_a_curve_that_fits_anything_loses_against_one_that_says_more() -> None:
    by_id = {cause.id: cause.curve for cause in causes()}
    measured = [(size, 44 + 0.04 * size / 1024) for size in ROWS]
    narrow, wide = (log10_likelihood(by_id[name], measured, 8) for name in ("failed-search", "acs-or-iommu"))
    assert narrow > wide + 0.5


# ------------------------------------------------------------------------------------------------------------- one host


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"hosts": frozenset({"node-a"})}, {"hosts": frozenset({"node-b"})}),
        ({"models": frozenset({"RTX PRO 6000"})}, {"models": frozenset({"RTX 5090"})}),
        ({"gpus": 8}, {"gpus": 4}),
        ({"gpus": 4}, {"ranks": 8}),
        ({"hosts": frozenset({"node-a", "node-b"})}, {}),
    ],
    ids=["names", "GPUs", "numbers", "more ranks than GPUs", "within one file"],
)
def test_files_of_two_hosts_are_refused_unless_said_to_be_one(
    first: dict[str, object], second: dict[str, object]
) -> None:
    readings = [told(path="a", **first), told(path="b", **second)]
    with pytest.raises(InputError) as caught:
        gather(readings)
    assert "one host" in caught.value.expected
    assert "--one-host" in caught.value.todo
    assert gather(readings, one_host=True).readings == tuple(readings)


def test_names_that_tell_no_host_are_no_other_host() -> None:
    names = ["node-a", "localhost", "<HOST>", "0123456789ab"]
    gather([told(path=name, hosts=frozenset({name})) for name in names])


def test_ranks_come_from_options_then_files_then_the_node() -> None:
    node = read_topology("4gpu-1switch")
    assert gather([told(ranks=2)], topology=node, ranks=3).ranks == 3
    assert gather([told(ranks=2)], topology=node).ranks == 2
    assert gather([], topology=node).ranks == 4
    assert gather([]).ranks == 8


# --------------------------------------------------------------------------------------------------------- worth, views


def worth(rate: float | None = None, accept: float | None = None, us: float = 225) -> object:
    diagnosis = diagnose(gather([], measured=[latency(43_008, us, "")]))
    return worth_of(diagnosis, Evidence(), load_workload("kimi-k2").messages, rate=rate, accept=accept)


def test_a_repair_is_worth_what_the_formula_says() -> None:
    found = worth(rate=54, accept=2.33)
    low, high = expected().span(43_008, 8)
    assert math.isclose(found.saved_ms.high, 122 * (225 - low) / 1000)
    assert math.isclose(found.then.high, 2330 / (2330 / 54 - 122 * (225 - low) / 1000))
    assert math.isclose(found.then.low, 2330 / (2330 / 54 - 122 * (225 - high) / 1000))
    assert (found.now.low, found.now.high) == (54, 54)


def test_without_a_rate_the_rest_is_assumed_and_said() -> None:
    found = worth()
    assert found.now.low < 54 < found.now.high
    assert 100 < found.then.low < found.then.high < 260
    assert found.assumed.count("assumed") == 2


def test_numbers_that_contradict_each_other_give_no_rate() -> None:
    found = repair_worth(Message(name="m", bytes=43_008, calls=122), 225, (17, 30), present=90, accept=2.0)
    assert found.then is None


def test_nothing_slow_is_worth_nothing() -> None:
    assert worth(us=24) is None


def test_a_log_tells_rate_and_acceptance() -> None:
    evidence = gather([told(rate=54.0, accept=2.5)], measured=[CAMPAIGN])
    found = worth_of(diagnose(evidence), evidence, load_workload("kimi-k2").messages, rate=None, accept=None)
    assert "2.50 tokens a step, 54 tokens/s now" in found.assumed


def test_text_and_json_say_the_same_and_mark_what_is_predicted() -> None:
    evidence = gather([told("acs-redirect", path="lspci.txt")], measured=[CAMPAIGN])
    diagnosis, found = diagnose(evidence), worth(rate=54)
    text, data = show(evidence, diagnosis, found), document(evidence, diagnosis, found)
    assert data["named"] == ["acs-or-iommu"]
    assert text.startswith("a fault: ACS redirect")
    assert "+16  as a test has it (f)" in text
    assert text.count("predicted") >= 3
    assert data["measured"][0]["expected_us"]["predicted"] is True
    assert data["worth"]["predicted"] is True
    assert data["causes"][0]["because"][0]["sign"] == "acs-redirect"
    json.dumps(data, allow_nan=False)


def test_a_healthy_host_is_told_so_without_a_list_of_causes() -> None:
    evidence = gather([told("links-full")], measured=[latency(43_008, 24)])
    text = show(evidence, diagnose(evidence), None)
    assert text.splitlines()[0] == "nothing wrong is seen"
    assert "possible" not in text


def test_nccls_plan_is_the_next_step_where_its_search_is_known_to_fail() -> None:
    def shown(node: str, *readings: Reading, named: bool = True) -> str:
        evidence = gather(readings, topology=read_topology(node))
        text = show(evidence, diagnose(evidence), None, topology=node if named else "")
        data = document(evidence, diagnose(evidence), None, topology=node if named else "")
        assert bool(data["next_plan"]["command"]) is ("not consulted" in text)
        return text

    turin = "8gpu-2switch-2socket-turin"
    step = f"next: ./inv nccl-plan --topology {turin}\n      NCCL's plan was not consulted"
    assert step in shown(turin)
    assert step in shown(turin, told(releases=((2, 30, 7),)))
    for text in (
        shown("8gpu-2switch-1socket"),
        shown(turin, named=False),
        shown(turin, told("search-succeeded")),
        shown(turin, told("search-failed")),
        shown(turin, told(releases=((2, 32, 3),))),
    ):
        assert "not consulted" not in text


def test_the_command_for_nccls_plan_quotes_what_a_shell_would_take_apart() -> None:
    evidence = gather([], topology=read_topology("8gpu-2switch-2socket-turin"))
    assert "--topology 'my node.xml'\n" in show(evidence, diagnose(evidence), None, topology="my node.xml")


# ------------------------------------------------------------------------------------------------------------- the verb


def test_measurements_are_parsed_strictly() -> None:
    assert parse_measured("43008=225,graph") == Latency(size=43_008, us=225, mode="graph", where="--measured")
    for text in ("-43008=225", "43008=-1", "0=1", "43008=0", "43008", "43008=nan", "43008=inf", "43008=1e3", "a=b", "",
                 "43008=225,both", "9" * 50 + "=1", "43008=" + "9" * 50):  # fmt: skip
        with pytest.raises(InputError, match="--measured is"):
            parse_measured(text)
    assert parse_number("--rate", "") is None
    for text in ("-1", "0", "nan", "1e9", "x", "9" * 400):
        with pytest.raises(InputError, match="--rate is"):
            parse_number("--rate", text)


RUN = """
import sys
from invoke.collection import Collection
from invoke.program import Program
from tuning.diagnose_verbs import diagnose
Program(namespace=Collection(diagnose)).run(["inv", *sys.argv[1:]])
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_verb_takes_files_and_ends_with_3_where_there_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    (tmp_path / "b.log").write_text("fake:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n")
    done = call("diagnose", str(tmp_path / "a.log"), "--json", str(tmp_path / "b.log"))
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["named"] == ["out-of-memory"]
    assert len(document["read"]) == 2


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_verb_names_the_plan_of_the_node_that_the_user_named(form: tuple[str, ...]) -> None:
    done = call("diagnose", "--topology", "8gpu-2switch-2socket-turin", *form)
    assert done.returncode == 0, done.stderr
    assert "./inv nccl-plan --topology 8gpu-2switch-2socket-turin" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no file and no measurement"),
        (("/no/such.log",), "/no/such.log"),
        (("--measured", "-5=3"), "-5=3"),
        (("--measured", "5=3", "--ranks", "1"), "--ranks is 1"),
        (("--measured", "5=3", "--topology", "nowhere"), "nowhere"),
        (("--measured", "5=3", "--workload", "nothing"), "nothing"),
    ],
)
def test_nonsense_is_refused_with_its_value(arguments: tuple[str, ...], says: str) -> None:
    done = call("diagnose", *arguments)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "expected:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_time_that_no_fabric_allows_is_not_judged_and_said() -> None:
    found = diagnose(gather([], measured=[latency(43_008, 0.1)]))
    assert (found.verdict, found.judged) == (Verdict.UNJUDGED, ())
    assert any("0.1 us is not judged" in note for note in found.notes)
