"""Viewers' side of CTRL: joining, commands, questions, changes of control."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from pardbg.control.language.ranksets import Known, RankFacts, resolve, unseen
from pardbg.control.machine import machine
from pardbg.control.machine.cut import View
from pardbg.control.machine.state import Order
from pardbg.errors import UserError
from pardbg.events import commands
from pardbg.events import control_facts as facts
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_events import ControlEvent
from pardbg.events.decode import Malformed
from pardbg.hub.backlog import Definitions, Recent
from pardbg.hub.ranks.stack_requests import StackRequests
from pardbg.hub.run.config import RunConfig
from pardbg.hub.serve.agents import Agents
from pardbg.hub.serve.collector import Collector
from pardbg.hub.serve.questions import Levels
from pardbg.hub.serve.router import Router
from pardbg.hub.serve.sockets import Role
from pardbg_agent.ctrl.agent_messages import Ask, Lease
from pardbg_agent.ctrl.agent_messages import Where as AskWhere
from pardbg_agent.wire import LEASE_NS, LEVELS

QUESTIONS: Final = (Verb.WHERE, Verb.RANKS, Verb.STATUS)
MAX_EXPR: Final = 2_000
SCRIPT: Final = "ctl"
"""Name of the controller if each command is a process of its own."""


class Viewers:
    """Handler of viewers' requests, which passes their commands to the machine."""

    def __init__(
        self, config: RunConfig, hub_id: str, router: Router, collector: Collector,
        definitions: Definitions, recent: Recent, agents: Agents,
        machine: machine.Machine, where: StackRequests, kill_job: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._config, self._hub_id, self._router = config, hub_id, router
        self._collector, self._definitions, self._recent = collector, definitions, recent
        self._agents = agents
        self._machine, self._where, self._kill_job = machine, where, kill_job
        self._number = 0
        self._levels = Levels(router.send)
        self._last: dict[str, int] = {}
        """Viewer -> id of its newest request; ids rise."""
        self._missed: dict[str, int] = {}
        """Viewer of the previous hub with breakpoints that are set -> time to be back by."""

    def tick(self, now: int) -> None:
        """Restore temporarily raised levels; end unanswered questions."""
        self._agents.questions.tick(now)
        for viewer in [v for v, until in self._missed.items() if now >= until]:
            del self._missed[viewer]
            if viewer not in self._router.viewers:
                self._machine.take(machine.Forgotten(viewer, now))
        for level in dict.fromkeys(level for _, level in self._levels.tick(now)):
            self._record(facts.Level(LEVELS[level], back=True), "", now)

    def message(self, viewer: str, message: commands.FromViewer, role: Role, now: int) -> None:
        """Handle one message of a viewer. Raises Malformed."""
        may_control = role == "control"
        if isinstance(message, Lease):
            if may_control:
                self._machine.take(machine.Renewed(viewer, now))
            return
        if isinstance(message, commands.Leave):
            if may_control:
                self._machine.take(machine.GivenUp(viewer, now))
            return
        if message.id <= self._last.get(viewer, -1):
            if may_control:  # a viewer that may only look writes nothing into the recording
                refusal = facts.Refusal(Why.REPEATED, number=message.id)
                self._record(facts.Refused("", refusal), viewer, now)
            raise Malformed("request came again")
        self._last[viewer] = message.id
        if isinstance(message, commands.Join):
            self._join(viewer, message.id)
        elif isinstance(message, commands.Command):
            self._command(viewer, message, may_control, now)
        elif may_control:
            order = Order(viewer, viewer, message.id, Verb.STATUS, ())
            self._machine.take(machine.TakenOver(order, now))
        else:
            self._refuse(viewer, message.id, facts.Refusal(Why.VIEW_ONLY))

    def left(self, viewer: str, now: int) -> None:
        """Release the ranks held by a viewer that can no longer be reached."""
        self._last.pop(viewer, None)
        self._machine.take(machine.GivenUp(viewer, now, disconnected=True))

    def restore(self, breaks: Sequence[facts.Breakpoint], number: int, now: int) -> tuple[int, ...]:
        """Restore the previous hub's breakpoints; return the numbers of those that are set. Those
        of a viewer that does not return are deleted."""
        self._machine.take(machine.Restored(breaks, number))
        self._missed = {one.by: now + LEASE_NS for one in breaks if not one.keep}
        return tuple(one.number for one in self._machine.control.breakpoints.infos())

    # -- joining

    def _join(self, viewer: str, number: int) -> None:
        messages = chain(self._definitions.messages(), self._recent.messages())
        answer = commands.Joined(self._hub_id)
        self._router.history(viewer, messages, commands.Reply(number, answer=answer))

    # -- commands

    def _command(self, viewer: str, asked: commands.Command, may_control: bool, now: int) -> None:
        verb, text = asked.verb, asked.ranks
        try:
            ranks = resolve(text, self._known()) if self._agents.known() else unseen(text)
        except UserError as error:
            invalid = facts.Refusal(Why.INVALID, str(error))
            self._refuse(
                viewer, asked.id, facts.Refusal(Why.NOTHING_HELD) if text == "held" else invalid
            )
            return
        if verb is Verb.WHERE and may_control:
            self._machine.take(machine.Renewed(viewer, now))
        timeout, lease_ns = _ns(asked.timeout_s), _ns(asked.lease_s)
        order = Order(
            viewer, SCRIPT if asked.keep else viewer, asked.id, verb, ranks, text or "", asked.args,
            now + timeout if timeout else 0, asked.keep, lease_ns,
        )  # fmt: skip
        if verb in QUESTIONS:
            self._question(order, now)
        elif not may_control:
            self._refuse(viewer, asked.id, facts.Refusal(Why.VIEW_ONLY))
        elif verb is Verb.KILL:
            self._kill(order, now)
        elif verb is Verb.MARK:
            self._mark(order, now)
        elif verb is Verb.LEVEL:
            self._set_level(order, now)
        elif verb is Verb.INSPECT:
            self._inspect(order, now)
        else:
            self._machine.take(machine.Ordered(order, now))

    def _kill(self, order: Order, now: int) -> None:
        if not order.args.confirm:
            self._refuse(order.viewer, order.re, facts.Refusal(Why.UNCONFIRMED))
            return
        number = self._record(facts.Killed(), order.viewer, now)
        refusal = None if self._kill_job() else facts.Refusal(Why.JOB_ENDED)
        self._answer(order, facts.Killed(), number, refusal)

    # -- about the recording: no rank is held, so no control is needed

    def _mark(self, order: Order, now: int) -> None:
        at_ns, text = order.args.at_ns, order.args.text
        remove = not text and at_ns is not None
        at_ns = at_ns if at_ns is not None and 0 <= at_ns <= now else now
        fact = facts.Bookmark(at_ns, "" if remove else text or "bookmark")
        number = self._collector.control(ControlEvent(fact, by=order.viewer))
        self._answer(order, commands.Marked(at_ns), number)

    def _set_level(self, order: Order, now: int) -> None:
        if order.args.level not in LEVELS:
            self._refuse(order.viewer, order.re, facts.Refusal(Why.BAD_LEVEL))
            return
        level, for_ns = LEVELS.index(order.args.level), _ns(order.args.for_s)
        rows = self._agents.rows(now)
        present = {
            proc: int(rows.get(proc, {}).get("level", len(LEVELS) - 1))
            for proc, _ in self._asked(order)
        }
        asked, number = self._levels.ask(present, level, for_ns, now), 0
        if asked:
            fact = facts.Level(LEVELS[level], len(asked), for_ns, order.args.reason)
            number = self._record(fact, order.viewer, now)
        answer = commands.LevelAsked(LEVELS[level], len(asked))
        self._answer(order, answer, number)

    def _record(self, fact: facts.Fact, by: str, now: int) -> int:
        return self._collector.control(ControlEvent(fact, self._machine.control.status(now), by))

    # -- questions

    def _question(self, order: Order, now: int) -> None:
        if order.verb is Verb.STATUS:
            status = self._machine.control.status(now)
            reply = commands.Reply(order.re, None, self.hub_facts(), status)
            self._router.reply(order.viewer, reply)
        elif order.verb is Verb.RANKS:
            rows, mode = self._agents.rows(now), self._machine.control.mode
            chosen = {p: row for p, row in rows.items() if row["rank"] in order.ranks}
            self._answer(order, commands.RankRows(chosen, mode))
        else:
            pids = {proc: (rank, self._agents.pid(proc)) for proc, rank in self._asked(order)}
            self._number += 1
            self._where.ask(self._number, pids, partial(self._answer, order), now)
            for proc in pids:
                self._router.send(proc, AskWhere(self._number))

    def _inspect(self, order: Order, now: int) -> None:
        """Evaluate in the ranks' own frames; noted in the audit trail, as it may change them."""
        args, procs = order.args, dict(self._asked(order))
        self._number += 1
        expr = args.expr[:MAX_EXPR]
        self._record(facts.Inspected(args.kind, expr, order.ranks), order.viewer, now)
        self._machine.take(machine.Renewed(order.by, now, order.lease_ns))
        self._agents.questions.ask(self._number, procs, partial(self._answer, order), now)
        for proc in procs:
            self._router.send(
                proc, Ask(self._number, args.kind, expr, args.frame, args.every_frame)
            )

    def _asked(self, order: Order) -> list[tuple[str, int]]:
        return [(p, r) for p, r in self._agents.known().items() if r in order.ranks]

    def _answer(
        self, order: Order, answer: commands.Answer, n: int = 0,
        refusal: facts.Refusal | None = None,
    ) -> None:  # fmt: skip
        self._router.reply(order.viewer, commands.Reply(order.re, refusal, answer, n=n))

    def hub_facts(self) -> commands.HubFacts:
        """Return the hub's own state."""
        counters = self._collector.counters
        malformed = counters.malformed + self._router.malformed + self._definitions.malformed
        return commands.HubFacts(
            self._config.run, self._config.name, self._hub_id, os.getpid(),
            tuple(sorted(view.rank for view in self._machine.control.views.values())),
            len(self._router.viewers), counters.messages, counters.records, counters.refused,
            malformed, self._collector.write_error or "ok", self._config.session,
        )  # fmt: skip

    # -- small things

    def _known(self) -> Known:
        known = {}
        for proc, rank in self._agents.known().items():
            process, view = self._definitions.process(proc), self._machine.control.views.get(proc)
            known[rank] = RankFacts(
                rank, str(process.fields.get("host", "")), tuple(sorted(process.stages)),
                held=view is not None and view.held, waiting=_waits(view),
            )  # fmt: skip
        axes = {axis: list(groups.values()) for axis, groups in self._definitions.axes.items()}
        return Known(known, axes)

    def _refuse(self, viewer: str, number: int, refusal: facts.Refusal) -> None:
        self._router.reply(viewer, commands.Reply(number, refusal))


def _waits(view: View | None) -> bool:
    return view is not None and view.state is not None and not view.held and bool(view.state.open)


def _ns(seconds: float) -> int:
    """Return a time from outside in ns; 0 for nothing or nonsense."""
    return int(seconds * 1e9) if 0 < seconds <= 86400 else 0
