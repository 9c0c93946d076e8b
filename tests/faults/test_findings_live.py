"""Real ranks, real faults, a live viewer: who is named, where in the code, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.client import LiveSource
from pardbg.store.store import Store
from tests.diagnosis.cases import END, Case, program, quick, recipe, torchrun
from tests.diagnosis.live import watch
from tests.distributed.runs import started
from tests.processes import wait_until
from tests.unit.facts import facts

CASES = (
    program("gil", 2, 0, 5, ("gil-held",), "20"),
    program("raises", 3, 2, 5, ("exception",), sort=END),
    recipe("group-order", 4, 2, 3, ("deadlock",)),
)
PLACES = {"gil": "in gil", "raises": "in raises", "group-order": "waiting.py"}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_a_fault_is_named_and_nothing_else(case: Case) -> None:
    outcome = watch(quick(case))
    assert outcome.right is not None, f"said instead: {outcome.named}"
    assert outcome.false == {}
    where = next(at for what, at in PLACES.items() if f":{what} " in case.name)
    assert where in (outcome.right.where or "")


@pytest.mark.timeout(90)
def test_what_a_rank_handles_is_told_where_that_led_it_to_another_op() -> None:
    case = program("barrier-at-last", 3, 1, 5, ("op-mismatch",))
    outcome = watch(replace(quick(case), handles=True))
    assert outcome.right is not None, f"said instead: {outcome.named}"
    assert outcome.false == {}
    assert outcome.right.handled == (("ValueError: batch 17 has no labels", (1,)),)


@pytest.mark.timeout(90)
def test_a_long_evaluation_on_one_rank_is_no_error() -> None:
    outcome = watch(quick(program("evaluates", 2, 0, 5, (), "4")), patience_s=11)
    assert outcome.false == {}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("what", [
    pytest.param("exit-hangs-early", marks=pytest.mark.long), "exit-hangs-queue",
])  # fmt: skip
def test_an_exit_that_hangs_in_a_handler_older_than_torch_is_named(what: str) -> None:
    """Not forked ranks: those have imported torch before their program begins."""
    argv = torchrun(2, "tests.diagnosis.setup_programs", what, "1", "5")
    place = "setup_programs.py" if what == "exit-hangs-early" else "threading.py"
    outcome = watch(Case(f"setup:{what}", argv, ("stuck-call",), ((1,),), place=place))
    assert outcome.right is not None, f"said instead: {outcome.named}"
    assert outcome.false == {}
    assert place in (outcome.right.where or "")


@pytest.mark.timeout(150)
def test_a_rank_that_trains_on_alone_has_a_place(tmp_path: Path) -> None:
    case, store = quick(program("trains-alone", 2, 1, 9, ("missing-rank",))), Store(live=True)
    found: list[Finding] = []
    with started(list(case.argv), tmp_path / "s.mcap") as handle:
        source = LiveSource(handle.run_dir)

        def placed() -> bool:
            store.apply_all(source.poll(50))
            said = findings(View(store, None))
            found[:] = [one for one in said if one.kind == "missing-rank" and one.where]
            # A full machine stops it for a second now and then, wherever it is.
            return bool(found) and facts(found[0], "absences")[0].doing in ("runs", "code")

        try:
            wait_until(placed, 120, "its place")
        finally:
            source.close()
    assert found[0].culprits == (1,) and (found[0].where or "").startswith("programs.py:")
