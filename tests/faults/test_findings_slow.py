"""Real ranks with faults that show over many steps: who, why, and no error besides."""

from __future__ import annotations

import pytest

from tests.diagnosis.cases import SLOW, Case, quick, recipe
from tests.diagnosis.live import watch

CASES = (
    (recipe("straggler", 2, 1, 3, ("straggler",), sort=SLOW), "its compute takes"),
    (recipe("slow-loader", 2, 0, 3, ("straggler",), sort=SLOW), "its data loading takes"),
    (recipe("nan", 2, 1, 4, ("nan",), sort=SLOW), "rank 1 had a loss that is not finite first"),
    (recipe("diverge", 2, 1, 4, ("replica-divergence",), ((),), SLOW),
     "after step 0 and by step 10"),
)  # fmt: skip


@pytest.mark.faults
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("case", "says"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_a_slow_fault_is_named_with_its_cause(case: Case, says: str) -> None:
    outcome = watch(quick(case))
    assert outcome.right is not None, f"said instead: {outcome.named}"
    assert says in outcome.right.text
    assert outcome.false == {}
