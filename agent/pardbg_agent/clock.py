"""The rank's clock: CLOCK_MONOTONIC nanoseconds, and what says whose clock that is."""

from __future__ import annotations

import time
from typing import Final

from pardbg_agent.proc import read_text

now_ns: Final = time.monotonic_ns
"""Monotonic ns of this host (``perf_counter_ns`` is the same clock on Linux)."""
wall_ns: Final = time.time_ns
"""Nanoseconds since the epoch; for people, never for arithmetic between events."""


def boot_id() -> str:
    """Equal for two processes whose monotonic clocks are the same clock; empty if unknown."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    shift = _namespace_offset()
    return f"{boot}+{shift}" if boot and shift else boot


def _namespace_offset() -> str:
    """``seconds.nanoseconds`` by which this process's time namespace (a restored container's, say)
    shifts the boot's clock; empty if by nothing."""
    for line in read_text("/proc/self/timens_offsets").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in ("monotonic", "1") and words[1:] != ["0", "0"]:
            return f"{words[1]}.{words[2]}"
    return ""
