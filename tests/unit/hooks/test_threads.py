"""Ops of other threads carry a flag."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

from pardbg_agent.hooks.context import local
from pardbg_agent.wire import Flag


def test_a_thread_that_is_not_the_main_one_is_marked() -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(local().thread))
    thread.start()
    thread.join(10)
    assert (seen, local().thread) == ([Flag.OTHER_THREAD], 0)
