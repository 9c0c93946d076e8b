"""The real TUI on a real pipeline: watch, pause, tick, step, next, leave; the job goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.hub.client import HubControl, LiveSource
from pardbg.lab.recipes import catalogue
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import open_session
from pardbg.ui.app import PardbgApp
from tests.distributed.runs import started
from tests.forked import served
from tests.processes import rank_env
from tests.ui.fakes import shows, until

WAIT_S = 40


def snapshot(app: PardbgApp) -> Snapshot | None:
    frame = app.main.shared.frame
    return None if frame is None else frame.snapshot


def mode(app: PardbgApp) -> str:
    shown = snapshot(app)
    return "" if shown is None else shown.control.mode


def bubbles(app: PardbgApp) -> int:
    """Complete pipeline steps in sight."""
    shown = snapshot(app)
    return 0 if shown is None or shown.pipeline is None else len(shown.pipeline.bubble_history)


def held(app: PardbgApp) -> dict[int, str]:
    shown = snapshot(app)
    return {} if shown is None else dict(shown.control.held)


def at_a_step(app: PardbgApp) -> bool:
    """Both ranks are held where a training step begins."""
    return len(held(app)) == 2 and all(text.startswith("step ") for text in held(app).values())


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_watch_pause_step_and_leave_a_real_pipeline(tmp_path: Path) -> None:
    argv = served(catalogue.command("1f1b", 2, 500))
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        source, control = LiveSource(handle.run_dir), HubControl(handle.run_dir)
        app = PardbgApp(source, control, title="1f1b", start_screen="pipeline")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(lambda: bubbles(app) >= 2, "two steps", WAIT_S)
            await shows(app, "Schedule1F1B")
            await shows(app, "seen")
            await pilot.press("space")
            await until(lambda: mode(app) == "held" and len(held(app)) == 2, "the cut", WAIT_S)
            await pilot.press("n")
            await until(lambda: at_a_step(app), "the next step's begin", WAIT_S)
            step = held(app)[0]
            await pilot.press("t")
            await until(lambda: "send F0" in held(app).get(0, "") or "0F1" in held(app).get(0, ""),
                        "0F0 has run", WAIT_S)  # fmt: skip
            assert held(app)[1] != "" and held(app)[0] != step
            before = held(app)[0]
            await pilot.press("s")
            await until(lambda: held(app).get(0, before) != before, "one action", WAIT_S)
            await pilot.press("space")
            await until(lambda: mode(app) == "running", "running", WAIT_S)
            count = bubbles(app)
            await until(lambda: bubbles(app) > count, "steps go on", WAIT_S)
        control.close()
        source.close()
        assert not handle.ended()  # the viewer has left; the job goes on
    session = open_session(tmp_path / "s.mcap")
    replayed = PardbgApp(session, None, title="s", start_screen="pipeline", replay=ReplayClock())
    async with replayed.run_test(size=(80, 24)) as pilot:
        await shows(replayed, "1F1B")
        await pilot.press("end")
        await pilot.press("7")
        await shows(replayed, "tick")  # the audit trail is in the file
    session.close()
