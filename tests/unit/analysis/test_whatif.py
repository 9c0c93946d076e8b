"""What-if: plans run with measured durations, against values worked out by hand."""

from __future__ import annotations

import sys

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.dependencies import parse
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.analysis.pipeline.play import Between
from pardbg.analysis.whatif import plans
from pardbg.analysis.whatif.answer import WhatIf, whatif
from pardbg.analysis.whatif.backward_split import Split, as_they_run, filled, split_of
from pardbg.analysis.whatif.costs import costs, line, recut
from pardbg.analysis.whatif.plans import NoPlan
from pardbg.analysis.whatif.playout import Outside, ordered, run
from tests.unit.trace_builder import MS, Trace, gpipe

# p=2 m=2, F=1 B=2, half a ms until the other rank has it, gaps of 0.25, steps of 12 ms:
#  r0  F0 0-1   F1 1.25-2.25                      B0 5.75-7.75  B1 8-10
#  r1  F0 1.5-2.5   F1 2.75-3.75   B0 4... see _step
HOP, GAP = 0.5, 0.25


def _step(trace: Trace, step: int, at: float) -> None:
    _actions(trace, step, at)
    for proc in trace.ranks:
        proc.step(step, at, at + 12)


def _actions(trace: Trace, step: int, at: float) -> None:
    r0, r1 = trace.ranks
    r0.action("0F0", at, at + 1, step, a=1000)
    r0.action("0F1", at + 1.25, at + 2.25, step, a=1000)
    r1.action("1F0", at + 1.5, at + 2.5, step, a=600)
    r1.action("1F1", at + 2.75, at + 3.75, step, a=600)
    r1.action("1B0", at + 4, at + 6, step)
    r1.action("1B1", at + 6.25, at + 8.25, step)
    r0.action("0B0", at + 6.5, at + 8.5, step)
    r0.action("0B1", at + 8.75, at + 10.75, step)


def _trace(steps: int = 6) -> Trace:
    trace = Trace(2)
    trace.plan("ScheduleGPipe", gpipe(2, 2), 2)
    for step in range(steps):
        _step(trace, step, 12.0 * step)
    return trace


def _view(trace: Trace) -> View:
    return View(trace.store(), None)


def test_costs_are_what_was_measured() -> None:
    view = _view(_trace())
    found = costs(view, layouts(view)[0])
    assert found is not None
    assert [s.step for s in found.steps] == [2, 3, 4, 5]  # the first two warm up
    step = found.steps[0]
    assert step.times[0, "F"] == (MS, MS) and step.times[1, "B"] == (2 * MS, 2 * MS)
    assert step.between.hops == (HOP * MS,)  # 0B0 after 1B0
    assert step.between.gaps == (GAP * MS,) * 3 and step.between.message == 0
    assert found.outside == Outside(1.25 * MS, together=True)  # 12 - 10.75
    assert found.split == Split()
    assert found.activations == {0: 1000, 1: 600}


def test_the_schedule_that_ran_is_predicted_as_it_ran() -> None:
    answer = whatif(_view(_trace()), schedules=["GPipe"])
    assert isinstance(answer, WhatIf)
    assert answer.step_ns == 12 * MS and answer.predicted_ns == pytest.approx(12 * MS)
    assert answer.error == pytest.approx(0) and answer.best is None
    (option,) = answer.options
    # busy 12 of 2 x 10.75
    assert option.bubble_fraction == pytest.approx(1 - 12 / 21.5)
    assert (option.in_flight, option.activation_bytes) == (2, 2000)


def test_1f1b_by_the_same_durations() -> None:
    """r0 F0 0-1 F1 1.25-2.25; r1 F0 1.5-2.5 B0 2.75-4.75 F1 5-6 B1 6.25-8.25;
    r0 B0 5.25-7.25 B1 8.75-10.75: as long as GPipe, with one microbatch less on rank 1."""
    answer = whatif(_view(_trace()), schedules=["1F1B"])
    assert isinstance(answer, WhatIf)
    option = next(o for o in answer.options if o.schedule == "1F1B")
    assert option.window_ns == pytest.approx(10.75 * MS)
    assert option.in_flight == 2 and not option.assumed
    assert answer.best is None  # no gain


