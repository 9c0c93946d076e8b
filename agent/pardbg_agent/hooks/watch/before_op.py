"""The op that comes next, at a closed gate: in words, field by field for breakpoints, and for the
watches that look at an op before it is issued (``pardbg_agent.control.watches``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.hooks.comm.op_arguments import Args, Spec
from pardbg_agent.hooks.context import Group
from pardbg_agent.hooks.patching import wait_gate
from pardbg_agent.hooks.watch import mismatch, not_finite, slow
from pardbg_agent.wire import Gate


@dataclass(frozen=True, slots=True)
class Coming:
    """The op that is about to be issued."""

    core: _core.Core
    spec: Spec
    group: Group
    args: Args
    """As the Spec knows them (``op_arguments.inputs``)."""
    tensor: Any
    """One tensor of it (its input, where it has one), or None."""
    dtype: Any
    in_bytes: int
    out_bytes: int
    peer: int
    """Global rank of the root or of the peer, or NONE."""
    reduce: int
    """The reduce op's number, or NONE where it is not known (ops that C++ issues)."""
    label: str
    """F or B of a p2p op that a pipeline stage prepared; empty: another op."""
    stage: int
    mb: int

    def text(self) -> str:
        """Return it in words: ``all_reduce dp #42``, ``SEND_F 2→3 mb4``."""
        spec, group = self.spec, self.group
        if not spec.p2p:
            return f"{spec.op} {group.name} #{self.core.ops.num_issued(group.key)}"
        me, other = self.core.identity.rank, "?" if self.peer < 0 else str(self.peer)
        ends = f"{me}→{other}" if spec.send else f"{other}→{me}"
        return f"{self._action()} {ends} mb{self.mb}" if self.label else f"{spec.op} {ends}"

    def _action(self) -> str:
        return f"{self.spec.op.upper()}_{self.label}"

    def facts(self) -> dict[str, Any]:
        """Return it field by field, for breakpoints; what is not known is None."""
        spec, group = self.spec, self.group
        return {
            "op": spec.op,
            "pg": group.name,
            "axis": group.axis,
            "seq": None if spec.p2p else self.core.ops.num_issued(group.key),
            "bytes": max(self.in_bytes, self.out_bytes),
            "dtype": None if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "peer": None if self.peer < 0 else self.peer,
            "action": self._action() if self.label else None,
            "stage": None if self.stage < 0 else self.stage,
            "mb": None if self.mb < 0 else self.mb,
        }


def at_gate(op: Coming) -> None:
    """Pass the op's gate, which is closed."""
    c, gate = op.core, Gate.COLLECTIVE
    if op.spec.p2p:
        gate = Gate.SEND if op.spec.send else Gate.RECV
    look = partial(before_issue, c, op) if c.watches.before_issue else None
    wait_gate(c, int(gate), op.text, op.facts, look)


def before_issue(c: _core.Core, op: Coming) -> None:
    """A watch of BEFORE_ISSUE is set. The op's gate comes right after this: a watch that matches
    says ``c.gate.stop(...)``, and the gate holds. Each kind is its own hook to the guard: one that
    fails does not take the others with it."""
    watches = c.watches
    if watches.mismatch is not None or watches.skew is not None:
        c.guard.call("watch mismatch", mismatch.check, c, op)
    if watches.slow is not None:
        key = (op.spec.torch_name, op.group.group_id, op.in_bytes)
        c.guard.call("watch slow", slow.comes, c, key, op.text)
    if watches.nan is not None:
        c.guard.call("watch nan", not_finite.before_issue, c, watches.nan, op)
