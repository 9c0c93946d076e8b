"""What happens to control, as values: why ranks are held, what a verb did, why it is refused.
``pardbg.render.frame.control_words`` makes sentences of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pardbg.events.control_codes import Gone, NodeChange, NotHeld, Verb, Why
from pardbg.events.device_facts import DeviceNews, Ras
from pardbg.events.log_facts import LogSays
from pardbg_agent.ctrl.agent_messages import Frame, IssuedAt, OpenOp
from pardbg_agent.ctrl.codec import Line, Message, Word


@dataclass(frozen=True, slots=True)
class Waits:
    """A rank waits in an op for one that is held on purpose."""

    rank: int
    op: OpenOp
    for_rank: int


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A breakpoint or watch of the run."""

    number: int
    condition: Line = ""
    on: tuple[int, ...] | None = None
    """Ranks; None: all, including those still to come."""
    hits: int = 0
    """Matches over all ranks."""
    ignore: int = 0
    """Matches to skip on each rank."""
    once: bool = False
    enabled: bool = True
    kind: Word = ""
    """Kind of a watch (wire.WATCH_KINDS); empty: a breakpoint."""
    by: Line = ""
    """Viewer that set it; takes control on a hit if it is free."""
    keep: bool = False
    """``by`` is a script, which does not stay."""
    lease_ns: int = 0


@dataclass(frozen=True, slots=True)
class Asked(Message, tag="verb"):
    """A viewer's command was accepted."""

    verb: Verb
    ranks: Line = ""
    """The rank set as the user wrote it."""
    expr: Line = ""
    time: int = 1
    """Of ``times``: ``tick x5``."""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a verb that moves ranks did, from what the agents reported before and after it."""

    verb: Verb
    time: int = 1
    times: int = 1
    tick: int | None = None
    """Number of the pipeline's tick, where the plan says it, and all that ran stands in it."""
    ran: Mapping[int, tuple[Word, ...]] = field(default_factory=dict)
    """Rank -> compute actions that ended."""
    waits: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> action of another rank that its next one needs."""
    coming: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> what its next tick runs."""
    passed: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> the gate that it passed, where no action ran."""
    steps: tuple[int, int] | None = None
    """(first, last + 1) of the training steps that ended; for ``next``, or a tick without plan."""
    places: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> what it is held before."""
    moving: tuple[int, ...] = ()
    """Ranks that are not held."""
    many_stages: bool = False
    """A rank has several stages, so an action's name says its stage."""


@dataclass(frozen=True, slots=True)
class Cut(Message, tag="cut"):
    """Every rank that is to be held is; the status says why, where nobody asked for it."""

    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class RunsOn(Message, tag="running"):
    """All ranks run on: ``continue``, or no rank is left to hold."""

    no_rank_left: bool = False
    no_exception_left: bool = False
    """The last rank that was held at its exception is gone."""


@dataclass(frozen=True, slots=True)
class Lapsed(Message, tag="lapsed"):
    """The lease was not renewed: all ranks run on."""

    holder: Line


@dataclass(frozen=True, slots=True)
class Left(Message, tag="leave"):
    """The viewer that had control gave it up, or can be reached no more: all ranks run on."""

    viewer: Line
    disconnected: bool = False
    was_held: bool = True


@dataclass(frozen=True, slots=True)
class Taken(Message, tag="take"):
    """Another viewer took control."""

    before: Line | None = None


