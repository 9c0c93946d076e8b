"""A small draw of each part of ``make siege`` that needs no second process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.session.writer import whole_messages
from pardbg.store import Store
from tests.siege import frames, imports, stores, texts
from tests.unit.trace_builder import Trace

SESSIONS = Path(__file__).parents[2] / "sessions"


def test_odd_frames() -> None:
    assert frames.run(7, 3000)[1] == []


def test_odd_texts() -> None:
    assert texts.run(7, 3000)[1] == []


def test_odd_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports.resource, "setrlimit", lambda *_: None)
    assert imports.run(7, 60)[1] == []


def test_odd_fields() -> None:
    messages = list(whole_messages(SESSIONS / "1f1b.mcap"))
    assert sum(stores.case(messages, seed) for seed in range(8)) > 50


def test_a_step_number_is_data() -> None:
    """``pardbg_agent.step(1_000_000_000)``: two rows, not a billion."""
    trace = Trace(1)
    trace.ranks[0].step(0, 0, 1)
    trace.ranks[0].step(1_000_000_000, 1, 2)
    trace.flush()
    store = Store()
    store.apply_all(trace.messages)
    assert [row["step"] for row in as_json(report(store))["steps"]] == [0, 1_000_000_000]
