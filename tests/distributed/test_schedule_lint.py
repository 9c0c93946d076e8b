"""Lint beside what torch really does with the same tables on four ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pardbg.lab.schedules.schedule_table import dump
from tests.forked import run_jobs
from tests.schedule_mutants import Mutant, mutants, really

pytestmark = pytest.mark.distributed
SEED = 31
REFUSED = {True: "no order", False: "refused"}


def loaded(one: Mutant, path: Path) -> str:
    """What torch does with a file, without ranks."""
    ranks = len(one.table.rows)
    stage: Any = SimpleNamespace(num_stages=one.num_stages, group_size=ranks, group_rank=0,
                                 is_last=False, has_backward=True)  # fmt: skip
    path.write_text(dump(one.table))
    try:
        _PipelineScheduleRuntime([stage], one.num_microbatches)._load_csv(str(path), one.form)
    except AssertionError as refused:
        return REFUSED["Malformed compute schedule" in str(refused)]
    return "loads"


def test_torch_loads_what_lint_says_that_it_loads(tmp_path: Path) -> None:
    drawn = list(mutants(150, seed=SEED))
    said = {one.name: (one.verdict().load, loaded(one, tmp_path / "S.csv")) for one in drawn}
    assert {name: ends for name, ends in said.items() if ends[0] != ends[1]} == {}
    assert {load for load, _ in said.values()} == {"loads", "refused", "no order"}


@pytest.mark.timeout(120)
def test_changed_schedules_end_as_lint_says(tmp_path: Path) -> None:
    drawn = list(mutants(16, seed=SEED))
    ended = run_jobs([one.job(tmp_path) for one in drawn], at_once=4, timeout_s=110)
    wrong = {
        one.name: (one.expected(), really(ended[one.name])) for one in drawn
        if one.expected() != really(ended[one.name])
    }  # fmt: skip
    kinds = Counter(one.expected() for one in drawn)
    assert set(kinds) == {"good", "wrong", "deadlock", "refused", "no order"}, kinds
    assert not wrong
