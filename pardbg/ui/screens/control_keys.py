"""What the keys and commands about control do: the main screen's third part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pardbg.control.language.arguments import COMPARE, inspect_words, verb_meant, verb_words
from pardbg.control.language.verbs import Reply, Verb
from pardbg.render.draw.cells import Picture, Segment, clean, clip, line
from pardbg.render.reports.rank_answers import answers
from pardbg.render.reports.replies import breakpoints
from pardbg.ui.commands import command_line
from pardbg.ui.engine.messages import Answered
from pardbg.ui.screens.debug import DebugPage

if TYPE_CHECKING:
    from textual.geometry import Size

    from pardbg.ui.engine.controller import Controller
    from pardbg.ui.screens.base import Page, Shared
    from pardbg.ui.screens.panel import Draw

_ACTION = re.compile(r"\d+[FBIW]\d+")
_MOVING = (Verb.PAUSE, Verb.CONTINUE, Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP, Verb.UNTIL)
"""Verbs after which a rank has other frames."""


class ControlKeys:
    """Verbs, breakpoints and looking into ranks; ``do_<id>`` as the registry names them."""

    shared: Shared
    pages: Mapping[str, Page]
    _desk: Controller
    _comparing = False
    _frame = 0
    """Which of a held rank's own frames is looked at; 0 the innermost."""
    _asked = ""
    _before = 0
    """The one before ``up`` or ``down``."""

    if TYPE_CHECKING:

        def say(self, text: str, style: str = "dim") -> None: ...

        def paint(self) -> None: ...

        def show_page(self, name: str) -> None: ...

        def ask(self, kind: str, text: str = "") -> None: ...

        def open_panel(self, title: str, draw: Draw) -> None: ...

        @property
        def size(self) -> Size: ...

    def _verb(self, verb: Verb, argument: str) -> None:
        ranks = str(self.shared.rank) if verb is Verb.STEP else None
        if verb is Verb.WHERE:
            self.show_page("debug")
        if verb in _MOVING:
            self._frame = 0
        words = argument.split()
        verb = verb_meant(verb, words)
        try:
            said, args = verb_words(verb, words)
        except ValueError as error:
            raise command_line.CommandError(str(error)) from None
        self.refused(self._desk.send(verb, said or ranks, **args))

    def do_toggle(self, _argument: str) -> None:
        frame = self.shared.frame
        if frame is not None:
            self.refused(self._desk.toggle(frame.snapshot.control))

    def do_break_here(self, _argument: str) -> None:
        """The command is written out, to be changed or just entered."""
        self.ask(":", f"break {self._break_text()}")

    def _break_text(self) -> str:
        frame = self.shared.frame
        snapshot = frame.snapshot if frame else None
        coming = snapshot.control.held.get(self.shared.rank, "") if snapshot else ""
        view = snapshot.pipeline if snapshot else None
        step = view.step or view.last_complete if view else None
        for row in step.ranks if step else ():
            if row.rank == self.shared.rank and not _ACTION.search(coming):
                coming = row.next_action or ""
        action = _ACTION.search(coming)
        return f"action=={action[0]}" if action else f"rank=={self.shared.rank} and op=="

    def do_take(self, _argument: str) -> None:
        self.refused(self._desk.take())

    def do_leave(self, _argument: str) -> None:
        self.refused(self._desk.leave())

    def refused(self, reply: Reply | None) -> None:
        if reply is not None and reply.error:
            self.say(reply.error, "bad")
        self.paint()

    def on_answered(self, event: Answered) -> None:
        """The hub's answer: an error is said; stacks and lists go to the debug page."""
        debug = self.pages["debug"]
        assert isinstance(debug, DebugPage)
        name = event.verb.value if event.verb else "control"
        if not event.reply.ok:
            text = event.reply.error or f"{name}: the hub refused"
            debug.say(text, "bad")
            self.say(text, "bad")
            return
        if event.verb is Verb.WHERE:
            if not debug.stacks(event.reply.data):
                self.say("no rank answered with a stack", "warn")
        elif event.verb in (Verb.RANKS, Verb.STATUS):
            for key, value in sorted(event.reply.data.items(), key=str):
                debug.say(f"{key}: {value}")
            self.show_page("debug")
        elif event.verb is Verb.INSPECT:
            self._show_answer(answers(event.reply.data, compare=self._comparing))
            self._keep_frame(event.reply)
        elif event.verb is Verb.BREAKS:
            for text in breakpoints(event.reply.data):
                debug.say(text)
            self.show_page("debug")
        else:
            debug.say(f"{name}: {event.reply.data.get('text') or 'ok'}")
        self.paint()

    def said_at_start(self, text: str, bad: bool) -> None:
        """What became of a line of a ``.pardbgrc``."""
        debug = self.pages["debug"]
        assert isinstance(debug, DebugPage)
        debug.say(text, "bad" if bad else "dim")
        if bad:
            self.say(text, "bad")

    # ---------------------------------------------------------------- looking into ranks

    def inspect(self, word: str, argument: str) -> None:
        """``p loss``, ``compare --hash grads``: of the selected rank where none is said."""
        try:
            ranks, args = inspect_words(word, argument)
        except ValueError as error:
            raise command_line.CommandError(str(error)) from None
        self._comparing = word == COMPARE
        self._asked = f"{word} {argument}".strip()
        ranks = ranks or str(self.shared.rank)
        self.refused(self._desk.send(Verb.INSPECT, ranks, frame=self._frame, **args))

    def _show_answer(self, lines: list[str]) -> None:
        """In the console; over it, too, where it is longer than what the console has room for."""
        debug = self.pages["debug"]
        assert isinstance(debug, DebugPage)
        for text in lines:
            debug.say(text, "")
        self.show_page("debug")
        size = self.size
        if len(lines) > (size.height // 2 - 4 if size.width >= 120 else size.height // 6):
            self.open_panel(
                self._asked, lambda cells, _: Picture(body=tuple(
                    line(Segment(clip(clean(text), cells))) for text in lines))
            )  # fmt: skip

    def do_frame_up(self, _argument: str) -> None:
        """The caller's frame, as pdb's ``up``."""
        self._look_from(self._frame + 1)

    def do_frame_down(self, _argument: str) -> None:
        if not self._frame:
            raise command_line.CommandError("this is the innermost frame")
        self._look_from(self._frame - 1)

    def _look_from(self, number: int) -> None:
        self._before, self._frame = self._frame, number
        self.inspect("list", "")

    def _keep_frame(self, reply: Reply) -> None:
        """There is no frame beyond the outermost: stay."""
        said = list(dict(reply.data.get("answers") or {}).values())
        if said and all(str(one.get("error") or "").startswith("no frame") for one in said):
            self._frame = min(self._before, self._frame)
