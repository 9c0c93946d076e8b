"""CONTROL messages of the hub, which are recorded and which viewers draw: a fact, and the state.

A message is one map: ``n``, ``t_ns``, ``by``, the ``TAG`` of its fact under ``event`` (empty: only
the lease and timeouts are new), the fact's fields and, if it has one, the status's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.events.control_codes import Mode
from pardbg.events.control_facts import Breakpoint, Fact, Waits
from pardbg_agent.ctrl.codec import Line, Malformed, decode, encode

_FACTS: Final[dict[str, Any]] = {kind.TAG: kind for kind in Fact.__args__}


@dataclass(frozen=True, slots=True)
class Status:
    """Held or running state of the run, as acknowledged by the agents."""

    mode: Mode
    controller: Line | None = None
    lease_ns: int | None = None
    """Time left of the lease; None: no viewer has control."""
    why: tuple[Fact, ...] = ()
    """Reasons for which ranks are held or awaited, if it is not the requested verb itself."""
    held: Mapping[int, Line] = field(default_factory=dict)
    """Rank -> the action or op that is next on the held rank."""
    pending: int = 0
    """Number of ops issued and not complete."""
    queued: int = 0
    """Number of commands that wait for the cut."""
    waiting: Mapping[int, Waits] = field(default_factory=dict)
    """Ranks that wait in an op for a rank that a viewer holds."""
    timeout_ns: int | None = None
    """Time until the first of those ops may time out; None: no rank waits in one."""
    breaks: tuple[Breakpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """Content of a CONTROL message."""

    fact: Fact | None = None
    """Fact of the message; None: only the status is new."""
    status: Status | None = None
    by: str = ""
    """Viewer that caused the event, or the one that has control."""
    n: int = 0
    t_ns: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the map that is sent."""
        tag = self.fact.TAG if self.fact is not None else ""
        plain: dict[str, Any] = {"n": self.n} if self.n else {}
        plain |= {"t_ns": self.t_ns, "event": tag, "by": self.by}
        for part in (self.status, self.fact):
            plain |= encode(part) if part is not None else {}
        plain.pop("t", None)
        return plain


_HEAD: Final = tuple[str, int, int]


def event_of(plain: Mapping[str, Any]) -> ControlEvent:
    """Decode the map of a CONTROL message. Raises Malformed, also for unknown events."""
    tag = plain.get("event")
    kind = _FACTS.get(tag) if isinstance(tag, str) else None
    if tag and kind is None:
        raise Malformed(f"event {tag!r:.40}")
    return ControlEvent(
        decode(kind, plain) if kind is not None else None,
        decode(Status, plain) if "mode" in plain else None,
        *decode(_HEAD, (plain.get("by", ""), plain.get("n", 0), plain.get("t_ns", 0))),
    )  # fmt: skip
