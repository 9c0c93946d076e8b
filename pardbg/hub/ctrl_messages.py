"""CTRL messages from outside as checked values: whatever does not fit is ``Malformed``.

Between a relay and its hub, frames are [process, payload]; a relay's own messages (``Node``) have
an empty process. The hub's ROUTER sees the relay's identity before them, ``relay-NODE-…``.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Any, Final

import msgpack

from pardbg.control.machine.cut import AgentState, OpenOp
from pardbg.errors import NONSENSE
from pardbg.events.decode import Malformed, decode_map
from pardbg.hub import MAX_CTRL_BYTES
from pardbg.words import countdown
from pardbg_agent.wire import address

_MAX_HIT: Final = 300
RELAY: Final = b"relay-"
"""How a relay's identity begins."""
VIEWER: Final = b"view-"
"""How a viewer's identity begins."""
VERSION: Final = 1
PIECE_BYTES: Final = 1 << 20
"""Rescued records travel in pieces of about this size."""


def notice(event: dict[str, Any], run: str) -> str:
    """Return a control event as one line for the user of the job; empty if not of interest."""
    kind, text = event.get("event"), str(event.get("text") or "")
    if kind in ("exception", "hit") and event.get("mode") != "running":
        held = f" (unattended: in {countdown(event['lease_ns'])})" if event["lease_ns"] else ""
        return f"{text}{held}; `pardbg ctl {run} where`, `continue`, or `pardbg watch {run}`"
    return text if kind in ("lapsed", "released", "node_lost", "node_back") else ""


def process_of(identity: bytes) -> bytes:
    """Return the process id in an agent's identity."""
    return identity.partition(b"/")[0]


def viewer_address() -> bytes:
    """Return a new viewer's identity."""
    return address(VIEWER.decode())


def viewer_name(identity: bytes) -> str:
    """Return what the audit trail calls a viewer: says nothing of the secret in its identity."""
    name, slash, secret = identity.partition(b"/")
    tail = hashlib.sha256(secret).hexdigest()[:12] if slash else ""
    return name.decode("ascii") + tail


def unpack(raw: bytes) -> dict[str, Any]:
    """Unpack one CTRL message. Raises Malformed."""
    if len(raw) > MAX_CTRL_BYTES:
        raise Malformed("control message size")
    return decode_map(raw)


def pack(message: dict[str, Any]) -> bytes:
    """Pack one CTRL message."""
    return bytes(msgpack.packb({"v": 1, **message}, unicode_errors="backslashreplace"))


def agent_state(proc: str, message: dict[str, Any]) -> AgentState:
    """STATE as a value. Raises Malformed."""
    try:
        reply = message.get("re")
        return AgentState(
            proc=proc,
            rank=int(message["rank"]),
            serial=int(message["sn"]),
            reply_to=None if reply is None else int(reply),
            held=int(message["held"]),
            held_since_ns=int(message.get("held_since_ns") or 0),
            next=str(message.get("next") or ""),
            step=int(message.get("step") or 0),
            open=tuple(_open_op(op) for op in message.get("open") or ()),
            issued={str(k): int(n) for k, n in (message.get("issued") or {}).items()},
            p2p={
                (str(group), int(peer), int(tag), bool(send)): int(n)
                for group, peer, tag, send, n in message.get("p2p") or ()
            },
            done=tuple(str(text) for text in message.get("done") or ()),
            plan=tuple(str(text) for text in message.get("plan") or ()),
            closed=bool(message.get("closed", True)),
            hit=int(message["hit"][0]) if message.get("hit") else None,
            hit_text=str(message["hit"][1])[:_MAX_HIT] if message.get("hit") else "",
            hits={int(n): int(count) for n, count in (message.get("hits") or {}).items()},
        )
    except NONSENSE as error:
        raise Malformed(f"state: {error!r}") from error


def _open_op(fields: Any) -> OpenOp:
    group, op, seq, peer, send, tag, order, since_ns = fields
    return OpenOp(
        group=str(group),
        op=str(op),
        seq=int(seq),
        peer=None if peer is None else int(peer),
        send=bool(send),
        tag=int(tag),
        order=int(order),
        since_ns=int(since_ns),
    )


class Node(str, enum.Enum):
    """``t`` of a message between a relay and its hub."""

    # relay -> hub
    ROWS = "rows"
    """{"version", "node", "nnodes", "host", "run", "link", "rows": STATE's of the processes here,
    "gone": {proc: [when, exit code]}, "ended": the job here has}. At each change, at least once a
    second. A new "link" says that what was under way may be lost."""
    RESCUED = "rescued"
    """{"proc", "definitions", "batches": [[index of the first, raw records]], "last", "dropped",
    "more": another piece follows}: answer to RESCUE."""
    LOOKED = "looked"
    """{"id", "proc", "found": threads, or why not}: answer to LOOK."""
    OUTPUT = "output"
    """{"lines": [[stream, rank, text]]}: of the job on that node."""

    # both ways
    BOARDS = "boards"
    """{"changes": of ``ranks.boards``, "by_ns": hub to relay: what to add to their times}."""

    # hub -> relay
    KNOWN = "known"
    """{"hub"}: answer to a relay that the hub did not know, or whose link is new."""
    REFUSED = "refused"
    """{"why"}: another node of that number is there, or another version."""
    RESCUE = "rescue"
    """{"proc", "start"}: what an ended process left in its ring, from record ``start`` on."""
    FORGET = "forget"
    """{"proc"}: everything of it is here; its ring may go."""
    LOOK = "look"
    """{"id", "proc", "pid"}: read its stacks from outside."""
    SIGNAL = "signal"
    """{"number"}: to the job on that node; None ends it."""
    NOTICE = "notice"
    """{"text"}: for who started the job there."""
    END = "end"
    """The hub is done; nothing more is taken."""
