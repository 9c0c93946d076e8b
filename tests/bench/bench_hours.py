"""A live run of many hours: what a frame costs in its first minute and at its end.

The run of bench_store (8 ranks, 1F1B, 50 ms a step), fed as a viewer gets it: some 130 records per
rank and step, a store that keeps what a live one keeps. The same steps with other times and
numbers, so that making them costs little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.pipeline.play import simulate
from pardbg.store import Store
from pardbg.store.source import Message
from pardbg_agent import wire
from tests.bench.bench_store import MICROBATCHES, RANKS, one_step
from tests.bench.figures import Figure
from tests.bench.long_session import STEP_NS, Rank
from tests.unit.trace_builder import BEGIN, Trace, one_f_one_b

STEPS = 20_000
"""1000 s of such steps; in records as many as ten hours of 1.8 s steps."""
EARLY, FRAMES = 1_200, 40
"""Frames are timed from step EARLY (a minute) on, and at the end."""


def main() -> list[Figure]:
    feed = Feed()
    store = Store(live=True)
    store.apply_all(feed.definitions)
    early = late = 0.0
    applied: list[float] = []
    for number in range(STEPS):
        messages = feed.step(number)
        t0 = time.thread_time()
        store.apply_all(messages)
        applied.append(time.thread_time() - t0)
        if number == EARLY:
            early = _frames(store, feed, number)
    late = _frames(store, feed, STEPS)
    apply_early, apply_late = (median(applied[i : i + EARLY]) for i in (0, STEPS - EARLY))
    hours = f"{STEPS:,} steps, {feed.num_records:,} records"
    return [
        Figure("live frame after a minute", early, "ms", 30, note=f"{RANKS} ranks"),
        Figure("live frame at the end", late, "ms", 30, note=hours),
        Figure("live frame: end to first minute", late / early, "x", 1.2),
        Figure("live step taken in: end to first minute", apply_late / apply_early, "x", 1.2),
    ]


class Feed:
    """The messages of one step after the other."""

    def __init__(self) -> None:
        trace = Trace(RANKS)
        plan = one_f_one_b(RANKS, MICROBATCHES)
        trace.plan("Schedule1F1B", plan, MICROBATCHES)
        simulated = simulate(plan, RANKS, lambda _rank, _action: 1.0)
        assert simulated is not None
        for proc in trace.ranks:
            one_step(proc, 0, simulated.rows[proc.rank or 0])
            proc.flush()
        self.definitions = [m for m in trace.messages if m.key[:1] == wire.Key.DEFINITION.value]
        self._ranks = [Rank(trace, rank) for rank in range(RANKS)]
        self.num_records = 0

    def step(self, number: int) -> list[Message]:
        return list(self._messages(number))

    def _messages(self, number: int) -> Iterator[Message]:
        now = BEGIN + (number + 1) * STEP_NS
        for rank in self._ranks:
            records = rank.records(number)
            self.num_records += len(records)
            first = int(records["mark"][0]) - 1
            head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, len(records), first, 0, now)
            yield Message(rank.key, head + records.tobytes(), now)


def _frames(store: Store, feed: Feed, number: int) -> float:
    """Median ms of CPU of a frame, one after each new step."""
    snapshot(store, None)
    taken = []
    for i in range(FRAMES):
        store.apply_all(feed.step(number + 1 + i))
        t0 = time.thread_time()
        snapshot(store, None)
        taken.append((time.thread_time() - t0) * 1e3)
    return median(taken)
