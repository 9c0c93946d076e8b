"""A bell or a notification of the terminal: once per finding, and only if asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.answers.hang import Hang
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.ui.main.alerts import Alerts
from tests.ui import sample
from tests.ui.fakes import FakeStore, app_on, until

QUIET = replace(sample.snapshot_1f1b(), findings=(), hang=None)


def wrong(*culprits: int, severity: str = "error", text: str = "rank 1 differs") -> Finding:
    return Finding("mismatch-op", severity, QUIET.t_ns, text, culprits=culprits)  # type: ignore[arg-type]


def stands(for_s: float) -> Snapshot:
    since = QUIET.t_ns - int(for_s * 1e9)
    hang = Hang("missing-rank", "warning", (2,), (0, 1), "all_reduce", None, since, None, "waits")
    return replace(QUIET, hang=hang)


@pytest.mark.parametrize(
    ("form", "written"),
    [("off", ""), ("bell", "\a"), ("osc9", "\x1b]9;rank 1 differs\x1b\\"),
     ("osc777", "\x1b]777;notify;pardbg;rank 1 differs\x1b\\")],
)  # fmt: skip
def test_each_form_is_written_once(form: str, written: str) -> None:
    alerts = Alerts()
    alerts.form = form
    shown = replace(QUIET, findings=(wrong(1),))
    assert [alerts.news(QUIET), alerts.news(shown), alerts.news(shown)] == ["", written, ""]


def test_what_stood_before_it_was_asked_for_is_no_news() -> None:
    alerts = Alerts()
    assert alerts.news(replace(QUIET, findings=(wrong(1),))) == ""
    alerts.form = "osc9"
    assert alerts.news(replace(QUIET, findings=(wrong(1),))) == ""
    both = replace(QUIET, findings=(wrong(1), wrong(2, text="two"), wrong(3, severity="warning")))
    assert alerts.news(both) == "\x1b]9;two\x1b\\"


def test_a_standstill_is_told_after_a_minute() -> None:
    alerts = Alerts()
    alerts.form = "bell"
    assert [alerts.news(stands(s)) for s in (2, 59, 61, 70)] == ["", "", "\a", ""]


def test_nothing_in_a_name_reaches_the_terminal_as_a_sequence() -> None:
    alerts = Alerts()
    alerts.form = "osc9"
    found = alerts.news(replace(QUIET, findings=(wrong(1, text="a\x1b\\\a\x9cb{}\n" + "c" * 500),)))
    body = found.removeprefix("\x1b]9;").removesuffix("\x1b\\")
    assert body.isprintable() and len(body) == 200


async def test_the_screen_calls_as_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    app, written = app_on(QUIET), []
    monkeypatch.setattr(app, "tell_terminal", written.append)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "a frame")
        await pilot.press("colon", *"alert", "space", *"loud", "enter")
        assert app.main._app_actions.alerts.form == "off"
        await pilot.press("colon", *"alert", "space", *"bell", "enter")
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(replace(QUIET, findings=(wrong(1),)))
        await until(lambda: written == ["\a"], "a bell")


async def test_trouble_selects_its_rank_unless_the_user_chose_one() -> None:
    app = app_on(QUIET)
    async with app.run_test(size=(80, 24)):
        await until(lambda: app.main.shared.frame is not None, "a frame")
        store, shared = app._store, app.main.shared
        assert isinstance(store, FakeStore)
        store.show(replace(QUIET, findings=(wrong(2, 3),)))
        await until(lambda: shared.rank == 2, "the first culprit is selected")
        shared.rank = 0
        latest = replace(QUIET, findings=(wrong(1),))
        store.show(latest)
        await until(lambda: shared.frame and shared.frame.snapshot is latest, "the next frame")
        assert shared.rank == 0
