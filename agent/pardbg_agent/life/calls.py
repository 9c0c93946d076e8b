"""Calls in a rank's life that block outside of collectives: begin and end as CALL records.

init_process_group, a wait at the store, a checkpoint, the exit of the process: each is an op in the
wait-for graph, so that a missing rank is found there, too. Calls that all members make together
count on one group; a call of this rank alone has a group of its own. Torch knows nothing of
them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import wire
from pardbg_agent.clock import now_ns
from pardbg_agent.op_table import Call
from pardbg_agent.wire import NONE, Flag, Kind, Lane

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

MAX_DETAIL = 120


def together(members: Sequence[int]) -> str:
    """Return the key of the group on which calls of all ``members`` count; equal on all of them."""
    return f"{wire.CALLS}.{len(members)}.{zlib.crc32(repr(tuple(members)).encode()):08x}"


def begin(
    c: Core, name: str, detail: str, key: str, members: Sequence[int], of: int = NONE,
    group: int = 0, at: Callable[[], Any] | None = None, meets: str = "",
) -> Call:  # fmt: skip
    """Begin a call now: in the status block, and as a record. ``of``: the rank that it asks;
    ``group``: id of the group that it is about; ``at``: returns its place in the program;
    ``meets``: rendezvous address."""
    group_id = c.defs.group(key, "set-up", None, members, wire.CALLS)
    name_id = c.defs.op(name, "", detail[:MAX_DETAIL], of, group, at=at, meets=meets)
    seq, t0 = c.ops.next_seq(key), now_ns()
    token = c.ops.issued(key, group_id, name, seq, False, False, NONE, 0, name_id, t0)
    call = Call(token, name_id, group_id, seq, c.step, t0)
    _record(c, Kind.CALL_BEGIN, call, t0, 0)
    return call


def end(c: Core, call: Call, failed: bool = False) -> None:
    """Record the end, now, of a call that `begin` returned."""
    if c.ops.completed(call.token):
        _record(c, Kind.CALL, call, now_ns(), int(Flag.FAILED) if failed else 0)


def alone(
    c: Core, name: str, detail: str = "", of: int = NONE, group: int = 0,
    at: Callable[[], Any] | None = None,
) -> Call:  # fmt: skip
    """Begin a call of this rank that no other rank has to make."""
    rank = c.identity.rank
    return begin(c, name, detail, f"{wire.CALLS}.of.{rank}", (rank,), of, group, at)


def _record(c: Core, kind: Kind, call: Call, t1: int, flags: int) -> None:
    c.record(
        kind, Lane.COMM, flags, call.name_id, call.t0, t1, call.step, call.seq, call.group_id,
        NONE, NONE, NONE, 0, 0,
    )  # fmt: skip


# -- a rank's start-up and its exit, as its status says them
EXIT_NS: Final = 1_000_000_000
"""Minimum duration, in ns, of an exit that is recorded."""


def start_up(c: Core) -> None:
    """Show in the status that a rank starts up: it may never come to its group."""
    if c.run is not None:
        c.starting = True
        c.status.now(0, c.defs.name(wire.START_UP), 0, NONE, NONE, c.identity.start_ns)


def group_formed(c: Core) -> bool:
    """Note the rank's first group; return whether that ends the start-up."""
    if not c.starting:
        return False
    c.starting = False
    c.status.now(c.step, 0, 0, NONE, NONE, now_ns())
    return True


def watch_exit(c: Core) -> None:
    """Watch the exit after the main thread's end: the agent's thread records an exit that takes
    longer than EXIT_NS."""
    from_ns = now_ns() + EXIT_NS

    def look() -> None:
        if c.exiting is None and now_ns() >= from_ns:
            c.exiting = alone(c, "exit")

    c.pollers.append(look)


def exited(c: Core) -> None:
    """End the exit call: handlers and threads have ended, only the agent's own are left."""
    call, c.exiting = c.exiting, None
    if call is not None:
        c.guard.call("calls", end, c, call)
