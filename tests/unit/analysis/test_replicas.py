"""Replicas that a program keeps equal by hand, over 24 steps of 10 ms: backward 1-3, the gradients'
average at 4, the optimizer 6-7, its checksum in steps 0, 10 and 20. Worked out by hand."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.values.left_out import left_out
from pardbg.analysis.findings.values.replicas import divergence, unequal_settings, unequal_starts
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace

BYTES = 4096
STEPS = 24
SAME = (5, 6, 7)
"""A rank's checksums."""
Average = Sequence[tuple[str, int, int]]
"""(op, bytes in, bytes out) of each of its ops."""
SUM: Average = (("all_reduce", BYTES, BYTES),)


def job(
    *sums: Sequence[int], starts: Sequence[int] = (), average: Average = SUM, done: float = 5,
    after: int = 0, every: int = 1, backwards: int = 1, rates: Sequence[float] = (),
    gradients: Sequence[Sequence[int]] = (), steps: int = STEPS, zero: int = 0, groups: int = 1,
) -> View:  # fmt: skip
    """A rank for each ``sums``. ``average`` ends at ``done``; after each ``every``-th step,
    ``after`` bytes are broadcast at 8. ``gradients``: the sum of those that each rank took in steps
    0, 10 and 20."""
    trace = Trace(len(sums))
    for at, proc in enumerate(trace.ranks):
        proc.define(wire.DefKind.MODEL, zero=zero, shards=len(sums) if zero else 1, optimizer="SGD",
                    parameters_bytes=BYTES, start=starts[at] if starts else 3,
                    dtype="float32")  # fmt: skip
        for step in range(steps):
            t = 10 * step
            for part in range(backwards):
                proc.phase("backward", t + 1 + 2 * part / backwards, t + 1.5 + part, step)
            for op, num_bytes, out in average:
                proc.collective("world", op, t + 4, t + done, num_bytes, out, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            if step % 10 == 0:
                look(proc, t + 7, step, sums[at][step // 10], rates[at] if rates else 0.1, groups)
                if gradients:
                    proc.record(Kind.PROBE, t + 7, t + 7, proc.name("gradients"), step=step,
                                lane=Lane.COUNTER, a=gradients[at][step // 10], b=2)  # fmt: skip
            if after and step % every == 0:
                proc.collective("world", "broadcast", t + 8, t + 9, after, step=step)
            proc.step(step, t, t + 9)
    trace.flush()
    return View(trace.store(), None)


def look(proc: Proc, t: float, step: int, whole: int, rate: float, groups: int = 1) -> None:
    common = {"lane": Lane.COUNTER, "step": step}
    proc.record(Kind.PROBE, t, t, proc.name("checksum-own weight bias"), a=whole,
                b=whole | 9 + step << 8, group_id=proc.group("world"), **common)  # type: ignore[arg-type]  # fmt: skip
    proc.record(Kind.PROBE, t, t, proc.name("settings"), flags=Flag.FLOAT, a=rate,
                b=zlib.crc32(repr(rate).encode()) | groups << 32, **common)  # type: ignore[arg-type]  # fmt: skip


def sharded(
    *rates: Sequence[float], shards: int = 3, own: bool = True, op: str = "reduce_scatter"
) -> View:
    """A rank for each list of learning rates in steps 0, 10, …, whose gradients an op reduces at 4;
    ``shards`` of the parameters, of which each rank has its ``own``."""
    trace = Trace(len(rates))
    for proc, of in zip(trace.ranks, rates, strict=True):
        proc.define(wire.DefKind.MODEL, zero=3, shards=shards, parameters_bytes=BYTES,
                    optimizer="SGD", parameters_sharded=own)  # fmt: skip
        for at, rate in enumerate(of):
            proc.collective("world", op, 100 * at + 4, 100 * at + 5, BYTES, step=10 * at)
            look(proc, 100 * at + 7, 10 * at, 0, rate)
            proc.step(10 * at, 100 * at, 100 * at + 9)
    trace.flush()
    return View(trace.store(), None)


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (sharded([0.1, 0.1], [1.0, 1.0], [0.1, 0.1]), [((1,), 0, 2, 2)]),
        (sharded([0.1, 0.1, 0.1], [0.1, 0.3, 0.3], [0.1, 0.1, 0.1]), [((1,), 10, 2, 3)]),
        (sharded([0.1, 0.1], [0.3, 0.3]), [((), 0, 2, 2)]),  # no majority
        (sharded([0.1, 0.1, 0.1], [0.1, 0.1, 0.3], [0.1] * 3), []),  # a moment later, perhaps
        (sharded([0.1, 0.1, 0.1], [0.3, 0.3, 0.1], [0.1] * 3), []),  # it passed
        (sharded([0.1, 0.2], [0.1, 0.2], [0.1, 0.2]), []),  # a schedule
        (sharded([0.1, 0.1], [0.3, 0.3], [0.1, 0.1], own=False), []),  # each its own parameters
        (sharded([0.1, 0.1], [0.3, 0.3], [0.1, 0.1], op="all_reduce"), []),  # a pipeline's norm
    ],
)
def test_ranks_that_step_their_shards_with_other_settings(
    view: View, found: list[tuple[object, ...]]
) -> None:
    said = [
        (one.culprits, *facts(one, "step", "number", "looks")) for one in unequal_settings(view)
    ]
    assert said == found


def mesh(*rates: float) -> View:
    """Four ranks, 2 x 2, that scatter sums along both dimensions, with a learning rate each."""
    axes = {0: ("dp0", "tp0"), 1: ("dp1", "tp0"), 2: ("dp0", "tp1"), 3: ("dp1", "tp1")}
    groups = {"world": range(4), "dp0": (0, 2), "dp1": (1, 3), "tp0": (0, 1), "tp1": (2, 3)}
    trace = Trace(4, groups)
    for rank, proc in enumerate(trace.ranks):
        proc.define(wire.DefKind.MODEL, zero=3, shards=2, parameters_bytes=BYTES,
                    optimizer="SGD", parameters_sharded=True)  # fmt: skip
        for at in range(3):
            for axis in axes[rank]:
                proc.collective(axis, "reduce_scatter", 100 * at + 4, 100 * at + 5, BYTES,
                                step=10 * at)  # fmt: skip
            look(proc, 100 * at + 7, 10 * at, 0, rates[rank])
            proc.step(10 * at, 100 * at, 100 * at + 9)
    trace.flush()
    return View(trace.store(), None)


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((0.1, 0.1, 0.1, 0.1), []),
        ((0.1, 0.1, 0.1, 0.3), [((3,), (1, 2, 3))]),  # once, of its two groups
        ((0.3, 0.1, 0.1, 0.1), [((0,), (0, 1, 2))]),
        ((0.1, 0.1, 0.3, 0.3), [((), (0, 2)), ((), (1, 3))]),  # the others are as far apart
    ],
)
def test_a_rank_of_a_mesh_is_told_once(rates: tuple[float, ...], found: object) -> None:
    """Pairs have no majority; the ranks outside of them have."""
    assert [(one.culprits, one.ranks) for one in unequal_settings(mesh(*rates))] == found


@pytest.mark.parametrize(
    ("zero", "rate", "found"), [(1, 0.3, [((1,), 0, 3)]), (1, 0.1, []), (0, 0.3, [])]
)
def test_ranks_that_step_their_part_of_replicas_with_other_settings(
    zero: int, rate: float, found: list[tuple[object, ...]]
) -> None:
    """Parameters are gathered after the step, and so stay equal; without ZeRO they do not."""
    view = job(SAME, SAME, SAME, zero=zero, rates=(0.1, rate, 0.1), after=BYTES)
    assert [
        (one.culprits, *facts(one, "step", "number")) for one in unequal_settings(view)
    ] == found


PARTS: Average = (("all_reduce", 3 * BYTES, 3 * BYTES),)


@pytest.mark.parametrize(
    ("average", "after", "groups", "found"),
    [
        (PARTS, 3 * BYTES, 1, [(1,)]),
        (PARTS, 3 * BYTES, 2, []),  # layers may have rates of their own
        (PARTS, BYTES, 1, []),  # layers of their own
        (SUM, 0, 1, [(1,)]),  # equal all the same: gathered within the step
        (SUM, BYTES, 1, []),  # one rank's hold
    ],
)
def test_ranks_that_step_parts_by_hand_with_other_settings(
    average: Average, after: int, groups: int, found: list[tuple[int, ...]]
) -> None:
    """Each has a third of what is summed and broadcast."""
    view = job(SAME, SAME, SAME, average=average, after=after, groups=groups, rates=(0.1, 0.3, 0.1))
    assert [one.culprits for one in unequal_settings(view)] == found


HALF: Average = (
    ("reduce_scatter", BYTES // 2, BYTES // 6), ("all_gather", BYTES // 6, BYTES // 2),
)  # fmt: skip
"""Of half of the parameters, as an optimizer's step does that reduces the rest in another way."""


@pytest.mark.parametrize(
    ("sums", "rate", "average", "after", "found"),
    [
        ([SAME] * 3, 0.3, HALF, 0, [(1,)]),
        ([SAME] * 3, 0.1, HALF, 0, []),
        ([SAME, (5, 6, 9), SAME], 0.3, HALF, 0, []),  # they drift apart: said of replicas
        ([(1, 2, 3), (4, 5, 6), (7, 8, 9)], 0.3, HALF, 0, []),  # parameters of their own
        ([(5, 5, 5)] * 3, 0.3, HALF, 0, []),  # nothing is updated yet: no settings matter
        ([SAME] * 3, 0.3, HALF, BYTES, []),  # one rank's hold
        ([SAME] * 3, 0.3, HALF[:1], 0, []),  # nothing is gathered
    ],
)
def test_ranks_that_gather_within_the_step_with_other_settings(
    sums: Sequence[Sequence[int]], rate: float, average: Average, after: int,
    found: list[tuple[int, ...]],
) -> None:  # fmt: skip
    """Each scatters sums of gradients, steps its part of each tensor, and gathers the others'."""
    view = job(*sums, average=average, after=after, groups=2, rates=(0.1, rate, 0.1))
    assert [one.culprits for one in unequal_settings(view)] == found


def only(view: View) -> Candidate:
    (found,) = divergence(view)
    return found


@pytest.mark.parametrize(
    "average",
    [
        SUM,
        [("all_reduce", BYTES // 4, BYTES // 4)] * 4,
        [("reduce_scatter", BYTES, BYTES // 2), ("all_gather", BYTES // 2, BYTES)],
        [("all_gather", BYTES // 2, 3 * BYTES // 2)] * 2,
    ],
)
def test_ranks_that_average_are_replicas_from_the_first_step_on(average: Average) -> None:
    """Rank 1 has another learning rate from the begin: its checksum of step 0 differs already."""
    found = only(job(SAME, (8, 9, 10), SAME, average=average, rates=(0.1, 0.3, 0.1)))
    assert (found.ranks, found.culprits, found.facts.severity()) == ((0, 1, 2), (1,), "warning")
    assert facts(found, "step", "equal_step", "rates", "settings", "unfinished") == (
        0, None, ((0, 0.1), (1, 0.3), (2, 0.1)), (1,), 0)  # fmt: skip


@pytest.mark.parametrize(
    "average",
    [
        [],
        [("all_reduce", BYTES // 2, BYTES // 2)],  # activations, or a part of the model
        [("reduce_scatter", BYTES, BYTES // 2)],  # an optimizer of its own part
        [("all_gather", BYTES // 3, BYTES)],
        [("all_gather", BYTES, 2 * BYTES)],  # of three ranks it would be three times
    ],
)
def test_ranks_that_average_something_else_are_none(average: Average) -> None:
    assert list(divergence(job(SAME, (8, 9, 10), (1, 2, 3), average=average))) == []


OTHER_WAY: Average = [("all_to_all", BYTES // 2, BYTES // 2)] * 2


@pytest.mark.parametrize(
    ("gradients", "average", "ranks"),
    [
        ([(1, 2, 3)] * 3, OTHER_WAY, (0, 1, 2)),
        ([(1, 2, 3), (1, 2, 3), (1, 2, 4)], OTHER_WAY, (0, 1)),  # rank 2 is another stage's
        ([(1, 1, 1)] * 3, OTHER_WAY, ()),  # nothing that data had a part in
        ([(0, 0, 0)] * 3, OTHER_WAY, ()),
        ([(1, 2, 3)] * 3, [], ()),  # the same data, each for itself
    ],
)
def test_ranks_that_take_the_same_gradients_are_replicas(
    gradients: Sequence[Sequence[int]], average: Average, ranks: tuple[int, ...]
) -> None:
    view = job((1, 2, 3), (4, 5, 6), (7, 8, 9), average=average, gradients=gradients)
    assert [one.ranks for one in divergence(view)] == ([ranks] if ranks else [])


def test_ranks_that_take_the_same_gradients_may_have_begun_different() -> None:
    starts, sums = (3, 4, 3), ((1, 2, 3), (4, 5, 6), (1, 2, 3))
    view = job(*sums, starts=starts, average=OTHER_WAY, gradients=[(1, 2, 3)] * 3)
    assert [one.culprits for one in unequal_starts(view)] == [(1,)]


def test_a_sum_that_nobody_waits_for() -> None:
    """It is complete at 6.5, half a millisecond into the optimizer's step."""
    found = only(job((1, 2, 3), (4, 5, 6), (7, 8, 9), done=6.5))
    assert found.culprits == () and facts(found, "unfinished", "rates") == (16, ())


def test_gradients_of_several_backwards_are_averaged_once() -> None:
    assert only(job(SAME, (8, 9, 10), SAME, backwards=2)).culprits == (1,)


@pytest.mark.parametrize(
    ("after", "every", "severity"),
    [
        (BYTES, 1, "info"),  # rank 0's parameters hold
        (BYTES, 5, "info"),
        (BYTES // 4, 1, "warning"),  # buffers
        (BYTES, STEPS, "warning"),  # once, in the first step
    ],
)
def test_what_is_broadcast_after_steps_makes_ranks_equal_again(
    after: int, every: int, severity: str
) -> None:
    view = job(SAME, (8, 9, 10), SAME, after=after, every=every)
    assert only(view).facts.severity() == severity


def test_other_starts_are_a_finding_of_their_own() -> None:
    view = job(SAME, (8, 9, 10), SAME, starts=(3, 4, 3))
    assert list(divergence(view)) == []
    assert [one.culprits for one in unequal_starts(view)] == [(1,)]


def test_other_starts_that_something_made_equal_are_none() -> None:
    """A broadcast in the first step, say."""
    assert list(unequal_starts(job(SAME, (8, 6, 7), SAME, starts=(3, 4, 3)))) == []


def test_other_starts_after_which_the_model_was_broadcast_are_none() -> None:
    """Before step 11; the newest checksum is that of step 10 (ranks could not afford more)."""
    alone = job(*[(3, 4)] * 2, starts=(3, 4), steps=19)
    assert [one.ranks for one in unequal_starts(alone)] == []
    differ = job((3, 4), (5, 6), starts=(3, 4), steps=19)
    assert [one.ranks for one in unequal_starts(differ)] == [(0, 1)]
    synced = job((3, 4), (5, 6), starts=(3, 4), steps=19, after=BYTES, every=10)
    assert [one.ranks for one in unequal_starts(synced)] == []


@pytest.mark.parametrize(("every", "severity"), [(5, "info"), (1, "warning")])
def test_replicas_that_were_equal_and_sum_after_each_step(every: int, severity: str) -> None:
    """Local SGD sums its parameters now and then. Gradients that are summed after the optimizer's
    step, each time, are too late."""
    view = job((5, 6, 7), (5, 8, 9), average=[], after=BYTES, every=every)
    assert only(view).facts.severity() == severity


HALF: Average = [("all_reduce", BYTES // 2, BYTES // 2)]


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (job((1, 2, 3), (4, 5, 6), (7, 8, 9), average=HALF), [("weight",)]),
        (job((1, 2, 3), (4, 5, 6), (7, 8, 9)), []),  # all of them: a divergence
        (job((1, 2, 3), (4, 5, 6), (7, 8, 9), average=[]), []),  # each for itself
        (job((1, 2, 3), (4, 5, 6), average=HALF, starts=(3, 4)), []),  # layers of their own
        (job((1, 2, 3), (4, 5, 6), average=HALF, after=BYTES // 2), []),  # averaged there
        (job((1, 2), (4, 5), average=HALF, steps=19), []),
        (job((1, 5, 3), (4, 5, 6), average=HALF), []),  # equal in step 10
    ],
)
def test_parameters_that_ranks_leave_out_of_what_they_average(
    view: View, found: list[tuple[str, ...]]
) -> None:
    """The bias is trained, and equal on all ranks."""
    assert [facts(one, "parts", "step", "last") for one in left_out(view)] == [
        (parts, 0, False) for parts in found
    ]
