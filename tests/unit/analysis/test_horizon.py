"""A live frame shows nothing that a later frame contradicts.

Batches of each rank are late by drawn delays. Whatever a following viewer shows at that moment is
what a replay of the whole recording shows there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.leads import standing
from pardbg.events.decode import split_key
from pardbg.session.reader import load, open_session
from pardbg.store.source import Message
from pardbg.store.store import MAX_BEHIND_NS, Store
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.conftest import NIGHTLY
from tests.unit.trace_builder import MS, Trace, ns, one_f_one_b

SESSIONS = Path(__file__).parents[3] / "sessions"
MAX_LATE_MS = 400


def all_of(path: Path) -> list[Message]:
    source, messages = open_session(path), []
    while not source.finished:
        messages += source.poll(0)
    source.close()
    return messages


def late(messages: list[Message], rng: random.Random) -> list[Message]:
    """The same in the order in which they come: a delay for each rank, and some for each batch."""
    base: dict[str, int] = {}
    newest: dict[str, int] = {}
    came = []
    for message in messages:
        kind, proc = split_key(message.key)
        at = message.received_ns
        if kind == wire.Key.DEFINITION.value and b"\xa3end" not in message.payload:
            at = 0  # names have no time
        if kind == wire.Key.RECORDS.value:
            by = base.setdefault(proc, rng.randrange(MAX_LATE_MS // 2))
            at += (by + rng.randrange(MAX_LATE_MS // 2)) * MS
            newest[proc] = at = max(newest.get(proc, 0), at)
        came.append((at, replace(message, received_ns=at)))
    return [message for _, message in sorted(came, key=lambda item: item[0])]


def shown(made: Snapshot) -> tuple[object, ...]:
    """What the pages draw of the moment."""
    view = made.pipeline
    known = view is not None and view.step is not None
    pipeline = (view.step, view.last_complete, view.bubble_history) if view and known else None
    return pipeline, made.p2p, made.collectives, made.traffic


def frames(messages: list[Message], whole: Store, every: int) -> Iterator[int]:
    """Compare frames of a following viewer with the replay's; yield their times."""
    live = Store(live=True)
    for number, message in enumerate(messages):
        live.apply(message)
        if number % every or live.horizon_ns <= whole.begin_ns:
            continue
        made = snapshot(live, None)
        if not made.live:
            break
        there = snapshot(whole, made.t_ns)
        for mine, right in zip(shown(made), shown(there), strict=True):
            assert mine in (None, right), (made.t_ns - whole.begin_ns) / MS
        yield made.t_ns


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=NIGHTLY) for n in range(1, 4))])
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb", "3d", "tp-sp", "zero3"])
def test_late_batches_contradict_no_frame(name: str, seed: int) -> None:
    path = SESSIONS / f"{name}.mcap"
    if not path.exists():
        pytest.skip(f"{path.name} is not recorded here: make sessions")
    whole = load(path)
    messages = late(all_of(path), random.Random(seed))
    times = list(frames(messages, whole, max(1, len(messages) // 40)))
    assert len(set(times)) > 5, "the frames move on"
    assert times == sorted(times), "and never back"


def test_a_rank_that_waits_holds_nobody_up() -> None:
    """Rank 1's ring has nothing new when the hub looks at ms 90: up to there all is known."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 2), 2)
    for proc, (text, t0, t1) in zip(trace.ranks, (("0F0", 0, 80), ("1F0", 5, 10)), strict=True):
        proc.action(text, t0, t1, 0)
    row = {"head": 1, "seen_ns": ns(90)}
    trace.state(90, **{proc.proc: {"rank": proc.rank, **row} for proc in trace.ranks})
    live = trace.store(live=True)
    assert live.horizon_ns == ns(90)
    trace.state(95, **{p.proc: {"rank": p.rank, "head": 2, "seen_ns": ns(95)} for p in trace.ranks})
    live.apply(trace.messages[-1])
    assert live.horizon_ns == ns(90), "a record of each is under way; the time stays"


def test_a_rank_far_behind_stops_nobody() -> None:
    trace = Trace(2)
    trace.ranks[1].action("1F0", 0, 10, 0)
    trace.ranks[0].action("0F0", 0, 9_000, 0)
    live = trace.store(live=True)
    assert live.horizon_ns == ns(9_000) - MAX_BEHIND_NS


def test_a_device_that_stands_is_followed_to_its_ranks_last_heartbeat() -> None:
    """Launched at ms 2, reached at ms 40; a second launch, which its device never comes to."""
    trace = Trace(1)
    (proc,) = trace.ranks
    forward, lane = proc.name("F"), Lane.COMPUTE
    proc.record(Kind.ACTION, 2, 3, forward, lane=lane, flags=Flag.DEVICE, stage=0, mb=0)
    proc.record(Kind.DEVICE, 40, 60, forward, lane=lane, stage=0, mb=0, a=38 * MS)
    proc.record(Kind.ACTION, 4, 5, forward, lane=lane, flags=Flag.DEVICE, stage=0, mb=1)
    row = {"rank": 0, "head": 3, "seen_ns": ns(2_000), "heartbeat_ns": ns(1_900)}
    trace.state(2_000, **{proc.proc: row})
    live = trace.store(live=True)
    assert live.horizon_ns == ns(1_500)
    stands = standing(View(live, None), 0)
    assert stands is not None
    assert (stands.since_ns, stands.name) == (ns(60), "F")
    row |= {"head": 4, "seen_ns": ns(3_000), "heartbeat_ns": ns(2_900)}
    trace.state(3_000, **{proc.proc: row})
    live.apply(trace.messages[-1])
    assert live.horizon_ns == ns(1_500), "a record of it is under way"
