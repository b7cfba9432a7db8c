from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tuning import serving
from tuning.serving import flags
from tuning.serving.endings import ending, findings, known
from tuning.trial import Status

READY = "[2026-03-01 10:00:12] The server is fired up and ready to roll!"
TRACE = "[2026-03-01 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):"


def frame(path: str, code: str = "call()") -> list[str]:
    return [f'  File "/venv/lib/python3.12/site-packages/{path}", line 7, in work', f"    {code}"]


def died(*lines: str, code: int | None = 1, ready: bool = False) -> tuple[Status, str, str]:
    found = ending([READY, *lines] if ready else lines, code, False, ready)
    assert found is not None
    return found


PROOFS: dict[str, list[str]] = {
    "unknown-flag": ["launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --x"],
    "removed-argument": [*frame("sglang/srt/server_args.py"), "TypeError: f() got an unexpected keyword argument 'x'"],
    "http-port-taken": ["[Errno 98] error while attempting to bind on address ('127.0.0.1', 31000): address in use"],
    "nccl-port-taken": [
        "torch.distributed.DistNetworkError: The server socket has failed to listen. port: 31007, name: EADDRINUSE"
    ],
    "internal-port-taken": ["zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:31233')"],
    "shared-memory-full": [
        "node:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes, x"
    ],
    "disk-full": ["OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer/x'"],
    "no-config": ["OSError: /models/m does not appear to have a file named config.json."],
    "no-model": ["huggingface_hub.errors.HFValidationError: Repo id must be in the form 'a/b': '/models/x/y'."],
    "damaged-weights": ["SafetensorError: Error while deserializing header: InvalidX"],
    "no-weights": ["RuntimeError: Cannot find any model weights with `/models/m`"],
    "missing-weights-file": ['FileNotFoundError: No such file or directory: "/models/m/model-00002-of-3.safetensors"'],
    "weights-do-not-fit": [
        *frame("sglang/srt/models/x.py", "self.load_weights(weights)"), "KeyError: 'model.layers.3.w2_weight'",
    ],
    "tokenizer": ["OSError: Can't load tokenizer for '/models/m'."],
    "unknown-model": ["ValueError: Model architectures ['X'] are not supported for now. Supported architectures: y"],
    "driver-too-old": ["RuntimeError: The NVIDIA driver on your system is too old (found version 12020)."],
    "no-gpu": ["RuntimeError: No CUDA GPUs are available"],
    "too-few-gpus": ["torch.AcceleratorError: CUDA error: invalid device ordinal"],
    "fmha-arch": ["RuntimeError: Error in function 'TllmGenFmhaRunner' at /w/x.cuh:31: Unsupported architecture"],
    "deep-gemm-arch": [*frame("deep_gemm/dispatch.py", "return {"), "KeyError: '120f'"],
    "symmetric-memory-arch": [*frame("sglang/srt/distributed/device_communicators/torch_symm_mem.py"), "KeyError: 12"],
    "arch": ["torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"],
    "missing-symbol": ["ImportError: /venv/x/common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check"],
    "missing-library": ["ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"],
    "missing-module": ["ModuleNotFoundError: No module named 'flashinfer'"],
    "no-peer-access": ["RuntimeError: CUDART error: peer access is not supported between these two devices"],
    "memory-fraction-too-small": ["RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."],
    "memory-taken": ["ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."],
    "kv-cache-full": ["RuntimeError: Decode out of memory. Try to lower your batch size."],
    "memory-held-by-others": [
        *frame("sglang/srt/model_loader/loader.py", "model = initialize_model(model_config)"),
        "torch.OutOfMemoryError: CUDA out of memory. GPU 0 is full. Process 811 has 29.11 GiB memory in use.",
    ],
    "draft-out-of-memory": [
        *frame("sglang/srt/speculative/eagle_worker.py"),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB.",
    ],
    "weights-out-of-memory": [
        *frame("sglang/srt/model_loader/loader.py", "model = initialize_model(model_config)"),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB.",
    ],
    "out-of-memory": [
        *frame("sglang/srt/model_executor/cuda_graph_runner.py"),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
    ],
    "illegal-access": ["torch.AcceleratorError: CUDA error: an illegal memory access was encountered"],
    "gpu-fault": ["torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"],
    "verify-exception": [TRACE, *frame("sglang/srt/speculative/eagle_info.py"), "IndexError: index 9 is out of bounds"],
    "child-killed": ["RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). A cause is x."],
    "collective-timeout": [
        "[rank3]:[E301 10:00:00.12 x.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
    ],
    "watchdog": ["[10:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"],
    "nccl-error": ["torch.distributed.DistBackendError: NCCL error in: x.cpp:3690, unhandled system error"],
    "capture-failed": ["Exception: Capture cuda graph failed: something new"],
    "stopped": ["[10:00:00] SIGTERM received. signum=15 frame=None. Draining requests and shutting down..."],
}  # fmt: skip


