"""Handlers of the keys and commands about control: verbs, breakpoints, inspection."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from pardbg.analysis.pipeline.dependencies import parse
from pardbg.control.language.arguments import (
    COMPARE,
    at_module,
    inspect_words,
    verb_meant,
    verb_words,
)
from pardbg.errors import UserError
from pardbg.events.commands import Answers, Reply, WhereFound
from pardbg.events.control_codes import Verb
from pardbg.events.control_facts import Fact, Hit, Raised, Taken
from pardbg.render.frame.control_words import done_text, error_text
from pardbg.render.reports.replies import answer_rows, text
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import ACTIONS, INSPECTIONS, Handlers
from pardbg.ui.engine.controller import Controller
from pardbg.ui.engine.feed import Frame
from pardbg.ui.engine.messages import Answered
from pardbg.ui.main.screen_port import ScreenPort
from pardbg.ui.screens.debug import DebugPage
from pardbg.words import ranks_text, viewer, whole
from pardbg_agent.ctrl.agent_messages import NoAnswer

_MOVING = (Verb.PAUSE, Verb.CONTINUE, Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP, Verb.UNTIL)
"""Verbs that change the frames of a rank."""
_DONE: Final[dict[Verb | None, str]] = {Verb.CONTINUE: "ranks run on"}
"""Verb whose answer has no text -> text to show for it."""


class ControlActions:
    """Actions that send verbs to the hub and show its answers."""

    def __init__(self, view: ScreenPort, controller: Controller) -> None:
        self._view, self._controller = view, controller
        self._comparing = False
        self._followed: tuple[Fact, ...] = ()
        """Reasons for which ranks were held when the selection last followed them."""
        self._frame = 0
        """Number of the selected one of a held rank's own frames; 0 the innermost."""
        self._stacks_typed = False
        """Whether ``where`` was typed, so that the console shows its answer, too."""
        self._stacks_of: tuple[object, ...] = ()
        """Places at which ranks were held when their stacks were last requested."""
        self._lost = 0
        """Number of the message by which control was last taken from this viewer."""
        self._before = 0
        """Number of the frame selected before ``up`` or ``down``."""
        self._displays: dict[str, None] = {}
        """Expressions of ``display``, as typed."""
        self._to_display: list[str] = []
        """Expressions still to be evaluated, each after the answer to the one before."""
        self._displaying = ""
        """The last expression sent, until its answer comes."""
        self._displayed_at: tuple[object, ...] = ()
        self._by_itself = False
        """Whether the next display was not typed, so that the page must not change for it."""
        self._commands: dict[int, list[str]] = {}
        """Number of a breakpoint -> command lines to run when it stops a rank."""
        self._given: deque[str] = deque()
        """Command lines of the last stop that are still to be run."""

    def handlers(self) -> Handlers:
        """Return the handlers by action id."""
        verbs = {a.id: partial(self._verb, a.verb) for a in ACTIONS if a.verb is not None}
        words = {f"inspect_{word}": partial(self.inspect, word) for word in INSPECTIONS}
        return {
            **verbs, **words,
            "toggle": self._toggle,
            "break_here": self._break_here,
            "take": lambda _: self.refused(self._controller.take()),
            "leave": lambda _: self.refused(self._controller.take(back=True)),
            "display": self._display,
            "undisplay": self._undisplay,
            "commands": self._set_commands,
            "frames": self._choose_frames,
            "frame_up": self._frame_up,
            "frame_down": self._frame_down,
        }  # fmt: skip

    def _verb(self, verb: Verb, argument: str) -> None:
        ranks = str(self._view.shared.rank) if verb is Verb.STEP else None
        if verb is Verb.WHERE:
            self._stacks_typed = self._debug.asked
            self._view.show_page("debug")
        if verb in _MOVING:
            self._frame = 0
        words = argument.split()
        if verb is Verb.WATCH and words == ["same"]:
            self._hold_at_first()
            return
        verb = verb_meant(verb, words)
        named, args = verb_words(verb, words)
        self.refused(self._controller.send(verb, named or ranks, **args))

    def _hold_at_first(self) -> None:
        """Hold the ranks at the module that differs first from the reference. Raises UserError."""
        frame = self._view.shared.frame
        made = frame.sameness if frame is not None else None
        self._view.show_page("numbers")
        if made is None or made.found.exit_code == 2:
            raise UserError("watch same: no comparison yet (`pardbg watch --reference REF.mcap`, "
                            "with --tensors); again when it is here")  # fmt: skip
        if made.found.exit_code == 0:
            raise UserError("watch same: nothing differs, so there is nothing to hold at")
        at = at_module(*made.first)
        self.refused(self._controller.send(Verb.UNTIL, None, expr=at))

    def _toggle(self, _argument: str) -> None:
        frame = self._view.shared.frame
        if frame is not None:
            self.refused(self._controller.toggle(frame.snapshot.control))

    def _break_here(self, _argument: str) -> None:
        """Write the breakpoint command into the prompt, to be edited or entered."""
        self._view.ask(":", f"break {self._break_text()}")

    def _break_text(self) -> str:
        frame = self._view.shared.frame
        if frame is not None and (text := self._view.page.break_text(frame)):
            return text
        snapshot = frame.snapshot if frame else None
        coming = snapshot.control.held.get(self._view.shared.rank, "") if snapshot else ""
        view = snapshot.pipeline if snapshot else None
        step = view.step or view.last_complete if view else None
        for row in step.ranks if step else ():
            if row.rank == self._view.shared.rank and parse(coming) is None:
                coming = row.next_action or ""
        rank = self._view.shared.rank
        return f"action=={coming}" if parse(coming) is not None else f"rank=={rank} and op=="

    def refused(self, reply: Reply | None) -> None:
        """Show that a command is under way. Raises UserError if the hub refused it."""
        self._view.paint()
        if reply is not None and reply.refusal is not None:
            raise UserError(error_text(reply, self._controller.you))

    def on_answered(self, event: Answered) -> None:
        """Show the hub's answer: an error as a message; stacks and lists on the debug page."""
        debug, reply, verb = self._debug, event.reply, event.verb
        if not reply.ok:
            self._to_display, self._by_itself = [], False
            self._given.clear()
            self.show_result(error_text(reply, self._controller.you), True, reply.n)
            if verb is Verb.INSPECT:
                self._forget_display()
            return
        answer = reply.answer
        if isinstance(answer, WhereFound):
            if not debug.stacks(answer):
                self._view.say("no rank answered with a stack", "warn")
            elif self._stacks_typed:
                debug.say(f"{ranks_text(answer.stacks)}: above, merged")
            self._stacks_typed = False
            self._view.want_page()
        elif isinstance(answer, Answers):
            rows, shown = answer_rows(answer, self._comparing), self._displaying
            displayed = shown and event.expr == inspect_words("p", shown)[1].get("expr")
            if displayed:  # other lines may stand between it and its answer
                rows = [(f"{shown} · {row}" if not at else row, bad)
                        for at, (row, bad) in enumerate(rows)]  # fmt: skip
            self._show_answer(rows)
            self._keep_frame(answer)
            if any(one.refusal is NoAnswer.EVAL_OFF for one in answer.answers.values()):
                self._forget_display()
            if displayed or not shown:
                self._display_next()
        elif verb in (Verb.RANKS, Verb.STATUS, Verb.BREAKS):
            told, listed = text(verb, reply).splitlines(), list[str]()
            if verb is Verb.BREAKS and reply.status is not None:  # as gdb: commands below their own
                for one, row in zip(reply.status.breaks, told, strict=False):
                    lines = self._commands.get(one.number, ())
                    listed += [row, *(f"       {line}" for line in lines)]
            self._show_answer([(row, False) for row in listed or told])
        else:
            done = done_text(reply)
            debug.say(
                f"{verb.value if verb else 'control'}: {done or _DONE.get(verb, 'ok')}",
                "dim",
                reply.n,
            )
            if done and not self._view.shared.console_rows:  # what it did, on whatever page one is
                self._view.say(done, "held")
        self._give_next()
        self._view.paint()

    def show_result(self, text: str, bad: bool, n: int = 0) -> None:
        """Show in the console the result of a line of the prompt or of a ``.pardbgrc``."""
        self._debug.say(text, "bad" if bad else "dim", n)
        self._view.page.redraw()
        shown = self._view.active == "debug" or self._view.shared.console_rows
        if bad and not shown:  # there it stands in the console
            self._view.say(text, "bad")

    def answer(self, text: str, style: str) -> None:
        """Add the answer to a typed line to the console, if the console waits for one."""
        if self._debug.asked:
            self._debug.say(text, style)

    def typed(self, command: str) -> None:
        """Add a line of the prompt to the console, above the line's answer."""
        self._debug.say(f"{self._view.shared.place} {command}", "strong")

    @property
    def _debug(self) -> DebugPage:
        debug = self._view.pages["debug"]
        assert isinstance(debug, DebugPage)
        return debug

    # ---------------------------------------------------------------- looking into ranks

    def inspect(self, word: str, argument: str) -> None:
        """Send ``p loss`` or ``compare --hash grads``, for the selected rank if none is named."""
        ranks, args = inspect_words(word, argument)
        self._comparing = word == COMPARE
        ranks = ranks or str(self._view.shared.rank)
        every = self._view.shared.every_frame and not self._by_itself  # else the program's own
        args = {**args, "frame": self._frame, "every_frame": every}
        self.refused(self._controller.send(Verb.INSPECT, ranks, **args))

    def _display(self, argument: str) -> None:
        """Show a value now and at each new place, as pdb's ``display``. Raises UserError."""
        if argument:
            inspect_words("p", argument)
            self._displays[argument] = None
        elif not self._displays:
            raise UserError("display EXPR [on RANKS]: as in `display loss`")
        self._to_display = [argument] if argument else [*self._displays]
        self._display_next()

    def _undisplay(self, argument: str) -> None:
        if argument and argument not in self._displays:
            known = ", ".join(self._displays) or "nothing"
            raise UserError(f"no display {argument!r}: {known} is shown")
        gone = [argument] if argument else [*self._displays]
        for one in gone:
            del self._displays[one]
        self.show_result(f"not displayed any more: {', '.join(gone) or 'nothing was'}", False)

    def _forget_display(self) -> None:
        """Drop a refused display expression, which would be refused at each new place; say so."""
        if self._displaying in self._displays:
            del self._displays[self._displaying]
            self._debug.say(f"display {self._displaying}: refused, not asked for again", "warn")
        self._displaying = ""

    def _display_next(self) -> None:
        self._displaying = ""
        if not self._to_display:
            self._by_itself = False
            return
        self._displaying = one = self._to_display.pop(0)
        try:
            self.inspect("p", one)
        except UserError as error:
            self.show_result(str(error), True)
            self._forget_display()

    def on_frame(self, frame: Frame) -> None:
        """Evaluate the display expressions when the places of held ranks have changed, and request
        stacks if the page shows them."""
        self._view.shared.you = self._controller.you
        self._follow_hit(frame)
        self._say_taken(frame)
        held = frame.snapshot.control.held if frame.snapshot.control.mode == "held" else {}
        at = (frame.snapshot.step, *sorted(held.items()))
        if self._displays and held and frame.following and at != self._displayed_at:
            self._frame, self._to_display, self._by_itself = 0, [*self._displays], True
            self._display_next()
        if frame.following:  # at an earlier time no rank is asked
            self._displayed_at = at
        shows = self._view.active == "debug" or self._view.shared.console_rows
        if not shows or not self._controller.present or not held:
            return
        if not frame.following:
            return  # the answer is about now
        now = (frame.snapshot.step, *sorted(held.items()))
        if now != self._stacks_of:
            self._stacks_of = now
            self._view.shared.frame_at = self._frame = 0
            self._controller.send(Verb.WHERE)

    def _say_taken(self, frame: Frame) -> None:
        """Report once that another viewer took control from this one, with that viewer's name."""
        you = self._controller.you
        for event in reversed(frame.snapshot.control.log):
            fact = event.fact
            if isinstance(fact, Taken) and fact.before == you and you and event.n != self._lost:
                self._lost = event.n
                text = f"{viewer(event.by)} has taken control from you; :take takes it back"
                self._view.say(text, "warn")
                return
            if isinstance(fact, Taken):
                return

    def _follow_hit(self, frame: Frame) -> None:
        """Select the rank of a breakpoint, a watch or an exception, once per hit."""
        control = frame.snapshot.control
        why = control.why if control.mode == "held" and frame.following else ()
        if why == self._followed:
            return
        self._followed = why
        hit = why[0] if why else None
        if isinstance(hit, Hit | Raised) and hit.rank != self._view.shared.rank:
            self._view.shared.rank = hit.rank
            self._frame = 0
            self._view.want_page()
            self._view.page.redraw()
        numbers = dict.fromkeys(one.number for one in why if isinstance(one, Hit))
        self._given.extend(one for number in numbers for one in self._commands.get(number, ()))
        self._give_next()

    def _give_next(self) -> None:
        """Run the given lines in order, each after the answer to the one before: `p loss; continue`
        evaluates before the ranks run on. Lines after a refused one are dropped."""
        while self._given and not self._controller.under_way:
            self._view.run_line(self._given.popleft())

    def _set_commands(self, argument: str) -> None:
        """Set a breakpoint's commands, ``commands 1 p loss; continue``. Raises UserError."""
        first, _, rest = argument.partition(" ")
        number, lines = whole(first), [one.strip() for one in rest.split(";") if one.strip()]
        if number is None:
            raise UserError("commands N LINE; LINE: as in `commands 1 p loss; continue`")
        for one in lines:
            command_line.parse(one, live=True)
        self._commands[number] = lines

    def _show_answer(self, rows: list[tuple[str, bool]]) -> None:
        """Show an answer in the console: on the page if it has room, else on Debug."""
        for row, wrong in rows:
            self._debug.say(row, "bad" if wrong else "")
        if len(rows) < self._view.shared.console_rows or self._by_itself:
            self._view.page.redraw()
        else:
            self._view.show_page("debug")

    def _choose_frames(self, argument: str) -> None:
        """Handle ``frames all``: ``up`` and ``down`` include libraries. Raises UserError."""
        if argument not in ("", "own", "all"):
            raise UserError("frames own|all: as in `frames all`, then `up`")
        self._view.shared.every_frame = (
            argument == "all" if argument else not self._view.shared.every_frame
        )
        self._look_from(0)

    def _frame_up(self, _argument: str) -> None:
        """Select the caller's frame, as pdb's ``up``."""
        self._look_from(self._frame + 1)

    def _frame_down(self, _argument: str) -> None:
        if not self._frame:
            raise UserError("this is the innermost frame")
        self._look_from(self._frame - 1)

    def _look_from(self, number: int) -> None:
        self._before, self._frame = self._frame, number
        known = self._debug.look_from(number)
        self._view.want_page()
        if self._controller.present:
            self.inspect("list", "")
        elif not known:
            self._frame = self._before
            raise UserError("no frame beyond this one" if number else "no stack is known here")
        else:
            self._view.show_page("debug")

    def _keep_frame(self, found: Answers) -> None:
        """Keep the outermost frame selected if there is no frame beyond."""
        refusals = {one.refusal for one in found.answers.values()}
        if refusals == {NoAnswer.NO_FRAME}:
            self._frame = min(self._before, self._frame)
