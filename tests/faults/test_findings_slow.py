"""Real ranks with faults that show over many steps: who, why, and no error besides."""

from __future__ import annotations

import pytest

from tests.diagnosis.cases import SLOW, Case, quick, recipe, torchrun
from tests.diagnosis.live import watch
from tests.unit.facts import facts

CASES = (
    # It sleeps in forward: where there were looks enough at that, the call is the cause.
    (recipe("straggler", 2, 1, 3, ("straggler",), sort=SLOW), {"cause": {"compute", "blocked"}}),
    (Case("same-data-pipeline",
          torchrun(4, "tests.diagnosis.number_programs", "same-data-pipeline", "0", "10"),
          ("same-data",), ((),), SLOW), {"num_steps": {20}}),
    (Case("keeps-gradients",
          torchrun(3, "tests.diagnosis.number_programs", "keeps-gradients-ddp", "1", "10"),
          ("gradients-kept",), ((1,),), SLOW), {"step": {10}}),
    (Case("steps-early",
          torchrun(3, "tests.diagnosis.number_programs", "steps-early", "1", "0"),
          ("late-average",), ((),), SLOW), {}),
    (Case("no-step-fsdp",
          torchrun(3, "tests.diagnosis.number_programs", "no-step-fsdp", "2", "10"),
          ("step-drift",), ((2,),), SLOW), {"how": {"skips"}, "step": {10}}),
)  # fmt: skip
MORE = (
    # 60 ms, the fault's own size, are less than what other jobs on the same cores take.
    (recipe("slow-loader", 2, 0, 3, ("straggler",), None, SLOW, 60, "--fault-size", "300"),
     {"cause": {"data"}}),
    (recipe("nan", 2, 1, 4, ("nan",), sort=SLOW), {"what": {"loss"}}),
    (recipe("diverge", 2, 1, 4, ("replica-divergence",), ((),), SLOW),
     {"equal_step": {0}, "step": {10}}),
    (Case("comm-thread-dies",
          torchrun(3, "tests.diagnosis.culprit_programs", "comm-thread-dies", "1", "3"),
          ("thread-exception",), ((1,),), alone=True), {"thread": {"comm"}, "waiting": {(0, 2)}}),
)  # fmt: skip
"""Kinds that recordings and unit tests show, too: `make test-long`."""


@pytest.mark.faults
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("case", "known"), [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE)],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_a_slow_fault_is_named_with_its_cause(case: Case, known: dict[str, set[object]]) -> None:
    outcome = watch(quick(case))
    assert outcome.right is not None, f"said instead: {outcome.named}"
    said = {name: facts(outcome.right, name) for name in known}
    assert all(said[name] in values for name, values in known.items()), said
    assert outcome.false == {}