def test_each_ending_that_ships_has_a_proof_here_and_a_source() -> None:
    endings, _ = known()
    assert [entry.name for entry in endings] == list(PROOFS)
    assert all(entry.says and entry.advice for entry in endings)
    document = yaml.safe_load(Path(serving.__file__).with_name("endings.yaml").read_text())
    assert all("source" in entry or "sign" in entry for part in document.values() for entry in part)


def test_advice_names_no_flag_that_the_benchmark_sets_itself() -> None:
    for entry in known()[0]:
        assert not set(re.findall("--([a-z-]+)", entry.advice)) & set(flags._OURS), entry.name


@pytest.mark.parametrize("name", PROOFS)
def test_a_log_ends_as_its_lines_say(name: str) -> None:
    [entry] = [entry for entry in known()[0] if entry.name == name]
    noise = ["[2026-03-01 09:59:59 TP0] Load weight begin. avail mem=90.00 GB", "Loading safetensors shards: 3%"]
    after = ["[2026-03-01 10:00:01] Received sigquit from a child process. It usually means the child failed."]
    status, cause, advice = died(*noise, *PROOFS[name], *after, code=-9)
    assert (cause.split(": ")[0], advice) == (entry.says, entry.advice)
    assert status is (entry.status or Status.LAUNCH_FAILED)
    assert "\n" not in cause


def test_one_exception_class_has_three_meanings_by_its_frames() -> None:
    assert "DeepGEMM" in died(*PROOFS["deep-gemm-arch"])[1]
    assert "symmetric memory" in died(*PROOFS["symmetric-memory-arch"])[1]
    assert "one of the weights" in died(*PROOFS["weights-do-not-fit"])[1]
    assert died("KeyError: 'unheard of'") == (Status.LAUNCH_FAILED, "KeyError: 'unheard of'", "")


def test_memory_errors_of_opposite_cure_are_told_apart() -> None:
    assert died(*PROOFS["memory-fraction-too-small"])[2].startswith("raise --mem-fraction-static")
    assert died(*PROOFS["out-of-memory"])[2].startswith("lower --mem-fraction-static")


def test_memory_that_contexts_of_other_ranks_take_is_not_the_cause() -> None:
    *frames, _ = PROOFS["weights-out-of-memory"]
    text = "torch.OutOfMemoryError: CUDA out of memory. Process 7 has 1.31 GiB memory in use. This process has 90.1 GiB"
    assert "weights do not fit" in died(*frames, text)[1]


def test_advice_in_an_exception_is_no_setting() -> None:
    said = "OutOfMemoryError: x. If large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid it."
    assert not findings([said], speculative=False)
    assert findings(["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"], speculative=False)


