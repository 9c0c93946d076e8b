"""A thread that an exception ended explains the wait that follows from it. Times in ms."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg_agent import wire
from tests.unit.analysis.test_ends import FRAMES
from tests.unit.analysis.test_waitgraph import AT, FORWARD, WAITING, at, stall, state_of
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace, ns


def with_a_dead_thread(
    text: str = "KeyError: 'label'", steps: int = 0, **more: Any
) -> dict[str, Finding]:
    """Findings but notes at 4000 of three ranks: at 20 a thread of rank 2 ended; ``steps`` steps of
    10 ms later the others wait for it in an op, and it sleeps."""
    trace = Trace(3)
    trace.ranks[2].define(
        wire.DefKind.EXCEPTION, t_ns=ns(20), type="KeyError", text=text, thread="feeder",
        frames=FRAMES, step=1,
    )  # fmt: skip
    for proc in trace.ranks:
        for step in range(steps):
            proc.step(step, 30 + 10 * step, 40 + 10 * step)
        if proc.rank != 2:
            proc.collective("world", "all_reduce", 1000, None)
    trace.flush()
    for t in (3000, 3900):
        state_of(trace, trace.ranks[2], t, since_ns=ns(1000), **more)
    stall(trace, 3000, r0=WAITING, r1=WAITING, r2=FORWARD)
    return {f.kind: f for f in findings(View(trace.store(), ns(4000)))}


def test_a_dead_thread_is_what_its_rank_waits_for() -> None:
    found = with_a_dead_thread(steps=3)
    one, wait = found["thread-exception"], found["missing-rank"]
    assert (one.severity, one.culprits, one.where) == ("error", (2,), "data.py:7 in batch")
    assert facts(one, "thread", "steps_since", "waiting", "stands") == ("feeder", 3, (0, 1), AT)
    assert wait.severity == "info" and wait.culprits == (2,)


@pytest.mark.parametrize(
    "more",
    [
        {"os": "T"},  # somebody stopped the process
        {"cpu": 1.0},  # it computes
        {"steps": 40},  # it did well without it
        {"text": "RuntimeError: Timed out waiting 1000ms for recv"},  # it follows from another
    ],
)
def test_a_dead_thread_that_nobody_waits_for_explains_no_wait(more: dict[str, Any]) -> None:
    found = with_a_dead_thread(**more)
    assert found["thread-exception"].severity == "warning"
    assert facts(found["thread-exception"], "waiting") == ()
    assert found["rank-stopped" if "os" in more else "missing-rank"].severity != "info"


@pytest.mark.parametrize(
    ("until", "ran", "open_", "severity", "idle"),
    [
        (14_000, 0, 0, "error", 13_000),
        (8_000, 0, 0, "warning", 7_000),  # it may yet go on
        (14_000, 9_000, 0, "warning", 0),  # it works
        (14_000, 0, 1, "warning", 0),  # it waits for others
    ],
)
def test_a_rank_that_does_nothing_without_its_thread(
    until: int, ran: int, open_: int, severity: str, idle: int
) -> None:
    """Both ranks' threads ended at 900; the last they did was at 1000, and no rank is in an op."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.define(
            wire.DefKind.EXCEPTION, t_ns=ns(900), type="OSError", text="OSError: disk",
            thread="feeder", frames=FRAMES, step=1,
        )  # fmt: skip
        proc.step(0, 100, 1000)
    for t in range(1500, until + 1, 500):
        row = {"since_ns": ns(1000), "open": open_, "scheduled": [ran * MS * t // until, 0]}
        for proc in trace.ranks:
            state_of(trace, proc, t, **row)
    found = [f for f in findings(at(trace, until)) if f.kind == "thread-exception"]
    assert [(f.severity, facts(f, "idle_ns")) for f in found] == [(severity, idle * MS)] * 2


def test_a_life_that_ended_as_soon_as_it_had_begun() -> None:
    """Where its rank stood shortly before says nothing of it: that was the life before, of fewer
    ranks. Rank 1 is new, and its thread failed at 1010, rank 1 ended at 1100."""
    trace = Trace(1)
    trace.ranks[0].define(wire.DefKind.PROCESS, rank=0, world_size=1)
    trace.define_end(trace.ranks[0], 900, "exit")
    for rank in range(2):
        proc = trace.process(rank, epoch=1, pid=20 + rank, start=1000)
    proc.define(
        wire.DefKind.EXCEPTION, t_ns=ns(1010), type="OSError", text="OSError: disk",
        thread="feeder", frames=FRAMES, step=0,
    )  # fmt: skip
    trace.define_end(proc, 1100, "exit")
    (found,) = (f for f in findings(at(trace, 1200)) if f.kind == "thread-exception")
    assert (found.culprits, facts(found, "idle_ns")) == ((1,), 0)
