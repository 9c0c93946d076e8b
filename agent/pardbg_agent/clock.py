"""The rank's clock: CLOCK_MONOTONIC nanoseconds, and what says whose clock that is."""

from __future__ import annotations

import time
from typing import Final

now_ns: Final = time.monotonic_ns
"""Monotonic ns of this host (``perf_counter_ns`` is the same clock on Linux)."""
wall_ns: Final = time.time_ns
"""Nanoseconds since the epoch; for people, never for arithmetic between events."""


def boot_id() -> str:
    """Equal for two processes whose monotonic clocks are the same clock; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
