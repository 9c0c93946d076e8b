"""Requests of viewers and the hub's answers: one frozen class per CTRL message, read by
``pardbg_agent.ctrl.codec``. Keys, the console and ``pardbg ctl`` ask through a ``ControlPort``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from pardbg.events.control_codes import USAGE, Mode, Verb
from pardbg.events.control_events import Status
from pardbg.events.control_facts import Fact, Refusal
from pardbg_agent.ctrl.agent_messages import Evaluated, IssuedAt, Lease, Ping, Thread
from pardbg_agent.ctrl.codec import Line, Message, Word, encode

# -- viewer -> hub


@dataclass(frozen=True, slots=True)
class Join(Message, tag="join"):
    """Request for the messages that this viewer missed, as [key, payload], followed by a Reply."""

    id: int


@dataclass(frozen=True, slots=True)
class Take(Message, tag="take"):
    """Request to take control over from the viewer that has it."""

    id: int


@dataclass(frozen=True, slots=True)
class Leave(Message, tag="leave"):
    """Request to give control up and let every rank run on."""

    id: int = 0


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of a verb, except its ranks."""

    expr: Line = ""
    """Condition, watch or expression."""
    number: int = 0
    """Number of a breakpoint."""
    numbers: tuple[int, ...] = ()
    """Numbers of the breakpoints that ``delete`` deletes; empty: all."""
    count: int = 1
    """Number of repetitions, or of matches to skip."""
    ns: int = 0
    """Time of ``delay`` in each step."""
    hold: bool = False
    """Whether a ``pause`` of some ranks holds them even when a peer is about to time out."""
    kind: Word = ""
    """Kind of ``inspect``: one of pardbg_agent.control.evaluate.KINDS."""
    frame: int = 0
    every_frame: bool = False
    """Whether ``frame`` counts those of libraries, too."""
    level: Word = ""
    for_s: float = 0.0
    """Duration of a ``level``; 0: until it is set again."""
    reason: Line = ""
    text: Line = ""
    at_ns: int | None = None
    """Time of a bookmark; None: now."""
    confirm: bool = False
    """Whether ``kill`` is meant."""


@dataclass(frozen=True, slots=True)
class Command(Message, tag="command"):
    """Request for a verb, with the rank set as the user wrote it."""

    id: int
    verb: Verb
    ranks: Line | None = None
    args: Arguments = field(default_factory=Arguments)
    timeout_s: float = 0.0
    """Time within which the hub answers at the latest; the command itself continues."""
    keep: bool = False
    """Whether a script asks, a new process for each command: only the lease ends its control."""
    lease_s: float = 0.0


FromViewer = Join | Take | Leave | Command | Lease

# -- hub -> viewer


@dataclass(frozen=True, slots=True)
class Joined(Message, tag="joined"):
    """Answer to Join, after the history."""

    hub: Word = ""


@dataclass(frozen=True, slots=True)
class HubFacts(Message, tag="hub"):
    """Answer to ``status``, beside the status of control."""

    run: Word = ""
    name: Line = ""
    hub: Word = ""
    hub_pid: int = 0
    ranks: tuple[int, ...] = ()
    viewers: int = 0
    messages: int = 0
    records: int = 0
    refused: int = 0
    malformed: int = 0
    recording: Line = "ok"
    session: Line = ""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads have equal stacks."""

    ranks: tuple[int, ...]
    frames: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WhereFound(Message, tag="where"):
    """Answer to ``where``."""

    stacks: Mapping[int, tuple[Thread, ...]] = field(default_factory=dict)
    """Rank -> the rank's threads."""
    source: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> source of its stack (``agent``, ``py-spy``), or why there is none."""
    tree: tuple[StackGroup, ...] = ()
    """Equal stacks merged, most ranks first."""
    locks: Mapping[int, tuple[Line, ...]] = field(default_factory=dict)
    """Rank -> descriptions of threads that wait for a lock held by another thread."""
    issued: Mapping[int, tuple[IssuedAt, ...]] = field(default_factory=dict)
    """Rank -> places at which the rank's open asynchronous ops were issued."""


@dataclass(frozen=True, slots=True)
class RankRows(Message, tag="ranks"):
    """Answer to ``ranks``: rows of STATE by process."""

    ranks: Mapping[Word, Mapping[Word, object]]
    mode: Mode = Mode.RUNNING


@dataclass(frozen=True, slots=True)
class Answers(Message, tag="answers"):
    """Answer to ``inspect``, by rank."""

    answers: Mapping[int, Evaluated]


@dataclass(frozen=True, slots=True)
class LevelAsked(Message, tag="level_asked"):
    """Answer to ``level``: the number of ranks it was sent to."""

    level: Word
    asked: int


@dataclass(frozen=True, slots=True)
class Marked(Message, tag="marked"):
    """Answer to ``mark``."""

    at_ns: int


Answer = Joined | HubFacts | WhereFound | RankRows | Answers | LevelAsked | Marked | Fact


@dataclass(frozen=True, slots=True)
class Reply(Message, tag="reply"):
    """The only answer to a request. A verb that changes something is answered with the same fact as
    in the CONTROL message ``n`` that records it."""

    re: int = 0
    refusal: Refusal | None = None
    answer: Answer | None = None
    status: Status | None = None
    n: int = 0

    @property
    def ok(self) -> bool:
        return self.refusal is None

    @property
    def usage(self) -> bool:
        """Return whether the request itself is not valid."""
        return self.refusal is not None and self.refusal.why in USAGE

    @property
    def data(self) -> dict[str, Any]:
        """Return the fields of status and answer, as ``ctl --json`` prints them."""
        found: dict[str, Any] = {}
        for part in (self.status, self.answer):
            for one in fields(part) if part is not None else ():
                found[one.name] = encode(getattr(part, one.name), whole=True)
        return found


FromHub = Reply | Ping


class ControlPort(Protocol):
    """Interface of a live hub for the TUI, the console and ``pardbg ctl``."""

    @property
    def name(self) -> str:
        """Return the name of this viewer in the audit trail."""
        ...

    def command(
        self, verb: Verb, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        """Send, from a worker thread, and wait for the answer; ``args``: fields of Arguments."""
        ...

    def take(self) -> Reply: ...

    def leave(self) -> None:
        """Give control up; every rank runs on."""
        ...
