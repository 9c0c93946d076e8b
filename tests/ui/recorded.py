"""The real app on sessions of ``sessions/``, driven to a moment and a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input

import pardbg.ui.app
import pardbg.ui.engine.pace
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import open_session
from pardbg.ui.app import PardbgApp
from tests.ui.fakes import until

SESSIONS = Path(__file__).parents[2] / "sessions"
SIZES = ((80, 24), (120, 40), (200, 60))
SAME_FOR_S = 0.12
"""A screen that stays the same for this long has settled."""


@dataclass(frozen=True, slots=True)
class View:
    """A page or dialog of a session."""

    name: str
    session: str
    goto: str
    """Where the cursor goes first, as ``:goto`` takes it; empty: where the session opens."""
    keys: tuple[str, ...]
    """Keys that lead to the page or dialog."""


VIEWS = (
    View("overview", "1f1b", "step 5", ("1",)),
    View("pipeline", "1f1b", "step 5", ("2",)),
    View("timeline", "1f1b", "step 5", ("3",)),
    View("collectives", "ddp", "step 4", ("4",)),
    View("traffic", "ddp-ring", "step 4", ("5",)),
    View("memory", "zero3", "step 4", ("6",)),
    View("debug", "fault-missing-rank", "", ("7",)),
    View("findings", "fault-straggler", "80%", ("8",)),
    View("output", "moe", "step 5", ("9",)),
    View("hang", "fault-group-order", "", ("1",)),
    View("ticks", "zbv", "step 3", ("2", "g")),
    View("box", "1f1b", "step 5", ("3", "plus", "plus", "enter")),
    View("detail", "fault-straggler", "80%", ("8", "enter")),
    View("help", "1f1b", "step 5", ("2", "question_mark")),
    View("console", "1f1b", "step 5", ("2", "colon", *"goto", "space", *"st")),
)


def fixed_surroundings(
    setenv: Callable[[str, str], object], setattr_: Callable[[Any, str, Any], object]
) -> None:
    """Make pictures the same on every machine: time zone, locale, and no passing messages."""
    setenv("TZ", "UTC")
    time.tzset()
    setenv("LC_ALL", "C.UTF-8")
    setattr_(pardbg.ui.app, "ARRIVED_S", 0.05)
    setattr_(pardbg.ui.engine.pace, "IDLE_S", 0.1)


@contextmanager
def app_of(name: str) -> Iterator[PardbgApp]:
    """An app on a session, to be run."""
    path = SESSIONS / f"{name}.mcap"
    with closing(open_session(path)) as source:
        yield PardbgApp(source, None, title=path.name, replay=ReplayClock())


@asynccontextmanager
async def replayed(
    name: str, size: tuple[int, int]
) -> AsyncIterator[tuple[PardbgApp, Pilot[None]]]:
    """The app on a session, once all of it is read."""
    with app_of(name) as app:
        async with app.run_test(size=size) as pilot:
            await read(app)
            yield app, pilot


async def read(app: PardbgApp) -> None:
    await until(lambda: (f := app.main.shared.frame) is not None and f.finished, "read")


async def type_(pilot: Pilot[None], text: str) -> None:
    """Type a command on the ``:`` line."""
    await pilot.press("colon", *key_names(text), "enter")


def key_names(text: str) -> Sequence[str]:
    return ["space" if char == " " else char for char in text]


async def drive(pilot: Pilot[None], view: View) -> None:
    """Go to the view's moment and page, and wait until the screen has settled."""
    app = pilot.app
    assert isinstance(app, PardbgApp)
    await read(app)
    for box in app.screen.query(Input):
        box.cursor_blink = False
    if view.goto:
        await type_(pilot, f"goto {view.goto}")
    await settled(app)
    *before, last = view.keys
    if before:
        await pilot.press(*before)
        await settled(app)  # the last key acts on what these show
    await pilot.press(last)
    await settled(app)


async def settled(app: PardbgApp, timeout_s: float = 20) -> None:
    """Wait until the recording is searched for findings, the frame has them, and the screen stays
    the same."""
    deadline = time.monotonic() + timeout_s
    await until(lambda: app.engine._places.searched >= 1, "all findings on the time bar")
    shown, since = list[Strip](), time.monotonic()
    while time.monotonic() - since < SAME_FOR_S:
        await asyncio.sleep(0.04)
        frame = app.main.shared.frame
        whole = frame is not None and frame.whole and app.main.page.ready
        if (now := app.screen._compositor.render_strips(app.size)) != shown or not whole:
            shown, since = now, time.monotonic()
        assert time.monotonic() < deadline, "the screen does not settle"
