"""Findings about a run as a whole: jobs that share it, clocks that are not known."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.recording_kinds import LifeEnd
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns

MS = 1_000_000


def said(trace: Trace) -> dict[str, Finding]:
    return {f.kind: f for f in snapshot(trace.store(), None).findings}


def test_two_jobs_in_one_run_have_their_names() -> None:
    trace = Trace(1)
    other = trace.process(0, pid=200, start=1)
    for proc, job in ((trace.ranks[0], "a:host:29500"), (other, "b:host:29501")):
        proc.define(wire.DefKind.PROCESS, rank=0, job=job)
        for t in (2, 4, 6):
            proc.collective("world", "all_reduce", t, t + 1)
        proc.flush()
    assert facts(said(trace)["several-jobs"], "jobs") == ("a:host:29500", "b:host:29501")


def two_hosts(*errors_ms: float | None) -> Trace:
    trace = Trace()
    trace.ranks = [
        trace.process(rank, host=f"n{rank}", pid=100 + rank) for rank in range(len(errors_ms))
    ]
    for proc, error in zip(trace.ranks, errors_ms, strict=True):
        if error is not None:
            trace.define(wire.DefKind.CLOCK, proc=proc.proc, offset_ns=0,
                         error_ns=round(error * MS), t_ns=0)  # fmt: skip
        proc.phase("forward", 0, 5)
    return trace


def test_a_clock_that_was_never_aligned_is_said() -> None:
    found = said(two_hosts(0, None))["clock-uncertain"]
    assert (found.severity, found.ranks) == ("warning", (1,))


def test_a_clock_known_to_a_few_ms_is_a_note() -> None:
    found = said(two_hosts(0, 3, 0.2))["clock-uncertain"]
    assert (found.severity, found.ranks) == ("info", (1,))
    assert facts(found, "error_ns") == 3 * MS


def test_a_clock_that_jumped_is_said_from_then_on() -> None:
    """Known to 0.1 ms; between 2 and 4 ms of hub time it went 60 s back."""
    trace = two_hosts(0, 0.1)
    trace.flush()
    proc = trace.ranks[1].proc
    for t, offset_ms in ((2, 0.05), (4, 60_000)):
        trace.define(wire.DefKind.CLOCK, proc=proc, offset_ns=round(offset_ms * MS),
                     error_ns=100_000, t_ns=ns(t))  # fmt: skip
    store = trace.store()
    assert list(snapshot(store, ns(3)).findings) == []
    (found,) = snapshot(store, ns(5)).findings
    assert (found.kind, found.severity, found.ranks) == ("clock-uncertain", "warning", (1,))
    by_ns, within_ns, before = facts(found, "by_ns", "within_ns", "before")
    assert (round(by_ns / 1e9), within_ns, before) == (-60, 2 * MS, 0)


def test_an_uncertain_clock_is_as_of_the_cursor() -> None:
    """±3 ms at first, ±0.2 ms from 4 ms on."""
    trace = two_hosts(0, 3)
    trace.define(wire.DefKind.CLOCK, proc=trace.ranks[1].proc, offset_ns=0, error_ns=200_000,
                 t_ns=ns(4))  # fmt: skip
    store = trace.store()
    assert [f.kind for f in snapshot(store, ns(3)).findings] == ["clock-uncertain"]
    assert list(snapshot(store, ns(5)).findings) == []


def test_clocks_that_are_known_are_no_news() -> None:
    assert said(two_hosts(0, 0.2)) == {}


def restarted(
    *, raises: str = "", code: int | None = None, then: tuple[int, int] = (8, -15)
) -> tuple[LifeEnd, ...]:
    """Return the ends of rounds before, of one that rank 1 ended. ``then``: (ms, code) of the end
    of rank 0."""
    trace = Trace()
    old = [trace.process(rank, epoch=0, pid=10 + rank) for rank in range(2)]
    if raises:
        closed = "RuntimeError: Connection closed by peer"
        for proc, t, text in ((old[0], 4, closed), (old[1], 5, raises)):
            proc.define(
                wire.DefKind.EXCEPTION, t_ns=ns(t), type="E", text=text, thread="MainThread",
                frames=[["/job/train.py", 7, "step"]], step=1,
            )  # fmt: skip
    trace.define(wire.DefKind.END, proc=old[1].proc, t_ns=ns(6), reason="killed", code=code)
    trace.define(
        wire.DefKind.END, proc=old[0].proc, t_ns=ns(then[0]), reason="killed", code=then[1]
    )
    for rank in range(2):
        proc = trace.process(rank, epoch=1, pid=20 + rank, start=9000)
        proc.phase("forward", 9001, 9002)
        proc.flush()
    lives: tuple[LifeEnd, ...] = facts(said(trace)["restarted"], "lives")
    return lives


@pytest.mark.parametrize(("end", "said_of_it"), [(18, False), (30, True)])
def test_the_end_of_a_life_is_not_told_of_the_next_one(end: float, said_of_it: bool) -> None:
    """Rank 0 has come again after 20 ms, rank 1 has not yet; or it was never restarted."""
    trace = Trace()
    old = [trace.process(rank, epoch=0, pid=10 + rank) for rank in range(2)]
    for proc, t, code in ((old[0], 6, -9), (old[1], end, -9)):
        trace.define(wire.DefKind.END, proc=proc.proc, t_ns=ns(t), reason="killed", code=code)
    again = trace.process(0, epoch=1, pid=20, start=20)
    again.phase("forward", 21, 32)
    again.flush()
    assert any(1 in one.ranks for one in said(trace).values() if one.severity == "error") == (
        said_of_it
    )


def test_a_restart_has_what_ended_the_round_before() -> None:
    raised = LifeEnd(1, 1, "ValueError: no labels", "train.py:7 in step", None)
    assert restarted(raises="ValueError: no labels") == (raised,)
    assert restarted(code=-9) == (LifeEnd(1, 1, "", None, -9),)
    assert restarted(code=4) == (LifeEnd(1, 1, "", None, 4),)
    closed = "RuntimeError: Connection closed by peer"  # the first of both: rank 0's
    assert restarted(raises=closed) == (LifeEnd(1, 0, closed, "train.py:7 in step", None),)
    assert (
        restarted() == restarted(code=143) == ()
    )  # told to end, as launchers do: why is not known


def test_a_life_that_several_ranks_ended_names_them() -> None:
    """Rank 1 died at 6 ms, and rank 0 soon after, or much later."""
    assert restarted(code=-7, then=(150, -11)) == (LifeEnd(1, 1, "", None, -7, beside=(0,)),)
    assert restarted(code=-7, then=(3000, -11)) == (LifeEnd(1, 1, "", None, -7),)
    (raised,) = restarted(raises="ValueError: no labels", code=1, then=(150, -11))
    assert (raised.rank, raised.beside) == (1, ())
