"""Ranks that read the same samples, each with noise of its own, worked out by hand."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values.batches import same_data, same_parts, same_targets, unlike_data
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

BYTES = 4096
NEW = [*range(1, 9)]


@pytest.mark.parametrize(
    ("told", "shared", "found"),
    [
        ([NEW, NEW, [9, *NEW[1:]]], False, [(0, 1)]),
        ([NEW, NEW], True, []),  # one loss of what all computed
        ([NEW[:7], NEW[:7]], False, []),
        ([[1, 2] * 4, [1, 2] * 4], False, []),  # few targets there are, as real and fake
        ([[0] * 8, [0] * 8], False, []),  # not known
        ([NEW, [*NEW[:7], 9]], False, []),
    ],
)
def test_same_targets_beside_noise(
    told: list[list[int]], shared: bool, found: list[tuple[int, ...]]
) -> None:
    """A look in each step; the losses differ in the first. Sums at 4, optimizer 6-7."""
    trace = Trace(len(told))
    for proc, own in zip(trace.ranks, told, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step, targets in enumerate(own):
            t = 10 * step
            proc.phase("forward", t + 0.1, t + 0.5, step)
            if shared:
                proc.collective("world", "all_gather", t + 0.6, t + 0.7, 64, 64, step=step)
            proc.record(wire.Kind.PROBE, t + 1, t + 1, proc.name("loss by NllLossBackward0"),
                        lane=wire.Lane.COUNTER, step=step, a=targets)  # fmt: skip
            proc.phase("backward", t + 1, t + 3, step)
            proc.seen_loss(t + 1, 1 / (step + 1) + (proc.rank or 0) * (step == 0), step)
            proc.collective("world", "all_reduce", t + 4, t + 5, BYTES, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    view = View(trace.store(), None)
    assert [one.ranks for one in same_targets(view)] == found
    assert list(same_data(view)) == []


@pytest.mark.parametrize(
    ("parts", "shared", "found"),
    [
        ([(3, 0), (3, 1), (3, 0)], False, [(0, 2)]),
        ([(3, 0), (3, 0), (3, 0)], False, [(0, 1, 2)]),
        ([(3, 0), (3, 1), (3, 2)], False, []),
        ([(1, 0), (1, 0), (1, 0)], False, []),  # each has samples of its own
        ([(3, 0), (3, 0), None], True, []),  # parts of one sequence
    ],
)
def test_samplers_with_one_rank(
    parts: list[tuple[int, int] | None], shared: bool, found: list[tuple[int, ...]]
) -> None:
    """The epoch before has other parts: the newest counts. Sums at 4, optimizer 6-7."""
    trace = Trace(len(parts))
    for proc, own in zip(trace.ranks, parts, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step in range(8):
            t = 10 * step
            if step in (0, 4) and own is not None:
                a, b = own if step else (3, proc.rank or 0)
                proc.record(wire.Kind.PROBE, t, t, proc.name("part of samples"),
                            lane=wire.Lane.COUNTER, step=step, a=a, b=b)  # fmt: skip
            proc.phase("forward", t + 0.1, t + 0.5, step)
            if shared:
                proc.collective("world", "all_gather", t + 0.6, t + 0.7, 64, 64, step=step)
            proc.phase("backward", t + 1, t + 3, step)
            proc.collective("world", "all_reduce", t + 4, t + 5, BYTES, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    assert [one.ranks for one in same_parts(View(trace.store(), None))] == found


ON = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("told", "moved", "summed", "found"),
    [
        ([ON, ON, [1, 2, 7, 8, 9]], 4096, 0, [((2,), (20, 3))]),
        ([ON, [6, 7, 8, 9, 10], ON], 4096, 0, [((1,), (0, 5))]),
        ([ON, ON, ON], 4096, 0, []),
        ([ON, ON, [1, 2, 3, 8, 9]], 4096, 0, []),  # in two looks
        ([ON, ON, [1, 2, 7, 0, 9]], 4096, 0, []),  # not known in one
        ([[1] * 5, [1] * 5, ON], 4096, 0, []),  # only one rank has labels
        ([ON, [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]], 4096, 0, []),  # each its part
        ([ON, [6, 7, 8, 9, 10]], 4096, 0, []),  # no majority
        ([ON, ON, [1, 2, 7, 8, 9]], 64, 0, []),  # counts
        ([ON, ON, [1, 2, 7, 8, 9]], 4096, BYTES, []),  # replicas: data are to differ
    ],
)
def test_a_rank_that_has_other_targets_than_those_it_computes_with(
    told: list[list[int]], moved: int, summed: int, found: list[tuple[object, ...]]
) -> None:
    """Steps of 10 ms, a look in each tenth: ``moved`` bytes are summed at 0.5, backward 1-3,
    ``summed`` bytes at 4, optimizer 6-7."""
    trace = Trace(len(told))
    for proc, own in zip(trace.ranks, told, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step in range(10 * len(own)):
            t = 10 * step
            proc.collective("world", "all_reduce", t + 0.5, t + 0.6, moved, step=step)
            if step % 10 == 0:
                proc.record(wire.Kind.PROBE, t + 1, t + 1, proc.name("loss by NllLossBackward0"),
                            lane=wire.Lane.COUNTER, step=step, a=own[step // 10])  # fmt: skip
            proc.phase("backward", t + 1, t + 3, step)
            if summed:
                proc.collective("world", "all_reduce", t + 4, t + 5, summed, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    said = unlike_data(View(trace.store(), None))
    assert [(one.culprits, facts(one, "step", "num_looks")) for one in said] == found
