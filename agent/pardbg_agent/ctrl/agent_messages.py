"""CTRL messages between the hub and a rank's agent: a frozen class each, read by ``codec``.

On the wire a message is one msgpack map, its class's ``TAG`` under ``t``. Requests that want an
answer have an ``id``, answers the same number as ``re``. Times are ns on the sender's clock."""

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
    """Announcement of a process to the hub, which answers with Welcome. Repeated until then, and
    when the hub was silent for 5 s."""

    process: Mapping[str, object]
    """Fields of the process's PROCESS definition."""
    ring: str | None = None
    """Path of the process's ring."""
    defs: str | None = None
    """Path of the process's definitions."""


@dataclass(frozen=True, slots=True)
class OpenOp:
    """Op that a rank issued and that is not complete."""

    group: str
    op: Word
    seq: int
    peer: int | None = None
    """For p2p only: the other global rank; negative: any."""
    send: bool = False
    tag: int = 0
    order: int = 0
    """For p2p only: number of this rank's earlier ops on the same (group, src, dst, tag) edge."""
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class State(Message, tag="state"):
    """State of a rank, sent at each change while control is active: from the first Permit to the
    first State after a Run. A State after a Permit never shows the hold which that Permit ended."""

    rank: int
    serial: int
    """Increases with each State; an older one is ignored."""
    reply_to: int | None = None
    """Id of the newest Permit or Run that the state follows."""
    held: int = 0
    """Gate class at which the training thread is held; 0: it runs, or waits inside an op."""
    held_since_ns: int = 0
    next: Line = ""
    """Next event at the gate: ``2F4``, ``send F4 to r3``, ``all_reduce dp #42``."""
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
    """Whether the gate holds, or would; False: the rank runs on (a Run, or the lease's end)."""
    hit: int | None = None
    """Number of the breakpoint or watch that stopped the rank; None: a Permit did."""
    hit_text: Line = ""
    """Finding of the watch that stopped the rank."""
    hits: Mapping[int, int] = field(default_factory=dict)
    """Breakpoint -> matches on this rank so far."""
    led: bool = False
    """Whether a debugger leads the rank: it passes gates, and is ``held`` where that stops it."""
    proc: Word = ""
    """Process of the rank, set by the hub from the message's sender."""


@dataclass(frozen=True, slots=True)
class Pong(Message, tag="pong"):
    """Clock of the agent when the Ping came."""

    re: int
    t_ns: int


@dataclass(frozen=True, slots=True)
class Bye(Message, tag="bye"):
    """Announcement that the process leaves."""

    last_index: int
    """Index of the process's last record."""
    dropped: int


@dataclass(frozen=True, slots=True)
class Done(Message, tag="done"):
    """Answer to SetBreaks, SetLevel and Delay."""

    re: int
    error: Line = ""
    """Reason of a refusal; empty: it was done."""
    unknown: tuple[Word, ...] = ()
    """Kinds of watches that the agent does not have."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Stack of one thread, or of what a task of an event loop awaits."""

    thread: Line
    """Name of the thread or task."""
    main: bool = False
    frames: tuple[Frame, ...] = ()
    """Frames, outermost first, without the agent's own."""
    inside: Word = ""
    """Operation that the agent's hook wraps: ``gate``, ``wait`` (for an op), ``op`` (its issue),
    ``call`` (may block), ``exception`` (a traceback's frames), ``gil`` (from outside: has it)."""
    handles: Line = ""
    """Exception whose ``except`` or ``finally`` the main thread runs: ``KeyError: 'b'``."""
    task_of: Word = ""
    """Library of the task: ``asyncio`` or ``trio``; empty: a thread."""


IssuedAt = tuple[int, str, int, str, int, str]
"""Open asynchronous op: (t_ns, group, seq or -1 for a message, file, line, function)."""


@dataclass(frozen=True, slots=True)
class Stacks(Message, tag="stacks"):
    """Answer to Where."""

    re: int
    threads: tuple[Thread, ...]
    issued: tuple[IssuedAt, ...] = ()


