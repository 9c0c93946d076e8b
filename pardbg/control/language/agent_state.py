"""What an agent reports of itself while control is active: gate, open ops, counters, schedule."""

from __future__ import annotations

from dataclasses import dataclass, field


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
