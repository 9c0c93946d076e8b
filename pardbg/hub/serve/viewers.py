"""The viewers' side of CTRL: joining, commands, questions, control changing hands."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from pardbg.control.language.ranksets import Known, RankFacts, resolve, unseen
from pardbg.control.language.verbs import Verb
from pardbg.control.machine.cut import View
from pardbg.control.machine.machine import Machine
from pardbg.control.machine.state import Command
from pardbg.errors import UserError
from pardbg.events.decode import Malformed
from pardbg.hub.backlog import Definitions, Recent
from pardbg.hub.ranks.stack_requests import StackRequests
from pardbg.hub.run.config import RunConfig
from pardbg.hub.serve.agents import Agents
from pardbg.hub.serve.collector import Collector
from pardbg.hub.serve.questions import Levels, number_of
from pardbg.hub.serve.router import Router
from pardbg.hub.serve.sockets import Role
from pardbg.store.history import BOOKMARK, MAX_TEXT, UNMARK
from pardbg.words import duration, plural, ranks_text
from pardbg_agent.wire import LEASE_NS, LEVELS, Key, Msg

QUESTIONS: Final = (Verb.WHERE, Verb.RANKS, Verb.STATUS)
RECORDING: Final = (Verb.MARK, Verb.LEVEL)
SIGNALS: Final = {"INT": signal.SIGINT, "TERM": signal.SIGTERM}
MAX_EXPR: Final = 2_000
SCRIPT: Final = "ctl"
"""Name of the controller if each command is a process of its own."""


class Viewers:
    """Answers viewers; hands their commands to the machine."""

    def __init__(
        self, config: RunConfig, hub_id: str, router: Router, collector: Collector,
        definitions: Definitions, recent: Recent, agents: Agents,
        machine: Machine, where: StackRequests, signal_job: Callable[[int | None], str | None],
    ) -> None:  # fmt: skip
        self._config, self._hub_id, self._router = config, hub_id, router
        self._collector, self._definitions, self._recent = collector, definitions, recent
        self._agents = agents
        self._machine, self._where, self._signal_job = machine, where, signal_job
        self._number = 0
        self._levels = Levels(router.send)
        self._last: dict[str, int] = {}
        """Viewer -> id of its newest request; they grow."""
        self._missed: dict[str, int] = {}
        """Viewers of the hub before, whose breakpoints are set: when they have to be back."""

    def tick(self, now: int) -> None:
        """Restore temporarily raised levels; end unanswered questions."""
        self._agents.questions.tick(now)
        for viewer in [v for v, until in self._missed.items() if now >= until]:
            del self._missed[viewer]
            if viewer not in self._router.viewers:
                self._machine.forget(viewer, now)
        for level in dict.fromkeys(level for _, level in self._levels.tick(now)):
            self._said("level", "", f"back to {LEVELS[level]}", now)

    def message(self, viewer: str, message: dict[str, Any], role: Role, now: int) -> None:
        """Handle one message of a viewer. Raises Malformed."""
        kind, number = str(message.get("t")), message.get("id")
        if kind == Msg.LEASE:
            if role == "control":
                self._machine.renew(viewer, now)
            return
        if kind == Msg.LEAVE:
            if role == "control":
                self._machine.leave(viewer, now)
                self._machine.forget(viewer, now)
            return
        if not isinstance(number, int):
            raise Malformed("request without id")
        if number <= self._last.get(viewer, -1):
            if role == "control":  # who may only look writes nothing into the recording
                self._said("refused", viewer, f"request {number} was repeated: dropped", now)
            raise Malformed("request came again")
        self._last[viewer] = number
        if kind == Msg.JOIN:
            self._join(viewer, number)
        elif kind == Msg.TAKE:
            if self._may(viewer, number, role):
                self._machine.take(viewer, number, now)
        elif kind == Msg.COMMAND:
            self._command(viewer, number, message, role, now)
        else:
            raise Malformed("viewer message")

    def left(self, viewer: str, now: int) -> None:
        """Release what a viewer held that can no longer be reached."""
        self._last.pop(viewer, None)
        self._machine.leave(viewer, now, "disconnected: all ranks run on")
        self._machine.forget(viewer, now)

    def restore(self, breaks: Sequence[Mapping[str, Any]], number: int) -> list[str]:
        """Restore the previous hub's breakpoints; return text for the audit trail. Those of a
        viewer that does not return are deleted."""
        table, lost = self._machine.control.breakpoints, []
        table.skip(number)
        self._machine.control.restored = True
        for one in breaks:
            try:
                table.restore(one)
            except UserError as error:
                lost.append(f"breakpoint {one.get('number')} is lost: {error}")
        until = time.monotonic_ns() + LEASE_NS
        self._missed = {str(one.get("by")): until for one in breaks if one.get("keep") is not True}
        numbers = ", ".join(str(one["number"]) for one in table.as_dicts())
        return [f"breakpoint {numbers} set again"] * bool(numbers) + lost

    # -- joining

    def _join(self, viewer: str, number: int) -> None:
        definitions = self._definitions.messages()
        messages = chain(definitions, self._recent.messages())
        history = {
            "messages": len(definitions) + len(self._recent), "bytes": self._recent.num_bytes,
            "dropped": self._recent.dropped, "definitions_left_out": self._definitions.left_out,
        }  # fmt: skip
        then = {
            "t": Msg.ACK.value, "re": number, "ok": True, "run": self._config.run,
            "hub": self._hub_id, "history": history, "status": self.status(),
        }  # fmt: skip
        self._router.history(viewer, messages, then)

    # -- commands

    def _command(
        self, viewer: str, number: int, message: dict[str, Any], role: Role, now: int
    ) -> None:
        args = message.get("args") or {}
        word, text = str(message.get("verb")), message.get("ranks")
        if not isinstance(args, dict) or not (text is None or isinstance(text, str)):
            raise Malformed("command")
        if word in ("signal", Verb.KILL.value):
            if self._may(viewer, number, role):
                self._end_job(viewer, number, word, args, now)
            return
        try:
            verb = Verb(word)
            ranks = resolve(text, self._known()) if self._agents.known() else unseen(text)
        except UserError as error:
            none_held = text == "held"
            words = "nothing is held: pause first" if none_held else str(error)
            self._refuse(viewer, number, words, usage=not none_held)
            return
        except ValueError:
            verbs = ", ".join(verb.value for verb in Verb)
            self._refuse(viewer, number, f"no verb '{word[:40]}'; verbs: {verbs}", usage=True)
            return
        if verb is Verb.WHERE and role == "control":
            self._machine.renew(viewer, now)
        keep, timeout = bool(args.get("keep")), _seconds(args.get("timeout_s"))
        command = Command(
            viewer, SCRIPT if keep else viewer, number, verb, ranks, text or "",
            now + timeout if timeout else 0, args,
        )  # fmt: skip
        if verb in QUESTIONS:
            self._question(command, now)
        elif not self._may(viewer, number, role):
            return
        elif verb in RECORDING:
            self._record(command, now)
        elif verb is Verb.INSPECT:
            self._inspect(command, now)
        else:
            lease_ns = _seconds(args.get("lease_s"))
            self._machine.command(command, now, keep=keep, lease_ns=lease_ns)

    def _end_job(self, viewer: str, number: int, word: str, args: dict[str, Any], now: int) -> None:
        owner, refusal = self._config.owner_pid, ""
        chosen: int | None = None
        if word == "signal":
            chosen = SIGNALS.get(str(args.get("signal")))
            if owner is None or args.get("pid") != owner:
                refusal = "only the job's owner can send signals: use kill"
            elif chosen is None:
                refusal = "signal is INT or TERM"
        elif args.get("confirm") is not True:
            refusal = "kill ends the job: it needs confirmation"
        if refusal:
            self._refuse(viewer, number, refusal)
            return
        self._said(word, viewer, f"{word} the job", now)
        self._router.ack(viewer, number, self._signal_job(chosen))

    # -- about the recording

    def _record(self, command: Command, now: int) -> None:
        """Set a bookmark or the level: holds no rank, so needs no control."""
        viewer, number, args = command.viewer, command.re, command.args
        if command.verb is Verb.MARK:
            at, text = args.get("at_ns"), str(args.get("text") or "")[:MAX_TEXT]
            event = UNMARK if not text and at is not None else BOOKMARK
            at_ns = at if isinstance(at, int) and 0 <= at <= now else now
            self._collector.say(
                Key.CONTROL, event=event, by=viewer, at_ns=at_ns, text=text or "bookmark"
            )
            self._router.ack(viewer, number, None, {"at_ns": at_ns})
            return
        level = number_of(args.get("level"))
        if level is None:
            self._refuse(viewer, number, f"a level is {', '.join(LEVELS)}", usage=True)
            return
        rows, known = self._agents.rows(now), self._agents.known()
        present = {
            proc: int(rows.get(proc, {}).get("level", len(LEVELS) - 1))
            for proc, rank in known.items() if rank in command.ranks
        }  # fmt: skip
        for_ns = _seconds(args.get("for_s"))
        asked = self._levels.ask(present, level, for_ns, now)
        while_ = f" for {duration(for_ns)}" if for_ns else ""
        why = f": {str(args['why'])[:MAX_TEXT]}" if args.get("why") else ""
        if asked:
            text = f"{LEVELS[level]}{while_} on {plural(len(asked), 'rank')}{why}"
            self._said("level", viewer, text, now)
        self._router.ack(viewer, number, None, {"level": LEVELS[level], "asked": len(asked)})

    def _said(self, event: str, by: str, text: str, now: int) -> None:
        status = self._machine.control.status(now)
        self._collector.say(Key.CONTROL, event=event, by=by, text=text, **status)

    # -- questions

    def _question(self, command: Command, now: int) -> None:
        if command.verb is Verb.STATUS:
            self._answer(command, self.status())
        elif command.verb is Verb.RANKS:
            rows, mode = self._agents.rows(now), self._machine.control.mode.value
            chosen = {p: row for p, row in rows.items() if row["rank"] in command.ranks}
            self._answer(command, {"ranks": chosen, "mode": mode})
        else:
            pids = {proc: (rank, self._agents.pid(proc)) for proc, rank in self._asked(command)}
            self._number += 1
            self._where.ask(self._number, pids, partial(self._answer, command), now)
            for proc in pids:
                self._router.send(proc, {"t": Msg.WHERE.value, "id": self._number})

    def _inspect(self, command: Command, now: int) -> None:
        """Evaluate in the ranks' own frames; in the audit trail, as it may change them."""
        args, procs = command.args, dict(self._asked(command))
        kind, expr = str(args.get("kind", ""))[:20], str(args.get("expr") or "")[:MAX_EXPR]
        frame = args.get("frame")
        self._number += 1
        message = {
            "t": Msg.ASK.value, "id": self._number, "kind": kind, "expr": expr,
            "frame": frame if isinstance(frame, int) else 0,
        }  # fmt: skip
        text = f"{kind} {expr} on {ranks_text(command.ranks)}"[:300]
        self._said("inspect", command.viewer, text, now)
        self._machine.renew(command.viewer, now)
        self._agents.questions.ask(self._number, procs, partial(self._answer, command), now)
        for proc in procs:
            self._router.send(proc, message)

    def _asked(self, command: Command) -> list[tuple[str, int]]:
        """(process, rank) of its ranks."""
        return [(p, r) for p, r in self._agents.known().items() if r in command.ranks]

    def _answer(self, command: Command, data: Mapping[str, Any]) -> None:
        self._router.ack(command.viewer, command.re, None, data)

    def status(self) -> dict[str, Any]:
        """Answer with the controller, the held ranks and the hub's state."""
        counters = self._collector.counters
        return {
            **self._machine.control.status(self._collector.clock()),
            "run": self._config.run,
            "name": self._config.name,
            "hub": self._hub_id,
            "hub_pid": os.getpid(),
            "ranks": sorted(view.rank for view in self._machine.control.views.values()),
            "viewers": len(self._router.viewers),
            "messages": counters.messages,
            "records": counters.records,
            "refused": counters.refused,
            "malformed": counters.malformed + self._router.malformed + self._definitions.malformed,
            "recording": self._collector.write_error or "ok",
            "session": self._config.session,
        }

    # -- small things

    def _known(self) -> Known:
        facts = {}
        for proc, rank in self._agents.known().items():
            process, view = self._definitions.process(proc), self._machine.control.views.get(proc)
            facts[rank] = RankFacts(
                rank, str(process.fields.get("host", "")), tuple(sorted(process.stages)),
                held=view is not None and view.held, waiting=_waits(view),
            )  # fmt: skip
        axes = {axis: list(groups.values()) for axis, groups in self._definitions.axes.items()}
        return Known(facts, axes)

    def _may(self, viewer: str, number: int, role: Role) -> bool:
        if role == "control":
            return True
        self._refuse(viewer, number, "this key permits viewing only")
        return False

    def _refuse(self, viewer: str, number: int, error: str, *, usage: bool = False) -> None:
        """``usage``: the request itself makes no sense (a script ends with 2)."""
        self._router.ack(viewer, number, error, {"usage": True} if usage else None)


def _waits(view: View | None) -> bool:
    return view is not None and view.state is not None and not view.held and bool(view.state.open)


def _seconds(value: Any) -> int:
    """A number of seconds from outside as ns; 0 for nothing or nonsense."""
    if isinstance(value, (int, float)) and 0 < value <= 86400:
        return int(value * 1e9)
    return 0
