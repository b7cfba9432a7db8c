"""A fake SGLang server for tests: its HTTP interface, log lines, counters and endings, without a model or a GPU.

    python fake_sglang.py --model-path M --port N [--nccl-port M] [any other SGLang flag] [--fake JSON]

Options are read from --fake or from the variable FAKE_SGLANG; see `fake_sglang_steps.Options`. `install(folder)` makes
a package `sglang` there, so that `python -m sglang.launch_server` with that PYTHONPATH starts this fake.

Names of fields, counters and log lines were read in the wheels of sglang 0.5.9 (managers/tokenizer_manager.py,
scheduler_metrics_mixin.py, metrics/collector.py) and 0.5.23 (managers/scheduler_components/metrics_reporter.py,
observability/metrics_collector.py). As there, generation_tokens_total and spec_verify_calls_total grow only when a
request finishes, and realtime_tokens_total and cuda_graph_passes_total with every step.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_sglang_steps import Log, Options, Scheduler, Sequence

READY = "The server is fired up and ready to roll!"


def install(folder: Path) -> dict[str, str]:
    """Make the package `sglang` in a folder; the variables with which a Python finds it."""
    package = folder / "sglang"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    script = str(Path(__file__).resolve())
    (package / "launch_server.py").write_text(f"import runpy\nrunpy.run_path({script!r}, run_name='__main__')\n")
    return {"PYTHONPATH": str(folder)}


def read_flags(arguments: list[str]) -> dict[str, str]:
    """Flags by name without dashes; "" where one has no value."""
    flags: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, flags_value = argument[2:].partition("=")
            flags[name] = flags_value
        elif name:
            flags[name] = f"{flags[name]} {argument}".strip()
    return flags


class Fake(ThreadingHTTPServer):
    """The server: options, flags, a scheduler, and what is known of its start."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, options: Options, flags: Mapping[str, str], log: Log) -> None:
        self.options, self.flags, self.log = options, flags, log
        self.fired_up = False
        super().__init__(("127.0.0.1", int(flags.get("port", 30000))), Handler)
        self.scheduler = Scheduler(options, flags, log, self.die)

    def die(self, text: str) -> None:
        """End as SGLang does: a traceback of the scheduler, then the parent kills the whole tree."""
        self.log.say(f"Scheduler hit an exception: Traceback (most recent call last):\n{text}")
        end(self.options, self.log)

    def labels(self, **more: str) -> str:
        """One label set."""
        labels = {"engine_type": "unified", "model_name": self.flags.get("model-path", ""), **more}
        return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"

    def metrics(self) -> str:
        """As /metrics shows it."""
        counted, ranks = self.scheduler.counted, {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        scheduler = self.labels(**ranks)
        samples: list[tuple[str, str, str, float]] = [
            ("num_running_reqs", "gauge", scheduler, len(self.scheduler.running)),
            ("num_queue_reqs", "gauge", scheduler, self.scheduler.waiting.qsize()),
            ("gen_throughput", "gauge", scheduler, counted.throughput),
            ("is_cuda_graph", "gauge", scheduler, float(self.scheduler.graph)),
            ("spec_num_draft_tokens", "gauge", scheduler, self.scheduler.model.rows),
            ("spec_accept_length", "gauge", scheduler, counted.accept_length),
            ("spec_accept_rate", "gauge", scheduler, counted.accept_rate),
        ]
        if self.options.counters:
            graph = self.labels(**ranks, mode="decode_cuda_graph")
            finished = self.labels(is_streaming="false") if self.options.at_least("0.5.13") else self.labels()
            samples += [
                ("num_requests_total", "counter", finished, counted.requests),
                ("prompt_tokens_total", "counter", finished, counted.prompt),
                ("generation_tokens_total", "counter", finished, counted.finished_tokens),
                ("realtime_tokens_total", "counter", self.labels(**ranks, mode="decode"), counted.decoded),
                ("realtime_tokens_total", "", self.labels(**ranks, mode="prefill_compute"), counted.prefilled),
                ("cuda_graph_passes_total", "counter", graph, counted.graph_steps),
                ("cuda_graph_passes_total", "", self.labels(**ranks, mode="decode_none"), counted.eager_steps),
            ]
            if self.options.at_least("0.5.13") and self.scheduler.model.speculates:
                samples.append(("spec_verify_calls_total", "counter", self.labels(), counted.finished_passes))
        lines = []
        for name, kind, labels, value in samples:
            if kind:
                lines += [f"# HELP sglang:{name} A fake.", f"# TYPE sglang:{name} {kind}"]
            lines.append(f"sglang:{name}{labels} {float(value)}")
        return "\n".join(lines) + "\n"

    def server_info(self) -> dict[str, Any]:
        """As /server_info shows it."""
        arguments: dict[str, Any] = {name.replace("-", "_"): value or True for name, value in self.flags.items()}
        for name, value in arguments.items():
            if isinstance(value, str) and value.isdigit():
                arguments[name] = int(value)
        model = self.scheduler.model
        if model.speculates:
            arguments |= {"speculative_num_steps": model.drafts, "speculative_num_draft_tokens": model.rows}
        return {**arguments, "version": self.options.release, "internal_states": [self.scheduler.info()]}

    def meta(self, sequence: Sequence, *, finished: bool) -> dict[str, Any]:
        """meta_info of a request."""
        reason: dict[str, Any] | None = {"type": "length", "length": sequence.most} if finished else None
        if sequence.aborted:
            reason = {"type": "abort", "message": "a fake abort", "status_code": 500}
        meta: dict[str, Any] = {
            "id": f"{sequence.number:032x}",
            "finish_reason": reason,
            "prompt_tokens": sequence.prompt_tokens,
            "completion_tokens": sequence.tokens + self.options.wrong_counts,
            "cached_tokens": 0,
        }
        if finished:
            meta["e2e_latency"] = time.perf_counter() - sequence.started
        if finished and sequence.verify_passes:
            meta |= self.speculation(sequence)
        return meta

    def speculation(self, sequence: Sequence) -> dict[str, Any]:
        """What meta_info says of speculation, under the names of the release."""
        new = self.options.at_least("0.5.11")
        correct = sum(drafts * passes for drafts, passes in sequence.accepted.items())
        proposed = sequence.verify_passes * (self.scheduler.model.rows - 1)
        return {
            "spec_accept_rate": correct / max(1, proposed),
            "spec_accept_length": sequence.tokens / sequence.verify_passes,
            "spec_verify_ct": sequence.verify_passes,
            "spec_num_correct_drafts" if new else "spec_accept_token_num": correct,
            "spec_num_proposed_drafts" if new else "spec_draft_token_num": proposed,
            "spec_correct_drafts_histogram" if new else "spec_accept_histogram": sequence.histogram,
        }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Fake

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: object) -> None:
        """Access lines are written by `answer`, as uvicorn writes them."""

    def do_GET(self) -> None:
        scheduler = self.server.scheduler
        if self.path in ("/health", "/health_generate"):
            self.answer(b"", status=200 if self.server.fired_up else 503)
        elif self.path in ("/server_info", "/get_server_info"):
            self.answer(self.server.server_info())
        elif self.path in ("/model_info", "/get_model_info"):
            self.answer({"model_path": self.server.flags.get("model-path", ""), "is_generation": True})
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": self.server.flags.get("model-path", "")}]})
        elif self.path == "/metrics" and "enable-metrics" in self.server.flags:
            self.answer(self.server.metrics().encode(), kind="text/plain; version=0.0.4")
        elif self.path.startswith("/flush_cache"):
            self.answer(b"Cache flushed.\n", status=200 if scheduler.flush() else 400, kind="text/plain")
        else:
            self.answer({"detail": "Not Found"}, status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/generate":
            self.generate(body)
        elif self.path == "/v1/chat/completions":
            self.chat(body)
        elif self.path == "/start_profile":
            if self.server.options.profiler:
                threading.Thread(target=write_traces, args=(self.server, body), daemon=True).start()
            self.answer(b"Start profiling.\n", kind="text/plain")
        else:
            self.do_GET()

    def answer(self, body: object, *, status: int = 200, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = f'"{self.requestline}" {status} {HTTPStatus(status).phrase}'
        self.server.log.raw(f"INFO:     127.0.0.1:{self.client_address[1]} - {asked}")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def generate(self, body: dict[str, Any]) -> None:
        """/generate: one prompt or several, text or ids, streamed or not."""
        if self.server.options.refuse:
            self.answer({"error": {"message": "a fake refusal"}}, status=self.server.options.refuse)
            return
        prompts = body.get("text", body.get("input_ids"))
        several = isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], list | str)
        most = int(body.get("sampling_params", {}).get("max_new_tokens", 128))
        sequences = [
            self.server.scheduler.submit(
                str(prompt), len(prompt.split()) if isinstance(prompt, str) else len(prompt), most,
                stream=bool(body.get("stream")),
            )
            for prompt in (prompts if several else [prompts])
        ]  # fmt: skip
        with_text = "text" in body
        if body.get("stream"):
            self.stream(self.native_events(sequences[0], with_text=with_text))
            return
        for sequence in sequences:
            sequence.events.get()
        replies = [self.native(sequence, finished=True, with_text=with_text) for sequence in sequences]
        self.answer(replies if several else replies[0], status=500 if sequences[0].aborted else 200)

    def native(self, sequence: Sequence, *, finished: bool, with_text: bool) -> dict[str, Any]:
        reply: dict[str, Any] = {"text": sequence.text(0, sequence.tokens)} if with_text else {}
        return {
            **reply,
            "output_ids": sequence.ids(0, sequence.tokens),
            "meta_info": self.server.meta(sequence, finished=finished),
        }

    def native_events(self, sequence: Sequence, *, with_text: bool) -> Iterator[tuple[int, bytes]]:
        """Tokens so far and the event; texts and ids are whole, not what is new."""
        finished = False
        while not finished:
            finished = sequence.events.get()
            while not sequence.events.empty():  # as SGLang: what was not fetched yet is sent as one
                finished = sequence.events.get()
            yield sequence.tokens, json.dumps(self.native(sequence, finished=finished, with_text=with_text)).encode()

    def chat(self, body: dict[str, Any]) -> None:
        """/v1/chat/completions: streamed or not."""
        prompt = json.dumps(body.get("messages"))
        most = int(body.get("max_completion_tokens") or body.get("max_tokens") or 128)
        sequence = self.server.scheduler.submit(prompt, len(prompt.split()) + 4, most, stream=bool(body.get("stream")))
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            self.stream(self.chat_events(sequence, usage=usage))
            return
        sequence.events.get()
        message = {"role": "assistant", "content": sequence.text(0, sequence.tokens)}
        self.answer({"choices": [{"message": message, "finish_reason": "length"}], "usage": self.usage(sequence)})

    def usage(self, sequence: Sequence) -> dict[str, int]:
        completion = sequence.tokens + self.server.options.wrong_counts
        prompt = sequence.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def chat_events(self, sequence: Sequence, *, usage: bool) -> Iterator[tuple[int, bytes]]:
        def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return json.dumps({"object": "chat.completion.chunk", "choices": [choice], "usage": None}).encode()

        yield 0, event({"role": "assistant", "content": ""})
        told, finished = 0, False
        while not finished:
            finished = sequence.events.get()
            tokens = sequence.tokens
            if tokens > told:
                yield tokens, event({"content": sequence.text(told, tokens)})
            told = tokens
        yield told, event({}, "abort" if sequence.aborted else "length")
        if usage:
            yield told, json.dumps({"choices": [], "usage": self.usage(sequence)}).encode()

    def stream(self, events: Iterator[tuple[int, bytes]]) -> None:
        """Send events as chunks; or do what an option says instead."""
        options = self.server.options
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            for tokens, event in events:
                if options.chunk_delay_ms:
                    time.sleep(options.chunk_delay_ms / 1000)
                if options.half_close_after and tokens >= options.half_close_after:
                    self.close_connection = True
                    return
                garbage = options.garbage_after and tokens >= options.garbage_after
                self.chunk(b"data: " + (b"{garbage" if garbage else event) + b"\n\n")
                while options.endless_event:
                    self.chunk(b"x" * 65_536)
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def write_traces(server: Fake, body: Mapping[str, Any]) -> None:
    """A profile of some steps of one request, as kernels of one stream; one a rank, the last rank's first."""
    model, steps = server.scheduler.model, int(body.get("num_steps") or 5)
    allreduce = model.allreduce_ms(model.rows) * 1000 / server.options.calls
    rest = model.quiet_ms(1) * 1000 / model.mode - allreduce * server.options.calls
    kernels = (("ncclDevKernel_AllReduce_fake", allreduce, server.options.calls), ("gemm", rest, 1))
    events, at = [], 0.0
    for _ in range(steps):
        for name, duration, count in kernels:
            for _ in range(count):
                events.append({"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": duration})
                at += duration
    folder = Path(str(body.get("output_dir") or "."))
    folder.mkdir(parents=True, exist_ok=True)
    if server.options.litter:
        litter(folder)
    data, profile = gzip.compress(json.dumps({"traceEvents": events}).encode()), time.time()
    for rank in reversed(range(int(server.flags.get("tp-size", 1)))):
        with (folder / f"{profile}-TP-{rank}.trace.json.gz").open("wb") as file:
            for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(part)
                file.flush()
                time.sleep(server.options.trace_seconds / 2)


