"""Facts of control, as values: why ranks are held, what a verb did, why it is refused.
``pardbg.render.frame.control_words`` makes sentences of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pardbg.events.control_codes import Gone, NodeChange, NotHeld, Verb, Why
from pardbg.events.device_facts import DeviceNews, Ras
from pardbg.events.log_facts import LogSays
from pardbg_agent.ctrl.agent_messages import Frame, IssuedAt, OpenOp, Thread
from pardbg_agent.ctrl.codec import Line, Message, Word


@dataclass(frozen=True, slots=True)
class Waits:
    """A rank's wait in an op for a rank that a viewer holds."""

    rank: int
    op: OpenOp
    for_rank: int


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A breakpoint or watch of the run."""

    number: int
    condition: Line = ""
    on: tuple[int, ...] | None = None
    """Ranks of the breakpoint; None: all, including those still to come."""
    hits: int = 0
    """Number of matches over all ranks."""
    ignore: int = 0
    """Number of matches to skip on each rank."""
    once: bool = False
    enabled: bool = True
    kind: Word = ""
    """Kind of a watch (wire.WATCH_KINDS); empty: a breakpoint."""
    by: Line = ""
    """Viewer that set the breakpoint; takes control on a hit if control is free."""
    keep: bool = False
    """Whether ``by`` is a script, which does not stay connected."""
    lease_ns: int = 0


@dataclass(frozen=True, slots=True)
class Asked(Message, tag="verb"):
    """A viewer's command was accepted."""

    verb: Verb
    ranks: Line = ""
    """The rank set in the user's notation."""
    expr: Line = ""
    time: int = 1
    """Number of the current repetition of ``times``: ``tick x5``."""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Effect of a verb that moves ranks, from the agents' reports before and after it."""

    verb: Verb
    time: int = 1
    times: int = 1
    tick: int | None = None
    """Number of the pipeline's tick, if a plan gives it and it contains every action that ran."""
    ran: Mapping[int, tuple[Word, ...]] = field(default_factory=dict)
    """Rank -> compute actions that ended."""
    waits: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> action of another rank that the rank's next action needs."""
    coming: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> actions of the rank's next tick."""
    passed: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> the gate that the rank passed, if it ran no action."""
    steps: tuple[int, int] | None = None
    """(first, last + 1) of the training steps that ended; for ``next``, or a tick without plan."""
    places: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> the action or op before which the rank is held."""
    moving: tuple[int, ...] = ()
    """Ranks that still run."""
    many_stages: bool = False
    """Whether a rank has several stages, so that an action's name must contain its stage."""


@dataclass(frozen=True, slots=True)
class Cut(Message, tag="cut"):
    """Every rank to be held is held; the status has the reason if no viewer asked for it."""

    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class RunsOn(Message, tag="running"):
    """All ranks run on: after ``continue``, or because no held rank is left."""

    no_rank_left: bool = False
    no_exception_left: bool = False
    """Whether the last rank that was held at its exception is gone."""


@dataclass(frozen=True, slots=True)
class Lapsed(Message, tag="lapsed"):
    """The lease was not renewed: all ranks run on."""

    holder: Line


@dataclass(frozen=True, slots=True)
class Left(Message, tag="leave"):
    """The viewer in control gave control up, or its connection is lost: all ranks run on."""

    viewer: Line
    disconnected: bool = False
    was_held: bool = True


@dataclass(frozen=True, slots=True)
class Taken(Message, tag="take"):
    """Another viewer took control."""

    before: Line | None = None


@dataclass(frozen=True, slots=True)
class Attached(Message, tag="attach"):
    """A rank joined while other ranks were held: the new rank stops at its next gate."""

    rank: int


@dataclass(frozen=True, slots=True)
class InDebugger(Message, tag="debugger"):
    """A client of a rank's debugger came, or went."""

    rank: int
    came: bool


@dataclass(frozen=True, slots=True)
class Detached(Message, tag="detach"):
    """A rank ended while others were held."""

    rank: int
    how: Gone


