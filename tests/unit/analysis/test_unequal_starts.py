"""Ranks that average gradients by hand and began with different parameters, worked out by hand."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.numbers import unequal_starts
from pardbg_agent import wire
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