def test_more_microbatches_are_smaller_ones() -> None:
    """1F1B, m=4, F=.5 B=1, hop .5, gap .25. r0: F0 0-.5 F1 .75-1.25; r1: F0 1-1.5 B0 1.75-2.75
    F1 3-3.5 B1 3.75-4.75 F2 (after 0F2) ...: the last backward of rank 1 ends after
    4 x (F + gap + B + gap) from 1, where 0F2 begins at 4.5 (0B0 3.25-4.25), ends 5: F2 at 5.5."""
    answer = whatif(_view(_trace()), schedules=["1F1B"], microbatches=[4])
    assert isinstance(answer, WhatIf)
    option = next(o for o in answer.options if o.num_microbatches == 4)
    # r1: F2 5.5-6 B2 6.25-7.25; r0: B1 5.25-6.25 F3 6.5-7 B2 7.75-8.75;
    # r1: F3 7.5-8 B3 8.25-9.25; r0: B3 9.75-10.75
    assert option.window_ns == pytest.approx(10.75 * MS)
    assert option.activation_bytes == 1000  # two in flight, half as large


def test_a_plan_runs_with_hops_and_gaps() -> None:
    """0F0 0-2, 1F0 2+3=5 to 7, 1B0 7+1 to 9, 0B0 9+3 to 13."""
    order = ordered({0: ("0F0", "0B0"), 1: ("1F0", "1B0")}, 2)
    times = {(0, "F"): (2.0,), (0, "B"): (1.0,), (1, "F"): (2.0,), (1, "B"): (1.0,)}
    ran = run(order, times, 1.0, Between(hops=(3.0,), gaps=(1.0,)), Outside(4.0))
    assert (ran.window, ran.busy, ran.period) == (13.0, 6.0, 17.0)


def test_messages_take_host_time() -> None:
    """0F0 0-1, sent: 0F1 1+.5+.25 = 1.75 to 2.75. 1F0 has it at 1, waits for no hop: 1-2, and 1F1
    after one message received 2.75-3.75, 1B0 after none 4.25-5.25."""
    plan = {0: ("0F0", "0F1"), 1: ("1F0", "1F1", "1B0")}
    times = {(s, kind): (1.0,) for s in (0, 1) for kind in "FB"}
    between = Between(gaps=(0.5,), message=0.25)
    assert run(ordered(plan, 2), times, 1.0, between, Outside()).window == 5.25


def test_stages_of_one_rank_send_nothing() -> None:
    """A V: stages 0 and 3 on rank 0, 1 and 2 on rank 1. Rank 1 receives 1F0 and sends 2F0, hands
    1F0 on to 2F0 and 2B0 to 1B0 itself."""
    plan = {0: ("0F0", "3F0", "3B0", "0B0"), 1: ("1F0", "2F0", "2B0", "1B0")}
    counts = {t.action.removesuffix("0"): t.messages for t in ordered(plan, 4)}
    # 3F: 0F0 sent, 3F0 received; 0B and 2B so, too. 1F: only received.
    assert counts == {"0F": 0, "3F": 2, "3B": 0, "0B": 2, "1F": 1, "2F": 0, "2B": 2, "1B": 0}


def test_who_waits_for_several_feels_the_longest_hop() -> None:
    """0F0 0-1, 1F0 4-5 after a hop of 3, 2F0 6-7 after one of 1."""
    order = ordered({0: ("0F0",), 1: ("1F0",), 2: ("2F0",)}, 3)
    times = {(s, "F"): (1.0,) for s in range(3)}
    assert run(order, times, 1.0, Between(hops=(1.0, 3.0)), Outside()).window == 1 + 3 + 1 + 1 + 1


def test_steps_overlap_where_ranks_do_not_wait_for_each_other() -> None:
    """r0 F0 0-1, r1 F0 1-2 B0 2-4, r0 B0 4-6: all begin anew when r0 has ended, 1 after that.
    Without 0B0, r0 runs ahead, and r1 has 3 of work and 1 outside it in each step."""
    times = {(s, kind): (ns,) for s in (0, 1) for kind, ns in (("F", 1.0), ("B", 2.0))}
    order = ordered({0: ("0F0", "0B0"), 1: ("1F0", "1B0")}, 2)
    assert run(order, times, 1.0, Between(), Outside(1.0)).period == 7
    assert run(order, times, 1.0, Between(), Outside(1.0, together=False)).period == 7
    ahead = ordered({0: ("0F0",), 1: ("1F0", "1B0")}, 2)
    assert run(ahead, times, 1.0, Between(), Outside(1.0)).period == 5
    assert run(ahead, times, 1.0, Between(), Outside(1.0, together=False)).period == 4


