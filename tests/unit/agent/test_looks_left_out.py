"""Looks at the main thread that a call left no time for, as it held the interpreter's lock."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from pardbg_agent.clock import now_ns
from pardbg_agent.sender.blocked import Blocked
from tests.unit.agent.test_blocked import Seen, a_program_with_torch
from tests.unit.agent.test_blocked import pytestmark as linux

__all__ = ["a_program_with_torch"]
pytestmark = [linux, pytest.mark.timeout(60)]


@pytest.mark.parametrize(("due_s", "looks"), [(0, 1), (1, 6), (60, 40)])
def test_a_call_that_held_the_interpreters_lock_counts_for_as_long(due_s: int, looks: int) -> None:
    """Garbage collection, say: no look happens within, and the next one sees the thread there. Due
    one second ago, at heartbeats of a fifth, it stands for itself and five more; for 40 at most."""
    core, over = Seen(), threading.Event()
    core.context = SimpleNamespace(loop=SimpleNamespace(phase=0))
    looks_at = Blocked(core)  # type: ignore[arg-type]

    def look() -> None:
        for made in (7, 8):
            time.sleep(0.02)
            looks_at._due_ns = now_ns() - due_s * 1_000_000_000 if made == 7 else 0
            looks_at.look(made)
        over.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not over.is_set():
        sum(range(2000))
    thread.join()
    looks_at.close()
    assert sum(core.more) in (looks, looks + 1)  # the second look may tell its own, too
