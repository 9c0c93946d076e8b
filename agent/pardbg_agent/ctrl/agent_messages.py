"""CTRL between the hub and a rank's agent: one frozen class per message, read by ``codec``.

On the wire a message is one msgpack map, its class's ``TAG`` under ``t``. Requests that want an
answer have an ``id``, answers the same number as ``re``. Times are ns on the sender's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pardbg_agent.ctrl.codec import Line, Message, Word
from pardbg_agent.wire import LEASE_NS

Frame = tuple[str, int, str]
"""(file, line, function)"""

# -- agent -> hub


@dataclass(frozen=True, slots=True)
class Hello(Message, tag="hello"):
    """A process announces itself to the hub, which answers with Welcome. Repeated until then, and
    when the hub was silent for 5 s."""

    process: Mapping[str, object]
    """Fields of its PROCESS definition."""
    ring: str | None = None
    """Path of its ring."""
    defs: str | None = None
    """Path of its definitions."""


@dataclass(frozen=True, slots=True)
class OpenOp:
    """An op that a rank issued and that is not complete."""

    group: str
    op: Word
    seq: int
    peer: int | None = None
    """p2p only: the other global rank; negative: any."""
    send: bool = False
    tag: int = 0
    order: int = 0
    """p2p only: number of this (group, src, dst, tag) edge's earlier ops of this rank."""
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class State(Message, tag="state"):
    """Where a rank is, at each change while control is active: from the first Permit to the first
    State after a Run. A State after a Permit never shows the hold which that Permit ended."""

    rank: int
    serial: int
    """Grows with each State; an older one is ignored."""
    reply_to: int | None = None
    """Id of the newest Permit or Run that it follows."""
    held: int = 0
    """Gate class at which the training thread is held; 0: it runs, or waits inside an op."""
    held_since_ns: int = 0
    next: Line = ""
    """What comes next there: ``2F4``, ``SEND_F 2→3 mb4``, ``all_reduce dp #42``."""
    step: int = 0
    """Steps that ended, including one that ends at this gate."""
    open: tuple[OpenOp, ...] = ()
    issued: Mapping[str, int] = field(default_factory=dict)
    """Group key -> number of collectives issued on it."""
    p2p: Mapping[tuple[str, int, int, bool], int] = field(default_factory=dict)
    """(group key, peer, tag, send) -> number issued."""
    done: tuple[Word, ...] = ()
    """Pipeline compute actions finished in this schedule step, in order."""
    plan: tuple[Word, ...] = ()
    """Planned compute actions of this rank's schedule step; empty: no pipeline."""
    closed: bool = True
    """Its gate holds, or would; False: it runs on (a Run came, or its lease is over)."""
    hit: int | None = None
    """The breakpoint or watch that stopped it; None: a Permit did."""
    hit_text: Line = ""
    """What a watch found."""
    hits: Mapping[int, int] = field(default_factory=dict)
    """Breakpoint -> matches on this rank so far."""
    led: bool = False
    """A debugger has it: it passes gates, and is ``held`` where the debugger has stopped it."""
    proc: Word = ""
    """Its process; the hub puts in the one that the message came from."""


@dataclass(frozen=True, slots=True)
class Pong(Message, tag="pong"):
    """The agent's clock when the Ping came."""

    re: int
    t_ns: int


@dataclass(frozen=True, slots=True)
class Bye(Message, tag="bye"):
    """The process leaves."""

    last_index: int
    """Index of the process's last record."""
    dropped: int


@dataclass(frozen=True, slots=True)
class Done(Message, tag="done"):
    """Answer to SetBreaks, SetLevel and Delay."""

    re: int
    error: Line = ""
    """Why it was refused; empty: it was done."""
    unknown: tuple[Word, ...] = ()
    """Kinds of watches that the agent does not have."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's stack."""

    thread: Line
    main: bool = False
    frames: tuple[Frame, ...] = ()
    """Outermost first, without the agent's own."""
    inside: Word = ""
    """What the agent is around: ``gate``, ``wait`` (for an op), ``op`` (its issue), ``call`` (one
    that may block), ``exception`` (frames of the traceback), ``gil`` (from outside: it has it)."""
    handles: Line = ""
    """Exception whose ``except`` or ``finally`` runs, of the main thread: ``KeyError: 'b'``."""


IssuedAt = tuple[int, str, int, str, int, str]
"""An open asynchronous op: (t_ns, group, seq or -1 for a message, file, line, function)."""


@dataclass(frozen=True, slots=True)
class Stacks(Message, tag="stacks"):
    """Answer to Where."""

    re: int
    threads: tuple[Thread, ...]
    issued: tuple[IssuedAt, ...] = ()


