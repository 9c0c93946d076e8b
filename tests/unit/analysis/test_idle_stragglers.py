"""Stragglers that sleep or wait while they seem to compute, in steps of 100 ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.hangs.blocking_calls import Blocking, Call
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.analysis.test_findings_speed import (
    STEPS,
    data_parallel,
    one,
    pipeline,
    sync,
    without_load,
)
from tests.unit.analysis.test_times import on_device
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace


@pytest.mark.parametrize(
    ("ran", "stood", "note", "cause"),
    [
        (70, 0, {}, "compute"),  # all of it
        (60, 0, {}, "compute"),
        (50, 0, {}, "idle"),
        (10, 0, {}, "idle"),
        (10, 50, {}, "compute"),
        (10, 0, {"paced": True}, "compute"),
        (None, 0, {}, "compute"),
    ],
)
def test_what_sleeps_in_a_forward_does_not_compute(
    ran: int | None, stood: int, note: dict[str, bool], cause: str
) -> None:
    """Rank 1's forward takes 30 ms longer: 70 ms of forward and backward. Where its thread ran, or
    stood ready, for 15 ms less than that, half of the 30 were no compute. The others spin."""
    trace = data_parallel(Trace(3), {1: {"forward": 30}})
    for step in (0, STEPS) if ran is not None else ():
        rows = {p.proc: [90 * MS * step, stood * MS * step] for p in trace.ranks}
        rows[trace.ranks[1].proc] = [(ran or 0) * MS * step, stood * MS * step]
        trace.state(100 * step, **{proc: {"scheduled": row} for proc, row in rows.items()})
    for key, value in note.items():
        trace.ranks[0].define(wire.DefKind.NOTE, key=key, value=value)
    finding = one(trace, "straggler")
    assert finding.culprits == (1,) and facts(finding, "cause", "phases") == (cause, ("forward",))


@pytest.mark.parametrize(
    ("looks", "ran", "where"),
    [(4, 40, "train.py:3 in log"), (3, 40, None), (4, 10, None)],
)
def test_the_line_where_host_code_computes_is_told(looks: int, ran: int, where: str | None) -> None:
    """Rank 1 spends 30 ms more outside of phases. Four looks of 200 ms in 1.7 s are 47 ms a step,
    three 35; a thread that ran no longer than the others' did not compute. All were seen twice at
    another line."""
    trace = data_parallel(Trace(3), {1: {"host": 30}})
    for step in (0, STEPS):
        rows = {p.proc: [10 * MS * step, 0] for p in trace.ranks}
        rows[trace.ranks[1].proc] = [ran * MS * step, 0]
        trace.state(100 * step, **{proc: {"scheduled": row} for proc, row in rows.items()})
    for proc in trace.ranks:
        own = {"train.py:3 in log": looks} if proc.rank == 1 else {}
        for at, number in {"train.py:9 in step": 4, **own}.items():
            proc.record(Kind.PROBE, 1000, 1000, proc.name(f"busy\nbusy\n\n{at}"),
                        lane=Lane.COUNTER, a=number)  # fmt: skip
    finding = one(trace, "straggler")
    assert (facts(finding, "cause"), finding.where) == ("host", where)


def by_hand(late_ms: float, backwards: int = 1, seen: bool = True) -> Trace:
    """Three ranks without an optimizer: a round of 100 ms has a backward at 30-50, and four sums of
    5 ms from 55 on; rank 1 comes ``late_ms`` late to the first. Of several backwards the last is
    followed by sums."""
    trace = Trace(3)
    for number in range(STEPS):
        begin = 100.0 * number
        for proc in trace.ranks:
            more = late_ms if proc.rank == 1 else 0
            for part in range(backwards if seen else 0):
                at = begin + more + 30 - 10 * (backwards - 1 - part)
                proc.phase("backward", at, at + 5 if part < backwards - 1 else at + 20, 0)
            for part in range(4):
                came = begin + 55 + (more if part == 0 else late_ms + 5 * part)
                done = begin + 60 + late_ms + 5 * part
                proc.collective("world", "all_reduce", came, done, 4096, flags=0)
                proc.wait(came + 0.01, done, 0, p2p=False)
    return trace


@pytest.mark.parametrize("backwards", [1, 3])
def test_a_straggler_without_an_optimizer_is_named_by_rounds_of_backward(backwards: int) -> None:
    finding = one(by_hand(20, backwards), "straggler")
    assert finding.culprits == (1,) and finding.cost_ns_per_step is None
    assert facts(finding, "unit", "num_late", "num_steps", "by_ns") == ("round", 12, 12, 20 * MS)


def test_the_call_it_sleeps_in_is_named_without_steps_too() -> None:
    """Four looks of 200 ms in 1.7 s of rounds of 100 ms: 47 ms of a round, of which it is late
    30."""
    trace = by_hand(30)
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 1000, 1000, proc.name("blocked\nsleep\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=4)  # fmt: skip
    finding = one(trace, "straggler")
    assert (facts(finding, "cause"), finding.where) == ("blocked", "train.py:3")


@pytest.mark.parametrize(("device", "at", "call"), [
    ("cuda", 1070, "device"), ("cuda", 1010, "lock"), ("cpu", 1070, "lock"),
])  # fmt: skip
def test_who_waits_while_its_device_computes_waits_for_that(
    device: str, at: float, call: Call
) -> None:
    """As in .item(). Rank 1's backward is at 1060-1080 there."""
    trace = by_hand(30)
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device=device)
        if device != "cpu":
            proc.record(Kind.DEVICE, 0, 1, lane=Lane.USER)
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, at, at, proc.name("blocked\nlock\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=4)  # fmt: skip
    finding = one(trace, "straggler")
    assert facts(finding, "blocking") == Blocking(call)


def test_rounds_in_which_all_are_alike_name_nobody() -> None:
    assert without_load(by_hand(0)) == []


def test_without_backwards_one_late_op_of_four_is_not_again_and_again() -> None:
    assert without_load(by_hand(20, seen=False)) == []


@pytest.mark.parametrize(
    ("looks", "cause", "where"),
    [(8, "blocked", "train.py:3"), (4, "blocked", "train.py:3"), (3, "compute", None)],
)
def test_the_call_it_sleeps_in_is_named_from_four_looks_on(
    looks: int, cause: str, where: str | None
) -> None:
    """Looks are 200 ms apart, the job has trained for STEPS x 100 ms: four of 20 are 40 ms of a
    step, of which it is late 30."""
    trace = data_parallel(Trace(3), {1: {"forward": 30}})
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 1000, 1000, proc.name("blocked\nsleep\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=looks)  # fmt: skip
    finding = one(trace, "straggler")
    assert (facts(finding, "cause"), finding.where) == (cause, where)


@pytest.mark.parametrize("ends", [1_700, 20_000])
def test_looks_count_per_step_of_the_training_however_late_the_job_ends(ends: float) -> None:
    """Four looks of 200 ms in 17 steps of 100 ms: 47 ms of a step. A look after the training, as of
    an exit that sleeps, is no part of it."""
    trace = data_parallel(Trace(3), {1: {"forward": 30}})
    proc = trace.ranks[1]
    for t, looks in ((1000, 4), (ends, 20 if ends > 1700 else 0)):
        proc.record(Kind.PROBE, t, t, proc.name("blocked\nsleep\n\ntrain.py:3"),
                    lane=Lane.COUNTER, a=looks) if looks else None  # fmt: skip
    trace.end(ends)
    finding = one(trace, "straggler")
    assert (facts(finding, "cause"), finding.where) == ("blocked", "train.py:3")
    assert facts(finding, "cause_ns") == pytest.approx(4 * 200 / 17 * MS, rel=0.01)


@pytest.mark.parametrize(("call", "where"), [("sleep", "train.py:3"), ("poll", None)])
def test_a_loader_that_sleeps_in_the_rank_itself_is_named_by_its_line(
    call: str, where: str | None
) -> None:
    """Where it waits for a loader's workers, its own line tells nothing of them."""
    trace = data_parallel(Trace(3), {1: {"data": 30}})
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 1000, 1000, proc.name(f"blocked\n{call}\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=8)  # fmt: skip
    finding = one(trace, "straggler")
    assert (facts(finding, "cause"), finding.where) == ("data", where)


@pytest.mark.parametrize("looks", [4, 3])
def test_a_pipeline_that_a_sleep_holds_up_names_rank_and_line(looks: int) -> None:
    """Rank 1 is busy elsewhere for 40 ms of a step of 200. Looks are 200 ms apart, the job has
    trained for 20 steps: four of 20 are 40 ms of a step."""
    trace = pipeline((10, 10), gap=10)
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 2000, 2000, proc.name("blocked\nsleep\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=looks)  # fmt: skip
    finding = one(trace, "schedule-excess")
    seen = ((1,), "train.py:3") if looks == 4 else ((), None)
    assert (finding.culprits, finding.where) == seen


@pytest.mark.parametrize(("of_device", "cause"), [(False, "blocked"), (True, "compute")])
def test_a_host_that_waits_for_its_slow_device_is_no_cause(of_device: bool, cause: str) -> None:
    """The device's forward takes 30 ms longer; its host sleeps until the queue has room."""
    trace = data_parallel(Trace(3), {1: {"forward": 30}})
    if of_device:
        for proc in on_device(trace).ranks:
            proc.record(Kind.STEP, 1, 2, lane=Lane.STEP, flags=Flag.DEVICE)
            proc.record(Kind.DEVICE, 2, 3, lane=Lane.STEP, a=MS)
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 1000, 1000, proc.name("blocked\nsleep\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=8)  # fmt: skip
    assert facts(one(trace, "straggler"), "cause") == cause


def test_a_device_is_late_by_what_delayed_its_step_too() -> None:
    """A step's op ends at 100; backward until 160 (rank 1: 184), then the next step's forward of
    10 (15): rank 1 is 29 late, of which 24 are the step before's. Its host sleeps meanwhile."""
    trace = on_device(Trace(3))
    for proc in trace.ranks:
        slow = proc.rank == 1
        longer, late = (84, 1) if slow else (60, 30)
        for step in range(STEPS):
            done = 100.0 * step + 100
            proc.phase("forward", done - 100 + longer, done - late, step)
            sync(proc, done - late, done, step)
            proc.phase("backward", done, done + longer, step)
            proc.step(step, done - 100 + longer, done + longer)
        proc.record(Kind.STEP, 1, 2, lane=Lane.STEP, flags=Flag.DEVICE)
        proc.record(Kind.DEVICE, 2, 3, lane=Lane.STEP, a=MS)
    proc = trace.ranks[1]
    proc.record(Kind.PROBE, 1000, 1000, proc.name("blocked\nsleep\n\ntrain.py:3"),
                lane=Lane.COUNTER, a=8)  # fmt: skip
    found = one(trace, "straggler")
    assert found.culprits == (1,)
    assert facts(found, "by_ns", "cause", "cause_ns") == (29 * MS, "compute", 29 * MS)


def test_of_hosts_that_run_ahead_the_last_at_a_barrier_holds_up_no_device() -> None:
    """Devices come alike to their all_reduce; to the barrier after it rank 1's host comes 60 ms
    later than the others."""
    trace = on_device(Trace(3))
    for step in range(STEPS):
        for proc in trace.ranks:
            begin = 100.0 * step
            proc.collective("world", "all_reduce", begin + 50, begin + 60, step=step,
                            source=Flag.DONE_DEVICE)  # fmt: skip
            late = 60 if proc.rank == 1 else 0
            proc.collective("world", "barrier", begin + 20 + late, begin + 81, 0, step=step,
                            flags=0, source=Flag.DONE_WAITED)  # fmt: skip
            proc.step(step, begin, begin + 100)
    for proc in trace.ranks:
        proc.record(Kind.DEVICE, 0, 1, lane=Lane.USER)
    assert "straggler" not in [one.kind for one in findings(View(trace.store(), None))]
