"""The agent's thread: what it keeps and what it says of itself. (With a hub: tests/distributed.)"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgpack
import pytest

from pardbg_agent import core as core_module
from pardbg_agent import wire
from pardbg_agent.core import Core
from pardbg_agent.ctrl.agent_messages import Lease, SetLevel, Welcome
from pardbg_agent.ctrl.codec import encode
from pardbg_agent.sender.agent_thread import BATCH, FLOW_MS, IDLE_MS, MANY, SPACED_NS, Sender
from pardbg_agent.sender.requests import Requests


@pytest.fixture
def core(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """A core whose hub is not there."""
    monkeypatch.setattr(core_module, "CURRENT", None)
    monkeypatch.setattr(core_module, "_parked", None)
    ends = {name: f"ipc://{run_dir}/{name}" for name in ("data", "ctrl")}
    (run_dir / "run.json").write_text(
        json.dumps({"v": 1, "run": "r", "ring_dir": str(run_dir / "rings"), **ends})
    )
    monkeypatch.setenv("PARDBG", str(run_dir))
    yield core_module.ensure()
    core_module.shutdown(0.1)


def test_attach_and_detach_again_and_again_leave_no_descriptor(core: Core) -> None:
    core_module.shutdown(0.2)
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        assert core_module.ensure() is core and core.sender is not None
        core_module.shutdown(0.2)
        assert not core.sender.alive
        core.sender.wake()  # a thread that comes late writes into nobody's file
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_the_last_word_of_a_hub_that_is_gone_is_no_welcome(core: Core) -> None:
    """It lay in the socket when the connection was lost: nothing goes out before the next hub has
    said what it wants."""
    sender = Sender(core)
    link = SimpleNamespace(hub="old", lost_ns=5, connected=False, greet=False)
    sender._link = link  # type: ignore[assignment]
    sender._welcome(Welcome("old", 7))
    assert link.lost_ns == 5
    link.connected = True
    sender._welcome(Welcome("new"))
    assert (link.lost_ns, link.hub, link.greet) == (0, "new", True)
    assert sender._flags == wire.FRAME_OLDEST


def test_it_looks_more_often_where_it_had_ops_to_look_at(core: Core) -> None:
    sender, some, turns = core.sender, True, 0

    def look() -> bool:
        nonlocal turns
        turns += 1
        return some

    core.pollers.append(look)
    for wanted in (FLOW_MS, IDLE_MS):
        before = turns
        while turns < before + 3:  # the second one has ended
            sender.wake()
        assert sender._idle_ms == wanted
        some = False


def test_one_that_looks_in_vain_stops_no_other(core: Core) -> None:
    seen: list[str] = []

    def wrong() -> None:
        seen.append("wrong")
        raise ZeroDivisionError("a bug")

    core.pollers.extend([wrong, lambda: seen.append("right")])
    while seen.count("right") < 3:
        core.sender.wake()
    assert seen.count("wrong") == 1


def test_what_a_handler_raises_is_reported_once_and_the_next_message_is_taken(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    sender: Sender = core.sender
    monkeypatch.setitem(Requests.HANDLERS, SetLevel, wrong)
    level = msgpack.packb(encode(SetLevel(1, 0)))
    sender._take(level)
    sender._take(level)
    sender._take(b"\xc1")
    sender._take(msgpack.packb(encode(Lease(10))))
    told = [d for d in map(msgpack.unpackb, core.defs.payloads) if d["k"] == "error"]
    assert [d["where"] for d in told] == ["control SetLevel", "control message"]
    assert "ZeroDivisionError: a bug" in told[0]["text"] and core.guard.errors == 3


def test_one_of_very_many_sends_its_records_seldom_unless_they_are_many(core: Core) -> None:
    sender, us = Sender(core), core.identity
    us.world_size = MANY
    assert sender._is_due() and sender._is_due()
    us.world_size = MANY + 1
    sender._shipped_ns -= SPACED_NS
    assert sender._is_due() and not sender._is_due()
    sender._made = sender._reader.next + BATCH
    assert sender._is_due()
