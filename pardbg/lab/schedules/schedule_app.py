"""``pardbg schedule show`` and ``edit``: a table on the tick grid, without a job.

Keys change the draft at once; its figures are computed by a thread and drawn when ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.timer import Timer

from pardbg.errors import UserError
from pardbg.lab.schedules.editor import Draft, Editor
from pardbg.lab.schedules.page import TableLook, cell_at, table_page
from pardbg.lab.schedules.schedule_table import Table
from pardbg.lab.schedules.sheet import Placed, Sheet
from pardbg.render.draw.cells import Line, Segment, fit, line
from pardbg.ui.terminal_driver import TerminalApp
from pardbg.ui.widgets.lines import Lines, PicturePane
from pardbg.ui.widgets.prompt import Prompt

NARROWEST: Final = 40
"""Minimum cells of the screen for drawing."""
PLAY_S: Final = 0.25
"""Time between two ticks while playing, s."""
STALE_S: Final = 0.15
"""Time, s, for which the previous draft's figures are not marked as stale."""
KEPT: Final = 32
"""Number of sheets kept, for undo and redo."""
Say = Callable[[Table], Sheet]
Save = Callable[[Table, str], str]
"""(table, other file or "") -> text about the written file. Raises UserError with one line."""
_MOVES: Final = {
    "left": (0, -1), "h": (0, -1), "right": (0, 1), "l": (0, 1), "up": (-1, 0), "k": (-1, 0),
    "down": (1, 0), "j": (1, 0), "home": (0, -9999), "end": (0, 9999),
}  # fmt: skip
_SAME_KEYS: Final = {
    "shift+left": "<", "shift+right": ">", "ctrl+r": "r", "ctrl+s": "w", "delete": "d",
}  # fmt: skip
_SHOW_KEYS: Final = (
    "←→↑↓ cell  t tick  T back  space play  b break  0 start  $ end  g time  q leave"
)
_EDIT_KEYS: Final = (
    "< > move  m take p put x swap  i a insert  d delete  s S split  u undo r redo  w W save  q"
)


class Shown(NamedTuple):
    """A drawn sheet and its draft."""

    sheet: Sheet
    draft: Draft