def test_what_it_did_without_is_not_what_it_died_of() -> None:
    survived = [
        "[2026-03-01 10:00:00] Can not initialize OpenAIServingResponses, error: Traceback (most recent call last):",
        '  File "sglang/srt/entrypoints/http_server.py", line 365, in lifespan',
        "ModuleNotFoundError: No module named 'openai_harmony'",
    ]
    assert "openai_harmony" not in died(*survived, "[2026-03-01 10:00:01] Application startup complete.")[1]
    assert "flashinfer" in died(*survived, *PROOFS["missing-module"])[1]


def test_frames_far_away_prove_nothing() -> None:
    lines = [*frame("deep_gemm/dispatch.py"), *["x"] * 200, "KeyError: '12abc'"]
    assert "DeepGEMM" not in died(*lines)[1]


def test_a_crash_after_it_was_ready_is_a_crash() -> None:
    assert died(*PROOFS["illegal-access"], ready=True)[0] is Status.CRASHED
    assert died(*PROOFS["arch"], ready=True)[0] is Status.UNSUPPORTED


def test_what_it_survived_is_not_what_it_died_of() -> None:
    status, cause, _ = died("ModuleNotFoundError: No module named 'x'", READY, code=137, ready=True)
    assert (status, cause) == (
        Status.CRASHED, "it was killed (SIGKILL), by the kernel for want of memory or by somebody",
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "[10:00:00] Ignore import error when loading sglang.srt.models.x: ModuleNotFoundError: No module named 'y'",
        "[10:00:00] WARNING x.py:1: ModuleNotFoundError: No module named 'y', so that y is off",
    ],
)
def test_warnings_are_no_cause(line: str) -> None:
    assert "missing" not in died(line, "ValueError: the real one")[1]


def test_the_cause_of_a_traceback_is_what_it_ends_in() -> None:
    _, cause, _ = died(*PROOFS["verify-exception"], "[10:00:01] Received sigquit from a child process.", code=-9)
    assert cause == "the scheduler hit an exception in speculation: IndexError: index 9 is out of bounds"
    _, cut_off, _ = died(*PROOFS["verify-exception"][:-1])
    assert cut_off.endswith('eagle_info.py", line 7, in work')


def test_a_container_runtimes_prefix_hides_nothing() -> None:
    prefix = "2026-03-01T10:00:00.123456789+01:00 stdout F "
    assert "no code for this GPU: KeyError: '120f'" in died(*(prefix + line for line in PROOFS["deep-gemm-arch"]))[1]


def test_of_an_unknown_ending_the_last_exception_counts_but_not_its_consequences() -> None:
    lines = [
        "[10:00:00 TP0] ValueError: page size 7",
        "EOFError",
        "RuntimeError: Initialization failed. Please see above.",
    ]
    assert died(*lines) == (Status.LAUNCH_FAILED, "ValueError: page size 7", "")
    assert died(*lines[1:])[1].startswith("RuntimeError: Initialization failed")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-9, "SIGKILL"), (137, "SIGKILL"), (-15, "SIGTERM"), (143, "SIGTERM"), (135, "/dev/shm"), (139, "native code"),
        (1, "exit code 1; its last line: bye"), (0, "exit code 0"), (255, "exit code 255"),
    ],
)  # fmt: skip
def test_without_any_exception_the_exit_code_tells(code: int, says: str) -> None:
    status, cause, _ = died("hello", "bye", code=code)
    assert status is Status.LAUNCH_FAILED
    assert says in cause


def test_a_request_that_was_refused_is_not_why_it_was_killed() -> None:
    refused = ["Traceback (most recent call last):", "ValueError: a prompt too long"]
    assert "SIGKILL" in died(*refused, code=-9, ready=True)[1]
    assert "a prompt too long" in died(*refused, "Received sigquit from a child process.", code=-9, ready=True)[1]
    assert "a prompt too long" in died(*refused, code=-6, ready=True)[1]


def test_an_empty_log_ends_too() -> None:
    assert died(code=3) == (Status.LAUNCH_FAILED, "it ended with exit code 3 without a word", "")


def test_a_server_that_runs_and_answers_has_no_ending() -> None:
    assert ending([], None, False, False) is None
    assert ending([READY, "Traceback (most recent call last):", "ValueError: a bad request"], None, False, True) is None


