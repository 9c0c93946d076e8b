"""Python's full collections, kept out of the frames that somebody waits for.

One walks every object of the viewer, for 50 to 200 ms, and by itself comes in the middle of a
frame: it was the slowest twentieth of all seeks. Here it comes between frames instead.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PERIOD_S: Final = 60.0
LATEST_S: Final = 600.0
"""Longest time without a collection, even while the user keeps moving."""
_NEVER: Final = 1 << 30


class GcPauses:
    """When to collect. The young generations stay Python's own business: they take no time."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts nobody else makes full collections."""
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        try:
            yield
        finally:
            gc.set_threshold(young, middle, old)

    def tick(self, idle: bool) -> None:
        """Between two frames; ``idle``: nobody waits for the next one."""
        passed = time.monotonic() - self._last_s
        if passed > (PERIOD_S if idle else LATEST_S):
            gc.collect()
            self._last_s = time.monotonic()
