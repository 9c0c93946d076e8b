"""Inputs of the control machine: one frozen class per kind. Times (``now``) are the hub's monotonic
ns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pardbg.control.machine.state import Order
from pardbg.events.control_codes import Gone
from pardbg.events.control_facts import Breakpoint
from pardbg_agent.ctrl.agent_messages import State


@dataclass(frozen=True, slots=True)
class Learned:
    """Members and timeouts (ns) of groups and ranks of pipelines, from definitions."""

    groups: Mapping[str, tuple[int, ...]]
    timeouts: Mapping[str, int]
    pipelines: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Restored:
    """The breakpoints of a hub that was killed; its numbers are not used again."""

    breaks: Sequence[Breakpoint]
    number: int
    """The highest that a breakpoint ever had."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A process said hello (again), or its rank became known."""

    proc: str
    rank: int
    now: int


@dataclass(frozen=True, slots=True)
class Departed:
    """A process ended, was lost or killed."""

    proc: str
    now: int
    how: Gone = Gone.ENDED


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent's State."""

    state: State
    now: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A process answered the message of that number."""

    proc: str
    number: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """A viewer's control verb."""

    order: Order
    now: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A viewer takes control; the order is answered."""

    order: Order
    now: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A viewer leaves, or can be reached no more: all ranks run on if it had control, and its
    breakpoints go."""

    viewer: str
    now: int
    disconnected: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A viewer of the hub before did not come back: its breakpoints go."""

    viewer: str
    now: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """A viewer renews the lease: its own, or the run's while the run itself holds a rank."""

    viewer: str
    now: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: int
    computing: Mapping[str, int] | None = None
    """Process -> since when a pipeline action runs there (its clock); None: as before."""


Input = (
    Learned | Restored | Joined | Departed | Reported | Acknowledged | Ordered | TakenOver | GivenUp
    | Forgotten | Renewed | Ticked
)  # fmt: skip
