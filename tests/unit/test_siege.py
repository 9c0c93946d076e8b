"""A small draw of each part of ``make siege`` that needs no second process."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.store import Store
from tests.siege import frames, imports, sessions, tables, texts
from tests.unit.trace_builder import Trace


def test_odd_frames() -> None:
    assert frames.run(7, 3000)[1] == []


def test_odd_texts() -> None:
    assert texts.run(7, 3000)[1] == []


def test_conditions_by_the_grammar() -> None:
    assert texts.expressions(7, 4000)[1] == []


def test_odd_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports.resource, "setrlimit", lambda *_: None)
    assert imports.run(7, 60)[1] == []


@pytest.mark.timeout(180)
def test_hostile_sessions() -> None:
    """Seeds that took 3 GB, 20 s or a traceback, each once, and a few more."""
    seeds = (41, 130, 303, 314, 3477, *range(7, 11))
    assert sessions.try_seeds(seeds)[1] == []


def test_odd_schedules() -> None:
    assert tables.run(35, 2)[1] == []


def test_a_step_number_is_data() -> None:
    """``pardbg_agent.step(1_000_000_000)``: two rows, not a billion."""
    trace = Trace(1)
    trace.ranks[0].step(0, 0, 1)
    trace.ranks[0].step(1_000_000_000, 1, 2)
    trace.flush()
    store = Store()
    store.apply_all(trace.messages)
    assert [row["step"] for row in as_json(report(store))["steps"]] == [0, 1_000_000_000]
