"""Who is at fault is shown first: in Debug, and in a list of findings."""

from __future__ import annotations

from dataclasses import replace

from pardbg.analysis.findings.finding import Finding
from pardbg.render.pages.debug import DebugPageState, debug
from pardbg.render.pages.findings import ordered
from tests.ui.sample import snapshot_ddp
from tests.unit.render.test_pages import text_of


def test_debug_names_the_rank_whose_error_ended_the_job_and_its_place() -> None:
    error = Finding(kind="exception", severity="error", t_ns=1, text="…", culprits=(2,),
                    where="train.py:17")  # fmt: skip
    slow = replace(error, kind="straggler", severity="warning", culprits=(0,), t_ns=9)
    made = replace(snapshot_ddp(), hang=None, findings=(slow, error))
    over = replace(made, ranks=tuple(replace(r, state="ended") for r in made.ranks))
    assert over.trouble == error and replace(over, findings=(slow,)).trouble is None
    status, *rows = text_of(debug(over, 120, 34, DebugPageState(1))).splitlines()
    assert "exception" in status and "rank 2" in status
    assert [row.split()[0] for row in rows[:6] if "train.py:17" in row] == ["2"]


def test_who_is_at_fault_comes_before_what_is_newer_and_names_nobody() -> None:
    alike = Finding(kind="same-data", severity="warning", t_ns=9, text="…", ranks=(0, 1))
    stuck = replace(alike, kind="missing-rank", t_ns=5, culprits=(1,))
    note, error = replace(stuck, severity="info"), replace(alike, severity="error", t_ns=1)
    found = ordered((note, alike, stuck, error))
    assert found == [error, stuck, alike, note]
