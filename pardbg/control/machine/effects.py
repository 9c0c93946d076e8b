"""What the control machine wants done: values the hub turns into messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pardbg.control.language.verbs import Verb


@dataclass(frozen=True, slots=True)
class ToAgent:
    """A CTRL message to one process (``t`` and fields of wire.Msg)."""

    proc: str
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a viewer's request."""

    viewer: str
    re: int
    ok: bool
    error: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A CONTROL message, without ``n`` and ``t_ns``."""

    fields: dict[str, Any]


Effect = ToAgent | Ack | Event


@dataclass(slots=True)
class Command:
    """A viewer's command while it is under way."""

    viewer: str
    """Where the answer goes."""
    by: str
    """Viewer that takes control by it."""
    re: int
    verb: Verb
    ranks: tuple[int, ...]
    text: str = ""
    """The rank set as the user wrote it."""
    deadline_ns: int = 0
    """When its sender wants an answer at the latest; 0: whenever."""
    args: dict[str, Any] = field(default_factory=dict)
    """What else the verb needs; see Verb."""
