"""The critical path of a pipeline step, by hand."""

from __future__ import annotations

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.critical_path import CriticalPath, critical_path
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import layouts
from tests.unit.trace_builder import MS, Trace, gpipe


def path_of(actions: dict[int, list[tuple[str, float, float]]], m: int) -> CriticalPath:
    trace = Trace(2)
    trace.plan("ScheduleGPipe", gpipe(2, m), m)
    for rank, row in actions.items():
        for text, t0, t1 in row:
            trace.ranks[rank].action(text, t0, t1)
    view = View(trace.store(), None)
    (layout,) = layouts(view)
    step = pipeline_step(view, layout, 0)
    assert step is not None
    found = critical_path(step, 2)
    assert found is not None and found.window_ns == step.t1_ns - step.t0_ns
    return found


def test_the_path_goes_over_the_slow_rank() -> None:
    """Rank 1 is the slow one: in to it by 0F0, out of it by 1B1 (a backward that rank 0 waits
    for), 1 ms on each way and 1 ms of host code before 1F1.

    r0  F0 0-2  F1 2-4                              B0 15-17   B1 20-22
    r1        F0 3-6   F1 7-10   B0 10-14   B1 14-19
    """
    path = path_of(
        {
            0: [("0F0", 0, 2), ("0F1", 2, 4), ("0B0", 15, 17), ("0B1", 20, 22)],
            1: [("1F0", 3, 6), ("1F1", 7, 10), ("1B0", 10, 14), ("1B1", 14, 19)],
        },
        2,
    )
    assert [link.action for link in path.links] == ["0F0", "1F0", "1F1", "1B0", "1B1", "0B1"]
    assert [link.way for link in path.links] == ["begin", "tensor", "host", "host", "host",
                                                 "tensor"]  # fmt: skip
    assert (path.compute_ns, path.tensor_ns, path.host_ns) == (19 * MS, 2 * MS, 1 * MS)
    assert path.by_rank() == {0: 4 * MS, 1: 15 * MS} and path.hops == 2
    assert path.actions == {"0F0", "1F0", "1F1", "1B0", "1B1", "0B1"}


def test_one_that_ends_on_the_rank_it_began_on() -> None:
    """Rank 0's own work is the longest: nothing of rank 1 is on the path but the turn."""
    path = path_of(
        {
            0: [("0F0", 0, 10), ("0F1", 10, 20), ("0B0", 20, 30), ("0B1", 30, 40)],
            1: [("1F0", 11, 12), ("1F1", 21, 22), ("1B0", 12, 13), ("1B1", 22, 23)],
        },
        2,
    )
    assert [link.action for link in path.links] == ["0F0", "0F1", "0B0", "0B1"]
    assert (path.compute_ns, path.tensor_ns, path.host_ns) == (40 * MS, 0, 0)


def test_a_step_under_way_has_none() -> None:
    trace = Trace(2)
    trace.plan("ScheduleGPipe", gpipe(2, 1), 1)
    trace.ranks[0].action("0F0", 0, 1)
    view = View(trace.store(), None)
    step = pipeline_step(view, layouts(view)[0], 0)
    assert step is not None and critical_path(step, 2) is None
