"""Launch specs to the arguments of each release, and what is refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lanewise.errors import InputError
from tuning.serving.flag_table import dialect
from tuning.serving.flags import Arguments, arguments, releases
from tuning.serving.gpus import GpuFacts
from tuning.serving.spec import ServerSpec, Speculation

PCIE = GpuFacts(count=8, capability=(12, 0), nvlink=False)
CHAIN = Speculation(algorithm="EAGLE3", steps=2, topk=1, draft_tokens=3, draft="/draft")
SPEC = ServerSpec(model="/model", tensor_parallel=8, speculation=CHAIN, allreduce="nccl", accept_length=2.4)


def made(
    spec: ServerSpec = SPEC, release: str = "0.5.23", gpus: GpuFacts | None = PCIE, known: frozenset[str] | None = None
) -> Arguments:
    return arguments(spec, release, port=30_000, nccl_port=30_001, gpus=gpus, known=known)


def values(made: Arguments) -> dict[str, str]:
    return {
        flag: "" if value.startswith("--") else value
        for flag, value in pairwise([*made.argv, "--"])
        if flag.startswith("--")
    }


@pytest.mark.parametrize("release", [r for r in releases() if r not in ("0.4.6", "0.5.3", "0.5.5", "0.5.7")])
@pytest.mark.parametrize("graphs", [True, False])
def test_every_flag_of_every_release_is_one_that_it_has_and_none_that_it_calls_deprecated(
    release: str, graphs: bool
) -> None:
    told = values(made(replace(SPEC, cuda_graphs=graphs, dummy_weights=True, attention_backend="fa3"), release))
    table = dialect(release)
    for flag in told:
        assert table.has(flag.removeprefix("--"))
        assert not table.deprecated(flag.removeprefix("--"))
    assert told["--speculative-num-draft-tokens"] == "3"
    assert told["--disable-radix-cache"] == ""
    assert (told["--port"], told["--nccl-port"]) == ("30000", "30001")


def test_a_renamed_flag_has_the_name_of_the_release() -> None:
    assert values(made(release="0.5.13"))["--cuda-graph-max-bs"] == "32"
    assert values(made(release="0.5.14"))["--cuda-graph-max-bs-decode"] == "32"
    assert "--disable-cuda-graph" in values(made(replace(SPEC, cuda_graphs=False), "0.5.9"))
    assert "--disable-decode-cuda-graph" in values(made(replace(SPEC, cuda_graphs=False), "0.5.23"))


def test_the_oldest_release_chooses_its_nccl_port_itself() -> None:
    assert "--nccl-port" not in values(made(replace(SPEC, accept_length=0), "0.4.6"))


def test_simulated_acceptance_says_its_method_and_needs_speculation_that_can_reach_it() -> None:
    variables = made(release="0.5.9").variables
    assert variables["SGLANG_SIMULATE_ACC_LEN"] == "2.4"
    assert variables["SGLANG_SIMULATE_ACC_METHOD"] == "match-expected"
    assert "SGLANG_SIMULATE_ACC_LEN" not in made(replace(SPEC, accept_length=0)).variables
    for spec in (replace(SPEC, accept_length=3.1), replace(SPEC, accept_length=0.5), replace(SPEC, speculation=None)):
        with pytest.raises(InputError, match="cannot be simulated"):
            made(spec)
    with pytest.raises(InputError, match=r"0\.5\.7 cannot be told an accept length"):
        made(release="0.5.7")


@pytest.mark.parametrize(
    ("release", "topk", "on"),
    [("0.5.7", 1, False), ("0.5.9", 1, True), ("0.5.10", 1, True), ("0.5.10", 2, False), ("0.5.11", 1, False)],
)
def test_the_overlapping_worker_is_switched_on_where_it_is_off_by_itself(release: str, topk: int, on: bool) -> None:
    speculation = replace(CHAIN, topk=topk, draft_tokens=3)
    variables = made(replace(SPEC, speculation=speculation, accept_length=0), release).variables
    assert ("SGLANG_ENABLE_SPEC_V2" in variables) == on


@pytest.mark.parametrize(
    ("flag", "release", "says", "todo"),
    [
        ("cuda-graph-max-bs", "0.5.20", "no flag --cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("enable-ep-moe", "0.5.9", "no flag --enable-ep-moe", "--ep-size"),
        ("boundary-reduction", "0.5.20", "no flag --boundary-reduction", "leave it out"),
        ("page-sise", "0.5.20", "no flag --page-sise", "--page-size"),
        ("speculative-draft-attention-b", "0.5.20", "no flag", "--speculative-draft-attention-backend"),
        ("speculative-adaptive", "0.5.20", "moves the number of draft steps", "leave it out"),
        ("enable-symm-mem", "0.5.20", "multicast", "leave it out"),
        ("enable-nccl-nvls", "0.5.20", "multicast", "leave it out"),
        ("tp", "0.5.20", "--tp-size is given as a further flag", "its own option"),
        ("model", "0.5.20", "--model-path is given", "its own option"),
        ("", "0.5.20", "no flag --", "leave it out"),
        ("x" * 5000, "0.5.20", "no flag --xxx", "leave it out"),
    ],
)
def test_a_further_flag_that_cannot_be_is_refused_with_what_there_is(
    flag: str, release: str, says: str, todo: str
) -> None:
    with pytest.raises(InputError) as caught:
        made(replace(SPEC, flags={flag: ""}), release)
    assert says in caught.value.what
    assert len(caught.value.what) < 300
    assert todo in caught.value.todo


def test_a_removed_flag_is_told_with_the_releases_that_have_it() -> None:
    with pytest.raises(InputError) as caught:
        made(replace(SPEC, flags={"cuda-graph-max-bs": "8"}), "0.5.23")
    assert "0.4.6 to 0.5.19" in caught.value.expected


def test_further_flags_may_have_values_of_any_form_and_go_before_ours() -> None:
    spec = replace(
        SPEC,
        flags={
            "decode-log-interval": "20", "cuda-graph-bs-decode": "1 2 4", "json-model-override-args": '{"a": 1}',
            "skip-tokenizer-init": "", "api-key": "--x",
        },
    )  # fmt: skip
    argv = made(spec).argv
    at = argv.index("--cuda-graph-bs-decode")
    assert argv[at + 1 : at + 4] == ("1", "2", "4")
    assert argv[argv.index("--json-model-override-args") + 1] == '{"a": 1}'
    assert "--api-key=--x" in argv
    assert argv[argv.index("--decode-log-interval") + 1] == "20"
    assert argv.count("--decode-log-interval") == 1
    for name, value in (("cuda-graph-bs-decode", "1 --port 3"), ("api-key", "a\0b")):
        with pytest.raises(InputError, match=name):
            made(replace(SPEC, flags={name: value}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"draft_tokens": 4}, "none that a server keeps"),
        ({"topk": 0}, "drafts nothing"),
        ({"algorithm": "NGRAM"}, "'NGRAM' is not supported"),
        ({"draft": ""}, "no draft model"),
    ],
)
def test_speculation_that_the_server_would_change_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(replace(SPEC, speculation=replace(CHAIN, **change), accept_length=0))  # type: ignore[arg-type]


def test_a_release_between_the_tables_is_refused_unless_it_says_what_it_has() -> None:
    for release in ("0.5.6", "0.5.24", "0.5.24.dev3"):
        with pytest.raises(InputError, match="are not known") as caught:
            made(release=release)
        assert "--help" in caught.value.expected
    own = dialect("0.5.23").flags - {"enable-metrics"} | {"brand-new"}
    told = made(replace(SPEC, flags={"brand-new": ""}), "0.5.24", known=own | {"enable-metrics"})
    assert "--brand-new" in told.argv
    assert any("prints itself" in note for note in told.notes)
    with pytest.raises(InputError, match="no flag --enable-metrics"):
        made(release="0.5.24", known=own)  # what an older release had is no ground to try it


def test_flags_of_an_installation_count_beside_the_tables() -> None:
    spec = replace(SPEC, flags={"enable-pcie-oneshot-allreduce": ""})
    with pytest.raises(InputError):
        made(spec)
    assert "--enable-pcie-oneshot-allreduce" in made(spec, known=frozenset({"enable-pcie-oneshot-allreduce"})).argv


def test_a_repaired_release_has_the_flags_of_its_base_and_a_note() -> None:
    assert made(release="0.5.12.post1").notes == ("flags of SGLang 0.5.12.post1 are taken to be those of 0.5.12",)


@pytest.mark.parametrize("release", ["", "0.4.5", "main", "0.5.x", "9" * 10_000])
def test_what_is_no_release_is_refused_briefly(release: str) -> None:
    with pytest.raises(InputError) as caught:
        made(release=release)
    assert len(caught.value.what) < 200


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match="there are 4 GPUs"):
        made(gpus=replace(PCIE, count=4))


def test_the_environment_of_a_spec_goes_before_ours() -> None:
    assert made(replace(SPEC, environment={"NCCL_DEBUG": "WARN"})).variables["NCCL_DEBUG"] == "WARN"