class NoAnswer(str, Enum):
    """Why nothing was evaluated in a rank."""

    EVAL_OFF = "eval_off"
    """The job was started without ``--allow-eval``."""
    NOT_HELD = "not_held"
    """The rank is at no gate: it runs, or waits in an op."""
    NO_FRAME = "no_frame"
    """The rank has ``frames`` frames, none of them with that number."""
    NO_QUESTION = "no_question"
    """The agent does not know that kind."""
    TOO_LONG = "too_long"
    """The code ran past the time limit and was ended."""
    NO_DEBUGPY = "no_debugpy"
    """The rank's Python (``text``) has no debugpy."""
    NO_LINE = "no_line"
    """The rank is held at an exception: no line of it comes next."""
    FAILED = "failed"
    """The agent failed; ``text`` says at what."""
    ENDED = "ended"
    """The process ended meanwhile (set by the hub)."""
    SILENT = "silent"
    """The rank still runs the code (set by the hub)."""


@dataclass(frozen=True, slots=True)
class Evaluated(Message, tag="evaluated"):
    """Answer to Ask."""

    re: int = 0
    refusal: NoAnswer | None = None
    """None: it was evaluated."""
    text: str = ""
    frame: Frame | None = None
    frames: int = 0
    """The program's frames in sight."""
    raised: bool = False
    """The code raised: ``text`` says what."""
    number: float | None = None
    hash: Word = ""
    """Of a tensor's bits: ranks are compared by it."""
    hashes: Mapping[str, Word] = field(default_factory=dict)
    """Name -> hash, of ``hash``."""
    port: int = 0
    """Of ``dap``: where a client is awaited, on loopback of the host ``text``."""


FromAgent = Hello | State | Pong | Bye | Done | Stacks | Evaluated

# -- hub -> agent


@dataclass(frozen=True, slots=True)
class Welcome(Message, tag="welcome"):
    """Answer to Hello. Of another hub than before: the agent says Hello again and sends all
    definitions, and records from ``next`` on, as far as the ring still has them."""

    hub: Word
    """Id of the hub's process."""
    next: int = 0
    """Index of the first record that this hub still wants."""
    t_ns: int = 0


@dataclass(frozen=True, slots=True)
class Permit(Message, tag="permit"):
    """Pass gates; each passed gate in ``count`` uses one of ``n``; with none left, hold at the next
    gate in ``stop``. ``n`` = 0 is hold. The agent runs on by itself ``lease_ns`` after the last
    Permit or Lease. Obeyed only if its id is higher than any before, always answered by a State."""

    id: int
    count: int
    n: int
    stop: int
    lease_ns: int = LEASE_NS


@dataclass(frozen=True, slots=True)
class Run(Message, tag="run"):
    """Open the gate."""

    id: int


@dataclass(frozen=True, slots=True)
class Lease(Message, tag="lease"):
    """Stay held for so long from now on."""

    lease_ns: int


@dataclass(frozen=True, slots=True)
class Ping(Message, tag="ping"):
    """Answered by Pong."""

    id: int = 0
    t_ns: int = 0


@dataclass(frozen=True, slots=True)
class Where(Message, tag="where"):
    """Answered by Stacks."""

    id: int


@dataclass(frozen=True, slots=True)
class SetLevel(Message, tag="level"):
    """Record at this sampling level (wire.LEVELS)."""

    id: int
    level: int


@dataclass(frozen=True, slots=True)
class BreakAt:
    """A breakpoint of one rank."""

    number: int
    gates: int
    """Gate classes at which it can match."""
    tree: object
    """Condition (pardbg_agent.control.breaks)."""
    ignore: int = 0
    """Matches to skip."""
    once: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch of one rank."""

    number: int
    kind: Word
    """Of wire.WATCH_KINDS."""
    limit: float = 0.0
    """In the kind's unit: times the median (``slow``), ns (``skew``), bytes (``memory``)."""
    ignore: int = 0
    """Matches to skip."""


@dataclass(frozen=True, slots=True)
class SetBreaks(Message, tag="breaks"):
    """All breakpoints and watches of the rank from now on. A match closes the rank's own gate and
    is reported in State."""

    id: int
    breaks: tuple[BreakAt, ...] = ()
    watches: tuple[Watch, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask(Message, tag="ask"):
    """Evaluate in the held thread's own frame; only where the job allows it."""

    id: int
    kind: Word
    expr: str = ""
    frame: int = 0
    """0 is the innermost."""
    every: bool = False
    """Whether frames of libraries count, too."""


@dataclass(frozen=True, slots=True)
class Delay(Message, tag="delay"):
    """Delay each training step by so much (a planted straggler); 0 ends it."""

    id: int
    ns: int


ToAgent = Welcome | Permit | Run | Lease | Ping | Where | SetLevel | SetBreaks | Ask | Delay
