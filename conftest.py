"""What every test run of this tree needs, wherever it was started from."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs under test can be interrupted: a shell that runs this in the background has SIGINT ignored,
    and what is ignored is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
