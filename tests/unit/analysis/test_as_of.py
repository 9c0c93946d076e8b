"""The state at a moment: everything recorded about times up to it, whenever it arrived.

A live viewer that looks back at t sees what a replay shows at t, once what is about t has come.
Definitions name things and have no time: they hold from the begin.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.session.reader import load
from pardbg.store.source import Message
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import MS, Trace, ns, one_f_one_b

STEP = 100
LATE = 30
"""ms that a batch is on its way."""


def run() -> list[Message]:
    """Six steps of two ranks; batches come every 20 ms, LATE ms after their last record; rank 1
    is slow in step 3, a pause in step 4, states and output in between."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 2), 2)
    rows = (
        (("0F0", 0, 10), ("0F1", 10, 20), ("0B0", 40, 60), ("0B1", 70, 90)),
        (("1F0", 10, 20), ("1B0", 20, 40), ("1F1", 40, 50), ("1B1", 50, 70)),
    )
    for proc in trace.ranks:  # every definition before the first batch
        for name in ("F", "B", "forward", "rss"):
            proc.name(name)
        proc.op("all_reduce", reduce="sum")
        proc.group("world")
    arrived: list[tuple[float, Message]] = [(0.0, m) for m in trace.messages]
    known = len(trace.messages)

    def came(t: float) -> None:
        nonlocal known
        arrived.extend((t, m) for m in trace.messages[known:])
        known = len(trace.messages)

    for step in range(6):
        begin = step * STEP
        for proc, row in zip(trace.ranks, rows, strict=True):
            rank = proc.rank or 0
            for text, t0, t1 in row:
                proc.action(text, begin + t0, begin + t1, step)
                if t1 in (20, 60, 70):
                    proc.flush()
                    came(begin + t1 + LATE + rank)
            late = 8 if step == 3 and rank == 1 else 0
            proc.collective("world", "all_reduce", begin + 80 + late, begin + 89, step=step)
            proc.memory("rss", begin + 91, 1000 + step)
            proc.step(step, begin, begin + 95 - rank)
            proc.flush()
            came(begin + 95 - rank + LATE)
        trace.output(begin + 50, f"step {step}")
        trace.state(begin + 55, **{p.proc: {"rank": p.rank, "step": step, "phase": "forward"}
                                   for p in trace.ranks})  # fmt: skip
        if step == 4:
            trace.hub(wire.Key.CONTROL, begin + 30, event="pause", mode="held", held={0: "0F1"})
            trace.hub(wire.Key.CONTROL, begin + 60, event="running", mode="running", held={})
        came(begin + 60)
    trace.end(6 * STEP)
    came(6 * STEP + LATE)
    arrived.sort(key=lambda item: item[0])
    return [replace(m, received_ns=ns(t)) for t, m in arrived]


def seen(made: Snapshot) -> Snapshot:
    """Less what is about the viewer and the run's end, not about the moment."""
    return replace(made, revision=0, live=False, t_end_ns=0, run=replace(made.run, truncated=False))


def test_a_look_back_in_a_live_run_is_what_the_replay_shows() -> None:
    messages = run()
    whole, live = Store(), Store(live=True)
    whole.apply_all(messages)
    compared = 0
    for message in messages:
        live.apply(message)
        t = message.received_ns - (LATE + 5) * MS - 70 * MS  # its batches hold up to 70 ms
        if t > ns(0):
            assert seen(snapshot(live, t)) == seen(snapshot(whole, t)), (t - ns(0)) / MS
            compared += 1
    assert compared > 30


def test_what_arrives_late_counts_for_the_time_it_is_about() -> None:
    """At ms 60 of step 0 the live viewer has nothing of rank 1's 40-60; a moment later it has,
    and a look back at 60 shows it, as the replay does."""
    messages = run()
    whole, live = Store(), Store(live=True)
    whole.apply_all(messages)
    at = ns(60)
    live.apply_all(m for m in messages if m.received_ns <= at)
    edge = snapshot(live, at)
    live.apply_all(m for m in messages if m.received_ns > at)
    later, replay = snapshot(live, at), snapshot(whole, at)
    assert seen(later) == seen(replay) != seen(edge)
    assert later.pipeline is not None and later.pipeline.step is not None
    texts = [span.text for span in later.pipeline.step.ranks[1].actions]
    assert texts == ["1F0", "1B0", "1F1", "1B1"], "1B1 runs from 50 to 70: begun at 60"


def test_backwards_and_then_forwards_gives_the_same_states() -> None:
    whole = Store()
    whole.apply_all(run())
    times = [ns(ms) for ms in range(3, 640, 13)]
    first = {t: snapshot(whole, t) for t in times}
    assert {t: snapshot(whole, t) for t in reversed(times)} == first
    random.Random(3).shuffle(times)
    assert {t: snapshot(whole, t) for t in times} == first
    fresh = Store()
    fresh.apply_all(run())
    assert seen(snapshot(fresh, times[0])) == seen(first[times[0]]), "no cache speaks for another"


def test_a_step_without_a_plan_is_complete_only_once_every_rank_has_ended_it() -> None:
    """One action 0-10, the step ends at 15: at 12 nothing new has been computed, but at 20 the
    step is known as complete. Asked for in either order the answers are the same."""
    trace = Trace(1)
    for step in range(5):
        begin = step * 20
        trace.ranks[0].action("0F0", begin, begin + 10, step)
        trace.ranks[0].step(step, begin, begin + 15)
    store = trace.store()

    def complete(ms: float) -> tuple[bool, int]:
        view = snapshot(store, ns(ms)).pipeline
        assert view is not None and view.step is not None
        return view.step.complete, len(view.bubble_history)

    expected = {ms: (ms % 20 >= 15, ms // 20 + (ms % 20 >= 15)) for ms in (12, 17, 32, 37, 52, 58)}
    assert {ms: complete(ms) for ms in sorted(expected)} == expected
    assert {ms: complete(ms) for ms in sorted(expected, reverse=True)} == expected


@pytest.mark.parametrize(
    "name", ["1f1b", "mp", "ps-async", "tp-sp", "zero3", "fault-small-messages"]
)
def test_recorded_sessions_show_the_same_backwards(name: str) -> None:
    """Forwards, then backwards over the same moments: no cache speaks for an earlier cursor."""
    path = Path(__file__).parents[3] / "sessions" / f"{name}.mcap"
    if not path.exists():
        pytest.skip(f"{path.name} is not recorded here: make sessions")
    store = load(path)
    begin, end = store.begin_ns, store.end_ns
    times = [begin + (end - begin) * i // 13 for i in range(1, 13)]
    forwards = {t: snapshot(store, t) for t in times}
    for t in reversed(times):
        assert snapshot(store, t) == forwards[t], (t - begin) / 1e9