@dataclass(frozen=True, slots=True)
class Attached(Message, tag="attach"):
    """A rank joined while others were held: it stops at its next gate."""

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
    """Ranks ran on by themselves (their lease was over) and are held again."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Silent(Message, tag="silent"):
    """Nothing came of ranks for a lease: they run on without control."""

    ranks: tuple[int, ...]
    silent_ns: int


@dataclass(frozen=True, slots=True)
class Resent(Message, tag="resend"):
    """Messages that ranks did not answer were sent again."""

    ranks: tuple[int, ...]
    messages: tuple[Word, ...]
    silent_ns: int


@dataclass(frozen=True, slots=True)
class Raised(Message, tag="exception"):
    """A rank is held at its uncaught exception, or is not."""

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
    """What a watch found."""
    next: Line = ""
    step: int = 0


@dataclass(frozen=True, slots=True)
class Stray(Message, tag="stray"):
    """A rank held itself for a reason that this hub does not know."""

    rank: int
    number: int | None = None
    """The breakpoint, which is set no more; None: a hub that is gone held it."""
    next: Line = ""
    runs: bool = False
    """It runs on; else it is held with the others."""


@dataclass(frozen=True, slots=True)
class Released(Message, tag="released"):
    """Ranks that were held on purpose are let go, as an op of a rank that waits times out soon."""

    ranks: tuple[int, ...]
    waits: Waits | None = None
    left_ns: int = 0


@dataclass(frozen=True, slots=True)
class Stuck(Message, tag="stuck"):
    """A rank is in an op for which another rank is gone: it will come to no gate."""

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
    """They were deleted because this viewer is gone."""


@dataclass(frozen=True, slots=True)
class Delayed(Message, tag="delay"):
    """Ranks are delayed by so much in each step; 0: no more."""

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
    """The sampling level of ranks was set, for a time or until it is set again."""

    level: Word
    num_ranks: int = 0
    for_ns: int = 0
    reason: Line = ""
    back: bool = False
    """The time is over: the level from before."""


@dataclass(frozen=True, slots=True)
class Bookmark(Message, tag="bookmark"):
    """A moment is marked with the user's text; without one, its mark is removed."""

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
    """Of the recording that the new hub read."""
    messages: int = 0
    were_held: bool = False
    """Ranks were: they run on."""
    set_again: tuple[int, ...] = ()
    """Breakpoints, by number."""
    not_set: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLost(Message, tag="process_lost"):
    """A process of pardbg was killed: the job and the hub go on without it."""

    what: Word
    """``launcher``, ``guardian``, ``keeper`` or ``owner``."""


@dataclass(frozen=True, slots=True)
class Problem(Message, tag="error"):
    """Nothing is recorded any more."""

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
    """Ranks that had come to the job's store, while others wait for the rest."""

    came: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StallPart:
    """Ranks whose stacks are equal."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...] = ()
    inside: Mapping[int, Word] = field(default_factory=dict)
    """Rank -> what the agent is around (``Thread.inside``)."""
    threads: Mapping[int, tuple[tuple[Line, tuple[Frame, ...]], ...]] = field(default_factory=dict)
    """Rank -> (thread, frames), where one beside the main one says where the rank is."""
    handles: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> exception that its main thread is handling (``Thread.handles``)."""


@dataclass(frozen=True, slots=True)
class Stall(Message, tag="stall"):
    """A rank has waited in an op for 2 s; stacks of ranks that stand, or have not come for long."""

    since_ns: int
    """When they were asked."""
    stacks: tuple[StallPart, ...] = ()
    source: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> ``agent``, ``py-spy``, or why there is no stack."""
    issued: Mapping[int, tuple[IssuedAt, ...]] = field(default_factory=dict)
    locks: Mapping[int, tuple[Line, ...]] = field(default_factory=dict)
    """Rank -> which thread waits for a lock that another is inside of."""


@dataclass(frozen=True, slots=True)
class Part(Message, tag="part"):
    """How far the run had come when this part of the recording began."""

    part: int = 1
    heads: Mapping[Word, int] = field(default_factory=dict)
    """Process -> index after its newest record."""
    offsets: Mapping[Word, int] = field(default_factory=dict)
    """Stream of the job's output -> bytes read."""
    ended: Mapping[Word, Word] = field(default_factory=dict)
    """Process -> how it ended."""
    hub_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Repaired(Message, tag="repaired"):
    """A damaged recording was repaired; ``text`` is the report."""

    text: Line = ""


@dataclass(frozen=True, slots=True)
class Postmortem(Message, tag="postmortem"):
    """The recording was made of a dead run's file and rings."""

    from_file: int = 0
    """Messages."""
    from_rings: int = 0
    """Records."""
    num_rings: int = 0


LetGo = RunsOn | Lapsed | Left | Released

"""Why all ranks run on."""

Fact = (
    Asked | Cut | RunsOn | Lapsed | Left | Taken | Attached | InDebugger | Detached | UnderWay
    | Loose | Silent | Resent | Raised | Hit | Stray | Released | Stuck | Paused | Edited
    | Delayed | Refused | Inspected | Level | Bookmark | Killed | Gap | Limit | HubRestarted
    | ProcessLost | Problem | Node | Rendezvous | Ras | DeviceNews | Stall | Part | Repaired
    | Postmortem | LogSays
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command is refused; which fields count is said at each ``Why``."""

    why: Why
    text: Line = ""
    verb: Word = ""
    ranks: tuple[int, ...] = ()
    holder: Line = ""
    ns: int = 0
    number: int = 0
    numbers: tuple[int, ...] = ()
    cause: LetGo | None = None
