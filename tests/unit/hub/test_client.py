"""A viewer's two ends against a hub in this process: refused, answered late, or not at all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb, Why
from pardbg.hub import client
from pardbg.hub.client import HubControl, LiveSource
from pardbg.hub.run.start import RunHandle
from pardbg.hub.serve import router
from tests.unit.hub.hub_rig import Rig


@pytest.fixture(autouse=True)
def _alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has no process but this one."""
    monkeypatch.setattr(RunHandle, "alive", lambda self: True)


def asked(rig: Rig, ask: Callable[[], Reply]) -> Reply:
    """What ``ask`` returns, while the hub is turned."""
    got: list[Reply] = []
    thread = threading.Thread(target=lambda: got.append(ask()))
    thread.start()
    rig.until(lambda: got, "an answer")
    thread.join()
    return got[0]


def test_a_refused_viewer_says_so_and_comes_in_when_another_leaves(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One viewer is allowed here, 64 are in the product. The second one is told so, does not take
    it for a welcome, and does not ask at each STATE of the hub."""
    monkeypatch.setattr(router, "MAX_VIEWERS", 1)
    monkeypatch.setattr(client, "JOIN_AGAIN_NS", 50_000_000)
    first, second = LiveSource(rig.config.dir), LiveSource(rig.config.dir)
    rig.until(lambda: first.poll(1) is not None and first.joined, "the first one is in")
    rig.until(lambda: second.poll(1) is not None and second.notice, "a refusal")
    assert second.notice == "1 viewers are connected already: close one"
    assert not second.joined
    rig.until(lambda: second.poll(1) is not None and second._request >= 2, "it asks again")
    begun, before = time.monotonic(), second._request
    for _ in range(40):
        rig.hub._turn()
        second.poll(1)
    most = (time.monotonic() - begun) / 0.05 + 1
    assert second._request - before <= most, "once in JOIN_AGAIN_NS, not at each message"
    first.close()
    rig.until(lambda: second.poll(1) is not None and second.joined, "the place is free")
    assert second.notice == ""
    second.close()


def test_a_dead_thread_answers_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    control = HubControl(rig.config.dir)
    assert asked(rig, lambda: control.command(Verb.STATUS)).ok

    def broken(_self: object, _socket: object) -> None:
        raise zmq.ZMQError(zmq.ENOTSOCK)

    monkeypatch.setattr(HubControl, "_receive_all", broken)
    control._thread.join(5)
    assert not control._thread.is_alive()
    begun = time.monotonic()
    reply = control.command(Verb.STATUS, timeout_s=30.0)
    assert reply.refusal is not None and reply.refusal.why is Why.FAILED
    assert reply.refusal.text.startswith("ZMQError")
    assert time.monotonic() - begun < 5
    control.close()


def test_who_waits_when_the_thread_dies_waits_no_longer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = HubControl(rig.config.dir)
    got: list[Reply] = []
    thread = threading.Thread(target=lambda: got.append(control.command(Verb.STATUS)))
    thread.start()  # the hub is not turned, so no answer comes

    def broken(_self: object, _socket: object) -> None:
        raise zmq.ZMQError(zmq.ENOTSOCK)

    monkeypatch.setattr(HubControl, "_receive_all", broken)
    thread.join(5)
    assert got and not got[0].ok
    control.close()


def test_what_nobody_waits_for_any_more_is_forgotten(rig: Rig) -> None:
    control = HubControl(rig.config.dir)
    reply = control.command(Verb.STATUS, timeout_s=-0.9)  # 0.1 s in all: the hub stands still
    assert reply.refusal is not None and reply.refusal.why is Why.NO_ANSWER
    assert control._waiting == {}
    assert asked(rig, lambda: control.command(Verb.STATUS)).ok, "a late answer harms nobody"
    control.close()


def test_the_wake_pipe_is_not_written_once_its_descriptor_may_be_reused(rig: Rig) -> None:
    control = HubControl(rig.config.dir)
    number = control._pipe.write_fd
    control.close()
    read, write = os.pipe2(os.O_NONBLOCK)
    os.dup2(write, number)  # as the next file of this process would get it
    control.leave()
    assert not control.command(Verb.STATUS).ok
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    for fd in {read, write, number}:
        os.close(fd)


def test_requests_reach_the_hub_in_rising_order(rig: Rig) -> None:
    """The hub drops a number that is not above the last: eight threads at once lose nothing."""
    control = HubControl(rig.config.dir)
    got: list[Any] = []
    threads = [
        threading.Thread(target=lambda: got.append(control.command(Verb.STATUS))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    rig.until(lambda: len(got) == 8, "eight answers")
    assert all(reply.ok for reply in got)
    control.close()
