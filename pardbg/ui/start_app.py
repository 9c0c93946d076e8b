"""The app of the start screen: lists runs, reads recordings one after the other, and ends with the
user's choice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from pardbg.analysis.pipeline.implied import ScheduleDetail
from pardbg.analysis.pipeline.in_flight import in_flight_curve
from pardbg.errors import UserError
from pardbg.render.draw.cells import Line, Picture, Segment, clip, line
from pardbg.render.frame.chrome import hints
from pardbg.render.frame.panels import TWO_COLUMNS, help_page, word_rows
from pardbg.render.frame.start_page import (
    Entry,
    head_line,
    preview,
    preview_cells,
    start_page,
    with_preview,
)
from pardbg.render.pages.pipeline.compact import ended_step
from pardbg.session.digest import Digest, digest
from pardbg.ui.commands.actions import GLOSSARY
from pardbg.ui.commands.startup import Rc, split_rc
from pardbg.ui.palette import NAMES
from pardbg.ui.screens.panel import Panel
from pardbg.ui.terminal_driver import TerminalApp
from pardbg.ui.widgets.lines import Lines, PicturePane

LOOK_S: Final = 3.0
"""Time, s, between two looks for new runs."""
_HINTS: Final = (
    ("enter", "open"), ("r", "report"), ("d", "demo"), ("l", "learn"), ("/", "find"),
    ("y", "copy path"),
    ("del", "delete"), ("?", "help"), ("q", "quit"),
)  # fmt: skip
_HELP: Final = tuple(
    ("Runs and recordings", keys, "", text) for keys, text in (
        ("↑ ↓  j k", "Choose a run or a recording."),
        ("enter", "Watch the live run, replay the recording; how a killed run is recovered."),
        ("r", "The report: findings, steps, bubbles, collectives, memory."),
        ("d", "Train a recipe here and watch it."),
        ("l", "Learn: twelve lessons on real runs."),
        ("/", "Find a run or a recording by its name or worst finding; esc shows all again."),
        ("y", "Copy the path."),
        ("del", "Delete the recording; it asks."),
        ("q", "Quit."),
    )
)  # fmt: skip
Choice = tuple[str, str]
"""(action, the run or recording to act on)"""


class _Pane(PicturePane):
    """The list, with the preview beside it, which does not move as the list scrolls."""

    preview: Sequence[Line] = ()

    def marked(self, lines: Sequence[Line], foot: Sequence[Line]) -> Sequence[Line]:
        shown = [*lines, *foot]
        return with_preview(shown, self.preview, self.size.width) if self.preview else shown

    def redraw(self) -> None:
        app = self.app
        if isinstance(app, StartApp):
            app.redraw()


def _preview(entry: Entry, cells: int, rows: int) -> Sequence[Line]:
    step = entry.digest.pipeline if isinstance(entry.digest, Digest) else None
    if step is None or not step.ranks:
        return preview(entry, cells, rows)
    curves = {rank.rank: tuple(in_flight_curve(rank)) for rank in step.ranks}
    drawn, _ = ended_step(step, cells, rows // 4 + 1, ScheduleDetail({}, None, {}, curves))
    return preview(entry, cells, rows, drawn)


class StartApp(TerminalApp):
    """``StartApp(list_entries, folder).run()``, then look at ``chosen``."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)"), Binding("up,k", "move(-1)"),
        Binding("pagedown", "move(10)"), Binding("pageup", "move(-10)"),
        Binding("enter", "choose('open')"), Binding("r", "choose('report')"),
        Binding("d", "choose('demo')"), Binding("l", "choose('learn')"),
        Binding("slash", "search"), Binding("y", "copy"),
        Binding("delete", "delete"), Binding("escape", "escape"),
        Binding("question_mark,f1", "help"), Binding("q,ctrl+c", "leave"),
    ]  # fmt: skip

    class Read(Message):
        """Result of reading a recording, or the reason why it cannot be read."""

        def __init__(self, target: str, found: Digest | str) -> None:
            super().__init__()
            self.target, self.found = target, found

    def __init__(
        self, list_entries: Callable[[], Sequence[Entry]], folder: str, said: str = "",
        lessons: Sequence[tuple[str, int, int]] = (), rc: Rc | None = None,
    ) -> None:  # fmt: skip
        """Set up; ``lessons``: (title, answered, ideas)."""
        super().__init__()
        self._rc = rc or Rc()
        self.chosen: Choice | None = None
        self._list, self._folder, self._said = list_entries, folder, said
        self._lessons = tuple(lessons)
        self._read: dict[str, Digest | str] = {}
        self._entries: list[Entry] = []
        self._target = ""
        """Target of the selected entry, also while other entries come and go around it."""
        self._deleting = ""
        self._stop = threading.Event()
        self._head, self._foot = Lines(id="header", ground="bar.header"), Lines(id="hints")
        self._pane = _Pane(id="pages")
        self._search = Input(placeholder="type to find a run or a recording", compact=True)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._search
        yield self._pane
        yield self._foot

    def on_mount(self) -> None:
        self.take_colours()
        for _, found in split_rc(self._rc, live=False)[0]:
            if found.action.id == "theme" and found.argument in NAMES and not self.has_few_colours:
                self.choose_theme(found.argument)  # of a wrong one the next screen tells
        self._search.display = False
        self._look()
        self.set_interval(LOOK_S, self._look)
        self.run_worker(self._read_all, thread=True, exit_on_error=False)

    def on_unmount(self) -> None:
        self._stop.set()

    # ---- what there is

    def _look(self) -> None:
        self._entries = list(self._list())
        self.redraw()

    def _read_all(self) -> None:
        """Read the unread entries, one after the other; a live run again and again."""
        while not self._stop.is_set():
            live = [e for e in self._entries if e.kind == "live"]
            unread = [e for e in self._entries
                      if e.kind != "dead" and e.target not in self._read]  # fmt: skip
            for entry in unread[:1] or live:
                try:
                    found: Digest | str = digest(Path(entry.path), growing=entry.kind == "live")
                except (UserError, OSError) as error:
                    found = "not written yet" if entry.kind == "live" else str(error)
                self._read[entry.target] = found
                if not self._stop.is_set():
                    self.post_message(self.Read(entry.target, found))
            if not unread:
                self._stop.wait(LOOK_S)

    def on_start_app_read(self, _event: Read) -> None:
        self.redraw()

    def shown(self) -> list[Entry]:
        """Return the entries that match the search, with their digests if read. Recordings are
        sorted by run, newest first: a copy or a recovered file is written long after the run."""
        known = [replace(e, digest=self._read.get(e.target)) for e in self._entries]
        runs = [e for e in known if e.kind != "recording"]
        files = [e for e in known if e.kind == "recording"]
        listed = runs + sorted(files, key=lambda e: -e.recorded_ns)
        return [entry for entry in listed if entry.says(self._search.value)]

    def _at(self, entries: Sequence[Entry]) -> int:
        targets = [entry.target for entry in entries]
        return targets.index(self._target) if self._target in targets else 0

    def redraw(self) -> None:
        """Draw everything at the present size."""
        if not self.is_mounted(self._pane) or not self._pane.size.width:
            return
        entries, now_ns = self.shown(), time.time_ns()
        cells, rows = self._pane.size
        self._head.show((head_line(self._entries, self._folder, now_ns, cells),))
        size = preview_cells(cells) if entries else 0
        self._pane.preview = _preview(entries[self._at(entries)], size, rows - 1) if size else ()
        self._pane.show_picture(start_page(
            entries, self._at(entries), cells, rows, now_ns, self._search.value, self._lessons
        ))  # fmt: skip
        text = self._said or (f"delete {self._deleting}? del again does it, esc does not"
                              if self._deleting else "")  # fmt: skip
        shown = line(" ", Segment(clip(text, cells - 2), "warn")) if text else hints(_HINTS, cells)
        self._foot.show((shown,))

    # ---- keys

    def action_move(self, by: int) -> None:
        entries = self.shown()
        self._said = self._deleting = ""
        if entries:
            at = min(max(self._at(entries) + by, 0), len(entries) - 1)
            self._target = entries[at].target
        self.redraw()

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        self._target = self.shown()[event.index].target
        self.redraw()

    def action_choose(self, what: str) -> None:
        entries = self.shown()
        if what in ("demo", "learn"):
            self.chosen = (what, "")
        elif not entries:
            return
        else:
            entry = entries[self._at(entries)]
            if entry.kind == "dead":
                self._say(f"`pardbg postmortem {entry.target} -o S.mcap` recovers its recording")
                return
            opens = {"live": "watch", "recording": "replay"}[entry.kind]
            self.chosen = (opens if what == "open" else what, entry.target)
        self.exit()

    def action_search(self) -> None:
        self._search.display = True
        self.set_focus(self._search)

    def on_input_changed(self, _event: Input.Changed) -> None:
        self.redraw()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        self.set_focus(None)
        self.action_choose("open")

    def action_escape(self) -> None:
        self._search.value, self._search.display = "", False
        self._said = self._deleting = ""
        self.set_focus(None)
        self.redraw()

    def action_copy(self) -> None:
        entries = self.shown()
        if entries:
            entry = entries[self._at(entries)]
            self.copy_to_clipboard(entry.path or entry.target)
            self._say(f"copied {entry.path or entry.target}")

    def action_delete(self) -> None:
        """Delete the selected recording, once requested twice."""
        entries = self.shown()
        entry = entries[self._at(entries)] if entries else None
        if entry is None or entry.kind != "recording":
            self._say("only a recording can be deleted here")
        elif self._deleting != entry.target:
            self._said, self._deleting = "", entry.target
        else:
            self._deleting = ""
            try:
                Path(entry.target).unlink()
            except OSError as error:
                self._said = f"not deleted: {error.strerror}"
            self._look()
        self.redraw()

    def action_help(self) -> None:
        """Open the help: the keys of this screen, and the glossary."""

        def draw(cells: int, rows: int) -> Picture:
            words = word_rows(GLOSSARY, cells)
            return Picture(body=(*help_page(_HELP, min(cells, TWO_COLUMNS - 1), rows).body, *words))

        self.push_screen(Panel("pardbg help", draw))

    def on_key(self, event: events.Key) -> None:
        """Report that a key without a binding has no effect."""
        if event.is_printable and self.focused is None and event.key not in self.active_bindings:
            self._say(f"{event.character} does nothing here: ? lists the keys")

    def action_leave(self) -> None:
        self.exit()

    def _say(self, text: str) -> None:
        self._said, self._deleting = text, ""
        self.redraw()
