"""Ranks that average gradients by hand and began with different parameters, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values.batches import same_data, skipped_batches
from pardbg.analysis.findings.values.numbers import (
    kept_gradients,
    summed_twice,
    unequal_accumulation,
)
from pardbg.analysis.findings.values.paces import step_orders
from pardbg.analysis.findings.values.replicas import stale_parameters, unequal_starts
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

BYTES = 4096


@pytest.mark.parametrize(
    ("starts", "moved", "after_step", "found"),
    [
        ((7, 8, 7), BYTES, False, [(1,)]),
        ((7, 8, 9), BYTES, False, [()]),  # no majority
        ((7, 7, 7), BYTES, False, []),
        ((7, 8, 7), BYTES // 2, False, []),  # activations, or a part of the model
        ((7, 8, 7), BYTES, True, []),  # parameters are averaged: they become equal
    ],
)
def test_gradients_are_averaged_over_parameters_that_were_never_equal(
    starts: tuple[int, ...], moved: int, after_step: bool, found: list[tuple[int, ...]]
) -> None:
    """Four steps of 10 ms: backward 1-3, optimizer 6-7, an all_reduce at 4 or at 8."""
    trace = Trace(3)
    for proc, start in zip(trace.ranks, starts, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=start)  # fmt: skip
        for step in range(4):
            t = 10 * step
            proc.phase("backward", t + 1, t + 3, step)
            if not after_step:
                proc.collective("world", "all_reduce", t + 4, t + 5, moved, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            if after_step:
                proc.collective("world", "all_reduce", t + 8, t + 9, moved, step=step)
            proc.step(step, t, t + 9)
    trace.flush()
    assert [one.culprits for one in unequal_starts(View(trace.store(), None))] == found


def averaging(
    losses: list[list[float]], times: int, loss_at: float = 0,
    op: str = "all_reduce", moved: int = 4, dtype: str = "float32", of: int = BYTES, every: int = 1,
    before: list[list[float]] | None = None, sharded: bool = False,
) -> View:  # fmt: skip
    """One rank for each list of losses, of a step of 10 ms each: forward 0.1-0.5, backward 1-3,
    ``times`` the model of ``of`` bytes is summed at 4 as float32, optimizer 6-7. At ``loss_at``
    an ``op`` moves ``moved`` bytes in ``every`` few steps. ``sharded``: by FSDP."""
    sums = "reduce_scatter" if sharded else "all_reduce"
    trace = Trace(len(losses))
    for at, (proc, own) in enumerate(zip(trace.ranks, losses, strict=True)):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=of, optimizer="SGD",
                    start=7, dtype=dtype, parameters_sharded=sharded)  # fmt: skip
        for step, loss in enumerate(own):
            t = 10 * step
            proc.phase("forward", t + 0.1, t + 0.5, step)
            if loss_at and step % every == 0:
                proc.collective(
                    "world", op, t + loss_at, t + loss_at + 0.2, moved, moved, step=step
                )
            proc.phase("backward", t + 1, t + 3, step)
            if before:
                proc.seen_loss(t + 0.7, before[at][step], step)
            proc.seen_loss(t + 1, loss, step)
            for part in range(times):
                proc.collective("world", sums, t + 4 + part / 2, t + 5, of, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    return View(trace.store(), None)


FALLS = [1 / (step + 1) for step in range(30)]
OTHER = [loss + 1e-9 for loss in FALLS]


@pytest.mark.parametrize(
    ("losses", "times", "found"),
    [
        ([FALLS, FALLS, FALLS], 1, [(0, 1, 2)]),
        ([FALLS, OTHER, FALLS], 1, [(0, 2)]),
        ([FALLS, OTHER], 1, []),
        ([FALLS[:15], FALLS[:15]], 1, []),  # too few steps
        ([[0.5] * 30] * 2, 1, []),  # nothing is learnt
        ([FALLS, FALLS], 0, []),  # nothing is averaged: tensor parallel, say
        ([FALLS[:25] + OTHER[25:], FALLS], 1, []),
    ],
)
def test_ranks_that_average_gradients_of_the_same_data(
    losses: list[list[float]], times: int, found: list[tuple[int, ...]]
) -> None:
    assert [one.ranks for one in same_data(averaging(losses, times))] == found


@pytest.mark.parametrize(("other", "found"), [(OTHER, []), (FALLS, [(0, 1)])])
def test_a_gan_whose_noise_alone_is_the_same(
    other: list[float], found: list[tuple[int, ...]]
) -> None:
    """Two losses a step: the discriminator's is of the data, too."""
    view = averaging([FALLS, FALLS], 1, before=[FALLS, other])
    assert [one.ranks for one in same_data(view)] == found


