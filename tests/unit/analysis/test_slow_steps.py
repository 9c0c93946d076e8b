"""Steps that are slow now and then, on traces typed in by hand: steps of 100 ms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.speed.slow_steps import outliers, period
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.analysis.test_findings_speed import found, one, sync
from tests.unit.analysis.test_times import on_device
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace

Who = Callable[[int], int | None]
"""step -> the rank that is slow there."""


def train(
    who: Who, phase: str = "forward", steps: int = 48, nproc: int = 3, more: float = 200
) -> Trace:
    """Each step: forward 40 ms, an all_reduce that ends 2 ms after the last has come, the rest to
    100 ms. ``who`` takes ``more`` ms longer in ``phase`` (-1: all of them do)."""
    trace = Trace(nproc, groups={"world": range(nproc), "calls": [2]})
    begin = 0.0
    for step in range(steps):
        slow = who(step)
        extra = {r: more if slow in (r, -1) else 0 for r in range(nproc)}
        last = begin + 42 + max(extra.values())
        for proc in trace.ranks:
            own = extra[proc.rank or 0]
            if phase == "torch.save" and own:
                common = {"lane": Lane.COMM, "group_id": proc.group("calls"), "step": step}
                proc.record(Kind.CALL, begin, begin + own, proc.op(phase), **common)
            elif phase != "forward":
                proc.phase(phase, begin, begin + own, step)
            at = begin + own
            proc.phase("forward", begin if phase == "forward" else at, at + 40, step)
            sync(proc, at + 41, last, step)
            proc.step(step, begin, last + 58)
        begin = last + 58
    return trace


def slow(trace: Trace) -> Finding:
    return one(trace, "slow-steps")


def test_every_fifth_step_of_one_rank() -> None:
    """100 ms and every 5th 300 ms: 40 ms a step, more than a tenth of it."""
    finding = slow(train(lambda step: 1 if step % 5 == 4 else None))
    assert (finding.culprits, finding.ranks, finding.severity) == ((1,), (0, 2), "warning")
    assert facts(finding, "every", "slow_ns", "usual_ns") == (5, 300 * MS, 100 * MS)
    known = facts(finding, "last", "by_ns", "what", "same_ranks")
    assert known == ((29, 34, 39, 44), 200 * MS, "in forward", True)
    assert finding.cost_ns_per_step == 40 * MS  # 8 of the 40 steps after the warm-up


@pytest.mark.parametrize(
    ("phase", "what"),
    [
        ("data", "loading data"), ("torch.save", "in torch.save"),
        ("host", "outside of forward and backward"),
    ],
)  # fmt: skip
def test_where_the_time_goes(phase: str, what: str) -> None:
    finding = slow(train(lambda step: 2 if step % 8 == 0 else None, phase))
    assert finding.culprits == (2,)
    assert facts(finding, "by_ns", "what") == (200 * MS, what)


def test_a_call_of_all_ranks_that_is_seen_more_often_by_chance_is_none() -> None:
    """Rank 1 takes 200 ms longer in each fifth step, 40 ms a step: four looks more in 4 s, 100 ms
    each, are 10 ms a step."""
    trace = train(lambda step: 1 if step % 5 == 4 else None)
    for proc in trace.ranks:
        name = proc.name("blocked\nsleep\n\ntrain.py:3 in log")
        for t in range(500, 4000, 200):
            proc.record(Kind.PROBE, t, t, name, a=2)
        for t in range(600, 1400, 200) if proc.rank == 1 else ():
            proc.record(Kind.PROBE, t, t, name, a=1)
    finding = slow(trace)
    assert (finding.culprits, finding.where, facts(finding, "call")) == ((1,), None, None)


@pytest.mark.parametrize("of_device", [False, True])
def test_the_call_that_the_slow_rank_is_seen_in(of_device: bool) -> None:
    """Rank 1 sleeps in each slow step; all ranks are seen on a socket, which is no difference. On a
    device that is what it computes longer: its host sleeps until the queue has room."""
    trace = train(lambda step: 1 if step % 5 == 4 else None)
    for proc in on_device(trace).ranks if of_device else ():
        proc.record(Kind.STEP, 1, 2, lane=Lane.STEP, step=48, flags=Flag.DEVICE)
        proc.record(Kind.DEVICE, 2, 3, lane=Lane.STEP, a=MS)
    for proc in trace.ranks:
        for t in range(500, 4000, 500):
            proc.record(Kind.PROBE, t, t, proc.name("blocked\nsocket\n\ndata.py:9 in read"), a=3)
            if proc.rank == 1:
                name = proc.name("blocked\nsleep\n\ntrain.py:3 in log")
                proc.record(Kind.PROBE, t + 100, t + 100, name, a=2)
    finding = slow(trace)
    assert (finding.culprits, facts(finding, "what")) == ((1,), "in forward")
    call = facts(finding, "call")
    seen = None if call is None else call.call, finding.where
    assert seen == ((None, None) if of_device else ("sleep", "train.py:3 in log"))


def test_the_line_where_the_slow_rank_computes_outside_of_phases() -> None:
    """Rank 1 computes for 200 ms more in each fifth step: one look of 200 ms in each."""
    trace = train(lambda step: 1 if step % 5 == 4 else None, "host")
    proc = trace.ranks[1]
    for t in range(500, 6000, 600):
        proc.record(Kind.PROBE, t, t, proc.name("busy\nbusy\n\ntrain.py:3 in log"), a=1)
    finding = slow(trace)
    call = facts(finding, "call")
    assert (finding.culprits, call and call.call) == ((1,), "busy")
    assert finding.where == "train.py:3 in log"


def test_a_call_that_takes_more_than_all_the_usual_steps() -> None:
    """Rank 1 sleeps 900 ms in each 4th step, 225 of 325 ms a step: two thirds of the looks see it,
    which of a usual step, 100 ms, is little."""
    trace = train(lambda step: 1 if step % 4 == 3 else None, more=900)
    proc = trace.ranks[1]
    for step in range(3, 48, 4):
        t = step // 4 * 1300 + 300
        proc.record(Kind.PROBE, t, t, proc.name("blocked\nsleep\n\ntrain.py:3 in log"), a=4)
    finding = slow(trace)
    call = facts(finding, "call")
    assert (finding.culprits, call and call.call) == ((1,), "sleep")
    assert finding.where == "train.py:3 in log"


def test_a_different_rank_each_time() -> None:
    finding = slow(train(lambda step: step // 4 % 3 if step % 4 == 3 else None))
    assert finding.culprits == (0, 1, 2) and not facts(finding, "same_ranks")


@pytest.mark.parametrize("stray", [None, -1, 2])
@pytest.mark.parametrize("at", [34, 41])
def test_a_step_that_is_slow_for_another_reason_leaves_the_culprit(
    at: int, stray: int | None
) -> None:
    """Each fifth one is rank 1's; one of them, or one beside, all ranks' or rank 2's."""
    finding = slow(train(lambda s: stray if s == at and stray else 1 if s % 5 == 4 else None))
    assert (finding.culprits, finding.severity) == ((1,), "warning")
    assert facts(finding, "every", "last", "same_ranks") == (5, (29, 34, 39, 44), True)


