"""Exceptions that ranks raise at values that became NaN before."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.kinds.end_kinds import Raised
from pardbg.analysis.findings.wording import word
from tests.unit.analysis.test_ends import raises
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace


@pytest.mark.parametrize(("bad", "raise_it", "note"), [
    (5, (0, 1, 2), True), (4, (0, 1, 2), True), (3, (0, 1, 2), False), (5, (0, 1), False),
    (5, (2,), False),
])  # fmt: skip
def test_an_exception_of_several_ranks_after_a_nan_follows_from_it(
    bad: int, raise_it: tuple[int, ...], note: bool
) -> None:
    """Rank 2's loss is NaN in step ``bad`` and later; ranks check their values in step 5 and end.
    What only ranks without the NaN raise, or much later, may have another cause."""
    trace = Trace(3)
    for step in range(6):
        for proc in trace.ranks:
            value = float("nan") if step >= bad and proc.rank == 2 else 1.0
            proc.metric("loss", 10 * step + 1, value, step)
            proc.step(step, 10 * step, 10 * step + 9)
    for rank in raise_it:
        raises(trace.ranks[rank], 58, "ValueError: invalid values")
    trace.end(70, code=1)
    found = {one.kind: one for one in snapshot(trace.store(), None).findings}
    assert (found["nan"].severity, found["nan"].culprits) == ("error", (2,))
    assert found["exception"].severity == ("info" if note else "error")
    assert bool(found["exception"].steps) == (not note)


@pytest.mark.parametrize(("ranks", "everywhere"), [((0, 1, 2), True), ((0, 1), False)])
def test_an_exception_of_all_ranks_is_no_ranks_fault(
    ranks: tuple[int, ...], everywhere: bool
) -> None:
    trace = Trace(3)
    for rank in ranks:
        raises(trace.ranks[rank], 5 + rank)
    trace.end(70, code=1)
    (found,) = (one for one in snapshot(trace.store(), None).findings if one.severity == "error")
    assert (found.kind, facts(found, "everywhere", "first")) == ("exception", (everywhere, 0))
    assert found.advice == word(Raised, "try everywhere" if everywhere else "try")
