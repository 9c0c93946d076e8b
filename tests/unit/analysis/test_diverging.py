"""The finding that captured tensors are not the reference's, or differ between replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pardbg.analysis.findings.kinds.value_kinds as values
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.finding import Candidate, Finding
from pardbg.analysis.findings.registry import findings
from pardbg.analysis.findings.values.diverging import diverges
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.store.store import Store
from tests.unit.analysis.same.captured import Run, changed, run
from tests.unit.trace_builder import Trace

KEY = (0, "grad", "blocks.1.weight")
FIRST = values.ReplicaDivergence(("w",), 10, 0, None, False, True, (), (0, 0))
MEAN = values.Diverges(0, "grad", "w", Hypothesis("mean", ranks=(0, 1)), False, "")


def told(run: Run, reference: Run | None = None) -> Store:
    """The run's store at its end."""
    trace = run.trace()
    trace.end(40)
    store = trace.store()
    store.reference = None if reference is None else reference.store()
    return store


def found(store: Store) -> list[Finding]:
    return [one for one in findings(View(store, None)) if one.kind == "diverges"]


def test_a_run_that_differs_from_its_reference_is_a_finding() -> None:
    (one,) = found(told(changed(run(2, 3), lambda grad: grad * 2, "blocks.1.norm"), run()))
    facts = one.facts
    assert isinstance(facts, values.Diverges)
    assert facts.cause is not None
    assert (facts.step, facts.what, facts.name) == (0, "grad", "blocks.1.norm")
    assert (facts.cause.cause, facts.cause.factor, facts.reference) == ("factor", 2.0, True)
    assert (one.severity, one.ranks, one.culprits) == ("error", (0, 1), ())
    assert one.evidence is not None and one.evidence.screen == "numbers"


def test_replicas_that_differ_are_one_without_a_reference() -> None:
    odd = run(3, 1)
    odd.own[(*KEY, 1)] = odd.values[KEY] * 1.5
    (one,) = found(told(odd))
    assert isinstance(one.facts, values.Diverges)
    assert not one.facts.reference
    assert (one.facts.what, one.ranks, one.culprits) == ("grad", (0, 1, 2), (1,))


def test_what_is_the_same_or_cannot_be_compared_is_none() -> None:
    others = run()
    others.inputs = {0: [99]}
    for store in (
        told(run(2, 3), run()), told(run(2, 3)), told(changed(run(2, 3), lambda g: g * 2), others),
        Trace(2).store(),
    ):  # fmt: skip
        assert found(store) == []


def test_ranks_in_the_middle_of_a_step_are_not_judged() -> None:
    """One has told of its gradients only."""
    half = changed(run(2, 3, steps=1), lambda grad: grad * 2)
    half.hidden |= {(0, "param", name, 1) for _, what, name in half.values if what == "param"}
    store = half.trace().store()
    store.reference = run(steps=1).store()
    assert not list(diverges(View(store, None)))
    assert found(told(half, run(steps=1)))


def candidate(kind: str, facts: values.Facts, ranks: tuple[int, ...] = (0, 1)) -> Candidate:
    return Candidate(kind=kind, facts=facts, t_ns=9, ranks=ranks)


@pytest.mark.parametrize(("one", "other", "left"), [
    # parameters are unlike as their gradients are
    (MEAN, FIRST, [("diverges", "error"), ("replica-divergence", "info")]),
    # checksums tell why the same parameters differ
    (replace(MEAN, what="param"), FIRST, [("replica-divergence", "error")]),
    # they train apart on purpose, as in local SGD
    (MEAN, replace(FIRST, averaged=True), [("replica-divergence", "info")]),
    # of a reference nobody else tells
    (replace(MEAN, reference=True, what="param", cause=None), FIRST,
     [("diverges", "error"), ("replica-divergence", "error")]),
])  # fmt: skip
def test_one_thing_is_told_once(
    one: values.Diverges, other: values.Facts, left: list[tuple[str, str]]
) -> None:
    both = candidate("diverges", one), candidate("replica-divergence", other)
    assert sorted((found.kind, found.severity) for found in decided(both)) == left
    # of other ranks each is a thing of its own
    apart = both[0], candidate("replica-divergence", other, (2, 3))
    assert len(decided(apart)) == 2