@pytest.mark.parametrize("burst", [range(20, 32), range(9, 13), range(40, 48)])
def test_a_burst_of_slow_steps_hides_no_period(burst: range) -> None:
    """Other load on the host makes all of a burst's steps slow, whoever is last in them."""
    finding = slow(train(lambda step: -1 if step in burst else 1 if step % 5 == 4 else None))
    assert (finding.culprits, finding.severity) == ((1,), "warning")
    assert facts(finding, "every", "slow_ns", "usual_ns") == (5, 300 * MS, 100 * MS)


def test_bursts_alone_are_no_period() -> None:
    """Four steps of every ten."""
    assert ("slow-steps", ()) not in found(train(lambda step: -1 if step % 10 < 4 else None))


def test_what_all_ranks_do_is_a_note() -> None:
    """An evaluation."""
    finding = slow(train(lambda step: -1 if step % 10 == 0 else None))
    assert (finding.severity, finding.culprits) == ("info", ())
    assert facts(finding, "every", "by_ns", "of_ranks") == (10, 200 * MS, False)


def test_large_ops_now_and_then() -> None:
    """Steps 13, 17, 30 and 41: no period, but an op of 64 MB where others move 1 kB."""
    trace = Trace(2)
    begin = 0.0
    for step in range(48):
        large = step in (13, 17, 30, 41)
        for proc in trace.ranks:
            sync(proc, begin + 10, begin + 20, step)
            if large:
                sync(proc, begin + 20, begin + 420, step, 64_000_000, "all_gather")
            proc.step(step, begin, begin + (500 if large else 100))
        begin += 500 if large else 100
    finding = slow(trace)
    assert finding.severity == "warning" and finding.culprits == ()
    assert facts(finding, "every", "num_slow", "num_steps", "large") == (None, 4, 40, True)
    known = facts(finding, "slow_ns", "usual_ns", "by_ns")
    assert known == (500 * MS, 100 * MS, 400 * MS)


@pytest.mark.parametrize(("who", "more"), [(1, 1500), (1, 800), (-1, 1500)])
def test_three_long_pauses_of_a_rank_are_a_note(who: int, more: float) -> None:
    """Steps 15, 30 and 45 of 100 ms take 1.6 s; of all ranks, or less than tenfold, is chance."""
    trace = train(lambda step: who if step in (15, 30, 45) else None, more=more)
    told = (who, more) == (1, 1500)
    seen = [(one.severity, one.culprits, *facts(one, "every", "num_slow")) for one in found(trace)]
    assert seen == ([("info", (1,), 15, 3)] if told else [])


def test_slow_steps_without_order_or_reason_are_no_claim() -> None:
    assert found(train(lambda step: 1 if step in (12, 19, 21, 33, 40) else None)) == []
    assert found(train(lambda step: 1 if step % 5 == 4 else None, more=15)) == []  # under 20 ms
    assert found(train(lambda step: 1 if step in (20, 25, 30) else None)) == []  # three are chance


def test_a_period() -> None:
    steps = list(range(8, 60))
    assert period([10, 15, 20, 25, 30, 35, 40, 45, 50, 55], steps) == 5
    assert period([10, 15, 20, 30, 35, 40, 45, 50, 55], steps) == 5  # one of ten is not slow
    assert period([10, 12, 14, 16, 18], steps) is None
    assert period([10, 15, 20, 25], steps) is None  # it stopped
    assert outliers(dict.fromkeys(steps, 100 * MS)) == []