def litter(folder: Path) -> None:
    """What no profiler leaves: a link, a pipe, a strange name, more folders in one another than rmtree takes."""
    (folder / "0-TP-0.trace.json.gz").symlink_to("/etc/hostname")
    os.mkfifo(folder / "1-TP-0.trace.json.gz")
    (folder / "-rf \n\udcff\x1b[2J").mkdir()
    os.chdir(folder)
    for _ in range(1_500):
        Path("x").mkdir()  # a path of all of them would be too long
        os.chdir("x")


def end(options: Options, log: Log) -> None:
    """The end of a process that failed."""
    if options.exit_code is not None:
        os._exit(options.exit_code)
    log.say("Received sigquit from a child process. It usually means the child failed.")
    os.kill(os.getpid(), signal.SIGKILL)


def start_up(options: Options, flags: Mapping[str, str], log: Log) -> None:
    """What happens before the server listens: ports, weights, graphs; or the end of it."""
    log.say(f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in flags.items())})")
    for number in range(options.flood_at_start):
        log.say(f"fake warning {number}: " + "x" * 200)
    for _ in range(options.children):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if "nccl-port" in flags:
        hold(int(flags["nccl-port"]), log)
    time.sleep(options.start_seconds / 2)
    if options.hang == "start":
        threading.Event().wait()
    log.say("Load weight end. type=FakeForCausalLM, dtype=torch.bfloat16, avail mem=60.00 GB, mem usage=12.30 GB.")
    if "disable-cuda-graph" not in flags:
        capture(options, log)
    if options.dies:
        log.raw(options.dies)
        end(options, log)


