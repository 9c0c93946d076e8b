"""Bubbles, idle by cause, bounds and in-flight, against traces worked out by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.pipeline.play import simulate, uniform_slots
from pardbg.analysis.pipeline.values import PipelineStep, causes_of
from tests.unit.trace_builder import MS, Trace, gpipe, ns, one_f_one_b


def two_ranks(received: bool = True) -> Trace:
    """1F1B, p=2, m=2, F 1 ms, B 2 ms, 0.5 ms for each tensor on its way.

    ms   0   1   2   3   4   5   6   7   8   9   10
    r0   F0  F1  .............B0      ..  B1
    r1   ....  F0 B0      F1 B1       ...........
    """
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 2), 2)
    r0, r1 = trace.ranks
    for text, t0, t1 in (("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 5, 7), ("0B1", 8, 10)):
        r0.action(text, t0, t1, a=100)
    r1.action("1F0", 1.5, 2.5, a=50)
    r1.action("1B0", 2.5, 4.5, a=50)
    r1.action("1F1", 4.5, 5.5, a=50)
    r1.action("1B1", 5.5, 7.5, a=50)
    if received:
        r0.p2p("world", 1, False, 2, 5, stage=0, mb=0, label="B")
        r0.p2p("world", 1, False, 7, 8, stage=0, mb=1, label="B")
    for proc in trace.ranks:
        proc.step(0, 0, 11)
    return trace


def step_of(trace: Trace, t_ms: float | None = None) -> PipelineStep:
    shown = snapshot(trace.store(), None if t_ms is None else ns(t_ms))
    assert shown.pipeline is not None and shown.pipeline.step is not None
    return shown.pipeline.step


def idle_ms(step: PipelineStep, rank: int) -> dict[str, float]:
    return {cause: t / MS for cause, t in step.ranks[rank].idle_ns.items() if t}


def test_two_ranks_1f1b() -> None:
    step = step_of(two_ranks())
    assert step.complete
    assert (step.t0_ns, step.t1_ns) == (ns(0), ns(10))
    # Each rank computes 6 of 10 ms.
    assert [row.busy_ns for row in step.ranks] == [6 * MS, 6 * MS]
    assert step.bubble_fraction == pytest.approx(0.4)
    # Free communication: r1 ends B1 at 7, r0 at 9, so 1 - 12/18; equal to (p-1)/(m+p-1) = 1/3.
    assert step.implied_fraction == pytest.approx(1 / 3)
    assert step.bound_fraction == pytest.approx(1 / 3)
    # r0 waits from 2 for 1B0 (done 4.5) and its tensor (5); from 7 for 1B1 (7.5) and it (8).
    assert idle_ms(step, 0) == {"dependency": 3.0, "communication": 1.0}
    assert idle_ms(step, 1) == {"warmup": 1.5, "cooldown": 2.5}
    waits = [(i.cause, i.producer, i.producer_rank) for i in step.ranks[0].idles]
    assert waits == [
        ("dependency", "1B0", 1), ("communication", "1B0", 1),
        ("dependency", "1B1", 1), ("communication", "1B1", 1),
    ]  # fmt: skip


def test_idle_without_evidence_of_communication_is_the_hosts() -> None:
    step = step_of(two_ranks(received=False))
    assert idle_ms(step, 0) == {"dependency": 3.0, "host": 1.0}


def test_a_wait_after_the_producer_is_communication_and_the_rest_host() -> None:
    trace = two_ranks(received=False)
    trace.ranks[0].wait(2, 4.8)  # 1B0 is done at 4.5, the tensor there at 4.8, 0B0 begins at 5
    assert idle_ms(step_of(trace), 0) == pytest.approx(
        {"dependency": 3.0, "communication": 0.3, "host": 0.7}
    )


def test_in_flight() -> None:
    step = step_of(two_ranks())
    # 1F1B keeps p - stage microbatches: two on stage 0, one on stage 1; none when all is done.
    assert [row.max_in_flight for row in step.ranks] == [2, 1]
    assert [row.in_flight_bound for row in step.ranks] == [2, 1]
    assert [row.in_flight for row in step.ranks] == [0, 0]
    part = step_of(two_ranks(), 4)
    assert [row.in_flight for row in part.ranks] == [2, 1]
    assert [row.activation_bytes for row in part.ranks] == [200, 50]
    # at most two microbatches of 100 bytes on stage 0, one of 50 on stage 1
    memory = snapshot(two_ranks().store(), None).memory
    assert [row.activations_peak_bytes for row in memory] == [200, 50]


def test_a_running_step() -> None:
    """At 4 ms: r0 waits for 1B0, which runs since 2.5."""
    step = step_of(two_ranks(), 4)
    assert not step.complete
    assert (step.t0_ns, step.t1_ns) == (ns(0), ns(4))
    running = [a for a in step.ranks[1].actions if a.t1_ns is None]
    assert [(a.text, a.t0_ns) for a in running] == [("1B0", ns(2.5))]
    assert step.ranks[1].busy_ns == 2.5 * MS
    assert step.ranks[0].next_action == "0B0"
    assert idle_ms(step, 0) == {"dependency": 2.0}
    assert step.ranks[0].idles[0].producer == "1B0"
    assert step.implied_fraction is None  # no 0B has been measured yet


def test_last_complete_step_stays_while_the_next_runs() -> None:
    trace = two_ranks()
    trace.ranks[0].action("0F0", 12, 13, step=1)
    shown = snapshot(trace.store(), None).pipeline
    assert shown is not None and shown.step is not None and shown.last_complete is not None
    assert (shown.step.step, shown.last_complete.step) == (1, 0)
    assert shown.bubble_history == ((0, pytest.approx(0.4)),)


def test_what_runs_after_the_last_step_is_no_complete_step_once_the_job_ended() -> None:
    """An evaluation: forwards alone, and then the processes end."""
    trace = two_ranks()
    trace.ranks[0].action("0F0", 12, 13, step=1)
    trace.ranks[1].action("1F0", 13, 14, step=1)
    for proc in trace.ranks:
        trace.define_end(proc, 15, "exit")
    shown = snapshot(trace.store(), ns(16)).pipeline
    assert shown is not None and shown.step is not None and shown.last_complete is not None
    assert (shown.step.step, shown.step.complete, shown.last_complete.step) == (1, False, 0)
    assert [step for step, _ in shown.bubble_history] == [0]


def test_steps_under_the_debugger_are_shown_but_not_counted() -> None:
    """Step 1 is step 0 again, 20 ms later, with rank 1 held for 30 ms before its last backward:
    without the hold its window is 10 ms and its bubble 0.4, as step 0's; step 0 is what figures
    are taken of."""
    trace = two_ranks()
    r0, r1 = trace.ranks
    for text, t0, t1 in (("0F0", 20, 21), ("0F1", 21, 22), ("0B0", 25, 27), ("0B1", 58, 60)):
        r0.action(text, t0, t1, step=1)
    for text, t0, t1 in (("1F0", 21.5, 22.5), ("1B0", 22.5, 24.5), ("1F1", 24.5, 25.5)):
        r1.action(text, t0, t1, step=1)
    r1.held(25.5, 55.5)
    r1.action("1B1", 55.5, 57.5, step=1)
    for proc in trace.ranks:
        proc.step(1, 11, 61)
    shown = snapshot(trace.store(), None)
    pipeline = shown.pipeline
    assert pipeline is not None and pipeline.step is not None
    assert pipeline.last_complete is not None
    assert (pipeline.step.step, pipeline.last_complete.step) == (1, 0)
    assert pipeline.bubble_history == ((0, pytest.approx(0.4)), (1, pytest.approx(0.4)))
    made = pipeline.step
    assert (made.t0_ns, made.t1_ns, made.held_ns) == (ns(20), ns(30), 30 * MS)
    assert made.bubble_fraction == pytest.approx(0.4)
    assert [row.busy_ns for row in made.ranks] == [6 * MS, 6 * MS]
    last = made.ranks[0].actions[-1]
    assert (last.text, last.t0_ns, last.t1_ns) == ("0B1", ns(28), ns(30))  # not 58 to 60
    # Step 1 lasts from 11 to 61: 20 ms less the hold, on both ranks.
    assert [row.duration_ns for row in shown.steps] == [11 * MS, 20 * MS]
    assert [rank.step_ns for rank in shown.ranks] == [(11 * MS, 20 * MS)] * 2
    assert shown.step_ns == 20 * MS  # as in the chart


def four_ranks() -> Trace:
    """1F1B, p=4, m=4, F 1 ms, B 1 ms, no time on the way: the plan itself.

    slot 0  1  2  3  4  5  6  7  8  9  10 11 12 13
    r0   F0 F1 F2 F3 .  .  .  B0 .  B1 .  B2 .  B3
    r1   .  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 .
    r2   .  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .  .
    r3   .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .  .
    """
    trace = Trace(4)
    plan = one_f_one_b(4, 4)
    trace.plan("Schedule1F1B", plan, 4)
    simulated = simulate(plan, 4, lambda _r, _a: 1.0)
    assert simulated is not None
    for proc in trace.ranks:
        assert proc.rank is not None
        for text, t0, t1 in simulated.rows[proc.rank]:
            proc.action(text, t0, t1)
    return trace


def test_four_ranks_1f1b() -> None:
    step = step_of(four_ranks())
    # Window 14 slots (2(m + p - 1)), 8 busy on each rank: bubble 6/14 = (p-1)/(m+p-1) = 3/7.
    assert step.t1_ns - step.t0_ns == 14 * MS
    assert step.bubble_fraction == pytest.approx(3 / 7)
    assert step.implied_fraction == pytest.approx(3 / 7)
    assert step.bound_fraction == pytest.approx(3 / 7)
    # From the picture: dots before the first action, between, and after the last.
    assert idle_ms(step, 0) == {"dependency": 6.0}
    assert idle_ms(step, 1) == {"warmup": 1.0, "dependency": 4.0, "cooldown": 1.0}
    assert idle_ms(step, 2) == {"warmup": 2.0, "dependency": 2.0, "cooldown": 2.0}
    assert idle_ms(step, 3) == {"warmup": 3.0, "cooldown": 3.0}
    assert [row.max_in_flight for row in step.ranks] == [4, 3, 2, 1]
    # The first gap of r0 waits for 1B0; that of r1, slots 4 and 5, for 2B0.
    assert step.ranks[0].idles[0].producer == "1B0"
    assert step.ranks[1].idles[1].producer == "2B0"


def test_planned_bubbles_in_uniform_slots() -> None:
    slots = uniform_slots(one_f_one_b(4, 4), 4)
    assert slots[0] == (
        "0F0", "0F1", "0F2", "0F3", "", "", "", "0B0", "", "0B1", "", "0B2", "", "0B3",
    )  # fmt: skip
    assert slots[3] == ("", "", "", "3F0", "3B0", "3F1", "3B1", "3F2", "3B2", "3F3", "3B3")


def test_gpipe_bound() -> None:
    trace = Trace(4)
    plan = gpipe(4, 8)
    trace.plan("ScheduleGPipe", plan, 8)
    simulated = simulate(plan, 4, lambda _r, action: 1.0 if action.kind == "F" else 2.0)
    assert simulated is not None
    for proc in trace.ranks:
        for text, t0, t1 in simulated.rows[proc.rank or 0]:
            proc.action(text, t0, t1)
    step = step_of(trace)
    # (p-1)/(m+p-1) = 3/11: 8 (1 + 2) busy in (8 + 3)(1 + 2) ms.
    assert step.bound_fraction == pytest.approx(3 / 11)
    assert step.bubble_fraction == pytest.approx(3 / 11)
    assert [row.max_in_flight for row in step.ranks] == [8, 8, 8, 8]
    assert [row.in_flight_bound for row in step.ranks] == [8, 8, 8, 8]


def test_interleaved_bound() -> None:
    trace = Trace(2)
    order = {0: ["0F0", "0F1", "2F0", "2F1"], 1: ["1F0", "1F1", "3F0", "3F1"]}
    trace.plan("ScheduleInterleaved1F1B", order, 2, num_virtual=2)
    for proc in trace.ranks:
        for i, text in enumerate(order[proc.rank or 0]):
            proc.action(text, i + (proc.rank or 0), i + 1 + (proc.rank or 0))
    step = step_of(trace)
    # (p-1)/(v·m+p-1) = 1/(2·2 + 1)
    assert step.bound_fraction == pytest.approx(1 / 5)
    assert step.ranks[0].stages == (0, 2)
    assert step.ranks[0].in_flight_bound == 4  # the plan has four F and no B
    assert step.bubble_fraction == pytest.approx(1 / 5)  # 4 of 5 ms on each rank


def test_overlapping_actions_are_busy_once() -> None:
    trace = Trace(1)
    trace.ranks[0].action("0F0", 0, 3)
    trace.ranks[0].action("0B0", 2, 4)
    trace.ranks[0].step(0, 0, 5)
    step = step_of(trace)
    assert step.ranks[0].busy_ns == 4 * MS
    assert step.bubble_fraction == 0.0


def test_a_plan_that_cannot_run_implies_nothing() -> None:
    trace = two_ranks()
    trace.messages = [m for m in trace.messages if b"plan" not in m.payload]
    trace.plan("Schedule1F1B", {0: ["0B0", "0F0"], 1: ["1B0", "1F0"]}, 1)
    assert step_of(trace).implied_fraction is None


def test_a_schedule_run_twice_in_a_step_shows_its_last_round() -> None:
    trace = two_ranks()
    trace.ranks[0].action("0F0", 20, 21)
    trace.ranks[1].action("1F0", 21, 22)
    step = step_of(trace)
    assert [a.text for row in step.ranks for a in row.actions] == ["0F0", "1F0"]
    assert (step.t0_ns, step.t1_ns) == (ns(20), ns(22))


@pytest.mark.parametrize("seed", range(30))
def test_busy_and_idle_make_the_window(seed: int) -> None:
    """Whatever the trace, at whatever cursor: no remainder, and no overlap."""
    rng = random.Random(seed)
    trace = Trace(3)
    plan = one_f_one_b(3, 4)
    if seed % 3:
        trace.plan("Schedule1F1B", plan, 4)
    for proc in trace.ranks:
        t = rng.random() * 3
        for text in plan[proc.rank or 0]:
            t += rng.choice((0.0, 0.0, rng.random()))
            length = rng.random() * 2
            if rng.random() > 0.1:
                proc.action(text, t, t + length)
            if rng.random() > 0.5:
                begun = t - rng.random()
                proc.wait(begun, begun + rng.random())
                proc.p2p("world", 0, False, begun, t if rng.random() > 0.3 else None,
                         stage=proc.rank or 0, mb=int(text[-1]))  # fmt: skip
            t += length * rng.choice((1.0, 0.7))  # now and then they overlap
    store = trace.store()
    for _ in range(20):
        shown = snapshot(store, ns(rng.random() * 15))
        if shown.pipeline is None or shown.pipeline.step is None:
            continue
        step = shown.pipeline.step
        for row in step.ranks:
            assert row.busy_ns + sum(row.idle_ns.values()) == step.t1_ns - step.t0_ns
            assert set(row.idle_ns) == set(causes_of(""))
            assert all(i.t1_ns > i.t0_ns for i in row.idles)
            ends = [(i.t0_ns, i.t1_ns) for i in row.idles]
            assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert 0.0 <= step.bubble_fraction <= 1.0


def test_time_inside_a_call_is_communication_once_its_tensor_exists() -> None:
    """r0 computes 0F0 from 0 to 1 and 0F1 from 4 to 5; r1 computes 1F0 from 2 to 3.

    Between 1 and 4 r0 is inside two calls: from 1 to 1.5 it sends 0F0's output, which exists; from
    1.5 to 3.5 it posts the receive of 1B0's gradient. That is done at 3, so the call is the host's
    up to 3 and moves the gradient from 3 to 3.5.
    """
    trace = Trace(2)
    r0, r1 = trace.ranks
    r0.action("0F0", 0, 1)
    r0.action("0F1", 4, 5)
    r1.action("1F0", 1.5, 2)
    r1.action("1I0", 2, 3)  # the gradient travels under the label B
    r0.p2p("world", 1, True, 1, 1.6, stage=0, mb=0, label="F", issued=1.5)
    r0.p2p("world", 1, False, 1.5, 3.6, stage=0, mb=0, label="B", issued=3.5)
    for proc in trace.ranks:
        proc.step(0, 0, 6)
    step = step_of(trace)
    # host: 1.5-3 posting ahead, 3.5-4 nothing seen
    assert idle_ms(step, 0) == {"communication": 1.0, "host": 2.0}
    moving = [i for i in step.ranks[0].idles if i.cause == "communication"]
    assert [(i.producer, i.producer_rank) for i in moving] == [("0F0", 0), ("1I0", 1)]
