"""What each verb does, now or at the next cut, and when its sender is answered."""

from __future__ import annotations

from typing import Any

from pardbg.control.language.verbs import Verb
from pardbg.control.machine.breakpoints import EDITS, Breakpoints
from pardbg.control.machine.delivery import Outbox
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.moves import Moves
from pardbg.control.machine.permits import HOLD, PASS, permits, step_target
from pardbg.control.machine.state import Command, ControlState, Mode
from pardbg.errors import UserError
from pardbg.words import countdown, duration, ranks_text, whole
from pardbg_agent.wire import Msg

MAX_QUEUE = 8
MAX_COUNT = 10_000
"""Maximum number of times a verb may be asked for at once."""
RUN_WAIT_NS = 1_000_000_000
"""Maximum time ``continue`` waits for the agents' word before it is answered anyway."""
MAX_ROUNDS = 4
"""``next``: how often ranks that settling left inside the step are sent on to its end."""


class CommandRules:
    """Begins commands that were not refused, and ends those whose sender waits no longer."""

    def __init__(self, control: ControlState, outbox: Outbox, moves: Moves) -> None:
        self._control, self._outbox, self._moves = control, outbox, moves

    def refusal(self, command: Command, now: int) -> str | None:
        """Why a command is not begun; None: it may be."""
        control = self._control
        holder = control.lease.holder
        if holder not in (None, RUN, command.by):
            left = countdown(control.lease.left_ns(now) or 0)
            return f"{holder} holds control (lease {left}): take it over first"
        if command.verb is Verb.CONTINUE or command.verb in EDITS:
            return "no such rank yet" if command.verb is Verb.DELAY and not control.views else None
        if not control.views:
            return "no rank yet: the job has not formed a process group"
        if command.verb is Verb.PAUSE:
            return None
        if control.mode is Mode.RUNNING:
            return f"nothing is held: pause before {command.verb.value}"
        held = [view for view in control.of_ranks(command.ranks) if view.held]
        if held and len(dying := control.dying(held)) == len(held):
            return f"{ranks_text(dying)} stopped at an exception: continue lets it die"
        if len(control.queue) >= MAX_QUEUE:
            return f"{MAX_QUEUE} commands wait already: let them come to their cut"
        return None

    def begin(self, command: Command, now: int) -> None:
        """Do it now, or once the cut that is being made is reached."""
        if command.verb is Verb.PAUSE:
            self._pause(command, now)
        elif self._control.mode is Mode.HELD:
            self.advance(command, now)
        else:
            self._control.queue.append(command)

    def _pause(self, command: Command, now: int) -> None:
        control = self._control
        everybody = {view.rank for view in control.views.values()} <= set(command.ranks)
        wanted = control.free & {view.proc for view in control.of_ranks(command.ranks)}
        if wanted:  # it held some, now more or all
            control.pinned.procs |= wanted
            if everybody:
                control.pinned.clear()
            self._moves.hold_free(wanted, now)
        if control.mode is Mode.HELD:
            control.pinned.forever = control.pinned.forever or bool(command.args.get("hold"))
            self._outbox.ack(command, **control.status(now))
            return
        control.current.append(command)
        if control.mode is not Mode.RUNNING:
            return  # the cut that is being settled is the answer
        self._moves.enter(Mode.PAUSING, now)
        control.reason = "pause"
        chosen = list(control.views.values()) if everybody else control.of_ranks(command.ranks)
        if not everybody:
            control.free = set(control.views) - {view.proc for view in chosen}
            for proc in control.free:
                self._outbox.permit(control.views[proc], PASS, now)
            control.pinned.procs = {view.proc for view in chosen}
            control.pinned.forever = bool(command.args.get("hold"))
        for view in chosen:
            self._outbox.permit(view, HOLD, now)

    def advance(self, command: Command, now: int) -> None:
        """Begin a command that moves held ranks."""
        control = self._control
        chosen = [v for v in control.of_ranks(command.ranks) if v.held and not control.dying([v])]
        if not chosen:
            self._outbox.ack(command, f"{ranks_text(command.ranks)} not held")
            return
        states = [view.state for view in chosen if view.state is not None]
        granted = permits(command.verb, states, control.by_pipeline())
        if command.verb is Verb.NEXT:
            control.goal = (command.ranks, step_target(states), MAX_ROUNDS)
        control.current.append(command)
        control.why = []
        control.pinned.procs -= granted.keys()
        control.before = control.states()
        self._moves.enter(Mode.STEPPING, now)
        control.reason = self._count(command)
        for proc, permit in granted.items():
            view = control.views[proc]
            if permit.n or view.state is None or not permit.holds(view.state.held):
                self._outbox.permit(view, permit, now)

    def _count(self, command: Command) -> str:
        """Note which time it is; in words, ``tick x5 (2 of 5)``."""
        known = self._control.again
        if known is None or known[0] is not command:
            number = whole(str(command.args.get("count", 1)), MAX_COUNT) or 1
            known = (command, 0, number)
        self._control.again = (command, known[1] + 1, known[2])
        times = f" ({known[1] + 1} of {known[2]})" if known[2] > 1 else ""
        return words_of(command) + times

    def continue_(self, command: Command, now: int) -> None:
        """Let everything run on."""
        control = self._control
        if control.mode is Mode.RUNNING:
            if command.verb is not Verb.UNTIL:  # that one is answered where it stops
                self._outbox.ack(command, **control.status(now))
            return
        self._moves.run_on("running", "", now, by=command.by)
        if command.verb is Verb.UNTIL:
            return
        control.leaving.append((command, now + RUN_WAIT_NS))
        if control.lease.keep:
            control.lease.drop()  # a script does not stay to give control back

    def edit(self, command: Command, now: int, keep: bool, lease_ns: int) -> str | None:
        """Carry out a verb about breakpoints or delays. Return what is wrong with it, or None."""
        control = self._control
        try:
            text = _edit(control.breakpoints, command, keep, lease_ns)
        except UserError as error:
            return str(error)
        if command.verb is Verb.DELAY:
            ns = int(command.args.get("ns", 0))
            delay = {"t": Msg.DELAY.value, "id": self._outbox.next_id(), "ns": ns}
            for view in control.of_ranks(command.ranks):
                self._outbox.tell(view, delay)
        elif command.verb is not Verb.BREAKS:
            self._outbox.tell_breaks(control.views.values())
        if command.verb is not Verb.BREAKS:
            self._outbox.event(command.verb.value, now, by=command.by, text=text)
        if command.verb is Verb.UNTIL:
            control.until.append(command)
            self.continue_(command, now)
        else:
            self._outbox.ack(command, **{**control.status(now), "text": text})
        return None

    def answer_leaving(self, now: int) -> None:
        """Answer who let the ranks go, once agents say that they run."""
        control = self._control
        still = []
        runs = all(view.fresh and not view.held for view in control.views.values())
        for command, deadline in control.leaving:
            if runs or now >= deadline or control.mode is not Mode.RUNNING:
                self._outbox.ack(command, **control.status(now))
            else:
                still.append((command, deadline))
        control.leaving = still

    def expire(self, now: int) -> None:
        """Answer who does not want to wait longer; what it asked for goes on."""
        control = self._control
        for waiting in (control.current, control.queue, control.until):
            for command in [c for c in waiting if c.deadline_ns and now >= c.deadline_ns]:
                waiting.remove(command)
                error = f"no cut yet: {control.under_way}; it goes on"
                if waiting is control.until:
                    error = f"{command.args.get('expr')} was not true yet; it goes on"
                self._outbox.ack(command, error, **control.status(now))

    def end_until(self, text: str, now: int) -> None:
        """End an ``until`` that can no longer be reached."""
        for command in self._control.until:
            self._outbox.ack(command, text, **self._control.status(now))
        self._control.until = []