@pytest.mark.parametrize(
    ("loss_at", "op", "moved", "found"),
    [
        (0.6, "all_reduce", 4, []),
        (0.6, "all_gather", 4 * BYTES, []),  # outputs of all ranks: contrastive losses
        (0.2, "all_gather", 4 * BYTES, []),  # the same, in the model
        (0.2, "broadcast", 4 * BYTES, [(0, 1)]),  # buffers
        (0.6, "broadcast", 4, [(0, 1)]),
        (3.5, "all_reduce", 4, [(0, 1)]),
        (8, "all_reduce", 4, [(0, 1)]),
    ],
)
def test_a_loss_that_ranks_may_share_before_backward_says_nothing_of_data(
    loss_at: float, op: str, moved: int, found: list[tuple[int, ...]]
) -> None:
    """In the forward buffers are broadcast; after backward or the step, the loss goes to a log."""
    view = averaging([FALLS, FALLS], 1, loss_at, op, moved)
    assert [one.ranks for one in same_data(view)] == found


@pytest.mark.parametrize(
    ("op", "moved", "found"),
    [
        ("all_gather", BYTES, [(0, 1)]),  # the parameters
        ("all_gather", BYTES // 2, [(0, 1)]),  # in bfloat16
        ("all_gather", 3 * BYTES, []),  # what ranks computed
        ("all_reduce", BYTES, []),
    ],
)
def test_sharded_parameters_that_are_gathered_are_no_part_of_the_loss(
    op: str, moved: int, found: list[tuple[int, ...]]
) -> None:
    view = averaging([FALLS, FALLS], 1, 0.2, op, moved, sharded=True)
    assert [one.ranks for one in same_data(view)] == found
    other = averaging([FALLS, OTHER], 1, 0.2, op, moved, sharded=True)
    assert list(same_data(other)) == []


@pytest.mark.parametrize(("every", "found"), [(2, []), (3, [(0, 1)]), (5, [(0, 1)])])
def test_a_loss_that_is_averaged_for_a_log_now_and_then(
    every: int, found: list[tuple[int, ...]]
) -> None:
    """Of 28 steps that have ended 14, 18 or 22 are left; 20 are needed."""
    view = averaging([FALLS, FALLS], 1, 0.6, every=every)
    assert [one.ranks for one in same_data(view)] == found


@pytest.mark.parametrize(
    ("alike", "within", "found"),
    [(True, "tp", [(1, 3)]), (True, "dp1", []), (False, "tp", [])],
)
def test_replicas_of_a_pipeline_that_take_the_same_data(
    alike: bool, within: str, found: list[tuple[int, ...]]
) -> None:
    """Stages 0 and 1 on ranks 0, 1 and on 2, 3; steps of 10 ms: an action F at 0.1-0.5, with an
    all_reduce ``within`` a group, B at 1-3, the model is summed at 4, the schedule tells its loss
    at 5, the optimizer runs 6-7."""
    trace = Trace(4, groups={"dp0": (0, 2), "dp1": (1, 3), "tp": (1,)})
    for proc in trace.ranks:
        stage, replica = (proc.rank or 0) % 2, (proc.rank or 0) // 2
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step, loss in enumerate(FALLS):
            t, dp = 10 * step, f"dp{stage}"
            if stage:
                proc.collective(within, "all_reduce", t + 0.2, t + 0.3, 4, step=step)
            proc.action(f"{stage}F0", t + 0.1, t + 0.5, step)
            proc.action(f"{stage}B0", t + 1, t + 3, step)
            proc.collective(dp, "all_reduce", t + 4, t + 4.5, BYTES, step=step)
            if stage:
                own = loss if alike else loss + replica
                flags = wire.Flag.FLOAT | wire.Flag.INFERRED
                proc.record(wire.Kind.METRIC, t + 5, t + 5, proc.name("loss"), flags=flags,
                            lane=wire.Lane.COUNTER, step=step, a=own, b=1)  # fmt: skip
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    assert [one.ranks for one in same_data(View(trace.store(), None))] == found


def test_losses_in_half_precision_are_often_equal_by_chance() -> None:
    """About 2.3 one bfloat16 in 64 values is next to the other."""
    halves = [round(64 * loss) / 64 for loss in FALLS]
    assert len({*halves[9:]}) > 1
    assert list(same_data(averaging([halves, halves], 1))) == []


@pytest.mark.parametrize(("times", "found"), [(1, []), (2, [(0, 1)]), (3, [])])
def test_gradients_that_are_summed_twice(times: int, found: list[tuple[int, ...]]) -> None:
    assert [one.ranks for one in summed_twice(averaging([FALLS, OTHER], times))] == found


@pytest.mark.parametrize(
    ("dtype", "of", "moved"),
    [
        ("bfloat16", BYTES, BYTES),  # cast to float32 for the sum alone, then back
        ("", BYTES, BYTES),  # several, or not known
        ("float32", 8, 8),  # a line through points, then its loss
    ],
)
def test_twice_the_bytes_are_not_always_two_sums(dtype: str, of: int, moved: int) -> None:
    """``of`` bytes of gradients, summed once, and ``moved`` others after it."""
    view = averaging([FALLS, OTHER], 1, 5.5, "all_reduce", moved, dtype, of)
    assert list(summed_twice(view)) == []


def loading(*batches: list[int], average: bool = True) -> View:
    """A rank for each list of the batches it takes before each step of 10 ms: at 0.1 and on, then
    backward 1-3, the average at 4, the optimizer 6-7."""
    trace = Trace(len(batches))
    for proc, taken in zip(trace.ranks, batches, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step, number in enumerate(taken):
            t = 10 * step
            for at in range(number):
                proc.phase("data", t + at / 1000, t + (at + 0.5) / 1000, step)
            proc.phase("backward", t + 1, t + 3, step)
            if average:
                proc.collective("world", "all_reduce", t + 4, t + 5, BYTES, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    return View(trace.store(), None)


ONE = [1] * 30


@pytest.mark.parametrize(
    ("batches", "average", "found"),
    [
        ([ONE, ONE[:12] + [2] + ONE[13:], ONE], True, [((1,), 12, 17)]),
        ([ONE, ONE[:12] + [2] + ONE[13:]], True, [((1,), 12, 17)]),
        ([ONE, ONE[:12] + [2] + ONE[13:]], False, []),  # each for itself
        ([ONE, ONE, ONE], True, []),
        ([ONE, [2, *ONE[1:]]], True, []),  # a look at one, before the first step
        ([ONE, ONE[:25] + [2] + ONE[26:]], True, []),  # the other may yet take one more
        ([ONE, ONE[:12] + [40] + ONE[13:]], True, []),  # an evaluation
        ([ONE, [2 if step % 10 == 5 else 1 for step in range(30)]], True, []),  # for a log
        ([ONE[:12] + [2] + ONE[13:]] * 3, True, []),  # all at once
        ([ONE, [0] * 30], True, []),  # no data loader
    ],
)
def test_a_batch_that_one_rank_skipped(
    batches: list[list[int]], average: bool, found: list[tuple[tuple[int, ...], int, int]]
) -> None:
    """The step that is under way does not count: 17 of 12-28."""
    said = [
        (one.culprits, *facts(one, "step", "num_steps"))
        for one in skipped_batches(loading(*batches, average=average))
    ]
    assert said == found


EXTRA = [1] * 12 + [2] + [1] * 17


@pytest.mark.parametrize(
    ("backwards", "cleared", "average", "found"),
    [
        ([ONE, EXTRA, ONE], [], True, [((1,), 12, 17, "backward")]),
        ([ONE, EXTRA, ONE], [], False, []),
        ([[3] * 30, [3] * 12 + [4] + [3] * 17], [], True, []),  # it had a microbatch more
        ([ONE, ONE[:12] + [2] * 18], [], True, []),  # from there on
        ([ONE, ONE, ONE], [(1, 12)], True, [((1,), 12, 17, "cleared again")]),
        ([ONE, ONE], [(1, 12)], False, []),
        ([ONE, ONE], [(0, 12), (1, 12)], True, []),  # all at once
        ([ONE, ONE], [(1, 0)], True, []),  # before the first step
        ([ONE, ONE], [(1, 12), (1, 20)], True, []),  # again and again
        ([ONE, ONE], [(r, s) for r in (0, 1) for s in range(30)], True, []),
        ([ONE, EXTRA], [(1, 12)], True, [((1,), 12, 17, "backward")]),  # told once
    ],
)
def test_an_iteration_without_a_step_and_without_a_data_loader(
    backwards: list[list[int]], cleared: list[tuple[int, int]], average: bool,
    found: list[tuple[object, ...]],
) -> None:  # fmt: skip
    """``cleared``: (rank, step) before whose optimizer gradients were cleared again."""
    view = accumulating(*backwards, average=average, cleared=cleared)
    said = [(one.culprits, *facts(one, "step", "num_steps", "what"))
            for one in skipped_batches(view)]  # fmt: skip
    assert said == found


def accumulating(
    *backwards: list[int], kept: list[list[int]] | None = None, average: bool = True,
    added: list[list[int]] | None = None, cleared: Sequence[tuple[int, int]] = (),
    sums: Sequence[Sequence[int]] = (),
) -> View:  # fmt: skip
    """A rank for each list of its backwards in each step of 10 ms, from 1 on; the average at 4, the
    optimizer 6-7. ``kept``: rank by rank, of each tenth step, whether gradients were kept;
    ``added``: of which of these steps they were added to; ``sums``: of its parameters, which then
    are reduced and gathered within the optimizer's step."""
    trace = Trace(len(backwards))
    for proc, of in zip(trace.ranks, backwards, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step, number in enumerate(of):
            t = 10 * step
            for at in range(number):
                proc.phase("backward", t + 1 + at / 10, t + 1.05 + at / 10, step)
            if average:
                proc.collective("world", "all_reduce", t + 4, t + 5, BYTES, step=step)
            for op in ("reduce_scatter", "all_gather") if sums else ():
                proc.collective("world", op, t + 6.2, t + 6.4, BYTES, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            if (proc.rank, step) in cleared:
                proc.record(wire.Kind.PROBE, t + 0.5, t + 0.5, proc.name("cleared again"),
                            step=step, a=1)  # fmt: skip
            proc.step(step, t, t + 9)
        for look, was in enumerate((kept or [[]] * len(backwards))[proc.rank or 0]):
            proc.record(wire.Kind.PROBE, 100 * look + 9, 100 * look + 9,
                        proc.name("gradients kept"), step=10 * look, a=was)  # fmt: skip
        for look, whole in enumerate((sums or [[]] * len(backwards))[proc.rank or 0]):
            proc.record(wire.Kind.PROBE, 100 * look + 7, 100 * look + 7,
                        proc.name("checksum-own weight"), step=10 * look, a=whole,
                        group_id=proc.group("world"))  # fmt: skip
        for look in (added or [[]] * len(backwards))[proc.rank or 0]:
            proc.record(wire.Kind.PROBE, 100 * look + 29, 100 * look + 29,
                        proc.name("gradients added"), step=10 * look, a=1)  # fmt: skip
    trace.flush()
    return View(trace.store(), None)


@pytest.mark.parametrize(
    ("kept", "average", "found"),
    [
        ([[0, 0, 0], [0, 1, 1], [0, 0, 0]], True, [((1,), "warning", 10, 2, 3)]),
        ([[0, 0, 0], [1, 1, 1]], True, [((1,), "warning", 0, 3, 3)]),
        ([[0, 0, 0], [0, 1, 0]], True, [((1,), "info", 10, 1, 3)]),  # it passed
        ([[0, 0, 0], [0, 0, 1]], True, [((1,), "info", 20, 1, 3)]),  # once: not known to last
        ([[0, 0, 0], [1, 1, 1]], False, []),  # each for itself
        ([[1, 1, 1], [1, 1, 1]], True, []),  # the discriminator's, in the generator's backward
        ([[0, 0, 0], [1]], True, [((1,), "info", 0, 1, 1)]),
        ([[0, 0, 0], []], True, []),
    ],
)
def test_gradients_that_one_rank_kept(
    kept: list[list[int]], average: bool, found: list[tuple[object, ...]]
) -> None:
    view = accumulating(*[[1] * 30 for _ in kept], kept=kept, average=average)
    said = [
        (one.culprits, one.facts.severity(), *facts(one, "step", "number", "looks"))
        for one in kept_gradients(view)
    ]
    assert said == found


@pytest.mark.parametrize(
    ("kept", "added", "found"),
    [
        ([[1, 1, 1]] * 2, [[1, 2]] * 2, [((0, 1), (), "warning", 10, 2, 3)]),
        ([[1, 1, 1]] * 2, [[0, 1]] * 2, [((0, 1), (), "warning", 0, 2, 3)]),  # 20 is under way
        ([[1, 1, 1]] * 2, [[1]] * 2, []),  # once
        ([[1, 1, 0]] * 2, [[0, 1]] * 2, []),  # it passed
        ([[1, 1, 1]] * 2, [[0, 1], []], [((0,), (0,), "warning", 0, 2, 3)]),
        ([[1, 1, 1], [0, 0, 0]], [[0, 1], []], [((0, 1), (0,), "warning", 0, 3, 3)]),  # told once
        ([[1, 1, 1]] * 2, [[]] * 2, []),
    ],
)
def test_gradients_that_no_rank_cleared(
    kept: list[list[int]], added: list[list[int]], found: list[tuple[object, ...]]
) -> None:
    view = accumulating([1] * 30, [1] * 30, kept=kept, added=added)
    said = [
        (one.ranks, one.culprits, one.facts.severity(), *facts(one, "step", "number", "looks"))
        for one in kept_gradients(view)
    ]
    assert said == found


@pytest.mark.parametrize(
    ("backwards", "average", "found"),
    [
        (([4] * 12, [3] * 12, [4] * 12), True, [((1,), ((0, 4), (1, 3), (2, 4)))]),
        (([4] * 12, [3] * 12), True, [((), ((0, 4), (1, 3)))]),  # no majority
        (([4] * 12, [4] * 3 + [3] * 9, [4] * 12), True, [((1,), ((0, 4), (1, 3), (2, 4)))]),
        (([4] * 12, [4] * 5 + [3] * 7, [4] * 12), True, []),  # 7, of which 6 are over
        (([4] * 12, [4] * 11 + [3], [4] * 12), True, []),  # an epoch's last batches
        (([4, 3] * 6, [3, 4] * 6), True, []),  # batches by their tokens
        (([4] * 12, [3] * 12), False, []),
        (([4] * 12, [4] * 12), True, []),
    ],
)
def test_ranks_that_accumulate_over_other_numbers_of_backwards(
    backwards: tuple[list[int], ...], average: bool, found: list[tuple[object, object]]
) -> None:
    view = accumulating(*backwards, average=average)
    said = [(one.culprits, facts(one, "backwards")) for one in unequal_accumulation(view)]
    assert said == found


@pytest.mark.parametrize(
    ("sums", "found"),
    [
        ([(1, 2)] * 3, [(1,)]),
        ([(1, 2), (1, 3), (1, 2)], []),  # they drift apart: said of replicas
        ([(1, 1)] * 3, []),  # nothing is updated
    ],
)
def test_ranks_whose_optimizers_average_within_their_step_over_other_numbers_of_backwards(
    sums: list[tuple[int, int]], found: list[tuple[int, ...]]
) -> None:
    view = accumulating([4] * 12, [3] * 12, [4] * 12, average=False, sums=sums)
    assert [one.culprits for one in unequal_accumulation(view)] == found


def sharding(early: list[int], since: int = 0, after: str = "all_gather", of: int = BYTES) -> View:
    """Four ranks, each of which steps a quarter of ``BYTES``, in steps of 10 ms: backward 1-3, all
    is summed at 4, the optimizer 6-7, and all is gathered at 8. Ranks of ``early`` gather at 5
    from step ``since`` on; then ``after`` moves ``of`` bytes at 8.5."""
    trace = Trace(4)
    for proc in trace.ranks:
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES // 4,
                    optimizer="Adam", start=proc.rank, dtype="float32")  # fmt: skip
        for step in range(20):
            t, at = 10 * step, 5 if proc.rank in early and step >= since else 8
            proc.phase("backward", t + 1, t + 3, step)
            proc.collective("world", "reduce_scatter", t + 4, t + 4.5, BYTES, BYTES // 4, step=step)
            if at == 5:
                proc.collective(
                    "world", "all_gather", t + at, t + 5.5, BYTES // 4, BYTES, step=step
                )
            proc.phase("optimizer", t + 6, t + 7, step)
            if at == 8:
                proc.collective(
                    "world", "all_gather", t + at, t + 8.4, BYTES // 4, BYTES, step=step
                )
            elif len(early) == 4:
                proc.collective("world", after, t + 8.5, t + 8.9, of, step=step)
            proc.step(step, t, t + 9)
    trace.flush()
    return View(trace.store(), None)


@pytest.mark.parametrize(
    ("early", "since", "found"),
    [
        ([2], 0, [((2,), (2,), (0, 1, 3))]),
        ([2], 10, [((2,), (2,), (0, 1, 3))]),
        ([2], 13, []),  # seven times
        ([0, 1, 3], 0, [((2,), (0, 1, 3), (2,))]),
        ([0, 1], 0, [((), (0, 1), (2, 3))]),
        ([0, 1, 2, 3], 0, []),
        ([], 0, []),
    ],
)
def test_ranks_that_gather_on_the_other_side_of_their_step(
    early: list[int], since: int, found: list[tuple[object, ...]]
) -> None:
    said = [
        (one.culprits, *facts(one, "before", "after"))
        for one in step_orders(sharding(early, since, of=4))
    ]
    assert said == found


@pytest.mark.parametrize(
    ("early", "after", "of", "found"),
    [
        ([0, 1, 2, 3], "all_reduce", 4, [((0, 1, 2, 3), BYTES)]),  # a loss
        ([0, 1, 2, 3], "broadcast", BYTES, []),  # parameters
        ([], "all_reduce", 4, []),
    ],
)
def test_parameters_that_are_gathered_before_the_step(
    early: list[int], after: str, of: int, found: list[tuple[object, ...]]
) -> None:
    view = sharding(early, 0, after, of)
    said = [(one.ranks, facts(one, "parameters_bytes")) for one in stale_parameters(view)]
    assert said == found
