"""Next op at a closed gate: its text, its fields for breakpoints, and watches that check an op
before its issue (``pardbg_agent.control.watches``). And ``watch slow>K``: ops, actions and steps
that take more than K times this rank's median of the same thing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.control.watches import LATER
from pardbg_agent.hooks.comm.op_arguments import Args
from pardbg_agent.hooks.context import LOCAL, Group, Op, of
from pardbg_agent.hooks.patching import wait_gate
from pardbg_agent.hooks.watch import mismatch, not_finite
from pardbg_agent.tables.c10d_ops import C10dOp
from pardbg_agent.wire import Flag, Gate
from pardbg_agent.words import duration, message, times_median, took


@dataclass(frozen=True, slots=True)
class Coming:
    """Op that is about to be issued."""

    core: _core.Core
    spec: C10dOp
    group: Group
    args: Args
    """Arguments of the op, at the indices in ``spec`` (``op_arguments.inputs``)."""
    tensor: Any
    """One tensor of the op (its input, if it has one), or None."""
    dtype: Any
    in_bytes: int
    out_bytes: int
    peer: int
    """Global rank of the root or of the peer, or NONE."""
    reduce: int
    """Number of the reduce op, or NONE if unknown (ops that C++ issues)."""
    label: str
    """F or B for a p2p op that a pipeline stage prepared; empty for other ops."""
    stage: int
    mb: int

    def text(self) -> str:
        """Return the op as text: ``all_reduce dp #42``, ``send F4 to r3``."""
        spec, group = self.spec, self.group
        if not spec.p2p:
            return f"{spec.kind} {group.name} #{self.core.ops.num_issued(group.key)}"
        carried = f"{self.label}{self.mb}" if self.label else ""
        return message(spec.kind, spec.send, self.peer, carried)

    def facts(self) -> dict[str, Any]:
        """Return the op's fields for breakpoints; unknown ones are None."""
        spec, group = self.spec, self.group
        return {
            "op": spec.kind,
            "pg": group.name,
            "axis": group.axis,
            "seq": None if spec.p2p else self.core.ops.num_issued(group.key),
            "bytes": max(self.in_bytes, self.out_bytes),
            "dtype": None if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "peer": None if self.peer < 0 else self.peer,
            "action": self.label or None,
            "stage": None if self.stage < 0 else self.stage,
            "mb": None if self.mb < 0 else self.mb,
        }


def at_gate(op: Coming) -> None:
    """Wait at the gate of the next op while it is closed."""
    c, gate = op.core, Gate.COLLECTIVE
    if op.spec.p2p:
        gate = Gate.SEND if op.spec.send else Gate.RECV
    look = partial(before_issue, c, op) if c.watches.before_issue else None
    wait_gate(c, int(gate), op.text, op.facts, look)


def before_issue(c: _core.Core, op: Coming) -> None:
    """Run the watches of BEFORE_ISSUE. The op's gate comes right after: a watch that matches calls
    ``c.gate.stop(...)``, and the gate holds. The guard treats each kind as a hook of its own, so a
    failed one does not disable the others."""
    watches = c.watches
    if watches.mismatch is not None or watches.skew is not None:
        c.guard.call("watch mismatch", mismatch.check, c, op)
    if watches.slow is not None:
        key = (op.spec.torch_name, op.group.group_id, op.in_bytes)
        c.guard.call("watch slow", comes, c, key, op.text)
    if watches.nan is not None:
        c.guard.call("watch nan", not_finite.before_issue, c, watches.nan, op)


# -- watch slow: an op from its issue to its completion, where that is seen; an action of one verb
# and stage; a training step; and the own time of a rank before an op or an action, since it last
# waited or passed a gate. Own time is checked when the rank comes to the gate, so a late rank is
# found before the ranks that wait for it find their op slow. Ops and own times are compared with
# those at the same place of earlier steps, as the first ones of a step usually take longer. Holds
# do not count.

_P2P, _SEND = int(Flag.P2P), int(Flag.SEND)


class First(dict[int, tuple[int, int]]):
    """Group id -> (step, seq of the first op that completed in that step)."""


def comes(c: _core.Core, key: Hashable, text: Callable[[], str]) -> None:
    """Check this thread's own time before the next op or action."""
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
    """Stop after an op that took too long; ``t1`` in ns."""
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


def action_ended(c: _core.Core, stage: int, verb: str, text: str, t0: int, t1: int) -> None:
    """Stop after an action t0..t1 (ns) that took too long."""
    LOCAL.state.own_ns = t1
    watch = c.watches.slow
    if watch is None or not c.gate.free_since(t0):
        return
    slow = c.usual.add(("action", stage, verb), t1 - t0, watch.limit)
    if slow is not None:
        c.gate.stop(watch.number, took(text, t1 - t0, slow))


def _name(c: _core.Core, op: Op) -> str:
    """Return ``all_reduce dp #42`` or ``recv from r0`` for an op."""
    name = c.defs.op_named(op.name_id)
    if op.flags & _P2P:
        return message(name, bool(op.flags & _SEND), op.peer)
    groups = list(of(c).groups.values())
    return f"{name} {next((g.name for g in groups if g.group_id == op.group_id), '?')} #{op.seq}"
