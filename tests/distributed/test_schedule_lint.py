"""Lint beside what torch really does with the same tables on four ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.forked import run_jobs
from tests.schedule_mutants import mutants, really

pytestmark = pytest.mark.distributed


@pytest.mark.timeout(120)
def test_changed_schedules_end_as_lint_says(tmp_path: Path) -> None:
    drawn = list(mutants(14, seed=16))
    ended = run_jobs([one.job(tmp_path) for one in drawn], at_once=4, timeout_s=110)
    wrong = {
        one.name: (one.expected(), really(ended[one.name])) for one in drawn
        if one.expected() not in really(ended[one.name])
    }  # fmt: skip
    kinds = Counter(one.expected() for one in drawn)
    assert set(kinds) == {"good", "wrong", "deadlock"}, kinds
    assert not wrong