def _edit(table: Breakpoints, command: Command, keep: bool, lease_ns: int) -> str:
    """Carry out a verb of EDITS. Return what was done. Raises UserError."""
    args, verb = command.args, command.verb
    if verb in (Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.WATCH):
        ranks = command.ranks if command.text not in ("", "all") else None
        expr = str(args.get("expr", ""))
        made = table.add(
            expr, ranks, command.by, keep=keep, lease_ns=lease_ns,
            once=verb in (Verb.TBREAK, Verb.UNTIL), watch=verb is Verb.WATCH,
        )  # fmt: skip
        where = "" if ranks is None else f" on {ranks_text(ranks)}"
        return f"{made.what}: {made.text}{where}"
    if verb is Verb.CONDITION:
        changed = table.change(_number(args, "number"), str(args.get("expr", "")))
        return f"{changed.what}: {changed.text}"
    if verb is Verb.IGNORE:
        changed = table.ignore(_number(args, "number"), _number(args, "count"))
        return f"{changed.what}: skips the next {changed.ignore} matches"
    if verb is Verb.DELETE:
        numbers = args.get("numbers") or []
        if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
            raise UserError("delete takes breakpoint numbers, or nothing for all")
        gone = table.delete(numbers)
        return f"{', '.join(one.what for one in gone)} deleted" if gone else "none is set"
    if verb is Verb.DELAY:
        late, who = _number(args, "ns"), ranks_text(command.ranks)
        return f"{who} delayed by {duration(late)} in each step" if late else f"{who} not delayed"
    return f"{len(table.as_dicts())} breakpoints"


def words_of(command: Command) -> str:
    """Return text such as ``pause 0-1``, ``until step==100``: as the user wrote it."""
    count = command.args.get("count")
    times = f"x{count}" if isinstance(count, int) and count > 1 else ""
    parts = (command.verb.value, str(command.args.get("expr", "")), command.text, times)
    return " ".join(filter(None, parts))


def _number(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
        raise UserError(f"{name} is a number, not {str(value)[:20]!r}")
    return value
