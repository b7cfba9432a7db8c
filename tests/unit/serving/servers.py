"""Starts fake SGLang servers for tests, and reads the truth that they write."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("fake_sglang.py")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A fake that is ready."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def truth(self, kind: str = "step") -> list[dict[str, Any]]:
        """What really happened: one entry a step (or prefill)."""
        lines = (self.folder / "truth.jsonl").read_text().splitlines()
        return [entry for line in lines if (entry := json.loads(line))["kind"] == kind]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_fake(folder: Path, *flags: str, port: int, **options: object) -> subprocess.Popen[bytes]:
    """Start one with these SGLang flags and fake options; its log and truth go into the folder."""
    options = {"truth": str(folder / "truth.jsonl"), **options}
    command = [sys.executable, str(SCRIPT), "--model-path", "M", "--port", str(port), "--enable-metrics"]
    with (folder / "log").open("w") as log:
        return subprocess.Popen([*command, *flags, "--fake", json.dumps(options)], stderr=log)


@contextmanager
def fake_server(folder: Path, *flags: str, **options: object) -> Iterator[Running]:
    """One that is ready, until the block ends."""
    port = free_port()
    process = start_fake(folder, *flags, port=port, **options)
    running = Running(url=f"http://127.0.0.1:{port}", process=process, folder=folder)
    try:
        wait_ready(running)
        yield running
    finally:
        process.kill()
        process.wait()


def wait_ready(running: Running, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while running.process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{running.url}/health", timeout=5) as reply:
            if reply.status == 200:
                return
        time.sleep(0.01)
    raise AssertionError(f"the fake is not ready: {running.log}")
