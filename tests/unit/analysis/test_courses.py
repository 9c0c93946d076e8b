"""A rank's last steps: what of each it computed, waited and moved data."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Viewport, snapshot
from pardbg.analysis.answers.step_times import LAST, rank_courses
from pardbg.analysis.base.asof import View
from pardbg.cli.common import load_session
from tests.unit.analysis.test_small_traces import ddp, ns
from tests.unit.trace_builder import Trace

SESSIONS = Path(__file__).parents[3] / "sessions"


def test_every_step_is_split_as_the_last_one() -> None:
    """As `test_split_of_a_ddp_step`: of 100 ms rank 0 computes 60, waits 10 for rank 1, and data
    moves for 20."""
    courses = snapshot(ddp().store(), None).courses[0]
    assert [c.step for c in courses] == [0, 1]
    for course in courses:
        assert course[1:] == pytest.approx((0.60, 0.10, 0.20), abs=0.001)


def test_the_newest_step_is_the_one_of_the_rank_row() -> None:
    for name in ("1f1b", "fault-straggler", "zero3"):
        shown = snapshot(load_session(SESSIONS / f"{name}.mcap"), None)
        for row in shown.ranks:
            split = row.compute_fraction, row.wait_fraction, row.comm_fraction
            assert shown.courses[row.rank][-1][1:] == pytest.approx(split)


def test_a_straggler_never_waits_and_the_others_do_since_it_is_slow() -> None:
    """The fault sets in at step 6."""
    courses = rank_courses(View(load_session(SESSIONS / "fault-straggler.mcap"), None), None)
    for rank, own in courses.items():
        late = [c.wait for c in own if c.step >= 6]
        assert (max(late) < 0.1) if rank == 2 else (min(late) > 0.2)
        assert max(c.wait for c in own if 1 <= c.step < 6) < 0.2


def steps(number: int) -> Trace:
    trace = Trace(1)
    for step in range(number):
        trace.ranks[0].phase("forward", 10 * step, 10 * step + 4, step)
        trace.ranks[0].step(step, 10 * step, 10 * step + 8)
    return trace


def test_steps_are_the_last_ones_before_the_cursor_in_any_order_of_looks() -> None:
    store = steps(LAST + 6).store()
    newest = rank_courses(View(store, None), None)[0]
    assert [c.step for c in newest] == list(range(6, LAST + 6))
    early = rank_courses(View(store, ns(39)), None)[0]
    assert [c.step for c in early] == [0, 1, 2, 3]
    assert {c.compute for c in (*early, *newest)} == {0.5}


def test_a_quick_look_splits_few_and_knows_the_others() -> None:
    store = steps(20).store()
    quick = rank_courses(View(store, None), None, 8)[0]
    assert [c.step for c in quick] == list(range(12, 20))
    rank_courses(View(store, None), None)
    assert len(rank_courses(View(store, None), None, 8)[0]) == 20


def test_only_ranks_that_are_drawn_have_one() -> None:
    store = ddp().store()
    sections = frozenset(("courses",))
    assert snapshot(store, None, viewport=Viewport(frozenset((1,)), sections)).courses.keys() == {1}
    assert snapshot(store, None, viewport=Viewport(None, frozenset())).courses == {}


def test_hosts_say_what_their_ranks_take() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.phase("forward", 0, 1)
    trace.flush()
    row = {"alive": True, "step": 0, "heartbeat_ns": ns(50), "cpu": 0.75, "load": 150}
    trace.state(50, **{proc.proc: row | {"rank": proc.rank} for proc in trace.ranks})
    (host,) = snapshot(trace.store(), None).hosts
    assert (host.ranks, host.cores, host.load, host.device) == ((0, 1), 1.5, 1.5, "")


def test_the_run_s_step_time_is_that_of_the_newest_step_that_is_listed() -> None:
    """Rank 0 has ended step 1 (90 ms), rank 1 only step 0 (100 ms): the newest whole one is 0."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.step(0, 0, 100)
    trace.ranks[0].step(1, 100, 190)
    made = snapshot(trace.store(), ns(195))
    assert made.steps[-1].step == 0
    assert made.step_ns == made.steps[-1].duration_ns == ns(100) - ns(0)