@dataclass(frozen=True, slots=True)
class UnderWay(Message, tag="wait"):
    """No cut yet: these ranks have not come to a gate."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loose(Message, tag="loose"):
    """Ranks ran on by themselves (the lease had lapsed) and are held again."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Silent(Message, tag="silent"):
    """Ranks sent nothing for the time of a lease: they run on without control."""

    ranks: tuple[int, ...]
    silent_ns: int


@dataclass(frozen=True, slots=True)
class Resent(Message, tag="resend"):
    """Messages that ranks had not answered were sent again."""

    ranks: tuple[int, ...]
    messages: tuple[Word, ...]
    silent_ns: int


@dataclass(frozen=True, slots=True)
class Raised(Message, tag="exception"):
    """A rank raised an uncaught exception and is held there, or is not."""

    rank: int
    error: Line = ""
    """``ValueError: no labels``"""
    not_held: NotHeld | None = None


@dataclass(frozen=True, slots=True)
class Hit(Message, tag="hit"):
    """A rank stopped at a breakpoint or watch."""

    rank: int
    number: int
    condition: Line = ""
    watch: bool = False
    found: Line = ""
    """Value that a watch found."""
    next: Line = ""
    step: int = 0


@dataclass(frozen=True, slots=True)
class Stray(Message, tag="stray"):
    """A rank held itself for a reason that this hub does not know."""

    rank: int
    number: int | None = None
    """Number of a breakpoint that is no longer set; None: held by an earlier hub."""
    next: Line = ""
    runs: bool = False
    """Whether the rank runs on; else it stays held with the others."""


@dataclass(frozen=True, slots=True)
class Released(Message, tag="released"):
    """Ranks held by a viewer are let go, as an op of a rank that waits for them times out soon."""

    ranks: tuple[int, ...]
    waits: Waits | None = None
    left_ns: int = 0


@dataclass(frozen=True, slots=True)
class Stuck(Message, tag="stuck"):
    """A rank is in an op for which another rank is gone: it will reach no gate."""

    rank: int
    op: OpenOp
    gone: int


@dataclass(frozen=True, slots=True)
class Paused(Message, tag="pause"):
    """A viewer asked for a pause."""


@dataclass(frozen=True, slots=True)
class Edited(Message, tag="edit"):
    """Breakpoints or watches were set, changed or deleted."""

    verb: Verb
    breakpoints: tuple[Breakpoint, ...] = ()
    viewer_gone: Line = ""
    """Viewer whose breakpoints were deleted because it is gone."""


@dataclass(frozen=True, slots=True)
class Delayed(Message, tag="delay"):
    """Ranks are delayed by this time in each step; 0: no longer delayed."""

    ranks: tuple[int, ...]
    ns: int


@dataclass(frozen=True, slots=True)
class Refused(Message, tag="refused"):
    """A command was refused."""

    verb: Word
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Inspected(Message, tag="inspect"):
    """A viewer evaluated code in ranks."""

    kind: Word
    expr: Line
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level(Message, tag="level"):
    """The sampling level of ranks was set, for a limited time or until it is set again."""

    level: Word
    num_ranks: int = 0
    for_ns: int = 0
    reason: Line = ""
    back: bool = False
    """Whether the time of a level is over and the level from before is set again."""


@dataclass(frozen=True, slots=True)
class Bookmark(Message, tag="bookmark"):
    """A moment was marked with the user's text; an empty text removes the mark."""

    at_ns: int
    text: Line = ""


@dataclass(frozen=True, slots=True)
class Killed(Message, tag="kill"):
    """A viewer ended the job."""


@dataclass(frozen=True, slots=True)
class Gap(Message, tag="gap"):
    """Records of a rank were lost on the way."""

    rank: int
    num: int
    proc: Word = ""


@dataclass(frozen=True, slots=True)
class Limit(Message, tag="limit"):
    """The hub left out what was beyond a limit."""

    what: Word
    """``processes``, or ``definitions`` (the limit is in bytes)."""
    limit: int
    num: int