class ScheduleApp(TerminalApp):
    """``ScheduleApp(table, sheet_of, name=…, costs=…, save=…).run()``; without ``save`` the table
    is read-only."""

    AUTO_FOCUS = ""  # keys are the table's until something is asked for

    @dataclass
    class Made(Message):
        """Message: a sheet is ready."""

        shown: Shown

    def __init__(self, table: Table, sheet_of: Say, *, name: str, costs: str,
                 save: Save | None = None) -> None:  # fmt: skip
        super().__init__()
        self.editor = Editor(table)
        self._sheet_of, self._save = lru_cache(KEPT)(sheet_of), save
        self.shown = Shown(self._sheet_of(self.editor.draft.table), self.editor.draft)
        self.look = TableLook(name, costs, now=1 << 30, was=self.shown.sheet.predicted)
        self._pane, self._bar = PicturePane(), Lines(id="hints")
        self._prompt = Prompt(lambda _text: (), id="prompt")
        self._asked = ""
        self._said: tuple[str, str] = ("", "")
        self._busy = self._leaving = False
        self._timer: Timer | None = None
        self._break: str | None = None

    def compose(self) -> ComposeResult:
        yield self._pane
        yield self._prompt
        yield self._bar

    def on_mount(self) -> None:
        self.take_colours()
        self._prompt.display = False
        self.set_focus(None)
        self._look()

    def on_resize(self, _event: events.Resize) -> None:
        self.call_after_refresh(self._draw)

    # ---- drawing

    def _row(self) -> tuple[Placed, ...]:
        return self.shown.sheet.rows[self.look.rank]

    def _look(self) -> None:
        """Set the view's cursor to the draft's, if the sheet is of this draft."""
        draft = self.editor.draft
        if self.shown.draft.table == draft.table:
            sheet, mark = self.shown.sheet, self.editor.mark
            row = sheet.rows[draft.rank] if draft.rank < len(sheet.rows) else ()
            tick = next((one.tick for one in row if one.at == draft.at), None)
            text = draft.table.rows[mark[0]][mark[1]].text if mark is not None else ""
            self.look = replace(self.look, rank=draft.rank, tick=tick, stale=False, mark=text,
                                changed=self.editor.changed)  # fmt: skip
            self._draw()
        else:
            self.look = replace(self.look, stale=True)
            self._make()
            self._bar.show((self._hints(),))
            self.set_timer(STALE_S, lambda: self._draw() if self.look.stale else None)

    def _draw(self) -> None:
        width, height = self._pane.size
        if width > NARROWEST and height > 6:
            self._pane.show_picture(table_page(self.shown.sheet, self.look, width, height))
        self._bar.show((self._hints(),))

    def _hints(self) -> Line:
        text, style = self._said
        if text:
            return line(" ", Segment(text, style))
        keys = _SHOW_KEYS if self._save is None else _EDIT_KEYS
        return fit(line(" ", Segment(keys, "dim")), self._bar.size.width)

    def _make(self) -> None:
        if self._busy:
            return
        self._busy = True
        draft = self.editor.draft

        def make() -> None:
            self.post_message(self.Made(Shown(self._sheet_of(draft.table), draft)))

        self.run_worker(make, thread=True)

    def on_schedule_app_made(self, event: Made) -> None:
        self._busy, self.shown = False, event.shown
        last = len(self.shown.sheet.rows) - 1
        self.look = replace(self.look, rank=min(self.look.rank, last))
        self._look()

    # ---- keys

    async def on_key(self, event: events.Key) -> None:
        if self._prompt.display:
            return
        event.stop()
        key = event.character if event.character and event.character.isprintable() else event.key
        self._said = ("", "")
        leaving, self._leaving = self._leaving, False
        try:
            if key == "escape" and self._save is not None:
                self.editor.mark = None  # typed by habit, and twice: it never costs changes
            elif key in ("q", "ctrl+q", "ctrl+c", "escape"):
                self._leave(leaving)
            elif key in _MOVES:
                self._move(*_MOVES[key])
            elif not self._time(key):
                await self._edit(_SAME_KEYS.get(key, key))
        except UserError as why:
            self._said = (str(why), "warn")
        self._look()

    def _leave(self, sure: bool) -> None:
        if self.editor.changed and not sure:
            self._leaving = True
            raise UserError("changes are not saved: w saves, q again leaves without them")
        self.exit()

    def _move(self, down: int, right: int) -> None:
        draft = self.editor.draft
        if not down:
            at = draft.at + right
            self.editor.go(draft.rank, at)
            return
        rank = min(max(draft.rank + down, 0), len(self.shown.sheet.rows) - 1)
        near = self.look.tick or 1
        row = self.shown.sheet.rows[rank]
        best = min(row, key=lambda one: abs(one.tick - near), default=None)
        self.editor.go(rank, best.at if best is not None else 0)

    def _time(self, key: str) -> bool:
        """Handle keys that move in the ticks. Return whether the key was one of them."""
        now = min(self.look.now, self.shown.sheet.num_ticks)
        if key in ("t", "T", ".", ","):
            self._go(now + (1 if key in ("t", ".") else -1))
        elif key in ("0", "$"):
            self._go(0 if key == "0" else 1 << 30)
        elif key in ("space", " "):
            self._play(now)
        elif key == "g":
            self.look = replace(self.look, by_time=not self.look.by_time)
        elif key == "b" and self._save is None:
            cell = self.editor.draft.cell
            self._break = cell.ops[0].text if cell is not None and not self._break else None
            self._said = (f"play stops before {self._break}" if self._break else "no break", "")
        elif key == "G" and self.look.tick is not None:
            self._go(self.look.tick - 1)
        else:
            return False
        return True

    def _go(self, now: int) -> None:
        self.look = replace(self.look, now=max(0, now))

    def _play(self, now: int) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
            return
        self._go(0 if now >= self.shown.sheet.num_ticks else now)
        self._timer = self.set_interval(PLAY_S, self._next)

    def _next(self) -> None:
        sheet = self.shown.sheet
        held = sheet.where.get(self._break or "")
        stop = held is not None and held.tick == self.look.now + 1
        if self.look.now >= sheet.num_ticks or stop:
            self._play(self.look.now)
            self._said = (f"before {self._break}" if stop else "", "held")
        else:
            self._go(self.look.now + 1)
        self._draw()

    async def _edit(self, key: str) -> None:
        if self._save is None:
            return
        editor, draft = self.editor, self.editor.draft
        if key in ("<", ">"):
            editor.apply(draft.shifted(-1 if key == "<" else 1))
        elif key == "m":
            draft.needed()
            editor.mark = (draft.rank, draft.at)
        elif key == "p":
            editor.apply(draft.brought(editor.marked()))
        elif key == "x":
            editor.apply(draft.swapped(editor.marked()))
        elif key in ("i", "a", "W"):
            self._ask(key)
        elif key in ("d", "s", "S"):
            does = {"d": Draft.deleted, "s": Draft.split, "S": Draft.split_all}[key]
            editor.apply(does(draft))
        elif key in ("u", "r"):
            editor.undo() if key == "u" else editor.redo()
        elif key == "w":
            await self._keep("")

    async def _keep(self, other: str) -> None:
        """Save in another thread; keys wait for it, so that `q` knows whether it is saved."""
        assert self._save is not None
        table = self.editor.draft.table
        self._said = (await asyncio.to_thread(self._save, table, other), "good")
        self.editor.saved = table

    # ---- what is typed

    def _ask(self, key: str) -> None:
        self._asked = key
        words = {"i": "insert before the cursor, as in 1F3 or 2I0 2W0", "a": "insert after it",
                 "W": "save as: a file name"}  # fmt: skip
        self._prompt.placeholder = words[key]
        self._prompt.display = True
        self._prompt.ask("/")

    async def on_prompt_done(self, event: Prompt.Done) -> None:
        self._prompt.display = False
        self.set_focus(None)
        try:
            if event.text and self._asked == "W":
                await self._keep(event.text)
            elif event.text:
                draft = self.editor.draft
                self.editor.apply(draft.inserted(event.text, self._asked == "a"))
        except UserError as why:
            self._said = (str(why), "warn")
        self._look()

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        width = self._pane.size.width
        cell = cell_at(self.shown.sheet, self.look, width, event.index, event.x)
        row = self.shown.sheet.rows[event.index]
        one = next((o for o in row if cell is not None and o.tick == cell.tick), None)
        self.editor.go(event.index, one.at if one is not None else 0)
        self._look()
