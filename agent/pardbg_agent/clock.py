"""Clock of the rank: CLOCK_MONOTONIC nanoseconds."""

from __future__ import annotations

import time
from typing import Final

now_ns: Final = time.monotonic_ns
"""Monotonic ns of this host (``perf_counter_ns`` is the same clock on Linux)."""
wall_ns: Final = time.time_ns
"""Nanoseconds since the epoch; for people, never for arithmetic between events."""
