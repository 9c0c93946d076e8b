"""CTRL at the hub: how a message is packed, whose identity is whose, and the messages between a
relay and its hub.

Between a relay and its hub, frames are [process, payload]; the messages below have an empty
process. The hub's ROUTER sees the relay's identity before them, ``relay-NODE-…``.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgpack

from pardbg.events.decode import Malformed, decode_map
from pardbg.hub import MAX_CTRL_BYTES
from pardbg_agent.ctrl.agent_messages import Thread
from pardbg_agent.ctrl.codec import Line, Message, Word, encode
from pardbg_agent.wire import address

T = TypeVar("T")
RELAY: Final = b"relay-"
"""How a relay's identity begins."""
VIEWER: Final = b"view-"
"""How a viewer's identity begins."""
VERSION: Final = 1
_MOST_USER: Final = 32
PIECE_BYTES: Final = 1 << 20
"""Rescued records travel in pieces of about this size."""


def process_of(identity: bytes) -> bytes:
    """Return the process id in an agent's identity."""
    return identity.partition(b"/")[0]


def viewer_address(kind: str = "") -> bytes:
    """Return a new viewer's identity; ``kind`` is told in the audit trail."""
    return address(VIEWER.decode() + kind)


def whose() -> str:
    """Return ``ada@pts:3-``, the user and the terminal of this process; empty: not known."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # no such user, as in a container
        plain = (char for char in getpass.getuser() if char.isascii())
        user = "".join(char for char in plain if char.isalnum() or char in "._-")[:_MOST_USER]
        return f"{user}@{_terminal()}-" if user else ""
    return ""


def _terminal() -> str:
    for file in (0, 1, 2):
        with contextlib.suppress(OSError):
            name = os.ttyname(file).removeprefix("/dev/").replace("/", ":")
            return name if name.isascii() else ""
    return ""


def viewer_name(identity: bytes) -> str:
    """Return what the audit trail calls a viewer: says nothing of the secret in its identity."""
    name, slash, secret = identity.partition(b"/")
    tail = hashlib.sha256(secret).hexdigest()[:12] if slash else ""
    return name.decode("ascii") + tail


def unpack(raw: bytes, read: Callable[[Any], T]) -> T:
    """Return one CTRL message as ``read`` checks it. Raises Malformed."""
    if len(raw) > MAX_CTRL_BYTES:
        raise Malformed("control message size")
    return read(decode_map(raw))


def pack(message: object) -> bytes:
    """Pack one CTRL message."""
    return bytes(msgpack.packb(encode(message), unicode_errors="backslashreplace"))


Row = dict[str, Any]
"""A process's row of STATE (docs/wire-protocol.md)."""
Change = tuple[Word, int, int, int, tuple[tuple[int, bytes], ...]]
"""(process, rank, kinds, job, (place, bytes of a post) ...); rank -1: the process has ended."""

# -- relay -> hub


@dataclass(frozen=True, slots=True)
class Rows(Message, tag="rows"):
    """The node's processes, at each change and at least once a second. Of a new ``link``, what was
    under way may be lost."""

    version: int
    node: int
    host: Word
    run: Word
    link: int
    rows: Mapping[Word, object]
    """Process -> its Row."""
    gone: Mapping[Word, tuple[int, int | None]]
    """Process -> (when it was found to have ended, exit code)."""
    ended: bool
    """The job there has ended."""


@dataclass(frozen=True, slots=True)
class Salvaged(Message, tag="salvaged"):
    """Answer to Salvage, in pieces."""

    proc: Word
    definitions: tuple[bytes, ...]
    batches: tuple[tuple[int, bytes], ...]
    """(index of the first, raw records)"""
    last: int
    dropped: int
    first: bool
    more: bool
    """Another piece follows."""


@dataclass(frozen=True, slots=True)
class Looked(Message, tag="looked"):
    """Answer to Look."""

    id: int
    proc: Word
    threads: tuple[Thread, ...] = ()
    problem: Line = ""
    """Why nothing was seen."""


@dataclass(frozen=True, slots=True)
class Lines(Message, tag="output"):
    """Output of the job on that node: (stream, rank, text)."""

    lines: tuple[tuple[Word, int | None, str], ...]


# -- both ways


@dataclass(frozen=True, slots=True)
class BoardNews(Message, tag="boards"):
    """What is new on boards (``ranks.boards``)."""

    changes: tuple[Change, ...]
    by_ns: int = 0
    """Hub to relay: what to add to their times."""


# -- hub -> relay


@dataclass(frozen=True, slots=True)
class Known(Message, tag="known"):
    """Answer to a relay that the hub did not know, or whose link is new."""

    hub: Word


@dataclass(frozen=True, slots=True)
class TurnedAway(Message, tag="refused"):
    """The hub does not take this node."""

    why: Line


@dataclass(frozen=True, slots=True)
class Salvage(Message, tag="salvage"):
    """Send what an ended process left in its ring, from record ``start`` on."""

    proc: Word
    start: int


@dataclass(frozen=True, slots=True)
class Forget(Message, tag="forget"):
    """The hub has all records of an ended process: its ring may be removed."""

    proc: Word


@dataclass(frozen=True, slots=True)
class Look(Message, tag="look"):
    """Read a process's stacks from outside."""

    id: int
    proc: Word
    pid: int


@dataclass(frozen=True, slots=True)
class Kill(Message, tag="kill"):
    """End the job on that node."""


@dataclass(frozen=True, slots=True)
class Notice(Message, tag="notice"):
    """A line for the user at that node's terminal."""

    text: Line


@dataclass(frozen=True, slots=True)
class End(Message, tag="end"):
    """The hub is done; nothing more is taken."""


FromRelay = Rows | Salvaged | Looked | Lines | BoardNews
ToRelay = BoardNews | Known | TurnedAway | Salvage | Forget | Look | Kill | Notice | End
