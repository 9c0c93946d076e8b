"""Ops of other threads carry a flag."""

from __future__ import annotations

import _thread
import threading

import pytest

pytest.importorskip("torch")

from pardbg_agent.hooks.context import CallSites, local
from pardbg_agent.wire import Flag


def test_a_thread_that_is_not_the_main_one_is_marked() -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(local().thread))
    thread.start()
    thread.join(10)
    assert (seen, local().thread) == ([Flag.OTHER_THREAD], 0)


def test_an_op_of_a_thread_without_python_frames_has_no_place() -> None:
    """DDP on a device issues from autograd's thread, where the hook is the only frame."""
    sites, done = CallSites(), threading.Event()

    def kernel() -> None:
        sites.note(1)
        done.set()

    _thread.start_new_thread(kernel, ())
    assert done.wait(10)
    assert sites.find(1) is None
