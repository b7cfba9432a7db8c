from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lanewise.errors import InputError
from tuning.outlook import REFERENCE, Outlook, Speculation, outlook, pass_ms
from tuning.outlook_view import document, show
from tuning.predict_schedules import FAMILIES
from tuning.repair_worth import TAU
from tuning.speculation_calibration import published
from tuning.speculation_model import Span

STARTING = ("nccl-ring", "nccl-tree", "nccl-ll128", "torch-symm-mem", "flashinfer-pcie-ipc", "sglang-pcie-ipc")


def fake_preflight(runs: Path, toolchain: str, gpus: int = 8, **verdicts: str) -> None:
    """A result of preflight where all starts but for these, underscores for hyphens."""
    told = {**dict.fromkeys(STARTING, "starts"), **{name.replace("_", "-"): v for name, v in verdicts.items()}}
    findings = [
        {"approach": name, "name": name.upper(), "verdict": verdict, "why": f"why {name}", "error": ""}
        for name, verdict in told.items()
    ]
    (runs / toolchain).mkdir(parents=True)
    (runs / toolchain / "preflight.json").write_text(
        json.dumps({"preflight": 1, "box": {"gpus": gpus}, "findings": findings})
    )


@pytest.fixture
def both(tmp_path: Path) -> Outlook:
    """An outlook on two toolchains, of which the first lacks FlashInfer's kernels."""
    fake_preflight(tmp_path, "cu128", flashinfer_pcie_ipc="absent", sglang_pcie_ipc="absent")
    fake_preflight(tmp_path, "cu130")
    return outlook(REFERENCE, ["cu128", "cu130"], tmp_path)


def text(seen: Outlook) -> str:
    console = Console(width=400, no_color=True)
    with console.capture() as capture:
        console.print(show(seen))
    return capture.get()


def families(seen: Outlook, toolchain: str) -> list[str]:
    return [choice.predicted.family.name for choice in seen.choices if choice.toolchain == toolchain]


def test_what_cannot_start_on_a_toolchain_has_no_number_there_and_is_no_choice(both: Outlook) -> None:
    number = list(FAMILIES).index("hierarchical")
    old, new = (both.predictions[name].families[number] for name in ("cu128", "cu130"))
    assert (old.start.able, new.start.able) == (False, True)
    assert old.estimates == ()
    assert new.estimates
    assert "hierarchical" not in families(both, "cu128")
    assert "hierarchical" in families(both, "cu130")


def test_nccls_default_the_best_validated_and_the_best_of_all_are_shown(both: Outlook) -> None:
    why = {choice.predicted.family.name: choice.why for choice in both.choices if choice.toolchain == "cu130"}
    assert "NCCL's default" in why["nccl-ring-ll"]
    assert "validated families" in why["one-shot-pull"]
    assert "of all" in why["hierarchical"]
    assert all(choice.predicted.validated for choice in both.choices if "validated" in choice.why)


def test_an_approach_that_ends_otherwise_on_the_other_toolchain_is_told_with_the_reason(both: Outlook) -> None:
    assert [difference.name for difference in both.differences] == ["FLASHINFER-PCIE-IPC", "SGLANG-PCIE-IPC"]
    assert both.differences[0].verdicts == {"cu128": "absent", "cu130": "starts"}
    shown = text(both)
    assert "why flashinfer-pcie-ipc" in shown
    assert "only some start: one-shot, writing; hierarchical, by island; copy-engine ring" in shown


def test_without_preflight_the_way_to_it_is_told_and_nothing_is_chosen(tmp_path: Path) -> None:
    fake_preflight(tmp_path, "cu130")
    seen = outlook(REFERENCE, ["cu128", "cu130"], tmp_path)
    assert seen.unread == ("cu128",)
    assert families(seen, "cu128") == []
    assert "./inv preflight --toolchain cu128" in text(seen)
    assert "NCCL Ring LL" in text(seen)  # costs do not depend on it
    assert "against" not in text(seen).split("bounds")[0]
    nothing = outlook(REFERENCE, ["cu128"], tmp_path)
    assert nothing.choices == ()
    assert "no published server" not in text(nothing)


def test_rates_follow_from_the_published_servers_step(both: Outlook) -> None:
    choice = next(choice for choice in both.choices if choice.predicted.family.name == "nccl-ring-ll")
    assert choice.speculation
    server = published().models["kimi-k2"]
    compute = 1000 / server.batch[1] - 122 * 11.8 / 1000  # the host's allreduce of 14,336 B: 11.8 us
    estimate = choice.predicted.estimates[0]
    steps = [122 * us / 1000 + compute for us in (estimate.high, estimate.low)]
    assert choice.speculation.without.low == pytest.approx(1000 / steps[0])
    assert choice.speculation.without.high == pytest.approx(1000 / steps[1])
    assert choice.speculation.k == 2
    assert choice.speculation.break_even.low > 1
    assert choice.speculation.speculating.high < TAU.high * choice.speculation.without.high
    assert pass_ms(choice.predicted, both.workload)["baseline"].low == pytest.approx(122 * estimate.low / 1000)


@pytest.mark.parametrize(
    ("break_even", "verdict"), [((1.2, 1.9), "faster"), ((2.5, 2.9), "slower"), ((1.9, 2.1), "open")]
)
def test_a_break_even_within_the_assumed_accept_lengths_leaves_it_open(
    break_even: tuple[float, float], verdict: str
) -> None:
    some = Span(low=1, high=2)
    low, high = break_even
    found = Speculation(k=2, tau=TAU, without=some, speculating=some, break_even=Span(low=low, high=high))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("reference", "workload"), [(REFERENCE, "deepseek-v3"), ("4gpu-1switch", "kimi-k2"), (REFERENCE, "rows-of-7168")]
)
def test_where_no_published_server_is_like_it_no_rate_is_made_up(tmp_path: Path, reference: str, workload: str) -> None:
    fake_preflight(tmp_path, "cu130")
    seen = outlook(reference, ["cu130"], tmp_path, workload)
    assert seen.choices
    assert all(choice.speculation is None for choice in seen.choices)
    assert "predict-speculation" in text(seen)
    assert document(seen)["choices"][0]["speculation"] is None


def test_everything_is_marked_predicted(both: Outlook) -> None:
    headings = [line for line in text(both).splitlines() if "PREDICTED" in line]
    assert len(headings) == 3
    made = json.loads(json.dumps(document(both), allow_nan=False))
    assert made["predicted"] is True
    assert all(part["predicted"] is True for part in made["toolchains"].values())
    assert made["choices"][0]["speculation"]["verdict"] == "faster"


def test_preflight_of_another_number_of_gpus_is_remarked(tmp_path: Path) -> None:
    fake_preflight(tmp_path, "cu128", gpus=4)
    assert "--gpus 8" in text(outlook(REFERENCE, ["cu128"], tmp_path))


@pytest.mark.parametrize(
    ("reference", "toolchain", "workload"),
    [("nowhere", "cu128", "kimi-k2"), (REFERENCE, "../x", "kimi-k2"), (REFERENCE, "cu128", "llama")],
)
def test_unknown_names_are_refused(tmp_path: Path, reference: str, toolchain: str, workload: str) -> None:
    with pytest.raises(InputError):
        outlook(reference, [toolchain], tmp_path, workload)
