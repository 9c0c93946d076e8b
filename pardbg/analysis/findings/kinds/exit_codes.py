"""Exit codes in words."""

from __future__ import annotations

import signal


def killed_text(code: int | None) -> str:
    """Return text such as ``was killed by SIGKILL``."""
    if code is None or code >= 0:
        return "was killed, or left by os._exit"
    return f"was killed by {signal_name(code)}"


def signal_name(code: int) -> str:
    """Return the name of the signal of an exit code below 0."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
