"""Ops that pair wrongly because a rank left one out before: one finding, its cause. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.findings.registry import standstills
from tests.unit.analysis.test_waitgraph import at
from tests.unit.trace_builder import Trace

STEPS = 5
OTHER = "tp"


def left_out(other: str = "world") -> Trace:
    """Each step: 8 B of int64, 8 B of float32, then of ``other`` more bytes in each
    step. In the last one rank 1 leaves the first out."""
    trace = Trace(2, {"world": (0, 1), OTHER: (0, 1)})
    for rank, proc in enumerate(trace.ranks):
        for step in range(STEPS):
            t, last = 100.0 * step + rank, step == STEPS - 1
            if not (last and rank == 1):
                proc.collective("world", "all_reduce", t, t + 1, 8, dtype="int64", step=step)
            proc.collective("world", "all_reduce", t + 2, t + 3, 8, step=step)
            stands = last and other == "world"
            size = 20 + 4 * step if other == "world" or not last else 64 + 64 * rank
            proc.collective(other, "all_reduce", t + 4, None if stands else t + 5, size, step=step)
            if not last:
                proc.step(step, t, t + 9)
    return trace


@pytest.mark.parametrize(("other", "seq"), [("world", 12), (OTHER, 8)])
def test_ops_that_meet_wrongly_behind_a_shift_are_no_findings_of_their_own(
    other: str, seq: int
) -> None:
    """Rank 1's float32 meets rank 0's int64: it differs from the steps before. Then 8 B meet 36 B,
    or in the other group 64 B meet 128 B, and no step before says which is usual."""
    (found,) = standstills(at(left_out(other), 4000))
    assert (found.kind, found.culprits, found.seq) == ("dtype-mismatch", (1,), seq)


@pytest.mark.parametrize("first_ms", [395, 450])
def test_a_mismatch_before_the_shift_is_a_finding_beside_it(first_ms: float) -> None:
    """In the other group 64 B meet 128 B, before rank 1's float32 at 401 or behind it."""
    trace = left_out()
    for rank, proc in enumerate(trace.ranks):
        proc.collective(OTHER, "all_reduce", first_ms, None, 64 + 64 * rank, step=STEPS - 1)
    kinds = {(f.kind, f.group) for f in standstills(at(trace, 4000))}
    before = {("size-mismatch", OTHER)} if first_ms < 400 else set()
    assert kinds == {("dtype-mismatch", "world")} | before
