"""A source, a store and a control port made by hand, for the app under test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.same.module_rows import Numbers
from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb
from pardbg.store.history import Bookmarks, History, StateHistory
from pardbg.store.source import Message
from pardbg.ui.app import PardbgApp
from pardbg.ui.engine.feed import Analysis, Lanes, OutputWant
from tests.ui import sample


class FakeSource:
    """Live: silent until told; a file: finished at once."""

    def __init__(self, live: bool = True) -> None:
        self._live = live

    @property
    def live(self) -> bool:
        return self._live

    @property
    def finished(self) -> bool:
        return not self._live

    def poll(self, timeout_ms: int) -> list[Message]:
        threading.Event().wait(min(timeout_ms, 5) / 1000)
        return []

    def close(self) -> None:
        pass


class FakeStore:
    """Holds one snapshot; ``show`` replaces it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.revision = 1
        self.states = StateHistory(10)
        self.procs: dict[str, Any] = {}
        self.run: dict[str, Any] = {}
        self.bookmarks = Bookmarks()
        self.controls = History(10)
        self.pipelines_of: list[int | None] = []
        """The ranks whose pipeline was asked for."""

    def settle(self) -> None:
        pass

    @property
    def begin_ns(self) -> int:
        return self.now.t_begin_ns

    @property
    def end_ns(self) -> int:
        return self.now.t_end_ns

    def apply(self, message: Message) -> None:
        self.revision += 1

    def show(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.revision += 1


class FakePort:
    """Records what was asked; answers once ``release`` is set."""

    name = "view-1a2b"

    def __init__(self, reply: Reply | None = None, wait: bool = False) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.args: list[dict[str, Any]] = []
        """Of each command."""
        self.reply = reply or Reply()
        self.release = threading.Event()
        if not wait:
            self.release.set()

    def command(
        self, verb: Verb, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        self.asked.append((verb.value, ranks))
        self.args.append(args)
        self.release.wait(10)
        return self.reply

    def take(self) -> Reply:
        self.asked.append(("take", None))
        return self.reply

    def leave(self) -> None:
        self.asked.append(("leave", None))


class FakeAnalysis(Analysis):
    """The analysis of a FakeStore; ``at`` makes the snapshot at a chosen time."""

    has_partial = False

    def __init__(self, at: Callable[[Snapshot, int | None], Snapshot] | None) -> None:
        self.at = at

    def snapshot(self, store: Any, t_ns: int | None, rank: int | None, *_: Any) -> Snapshot:
        store.pipelines_of.append(rank)
        return self.at(store.now, t_ns) if self.at else store.now

    def lanes(self, _store: Any, t0_ns: int, t1_ns: int, *_: Any) -> Lanes:
        return sample.lanes(t0_ns, t1_ns)

    def output(self, _store: Any, t_ns: int, want: OutputWant) -> tuple[OutputLine, ...]:
        lines = (line for line in sample.output() if line.t_ns <= t_ns)
        return tuple(line for line in lines if not want.contains or want.contains in line.text)

    def num_tensors(self, _store: Any) -> int:
        return len(sample.sameness().found.rows)

    def sameness(self, *_: Any) -> Numbers:
        return sample.sameness()

    def findings(self, *_: Any) -> tuple[()]:
        return ()

    def whatif(self, *_: Any) -> None:
        return None

    def ticks(self, *_: Any) -> None:
        return None


def app_on(
    snapshot: Snapshot,
    port: FakePort | None = None,
    live: bool = True,
    start: str = "overview",
    at: Callable[[Snapshot, int | None], Snapshot] | None = None,
    **more: Any,
) -> PardbgApp:
    """The real app on hand-made values."""
    return PardbgApp(
        FakeSource(live), port, title="sample", start_screen=start,
        store=FakeStore(snapshot), analysis=FakeAnalysis(at), **more,
    )  # fmt: skip


def text_of(app: PardbgApp) -> str:
    """All the text on the screen, row by row."""
    width, height = app.size
    rows = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text for strip in rows[:height])[: (width + 1) * height]


async def until(condition: Callable[[], object], what: str = "", timeout_s: float = 30.0) -> None:
    """Wait for a condition, not for a time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not condition():
        if loop.time() > end:
            raise AssertionError(f"did not come: {what}")
        await asyncio.sleep(0.01)


async def shows(app: PardbgApp, text: str) -> None:
    """Wait until ``text`` is on the screen."""
    try:
        await until(lambda: text in text_of(app), text)
    except AssertionError:
        raise AssertionError(f"{text!r} did not come; the screen shows:\n{text_of(app)}") from None