def test_a_server_that_says_it_is_dead_has_ended_while_its_process_lives() -> None:
    assert ending(PROOFS["collective-timeout"], None, False, True) is not None


@pytest.mark.parametrize(
    ("lines", "ready", "says"),
    [
        (
            ["[10:00:00 TP0] Capture target decode CUDA graph begin. backe"],
            False,
            "hangs in graph capture of target decode",
        ),
        (["[10:00:00 TP0] Init torch distributed begin."], False, "in time, while its ranks connected"),
        ([], False, "did not become ready in time"),
        ([READY], False, "it says that it serves"),
        ([READY], True, "it stopped answering"),
    ],
)
def test_a_hang_says_where(lines: list[str], ready: bool, says: str) -> None:
    found = ending(lines, None, True, ready)
    assert found is not None
    assert found.status is Status.TIMED_OUT
    assert says.replace("it says", "its log says") in found.cause


def test_a_capture_that_ended_is_not_where_it_hangs() -> None:
    lines = [
        "[10:00:00 TP0] Capture cuda graph begin. avail mem=9.00 GB",
        "[10:00:09 TP0] Capture cuda graph end. Time elapsed: 9.00 s. mem usage=0.50 GB. avail mem=8.00 GB.",
    ]
    found = ending(lines, None, True, False)
    assert found is not None
    assert "capture" not in found.cause


def test_a_flood_of_lines_is_read_at_its_beginning_and_end() -> None:
    flood = ["x" * 100] * 100_000
    assert "no room for a KV cache" in died(*flood, *PROOFS["memory-fraction-too-small"])[1]
    assert "does not know or accept" in died(*PROOFS["unknown-flag"], *flood)[1]


def decode(graph: str) -> str:
    return f"[10:00:00 TP0] Decode batch, #running-req: 1, cuda graph: {graph}, gen throughput (token/s): 9.00"


def test_eager_passes_are_found_with_their_share() -> None:
    lines = [decode("True"), decode("False"), decode("False"), decode("False")]
    assert findings(lines, speculative=True)[0].startswith("verify passes ran eagerly, without a CUDA graph, by 75%")
    assert findings(lines, speculative=False)[0].startswith("decode steps ran eagerly")
    assert findings([decode("True")], speculative=True) == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[10:00:00 TP3] CustomAllReduceV2 is disabled because it's not supported on more than", "custom allreduce"),
        ("[10:00:00 TP3] this FlashInfer build has no pcie_ipc_comm", "faster allreduce"),
        ("[10:00:00] FlashInfer AllReduce fusion disabled: the 8 ranks of this group are x", "fused allreduce"),
        ("[10:00:00] WARNING x.py:1: Cuda graph is disabled because deepep_mode=`normal`", "DeepEP"),
        ("[10:00:00] Cuda graph is disabled because of using torch native attention backend", "graphs are off"),
        ("[10:00:00] The expert parallel size is adjusted to be the same as the tensor parallel size[2].", "expert"),
        ("[10:00:00] speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when x", "speculation"),
        ("[10:00:00] Max running requests is reset to 48 for speculative decoding.", "limited"),
        ("[10:00:00] Overlap scheduler is disabled because of x", "overlap"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "expandable"),
        ("[10:00:00] server_args=ServerArgs(disable_radix_cache=False, x=1)", "radix cache"),
        ("[10:00:00] server_args={'enable_deterministic_inference': True, 'x': 1}", "deterministic"),
        ("[10:00:00] server_args=ServerArgs(speculative_adaptive=True, x=1)", "adaptive"),
        ("[10:00:00] server_args=ServerArgs(speculative_draft_window_size=512, x=1)", "last 512 tokens"),
    ],
)
def test_what_weakens_the_numbers_is_found_once(line: str, says: str) -> None:
    [found] = findings([line, line], speculative=True)
    assert says in found
