"""Ranks that wait for their data, in steps of 100 ms."""

from __future__ import annotations

import pytest

from pardbg_agent.wire import LOADERS, Flag, Kind, Lane
from tests.unit.analysis.test_findings_speed import STEPS, data_parallel, found, one, without_load
from tests.unit.analysis.test_times import on_device
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace


def with_loaders(trace: Trace, busy: list[int | None]) -> Trace:
    """Of ten looks at workers so many saw one at work; None: a rank without workers."""
    for proc, times in zip(trace.ranks, busy, strict=True):
        if times is not None:
            proc.record(Kind.PROBE, 1000, 1000, proc.name(LOADERS), lane=Lane.COUNTER,
                        a=times, b=10)  # fmt: skip
    return trace


def kinds(trace: Trace) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.kind, one.severity, one.culprits) for one in without_load(trace)]


@pytest.mark.parametrize(("more", "severity"), [(9, None), (10, "info"), (30, "warning")])
def test_steps_that_wait_for_data_are_told_from_a_fifth_on(
    more: float, severity: str | None
) -> None:
    """Loading takes 10 of 100 ms and so much more on all ranks alike."""
    trace = data_parallel(Trace(3), {key: {"data": more} for key in range(3)})
    assert kinds(trace) == ([] if severity is None else [("input-bound", severity, ())])
    if severity is not None:
        said = one(trace, "input-bound")
        assert facts(said, "waits_ns", "step_ns", "busy") == ((10 + more) * MS, 100 * MS, None)
        assert said.cost_ns_per_step == (10 + more) * MS


@pytest.mark.parametrize(("busy", "wanted"), [
    ([10, 10, 10], ("input-bound", "warning", ())),
    ([9, 10, 9], ("input-bound", "warning", ())),
    ([5, 10, 6], ("straggler", "warning", (1,))),
    ([5, None, 5], ("straggler", "warning", (1,))),
    ([None, 10, None], ("straggler", "warning", (1,))),
    ([None, None, None], ("straggler", "warning", (1,))),
])  # fmt: skip
def test_where_all_loaders_are_busy_the_last_one_is_not_to_blame(
    busy: list[int | None], wanted: tuple[str, str, tuple[int, ...]]
) -> None:
    """Loading takes 40 of 100 ms on rank 1, 10 on the others. Loaders that are busy all the time,
    or for 90% of it, would hold a step without rank 1 up for as long, or 10 ms less."""
    trace = with_loaders(data_parallel(Trace(3), {1: {"data": 30}}), busy)
    assert kinds(trace) == [wanted]


def test_what_a_faster_loader_would_save_is_bounded_by_the_others_loaders() -> None:
    """Rank 1 is 30 ms late; the others' loaders work for 80% of a step of 100 ms: 20 are saved."""
    trace = with_loaders(data_parallel(Trace(3), {1: {"data": 30}}), [8, 10, 5])
    said = one(trace, "straggler")
    assert (said.severity, said.cost_ns_per_step) == ("warning", 20 * MS)


@pytest.mark.parametrize(("busy", "told"), [([5, 10, 5], True), ([8, 10, 5], False)])
def test_workers_that_finish_together_make_every_second_step_late(
    busy: list[int], told: bool
) -> None:
    """Rank 1 loads for 10 and for 70 ms in turn: late by 60 ms in half of the steps. The mean step
    is 30 ms longer. Only where the others' loaders are far ahead is that its loader's fault."""
    trace = Trace(3)
    for step in range(STEPS):
        for proc in trace.ranks:
            more = 60 if proc.rank == 1 and step % 2 else 0
            late, begin = 60 * (step % 2), 100.0 * step
            proc.phase("data", begin, begin + 10 + more, step)
            proc.phase("backward", begin + 10 + more, begin + 15 + more, step)
            proc.collective("world", "all_reduce", begin + 16 + more, begin + 20 + late, 4096,
                            step=step)  # fmt: skip
            proc.wait(begin + 16.01 + more, begin + 20 + late, step, p2p=False)
            proc.step(step, begin, begin + 100)
    said = [one for one in without_load(with_loaders(trace, busy)) if one.kind == "straggler"]
    assert [(one.culprits, one.cost_ns_per_step) for one in said] == [((1,), 30 * MS)] * told


@pytest.mark.parametrize(("lead_ms", "told"), [(1, True), (70, False)])
def test_data_that_a_device_need_not_wait_for_costs_nothing(lead_ms: int, told: bool) -> None:
    """Hosts load for 40 of 100 ms. What the device comes to at 60 was launched just then, or lay in
    its queue before the step."""
    trace = on_device(data_parallel(Trace(3), {key: {"data": 30} for key in range(3)}))
    for proc in trace.ranks:
        phase = {"lane": Lane.PHASE, "name_id": proc.name("forward")}
        for begin in range(160, 100 * STEPS, 100):
            at = begin - lead_ms
            proc.record(Kind.PHASE, at, at + 1, flags=Flag.DEVICE, **phase)
            proc.record(Kind.DEVICE, begin, begin + 1, a=lead_ms * MS, **phase)
    assert ("input-bound" in [one.kind for one in found(trace)]) == told


def test_without_counted_steps_nothing_is_said_of_them() -> None:
    """Pairs of ranks take turns: no step has the ranks of the last one."""
    trace = Trace(4, {"even": (0, 2), "odd": (1, 3)})
    for step in range(STEPS):
        for proc in trace.ranks[step % 2 :: 2]:
            begin = 100.0 * step
            proc.phase("data", begin, begin + 80, step)
            group = ("even", "odd")[step % 2]
            proc.collective(group, "all_reduce", begin + 81, begin + 90, 4096, step=step)
    assert all(one.kind != "input-bound" for one in found(trace))