@dataclass(frozen=True, slots=True)
class HubRestarted(Message, tag="hub_restart"):
    """The hub was killed, and another took over."""

    hub: Word = ""
    bytes: int = 0
    """Bytes of the recording that the new hub read."""
    messages: int = 0
    were_held: bool = False
    """Whether ranks were held; if so, they run on."""
    set_again: tuple[int, ...] = ()
    """Numbers of the breakpoints that the new hub set again."""
    not_set: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLost(Message, tag="process_lost"):
    """A process of pardbg was killed: the job and the hub go on without this process."""

    what: Word
    """``launcher``, ``guardian``, ``keeper`` or ``owner``."""


@dataclass(frozen=True, slots=True)
class Problem(Message, tag="error"):
    """The recording stopped after an error."""

    problem: Line


@dataclass(frozen=True, slots=True)
class Node(Message, tag="node"):
    """A node of the run joined, is silent, or is back."""

    node: int
    host: Word = ""
    ranks: tuple[int, ...] = ()
    change: NodeChange = field(default_factory=lambda: NodeChange.JOINED)
    silent_ns: int = 0


@dataclass(frozen=True, slots=True)
class Rendezvous(Message, tag="rendezvous"):
    """Ranks that had joined the job's store while others wait for the remaining ranks."""

    came: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StallPart:
    """Stack that several ranks share."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...] = ()
    inside: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> what the agent is around (``Thread.inside``)."""
    threads: Mapping[int, tuple[Thread, ...]] = field(default_factory=dict)
    """Rank -> its threads, if one beside the main one shows where the rank is."""
    handles: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> exception that the rank's main thread is handling (``Thread.handles``)."""


@dataclass(frozen=True, slots=True)
class Stall(Message, tag="stall"):
    """A rank has waited in an op for 2 s; stacks of ranks without progress, or missing for long."""

    since_ns: int
    """Time at which the stacks were requested."""
    stacks: tuple[StallPart, ...] = ()
    source: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> source of its stack (``agent``, ``py-spy``), or why there is none."""
    issued: Mapping[int, tuple[IssuedAt, ...]] = field(default_factory=dict)
    locks: Mapping[int, tuple[Line, ...]] = field(default_factory=dict)
    """Rank -> descriptions of threads that wait for a lock held by another thread."""


@dataclass(frozen=True, slots=True)
class Part(Message, tag="part"):
    """Progress of the run when this part of the recording began."""

    part: int = 1
    heads: Mapping[Word, int] = field(default_factory=dict)
    """Process -> index after the process's newest record."""
    offsets: Mapping[Word, int] = field(default_factory=dict)
    """Stream of the job's output -> bytes read."""
    ended: Mapping[Word, Word] = field(default_factory=dict)
    """Process -> how the process ended."""
    hub_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Repaired(Message, tag="repaired"):
    """A damaged recording was repaired; ``text`` is the report."""

    text: Line = ""


@dataclass(frozen=True, slots=True)
class Postmortem(Message, tag="postmortem"):
    """The recording was made of a dead run's file and rings."""

    from_file: int = 0
    """Number of messages from the dead run's file."""
    from_rings: int = 0
    """Number of records from the ranks' rings."""
    num_rings: int = 0


LetGo = RunsOn | Lapsed | Left | Released

"""Reason for which all ranks run on."""

Fact = (
    Asked | Cut | RunsOn | Lapsed | Left | Taken | Attached | InDebugger | Detached | UnderWay
    | Loose | Silent | Resent | Raised | Hit | Stray | Released | Stuck | Paused | Edited
    | Delayed | Refused | Inspected | Level | Bookmark | Killed | Gap | Limit | HubRestarted
    | ProcessLost | Problem | Node | Rendezvous | Ras | DeviceNews | Stall | Part | Repaired
    | Postmortem | LogSays
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a command; each ``Why`` names the fields that it uses."""

    why: Why
    text: Line = ""
    verb: Word = ""
    ranks: tuple[int, ...] = ()
    holder: Line = ""
    ns: int = 0
    number: int = 0
    numbers: tuple[int, ...] = ()
    cause: LetGo | None = None
