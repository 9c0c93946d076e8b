"""What watches look at before an op is issued. Called only while the gate is closed: see
``pardbg_agent.control.watches`` for the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.hooks.comm.op_arguments import Args, Spec
from pardbg_agent.hooks.context import Group
from pardbg_agent.hooks.watch import mismatch, not_finite, slow


@dataclass(frozen=True, slots=True)
class Coming:
    """The op that is about to be issued."""

    spec: Spec
    group: Group
    args: Args
    """As the Spec knows them (``ops.inputs``)."""
    tensor: Any
    """One tensor of it (its input, where it has one), or None."""
    dtype: Any
    in_bytes: int
    out_bytes: int
    peer: int
    """Global rank of the root or of the peer, or NONE."""
    reduce: int
    """The reduce op's number, or NONE where it is not known (ops that C++ issues)."""
    text: Callable[[], str]
    """As the gate says it: ``all_reduce dp #42``."""


def before_issue(c: _core.Core, op: Coming) -> None:
    """A watch of BEFORE_ISSUE is set. The op's gate comes right after this: a watch that matches
    says ``c.gate.stop(...)``, and the gate holds. Each kind is its own hook to the guard: one that
    fails does not take the others with it."""
    watches = c.watches
    if watches.mismatch is not None or watches.skew is not None:
        c.guard.call("watch mismatch", mismatch.look, c, op)
    if watches.slow is not None:
        key = (op.spec.torch_name, op.group.group_id, op.in_bytes)
        c.guard.call("watch slow", slow.comes, c, key, op.text)
    if watches.nan is not None:
        c.guard.call("watch nan", not_finite.before_issue, c, watches.nan, op)
