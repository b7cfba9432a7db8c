"""What all tests rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start: a background job of a shell ignores it, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