def test_ranks_that_end_early_begin_early() -> None:
    """The same step, but rank 1 counts it as over 1 ms after its own last action, at 9.25, when
    rank 0 still has 1.5 ms to go; and rank 0's next one begins 1.25 ms after its last action."""
    trace = Trace(2)
    trace.plan("ScheduleGPipe", gpipe(2, 2), 2)
    for step in range(6):
        _actions(trace, step, 12.0 * step)
        trace.ranks[0].step(step, 12.0 * step, 12.0 * step + 12)
        trace.ranks[1].step(step, 12.0 * step - 2.75, 12.0 * step + 9.25)
    found = costs(view := _view(trace), layouts(view)[0])
    assert found is not None
    assert found.outside == Outside(1.25 * MS, together=False)
    answer = whatif(view, schedules=["GPipe"])
    assert isinstance(answer, WhatIf)
    assert answer.step_ns == 12 * MS and answer.predicted_ns == pytest.approx(12 * MS)


def test_a_pair_sends_when_both_parts_are_done() -> None:
    """F=1, B=2. r0 F0 0-1, F1 1-2 and, in one action with it, B0 4-6; r1 F0 1-2 B0 2-4, then F1,
    which was sent at 6: 6-7, B1 7-9; r0 B1 9-11. Sent at once, it would end at 9."""
    times = {(s, kind): (ns,) for s in (0, 1) for kind, ns in (("F", 1.0), ("B", 2.0))}
    r1 = ("1F0", "1B0", "1F1", "1B1")
    pair = ordered({0: ("0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"), 1: r1}, 2)
    apart = ordered({0: ("0F0", "0F1", "0B0", "0B1"), 1: r1}, 2)
    assert run(pair, times, 1.0, Between(), Outside()) == (11.0, 12.0, 11.0)
    assert run(apart, times, 1.0, Between(), Outside()) == (9.0, 12.0, 9.0)


def test_an_order_that_cannot_run_is_refused() -> None:
    with pytest.raises(NoPlan):
        ordered({0: ("0B0", "0F0"), 1: ("1F0", "1B0")}, 2)


def _seen(**ns: int) -> dict[tuple[int, str, int], int]:
    """``_seen(s0F=1)``: one microbatch."""
    return {(int(name[1]), name[2], 0): one for name, one in ns.items()}


def test_the_first_stage_has_no_input_gradient() -> None:
    """Nothing seen apart: B of 4 is I and W of 2 each, on stage 0 all W."""
    split = split_of([_seen(s0F=2, s0B=4, s1F=2, s1B=4)], 2)
    times = filled(_seen(s0F=2, s0B=4, s1F=2, s1B=4), 2, 1, split)
    assert times is not None
    as_they_run(times, split)
    assert (times[0, "I"], times[0, "W"]) == ((0.0,), (4.0,))
    assert (times[1, "I"], times[1, "W"]) == ((2.0,), (2.0,))


def test_a_split_costs_what_it_was_seen_to_cost() -> None:
    """Stage 1 took 10 for B once, 12 for I and W: a fifth more."""
    apart = _seen(s0F=5, s0I=0, s0W=10, s1F=5, s1I=7, s1W=5)
    split = split_of([apart, _seen(s0F=5, s0B=10, s1F=5, s1B=10)], 2)
    assert (split.overhead, split.whole_seen) == (pytest.approx(1.2), True)
    assert split.weight_share == pytest.approx(5 / 12)
    times = filled(apart, 2, 1, split)
    assert times is not None and times[1, "B"] == (pytest.approx(10),) and times[0, "B"] == (10,)


