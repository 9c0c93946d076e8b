"""A pipeline's steps in outline: the same figures as in full, at any cursor, live and in replay."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.outlines import Outline, implied, signature, step_outline
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.pipeline.play import simulate
from pardbg.events.decode import RECORD_DTYPE
from pardbg.store.store import Store
from pardbg.store.table import Table, append, blocks_of
from tests.unit.trace_builder import MS, Proc, Trace, gpipe, ns, one_f_one_b

STEPS = 6


def run(seed: int) -> tuple[Trace, list[int]]:
    """A drawn pipeline, in some of whose steps a rank is held; with the number of messages after
    each step."""
    draw = random.Random(seed)
    ranks, microbatches = draw.randint(2, 5), draw.randint(2, 6)
    plan = draw.choice((one_f_one_b, gpipe))(ranks, microbatches)
    trace, at, told = Trace(ranks), 0.0, []
    trace.plan("Schedule1F1B", plan, microbatches)
    for step in range(STEPS):
        took = {action: draw.uniform(1, 4) for row in plan.values() for action in row}
        ran = simulate(plan, ranks, lambda _rank, action, took=took: took[action.text])
        assert ran is not None
        late = draw.choice((0.0, 0.0, 50.0))
        for proc in trace.ranks:
            one_step(proc, step, at, ran.rows[proc.rank or 0], late)
            proc.flush()
        at += ran.makespan + 10 + late
        told.append(len(trace.messages))
    return trace, told


def one_step(
    proc: Proc, step: int, begin: float, row: tuple[tuple[str, float, float], ...], late: float
) -> None:
    """With ``late``, all ranks stand at a gate in the middle of the step for so long."""
    middle = max(end for _, _, end in row) / 2
    for action, t0, t1 in row:
        moved = begin + (late if t0 >= middle else 0.0)
        proc.action(action, moved + t0, moved + max(t1, t0 + 0.1), step, a=1000)
    if late:
        proc.held(begin + middle, begin + middle + late)
    proc.step(step, begin, begin + max(end for _, _, end in row) + late + 1)


def alike(view: View, layout: Layout, step: int) -> Outline | None:
    """The outline, where it says what the step in full does."""
    outline, full = step_outline(view, layout, step), pipeline_step(view, layout, step)
    if full is None or not full.complete:
        assert outline is None
        return None
    assert outline is not None and full.bubble_fraction is not None
    assert (outline.t0_ns, outline.t1_ns) == (full.t0_ns, full.t1_ns)
    assert outline.held_ns == full.held_ns
    assert outline.busy_ns == {row.rank: row.busy_ns for row in full.ranks}
    assert outline.bubble_fraction == full.bubble_fraction
    assert implied(view, layout, step, outline.bubble_fraction) == full.implied_fraction
    return outline


@pytest.mark.parametrize("seed", range(12))
def test_an_outline_has_the_figures_of_the_step(seed: int) -> None:
    """Whatever was looked at before: cursors forth and back, records as they come."""
    trace, told = run(seed)
    store, live = trace.store(), Store(live=True)
    end = store.end_ns
    cursors = [end * at // 9 for at in (9, 3, 5, 1, 8, 5, 9)]
    for t_ns in cursors:
        view = View(store, t_ns)
        for layout in layouts(view):
            for step in range(STEPS):
                alike(view, layout, step)
    known, done = 0, 0
    for upto in told:
        live.apply_all(trace.messages[known:upto])
        known, view = upto, View(live, None)
        done = sum(alike(view, layouts(view)[0], step) is not None for step in range(STEPS))
    assert done == STEPS - 1  # the last one's end is not over all ranks' horizon


def test_a_step_of_two_ranks() -> None:
    """F 0-10 and B 30-40 on rank 0, F 12-18 and B 18-28 on rank 1: 36 of 2 x 40 ms busy."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 1), 1)
    r0, r1 = trace.ranks
    r0.action("0F0", 0, 10)
    r0.action("0B0", 30, 40)
    r1.action("1F0", 12, 18)
    store = trace.store(live=True)
    view = View(store, None)
    assert step_outline(view, layouts(view)[0], 0) is None  # 1B0 is to come
    before = signature(view, layouts(view)[0], 0)
    known = len(trace.messages)
    r1.action("1B0", 18, 28)
    r0.action("0F0", 42, 44, step=1)
    r1.action("1F0", 46, 48, step=1)
    trace.flush()
    store.apply_all(trace.messages[known:])
    view = View(store, None)
    outline = step_outline(view, layouts(view)[0], 0)
    assert outline == Outline(0, ns(0), ns(40), {0: 20 * MS, 1: 16 * MS}, 1 - 36 / 80)
    assert signature(view, layouts(view)[0], 0) != before


@pytest.mark.parametrize("steps", [[3, 3, 4, 6, 6, 6, 9], [4, 3, 6, 3, 6, 9, 6]])
def test_rows_are_counted_by_step(steps: list[int]) -> None:
    """In order, or as steps that overlap are recorded."""
    table, rows = Table("t1_ns", None), np.zeros(len(steps), RECORD_DTYPE)
    rows["step"], rows["t1_ns"] = steps, range(len(steps))
    append([table], [len(rows)], blocks_of(rows))
    assert table.rows_by_step(3, 7, 6).tolist() == [
        len(table.step_rows(s, s, 6)) for s in range(3, 8)
    ]
    assert table.rows_by_step(3, 7, 7).tolist() == [2, 1, 0, 3, 0]
