"""``watch slow>K``: what takes more than K times this rank's own median of the same thing
(``pardbg_agent.control.medians``).

- an op, from its issue to its completion, where that is seen;
- an action of a pipeline: the same verb of the same stage;
- a training step;
- the time of its own that a rank takes before an op or an action: since it last waited for anybody
  or passed a gate. It is looked at when the rank comes to the gate: so the rank that is late is
  found before those that wait for it in an op find that op slow.

An op and an own time are compared with those at the same place of earlier steps, as what comes at
the begin of a step usually takes longer than the rest. What a hold took part in does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.control.medians import LATER
from pardbg_agent.hooks.context import LOCAL, Op, of
from pardbg_agent.wire import Flag
from pardbg_agent.words import duration, times_median, took

_P2P, _SEND = int(Flag.P2P), int(Flag.SEND)


class First(dict[int, tuple[int, int]]):
    """group id -> (step, seq of the first op that completed in it)."""


def comes(c: _core.Core, key: Hashable, text: Callable[[], str]) -> None:
    """Check how long this thread has worked by itself towards the op or action that comes next."""
    watch = c.watches.slow
    if watch is None:
        return
    state, now = LOCAL.state, now_ns()
    since, state.own_ns = state.own_ns, now
    if state.own_step != c.step:
        state.own_step, state.own_at = c.step, 0
    state.own_at += 1
    if not since or not c.gate.free_since(since):
        return
    slow = c.usual.add(("own", state.own_at, key), now - since, watch.limit)
    if slow is not None:
        took_ns = now - since
        c.gate.stop(watch.number, f"{duration(took_ns)} of its own before {text()}, "
                                  f"{times_median(took_ns, slow)}")  # fmt: skip


def op_ended(c: _core.Core, op: Op, t1: int) -> None:
    """Check a complete op's duration. Any thread."""
    watch = c.watches.slow
    if watch is None or not c.gate.free_since(op.t0):
        return
    known = of(c).part(First)
    first = known.get(op.group_id)
    if first is None or first[0] < op.step:
        first = known[op.group_id] = op.step, op.seq
    place = op.seq - first[1]
    thing = ("op", op.group_id, op.name_id, op.peer, op.a, place)
    slow = c.usual.add(thing, t1 - op.t0, watch.limit, LATER)
    if slow is not None:
        c.gate.stop(watch.number, took(_name(c, op), t1 - op.t0, slow))


def action_ended(
    c: _core.Core, stage: int, verb: str, text: str, t0: int, t1: int
) -> None:  # fmt: skip
    """Check a pipeline action's duration."""
    LOCAL.state.own_ns = t1
    watch = c.watches.slow
    if watch is None or not c.gate.free_since(t0):
        return
    slow = c.usual.add(("action", stage, verb), t1 - t0, watch.limit)
    if slow is not None:
        c.gate.stop(watch.number, took(text, t1 - t0, slow))


def _name(c: _core.Core, op: Op) -> str:
    """``all_reduce dp #42``, ``recv 0→1``"""
    name = c.defs.op_named(op.name_id)
    if op.flags & _P2P:
        me, other = c.identity.rank, "?" if op.peer < 0 else str(op.peer)
        return f"{name} {me}→{other}" if op.flags & _SEND else f"{name} {other}→{me}"
    groups = list(of(c).groups.values())
    return f"{name} {next((g.name for g in groups if g.group_id == op.group_id), '?')} #{op.seq}"
