"""Simulated ranks for the control tables: tiny programs with gates, ops, waits; no clock, no I/O.

A program is a list of words::

    0F0         a pipeline action            send 1 / recv 0   a p2p op is issued (asynchronous)
    wait        until own p2p ops complete   coll dp           a collective is issued
    waitcoll    until own collectives do     opt / step        the optimizer's and the step's gate
    sched       a schedule's step begins     busy              long compute while ``busy``
    begin       the step gate before the first step    raise    an exception nobody catches
    memory      what a watch of this name looks for happens
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from pardbg.control.machine.delivery import Send
from pardbg.control.machine.machine import (
    Acknowledged,
    Joined,
    Machine,
    Ordered,
    Renewed,
    Reported,
    Ticked,
)
from pardbg.control.machine.state import Event, Order
from pardbg.events.commands import Arguments, Reply
from pardbg.events.control_codes import Verb
from pardbg.events.control_events import ControlEvent, event_of
from pardbg.events.control_facts import Asked, Edited, Refused
from pardbg_agent.control.breaks import Breaks, breaks_of
from pardbg_agent.control.watches import NO_WATCHES, Watches, watches_of
from pardbg_agent.ctrl.agent_messages import (
    Delay,
    Lease,
    OpenOp,
    Permit,
    Run,
    SetBreaks,
    State,
    ToAgent,
)
from pardbg_agent.ctrl.codec import decode, encode
from pardbg_agent.wire import GATE_ALL, Gate

GATES = {"send": Gate.SEND, "recv": Gate.RECV, "coll": Gate.COLLECTIVE, "opt": Gate.OPTIMIZER,
         "step": Gate.STEP, "begin": Gate.STEP, "raise": Gate.EXCEPTION}  # fmt: skip
FREE = {"wait", "waitcoll", "sched", "busy", "memory"}


@dataclass
class Rank:
    """One simulated process."""

    rank: int
    program: list[str]
    plan: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    """A plan that is known from ``sched`` on."""
    at: int = 0
    closed: bool = False
    count: int = 0
    left: int = 0
    stop: int = 0
    reply_to: int | None = None
    held: int = 0
    step: int = 0
    serial: int = 0
    busy: bool = True
    done: list[str] = field(default_factory=list)
    open: list[OpenOp] = field(default_factory=list)
    issued: dict[str, int] = field(default_factory=dict)
    p2p: dict[tuple[str, int, int, bool], int] = field(default_factory=dict)
    breaks: Breaks = field(default_factory=lambda: breaks_of([]))
    watches: Watches = NO_WATCHES
    due: tuple[int, str] | None = None
    hit: int | None = None
    hit_text: str = ""
    late_ns: int = 0

    @property
    def proc(self) -> str:
        return f"0.n0.{self.rank}"

    @property
    def next(self) -> str:
        return self.program[self.at] if self.at < len(self.program) else "end"

    def message(self, message: ToAgent) -> None:
        """Permit, Run, SetBreaks or Delay, as the agent does it, from what travels."""
        message = decode(ToAgent, msgpack.unpackb(msgpack.packb(encode(message))))
        if isinstance(message, SetBreaks):
            new = breaks_of(message.breaks)
            new.keep_counts(self.breaks)
            self.breaks = new
            self.watches = watches_of(message.watches)
        elif isinstance(message, Delay):
            self.late_ns = message.ns
        elif isinstance(message, (Permit, Run)):
            if message.id <= (self.reply_to or 0):
                return  # it came before
            if isinstance(message, Run) or message.n or not self.held & message.stop:
                self.hit = None
        if isinstance(message, Permit):
            self.closed, self.reply_to = True, message.id
            self.count, self.left, self.stop = message.count, message.n, message.stop
            if self.held and self._passes(self.held):
                self.held = 0
                self._issue()
        elif isinstance(message, Run):
            self.closed, self.reply_to = False, message.id
            if self.held:
                self.held = 0
                self._issue()

    def advance(self, world: World) -> bool:
        """One word of the program; False: nothing moved."""
        if self.held or self.at >= len(self.program):
            return False
        word = self.next.split()[0]
        if word in FREE:
            if word == "wait" and any(op.peer is not None for op in self.open):
                return False
            if word == "waitcoll" and any(op.peer is None for op in self.open):
                return False
            if word == "busy" and self.busy:
                return False
            if word == "sched":
                self.plan, self.done = self.plan or self.built, []
            if word == "memory" and (watch := self.watches.memory) is not None:
                self.due = watch.number, f"9 B allocated, more than {watch.limit:g} B"
            self.at += 1
            return True
        gate = GATES.get(word, Gate.ACTION)
        found = self.breaks.first_hit(gate, self._facts)
        if self.due is not None or found is not None:
            number, self.hit_text = self.due or (found.number if found else 0, "")
            self.hit, self.closed, self.due = number, True, None
            self.count = self.stop = GATE_ALL
            self.left = 0
        if word == "raise":
            self.closed, self.left, self.stop = True, 0, int(GATE_ALL)
        self.step += word == "step"  # counted, then the gate, as the agent does it
        if self.closed and not self._passes(gate):
            self.held = int(gate)
        else:
            self._issue()
        return True

    def _facts(self) -> dict[str, Any]:
        """What comes next, field by field."""
        known: dict[str, Any] = {"rank": self.rank, "step": self.step}
        if self.next[0].isdigit():
            return {**known, "stage": int(self.next[0]), "action": self.next[1],
                    "mb": int(self.next[2:])}  # fmt: skip
        return {**known, "op": {"coll": "all_reduce"}.get(self.next.split()[0], "")}

    def _passes(self, gate: int) -> bool:
        if gate == Gate.EXCEPTION:
            return False
        if self.left > 0:
            self.left -= bool(gate & self.count)
            return True
        return not gate & self.stop

    def _issue(self) -> None:
        """What lies behind the gate happens."""
        word, _, arg = self.next.partition(" ")
        self.at += 1
        if word in ("send", "recv"):
            edge = ("pp", int(arg), 0, word == "send")
            order = self.p2p.get(edge, 0)
            self.p2p[edge] = order + 1
            self.open.append(OpenOp("pp", word, 0, int(arg), word == "send", 0, order, 0))
        elif word == "coll":
            seq = self.issued.get(arg, 0)
            self.issued[arg] = seq + 1
            self.open.append(OpenOp(arg, "all_reduce", seq, None, False, 0, 0, 0))
        elif word not in ("opt", "step", "begin", "raise"):
            self.done.append(word)

    def state(self) -> State:
        self.serial += 1
        state = State(
            rank=self.rank, serial=self.serial, reply_to=self.reply_to,
            held=self.held, held_since_ns=self.at, next=self.next, step=self.step,
            closed=self.closed, hit=self.hit, hit_text=self.hit_text, hits=self.breaks.hits(),
            open=tuple(self.open), issued=dict(self.issued), p2p=dict(self.p2p),
            done=tuple(self.done), plan=self.plan,
        )  # fmt: skip
        plain = msgpack.unpackb(msgpack.packb(encode(state)), strict_map_key=False)
        return replace(decode(State, plain), proc=self.proc)


class World:
    """Ranks, the machine, and a clock that stands still unless told."""

    def __init__(self, programs: list[list[str]], plans: list[list[str]] | None = None) -> None:
        plans = plans or [[] for _ in programs]
        pairs = enumerate(zip(programs, plans, strict=True))
        self.ranks = [Rank(i, program, tuple(plan)) for i, (program, plan) in pairs]
        self.machine = Machine()
        self.now = 1_000_000_000
        self.acks: list[Reply] = []
        """Answers, by the order in which they came; ``re`` is the request's."""
        self.events: list[ControlEvent] = []
        self._request = 0
        self.times: Callable[[], int] = lambda: 1
        """How often a message between hub and ranks arrives; 0: it is lost."""
        for rank in self.ranks:
            self.machine.take(Joined(rank.proc, rank.rank, self.now))
        self.machine.control.groups = {
            "dp": tuple(range(len(programs))),
            "pp": tuple(range(len(programs))),
        }

    def command(
        self, verb: str, ranks: list[int] | None = None, by: str = "view-a", **args: Any
    ) -> int:
        """Send a command; settle; its request id."""
        self._request += 1
        chosen = tuple(range(len(self.ranks)) if ranks is None else ranks)
        text = "" if ranks is None else "some"
        order = Order(by, by, self._request, Verb(verb), chosen, text, Arguments(**args))
        self.machine.take(Ordered(order, self.now))
        self.settle()
        return self._request

    def ack(self, re: int) -> Reply | None:
        return next((ack for ack in self.acks if ack.re == re), None)

    def settle(self, rounds: int = 400, ms: int = 20) -> None:
        """Let ranks and machine go until nothing moves (each round takes ``ms``)."""
        quiet = 0
        for _ in range(rounds):
            self.now += ms * 1_000_000
            moved = self._deliver()
            for rank in self.ranks:
                while rank.advance(self):
                    moved = True
                self._complete()
            for rank in self.ranks:
                state = rank.state()
                for _ in range(self.times()):
                    self.machine.take(Reported(state, self.now))
            holder = self.machine.control.lease.holder or ""
            self.machine.take(Renewed(holder, self.now))
            self.machine.take(Ticked(self.now))
            quiet = 0 if moved or self._deliver() else quiet + 1
            if quiet > 3:
                return
        raise AssertionError("the world does not come to rest")

    def _deliver(self) -> bool:
        moved = False
        for effect in self.machine.drain():
            if isinstance(effect, Send):
                for rank in (r for r in self.ranks if r.proc == effect.proc):
                    for _ in range(self.times()):
                        self._say(rank, effect.message)
                moved = moved or not isinstance(effect.message, Lease)
            elif isinstance(effect, Event):
                self._publish(effect)
            else:
                reply = Reply(effect.order.re, effect.refusal, status=effect.status)
                self.acks.append(reply)
        return moved

    def _publish(self, effect: Event) -> None:
        fact, n = effect.fact, len(self.events) + 1
        event = ControlEvent(fact, effect.status, effect.by, n, self.now)
        travelled = msgpack.unpackb(msgpack.packb(event.plain()), strict_map_key=False)
        assert event_of(travelled) == event
        self.events.append(event)
        refusal = fact.refusal if isinstance(fact, Refused) else None
        for order in effect.answers:
            answer = fact if refusal is None else None
            self.acks.append(Reply(order.re, refusal, answer, effect.status, n))

    def names(self) -> list[str]:
        """Names of the events: the verb of a command, else the fact's."""
        return [f.verb.value if isinstance(f, (Asked, Edited)) else f.TAG for f in self.facts()]

    def facts(self, *kinds: type) -> list[Any]:
        """Facts that were published, of these kinds (all: none named)."""
        found = [event.fact for event in self.events if event.fact is not None]
        return [fact for fact in found if not kinds or isinstance(fact, kinds)]

    def _say(self, rank: Rank, message: ToAgent) -> None:
        rank.message(message)
        if isinstance(message, (SetBreaks, Delay)):
            for _ in range(self.times()):
                self.machine.take(Acknowledged(rank.proc, message.id))

    def _complete(self) -> None:
        """An op is complete when everybody in it has issued it."""
        for rank in self.ranks:
            rank.open = [op for op in rank.open if not self._all_issued(rank, op)]

    def _all_issued(self, rank: Rank, op: OpenOp) -> bool:
        by_rank = {other.rank: other for other in self.ranks}
        if op.peer is None:
            members = [by_rank.get(r) for r in self.machine.control.groups[op.group]]
            return all(r is not None and r.issued.get(op.group, 0) > op.seq for r in members)
        peer = by_rank.get(op.peer)
        return peer is not None and (
            peer.p2p.get((op.group, rank.rank, op.tag, not op.send), 0) > op.order
        )

    def where(self) -> list[str]:
        """What comes next on each rank, ``*`` where it is held."""
        return [f"{'*' if rank.held else ''}{rank.next}" for rank in self.ranks]


def one_f_one_b(rank: int, size: int, microbatches: int, steps: int = 1) -> list[str]:
    """torch's Schedule1F1B on one rank: actions, p2p and waits in the order it issues them."""
    words: list[str] = []
    warmup = min(microbatches, size - rank)
    from_before = [f"recv {rank - 1}"] if rank else []
    from_after = [f"recv {rank + 1}"] if rank + 1 < size else []
    to_before = [f"send {rank - 1}"] if rank else []
    to_after = [f"send {rank + 1}"] if rank + 1 < size else []
    for _ in range(steps):
        words.append("sched")
        for mb in range(warmup):
            words += [*from_before, "wait", f"{rank}F{mb}", *to_after]
            words += ["wait"] if mb + 1 < warmup else []  # the last send goes with a receive
        for mb in range(microbatches):
            words += [*from_after, "wait", f"{rank}B{mb}", *to_before]
            if mb + warmup < microbatches:
                words += [*from_before, "wait", f"{rank}F{mb + warmup}", *to_after]
        words += ["wait", "opt", "step"]
    return words


def plan_1f1b(rank: int, size: int, microbatches: int) -> list[str]:
    """The compute actions alone."""
    return [w for w in one_f_one_b(rank, size, microbatches) if w[0].isdigit()]