class NoAnswer(str, Enum):
    """Reason why nothing was evaluated in a rank."""

    EVAL_OFF = "eval_off"
    """The job was started without ``--allow-eval``."""
    NOT_HELD = "not_held"
    """The rank is at no gate: it runs, or waits in an op."""
    NO_FRAME = "no_frame"
    """The rank has only ``frames`` frames: the requested number does not exist."""
    NO_QUESTION = "no_question"
    """The agent does not know that kind of question."""
    TOO_LONG = "too_long"
    """The code ran past the time limit and was ended."""
    NO_DEBUGPY = "no_debugpy"
    """The rank's Python (``text``) has no debugpy."""
    NO_LINE = "no_line"
    """The rank is held at an exception: no line of the program comes next."""
    FAILED = "failed"
    """The agent failed; ``text`` has the error."""
    ENDED = "ended"
    """The process ended meanwhile (set by the hub)."""
    SILENT = "silent"
    """The rank still runs the code (set by the hub)."""


@dataclass(frozen=True, slots=True)
class Evaluated(Message, tag="evaluated"):
    """Answer to Ask."""

    re: int = 0
    refusal: NoAnswer | None = None
    """Reason of the refusal; None: it was evaluated."""
    text: str = ""
    frame: Frame | None = None
    frames: int = 0
    """Number of the program's frames in reach."""
    raised: bool = False
    """Whether the code raised: ``text`` is then the exception."""
    number: float | None = None
    hash: Word = ""
    """Hash of a tensor's bits, by which ranks are compared."""
    hashes: Mapping[str, Word] = field(default_factory=dict)
    """Name -> hash, for the kind ``hash``."""
    port: int = 0
    """Port of ``dap`` at which a client is awaited, on loopback of the host ``text``."""


FromAgent = Hello | State | Pong | Bye | Done | Stacks | Evaluated

# -- hub -> agent


@dataclass(frozen=True, slots=True)
class Welcome(Message, tag="welcome"):
    """Answer to Hello. From another hub than before: the agent says Hello again and sends all
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
    """Renewal of a hold: stay held for ``lease_ns`` from now on."""

    lease_ns: int


@dataclass(frozen=True, slots=True)
class Ping(Message, tag="ping"):
    """Question for the agent's clock, answered by Pong."""

    id: int = 0
    t_ns: int = 0


@dataclass(frozen=True, slots=True)
class Where(Message, tag="where"):
    """Question for the threads' stacks, answered by Stacks."""

    id: int


@dataclass(frozen=True, slots=True)
class SetLevel(Message, tag="level"):
    """Order to record at this sampling level (wire.LEVELS)."""

    id: int
    level: int


@dataclass(frozen=True, slots=True)
class BreakAt:
    """Breakpoint of one rank."""

    number: int
    gates: int
    """Gate classes at which the breakpoint can match."""
    tree: object
    """Condition as a tree (pardbg_agent.control.breaks)."""
    ignore: int = 0
    """Number of matches to skip."""
    once: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch of one rank."""

    number: int
    kind: Word
    """Kind of the watch, from wire.WATCH_KINDS."""
    limit: float = 0.0
    """Limit in the kind's unit: times the median (``slow``), ns (``skew``), bytes (``memory``)."""
    ignore: int = 0
    """Number of matches to skip."""


@dataclass(frozen=True, slots=True)
class SetBreaks(Message, tag="breaks"):
    """All breakpoints and watches of the rank from now on. A match closes the rank's own gate and
    is reported in State."""

    id: int
    breaks: tuple[BreakAt, ...] = ()
    watches: tuple[Watch, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask(Message, tag="ask"):
    """Question to evaluate in the held thread's own frame; only where the job allows it."""

    id: int
    kind: Word
    expr: str = ""
    frame: int = 0
    """Number of the frame; 0 is the innermost."""
    every: bool = False
    """Whether frames of libraries count, too."""


@dataclass(frozen=True, slots=True)
class Delay(Message, tag="delay"):
    """Order to delay each training step by ``ns`` (a planted straggler); 0 ends the delay."""

    id: int
    ns: int


ToAgent = Welcome | Permit | Run | Lease | Ping | Where | SetLevel | SetBreaks | Ask | Delay
