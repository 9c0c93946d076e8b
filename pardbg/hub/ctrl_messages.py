"""CTRL at the hub: packing of messages, identities, and the messages between a relay and its hub.

Between a relay and its hub, frames are [process, payload]; the messages below have an empty
process. The hub's ROUTER sees the relay's identity before them, ``relay-NODE-…``."""

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
"""Prefix of a relay's identity."""
VIEWER: Final = b"view-"
"""Prefix of a viewer's identity."""
VERSION: Final = 1
_MOST_USER: Final = 32
PIECE_BYTES: Final = 1 << 20
"""Approximate size, in bytes, of the pieces in which rescued records travel."""


def process_of(identity: bytes) -> bytes:
    """Return the process id in an agent's identity."""
    return identity.partition(b"/")[0]


def viewer_address(kind: str = "") -> bytes:
    """Return a new viewer's identity; ``kind`` appears in the audit trail."""
    return address(VIEWER.decode() + kind)


def whose() -> str:
    """Return ``ada@pts:3-``, the user and the terminal of this process; empty: unknown."""
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
    """Return a viewer's name in the audit trail, which does not reveal its identity's secret."""
    name, slash, secret = identity.partition(b"/")
    tail = hashlib.sha256(secret).hexdigest()[:12] if slash else ""
    return name.decode("ascii") + tail


def unpack(raw: bytes, read: Callable[[Any], T]) -> T:
    """Return one CTRL message as ``read`` checks it. Raises Malformed."""
    if len(raw) > MAX_CTRL_BYTES:
        raise Malformed("control message size")
    return read(decode_map(raw))


def pack(message: object) -> bytes:
    return bytes(msgpack.packb(encode(message), unicode_errors="backslashreplace"))


Row = dict[str, Any]
"""Row of a process in STATE (docs/wire-protocol.md)."""
Change = tuple[Word, int, int, int, tuple[tuple[int, bytes], ...]]
"""(process, rank, kinds, job, (place, bytes of a post) ...); rank -1: the process has ended."""

# -- relay -> hub


@dataclass(frozen=True, slots=True)
class Rows(Message, tag="rows"):
    """Processes of the node, sent at each change and at least once a second. With a new ``link``,
    messages under way may be lost."""

    version: int
    node: int
    host: Word
    run: Word
    link: int
    rows: Mapping[Word, object]
    """Process -> its Row."""
    gone: Mapping[Word, tuple[int, int | None]]
    """Process -> (time at which its end was found, exit code)."""
    ended: bool
    """Whether the job on that node has ended."""


@dataclass(frozen=True, slots=True)
class Salvaged(Message, tag="salvaged"):
    """Answer to Salvage, in pieces."""

    proc: Word
    definitions: tuple[bytes, ...]
    batches: tuple[tuple[int, bytes], ...]
    """(index of the first, raw records) of each batch."""
    last: int
    dropped: int
    first: bool
    more: bool
    """Whether another piece follows."""


@dataclass(frozen=True, slots=True)
class Looked(Message, tag="looked"):
    """Answer to Look."""

    id: int
    proc: Word
    threads: tuple[Thread, ...] = ()
    problem: Line = ""
    """Reason for a missing stack."""


@dataclass(frozen=True, slots=True)
class Lines(Message, tag="output"):
    """Output of the job on that node: (stream, rank, text)."""

    lines: tuple[tuple[Word, int | None, str], ...]


# -- both ways


@dataclass(frozen=True, slots=True)
class BoardNews(Message, tag="boards"):
    """New posts on boards (``ranks.boards``)."""

    changes: tuple[Change, ...]
    by_ns: int = 0
    """Hub to relay: ns to add to the posts' times."""


# -- hub -> relay


@dataclass(frozen=True, slots=True)
class Known(Message, tag="known"):
    """Answer to a relay that the hub did not know, or whose link is new."""

    hub: Word


@dataclass(frozen=True, slots=True)
class TurnedAway(Message, tag="refused"):
    """Refusal of this node by the hub."""

    why: Line


@dataclass(frozen=True, slots=True)
class Salvage(Message, tag="salvage"):
    """Order to send the rest of an ended process's ring, from record ``start`` on."""

    proc: Word
    start: int


@dataclass(frozen=True, slots=True)
class Forget(Message, tag="forget"):
    """Permission to remove the ring of an ended process: the hub has all its records."""

    proc: Word


@dataclass(frozen=True, slots=True)
class Look(Message, tag="look"):
    """Order to read a process's stacks from outside."""

    id: int
    proc: Word
    pid: int


@dataclass(frozen=True, slots=True)
class Kill(Message, tag="kill"):
    """Order to end the job on that node."""


@dataclass(frozen=True, slots=True)
class Notice(Message, tag="notice"):
    """Line for the user at that node's terminal."""

    text: Line


@dataclass(frozen=True, slots=True)
class End(Message, tag="end"):
    """End of the hub: it takes no more messages."""


FromRelay = Rows | Salvaged | Looked | Lines | BoardNews
ToRelay = BoardNews | Known | TurnedAway | Salvage | Forget | Look | Kill | Notice | End
