"""The words of control: verbs, rank sets, what an agent reports, and the port a viewer speaks to.

No I/O here. The hub runs these tables; keys, the console and ``pardbg ctl`` speak the same verbs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class Verb(str, Enum):
    PAUSE = "pause"
    """Stop every rank at its next gate and settle to a consistent cut."""
    CONTINUE = "continue"
    """Run on."""
    STEP = "step"
    """The chosen ranks pass one gate: one action (compute, send, receive, collective)."""
    TICK = "tick"
    """Each rank of a pipeline whose input is there runs one compute action; sends flow."""
    NEXT = "next"
    """One training step."""
    OP = "op"
    """To the next collective, or to the end of the step where it has no more."""
    WHERE = "where"
    """All ranks' stacks."""
    BREAK = "break"
    """Stop where a condition is true: ``expr`` (control.language.expr); on the chosen ranks."""
    TBREAK = "tbreak"
    """The same, once."""
    UNTIL = "until"
    """``tbreak`` and run on; answered where it stops."""
    CONDITION = "condition"
    """Give breakpoint ``number`` another ``expr``."""
    IGNORE = "ignore"
    """Let the next ``count`` matches of breakpoint ``number`` pass, on each rank."""
    DELETE = "delete"
    """Remove breakpoints ``numbers``; none named: all."""
    BREAKS = "breaks"
    """All breakpoints and watches, with how often each matched."""
    WATCH = "watch"
    """Stop where something goes wrong: ``expr`` (control.language.watch_expr); on the chosen ranks.
    In one table with the breakpoints."""
    INSPECT = "inspect"
    """Look into held ranks: ``kind`` (pardbg_agent.control.evaluate.KINDS), ``expr``, ``frame``."""
    DELAY = "delay"
    """Make the chosen ranks ``ns`` later in each step: a planted straggler; 0: no more."""
    RANKS = "ranks"
    """Where each rank is."""
    STATUS = "status"
    """Report the controller, the lease and pending ops."""
    MARK = "mark"
    """A bookmark in the recording: ``at_ns`` (now where not given) and ``text``. Changes nothing
    in the run, so it needs no control."""
    LEVEL = "level"
    """``level``: how much the chosen ranks record, off, summary or full; for ``for_s`` seconds
    where given. Needs no control, as no rank is held."""
    KILL = "kill"
    """End the job: SIGTERM, and SIGKILL to what is left. Needs ``confirm=True``."""


@dataclass(frozen=True, slots=True)
class OpenOp:
    """An op that a rank issued and that is not complete."""

    group: str
    op: str
    seq: int
    peer: int | None
    """p2p only: the other global rank."""
    send: bool
    tag: int
    order: int
    """p2p only: number of this (group, src, dst, tag) edge's earlier ops of this rank."""
    since_ns: int


@dataclass(frozen=True, slots=True)
class AgentState:
    """What an agent says of itself while control is active (wire.Msg.STATE)."""

    proc: str
    rank: int
    serial: int
    """``sn``: grows with each state; an older one is ignored."""
    reply_to: int | None
    """The newest PERMIT or RUN this state already follows."""
    held: int
    """Gate class the training thread is held at; 0: it runs (or waits inside an op)."""
    held_since_ns: int
    next: str
    """What comes next there, text form: ``2F4``, ``SEND_F 2→3 mb4``, ``all_reduce dp #42``."""
    step: int
    open: tuple[OpenOp, ...] = ()
    issued: dict[str, int] = field(default_factory=dict)
    """group key -> number of collectives issued on it."""
    p2p: dict[tuple[str, int, int, bool], int] = field(default_factory=dict)
    """(group key, peer, tag, send) -> number issued."""
    done: tuple[str, ...] = ()
    """Pipeline compute actions finished in this schedule step, text form, in order."""
    plan: tuple[str, ...] = ()
    """Planned compute actions of this rank's schedule step (empty: no pipeline)."""
    closed: bool = True
    """Its gate holds, or would; False: it runs on (RUN came, or its lease is over)."""
    hit: int | None = None
    """The breakpoint or watch that stopped it; None: a permit did."""
    hit_text: str = ""
    """What a watch found."""
    hits: dict[int, int] = field(default_factory=dict)
    """breakpoint -> matches on this rank so far."""


@dataclass(frozen=True, slots=True)
class Reply:
    ok: bool
    error: str | None
    """One line: what, and what to do."""
    data: dict[str, Any]


class ControlPort(Protocol):
    """What the TUI, the console and ``pardbg ctl`` need of a live hub."""

    @property
    def name(self) -> str:
        """What the audit trail calls this viewer."""
        ...

    def command(
        self, verb: Verb, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        """Send and wait for the acknowledgement. Call from a worker thread."""
        ...

    def take(self) -> Reply: ...

    def leave(self) -> None:
        """Give control up; every rank runs on."""
        ...
