"""Drawn cases of ranks that run out of device memory: the culprit and the cause are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.device_kinds import OutOfMemory
from pardbg.analysis.findings.registry import findings
from pardbg.hub.postmortem import recover
from pardbg.session.reader import load
from tests.distributed.programs.watched import make_run
from tests.forked import Job, run_jobs

RANKS, CASES = 3, 16
DOING = {
    "activations": "forward", "imbalance": "forward", "optimizer": "optimizer", "caught": "forward",
}  # fmt: skip


Case = tuple[dict[str, Any], list[Finding]]


@pytest.fixture(scope="module")
def cases(simulated: str, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """What each seed drew, and what was found in its rings."""
    folders = [tmp_path_factory.mktemp(f"seed{seed}") for seed in range(CASES)]
    envs = [make_run(folder) for folder in folders]
    jobs = [
        Job(
            f"seed{seed}", RANKS, ("tests.accelerator.programs.oom", str(seed)),
            env={"PARDBG": str(folder), "PARDBG_HOOKS": "dispatcher"},
        )
        for seed, folder in enumerate(folders)
    ]  # fmt: skip
    ended = run_jobs(jobs, env={**envs[0], "PARDBG_SIM": simulated}, timeout_s=250)
    return [
        (json.loads(ended[job.name].out[0].splitlines()[0]), _found(folder))
        for job, folder in zip(jobs, folders, strict=True)
    ]


def _found(folder: Path) -> list[Finding]:
    session = folder / "session.mcap"
    recover(str(folder / "rings"), session)
    store = load(session)
    assert not [error for process in store.procs.values() for error in process.errors]
    found = findings(View(store, None))
    return [one for one in found if isinstance(one.facts, OutOfMemory)]


@pytest.mark.timeout(300)
def test_culprit_and_cause_are_the_drawn_ones(cases: list[Case]) -> None:
    wrong = {}
    for seed, (case, found) in enumerate(cases):
        on_all = case["cause"] in ("activations", "optimizer")
        wanted = set(range(RANKS)) if on_all else {case["rank"]}
        culprits = {rank for one in found for rank in one.culprits}
        if culprits != wanted or not all(_right(case, one) for one in found):
            wrong[seed] = case, [(one.culprits, one.where, one.facts) for one in found]
    assert not wrong


def _right(case: dict[str, Any], one: Finding) -> bool:
    facts, drawn = one.facts, case["cause"]
    assert isinstance(facts, OutOfMemory)
    return (
        facts.cause == ("imbalance" if drawn == "caught" else drawn)
        and facts.fatal == (drawn != "caught")
        and (facts.step == case["step"] or drawn == "growth")
        and bool(facts.asked_bytes and facts.limit_bytes)
        and dict(facts.parts)["parameters"] == 16 * case["width"] ** 2
        and (drawn not in DOING or facts.doing == DOING[drawn])
        and "oom.py" in (one.where or "")
    )