def test_the_first_stage_shows_a_whole_backward() -> None:
    """Its W, of 10, is one: twice its forward. Stage 1's I and W are 2.4 times theirs of 10: so B
    there would be 20. A first stage that has work in I says nothing of that."""
    split = split_of([_seen(s0F=5, s0I=0, s0W=10, s1F=10, s1I=12, s1W=12)], 2)
    assert (split.overhead, split.whole_seen) == (pytest.approx(1.2), False)
    other = split_of([_seen(s0F=5, s0I=5, s0W=5, s1F=10, s1I=12, s1W=12)], 2)
    assert (other.overhead, other.first_input) == (1.0, 0.5)


def test_gaps_as_a_line_over_messages() -> None:
    assert line([(0, 1), (2, 5), (1, 3)]) == (pytest.approx(1), pytest.approx(2))
    assert line([(0, 4), (2, 2)]) == (3, 0)  # more messages never take less
    assert line([(1, 1), (2, 4)]) == (0, pytest.approx(5 / 3))  # nor is the rest below 0
    assert line([]) == (0, 0)


def test_stages_are_cut_and_joined() -> None:
    assert recut([4.0, 2.0], 4, equal=False) == [2, 2, 1, 1]
    assert recut([4.0, 2.0, 3.0, 1.0], 2, equal=False) == [6, 4]
    assert recut([3.0, 3.0, 6.0], 2, equal=False) == [4.5, 7.5]
    assert recut([4.0, 2.0], 2, equal=True) == [3, 3]


def test_unequal_stages_are_also_tried_equal() -> None:
    """Stage 0 takes 3 times as long as stage 1."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", {0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}, 1)
    for step in range(4):
        at = 10.0 * step
        trace.ranks[0].action("0F0", at, at + 3, step)
        trace.ranks[1].action("1F0", at + 3, at + 4, step)
        trace.ranks[1].action("1B0", at + 4, at + 5, step)
        trace.ranks[0].action("0B0", at + 5, at + 8, step)
        for proc in trace.ranks:
            proc.step(step, at, at + 8)
    answer = whatif(_view(trace), schedules=["GPipe"])
    assert isinstance(answer, WhatIf)
    assert {(o.schedule, o.equal) for o in answer.options} == {
        ("1F1B", False), ("1F1B", True), ("GPipe", False), ("GPipe", True),
    }  # fmt: skip


def test_without_torch_the_others_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [n for n in sys.modules if n.startswith("torch.distributed.pipelining")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining._schedule_visualizer", None)
    plans.plan.cache_clear()
    answer = whatif(_view(_trace()))
    assert isinstance(answer, WhatIf)
    assert {o.schedule for o in answer.options} == {"GPipe", "1F1B"}
    assert dict(answer.left_out)["ZBVZeroBubble v=2"].endswith("torch, which is not installed here")


def test_torchs_plans_are_whole() -> None:
    """Each schedule runs F and B (or I and W) of every stage and microbatch once."""
    pytest.importorskip("torch")
    plans.plan.cache_clear()
    for schedule in plans.SCHEDULES:
        virtual = 1 if schedule in plans.ONE_STAGE else 2
        plan = plans.plan(schedule, 4, virtual, 8)
        todo = [a for step in ordered(plan, 4 * virtual) if (a := parse(step.action))]
        forwards = [(t.stage, t.microbatch) for t in todo if t.kind == "F"]
        grads = [(t.stage, t.microbatch) for t in todo if t.kind in "BI"]
        assert sorted(forwards) == sorted(grads)
        assert sorted(forwards) == [(s, m) for s in range(4 * virtual) for m in range(8)]


def test_what_torch_refuses_is_said() -> None:
    pytest.importorskip("torch")
    plans.plan.cache_clear()
    with pytest.raises(NoPlan, match="exactly 2 stages per rank"):
        plans.plan("ZBVZeroBubble", 4, 3, 8)
    with pytest.raises(NoPlan, match="as many microbatches as stages"):
        plans.plan("1F1B", 4, 1, 2)


def test_a_run_without_a_pipeline_is_told() -> None:
    assert "no pipeline ran" in str(whatif(_view(Trace(2))))


@pytest.mark.parametrize("name", ["1f1b", "Schedule1F1B", "1F1B"])
def test_schedules_by_any_name(name: str) -> None:
    assert plans.known(name) == "1F1B"
    assert plans.known("looped-bfs") == "LoopedBFS" and plans.known("zb") == "InterleavedZeroBubble"
    assert plans.known("nope") is None