def capture(options: Options, log: Log) -> None:
    """Graph capture as the log tells of it; where `dies` is set it ends in the midst of it."""
    if options.at_least("0.5.15"):
        name, begins, ends = "target decode CUDA graph", "backend=full,", "elapsed=0.50 s,"
    else:
        name, begins, ends = "cuda graph", "This can take up to several minutes.", "Time elapsed: 0.50 s."
    log.say(f"Capture {name} begin. {begins} avail mem=40.00 GB")
    if options.hang == "capture":
        threading.Event().wait()
    time.sleep(options.start_seconds / 2)
    if not options.dies:
        log.say(f"Capture {name} end. {ends} mem usage=0.50 GB. avail mem=39.50 GB.")


def hold(port: int, log: Log) -> None:
    """Listen on the port of the process group, for as long as this process lives."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        log.raw(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        )
        os._exit(1)
    listener.listen()
    HELD.append(listener)


HELD: list[socket.socket] = []


def main(arguments: list[str]) -> None:
    """Start, serve, end."""
    flags = read_flags(arguments)
    options = Options.read(flags.pop("fake", "") or os.environ.get("FAKE_SGLANG", ""))
    log = Log(int(flags.get("tp-size", flags.get("tp", flags.get("tensor-parallel-size", 1)))))
    if options.stubborn:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(0.0002)
    start_up(options, flags, log)
    try:
        server = Fake(options, flags, log)
    except OSError as error:
        where = f"('127.0.0.1', {flags['port']})"
        log.raw(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {where}: {error.strerror}")
        sys.exit(1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log.raw(f"INFO:     Uvicorn running on http://127.0.0.1:{server.server_port} (Press CTRL+C to quit)")
    server.scheduler.start()
    server.fired_up = True
    log.say(READY)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
