"""gloo's ``ProcessGroup.monitored_barrier``: no dispatcher op and no Work, only this method."""

from __future__ import annotations

import functools
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.comm import works
from pardbg_agent.hooks.comm.collectives import make_begin, make_count
from pardbg_agent.hooks.comm.op_arguments import Spec
from pardbg_agent.hooks.context import LOCAL, Op
from pardbg_agent.hooks.patching import unframed
from pardbg_agent.wire import NONE, Kind, Lane

_ISSUE, _COMM = int(Kind.OP_ISSUE), int(Lane.COMM)
_MONITORED = Spec(
    "monitored_barrier", "monitored_barrier", lambda _: (None, 0, 0), group=0, is_async=1
)


def monitored(original: Any) -> Any:
    """Return the method, watched."""
    begin, count, hook = make_begin(_MONITORED), make_count(_MONITORED), "monitored_barrier"

    @unframed
    @functools.wraps(original)
    def barrier(self: Any, *args: Any, **kwargs: Any) -> Any:
        c, op = _core.CURRENT, None
        if c is not None:
            op = _enter_or_count(c, hook, begin, count, self)
        if c is None or op is None:
            return original(self, *args, **kwargs)
        refused = True
        try:
            result = original(self, *args, **kwargs)
            refused = False
        finally:
            c.guard.call(hook, works.waited, c, op, op.t0, now_ns(), refused)
        return result

    return barrier


def _enter_or_count(c: _core.Core, hook: str, begin: Any, count: Any, pg: Any) -> Op | None:
    state = LOCAL.state
    state.numbered = False
    if c.level:
        op: Op | None = c.guard.call(hook, _enter, c, begin, pg)
        if op is not None:
            return op
        c.guard.call("unrecorded", c.unrecorded.begins, now_ns(), True)
    if not state.numbered:
        state.group = pg
        count(c, (pg, False), state)
        state.group = None
    return None


def _enter(c: _core.Core, begin: Any, pg: Any) -> Op:
    """The issue of an op that waits inside its call: recorded before, as a wait has no end yet."""
    state = LOCAL.state
    state.group = pg
    try:
        op: Op = begin(c, (pg, False), state)
    finally:
        state.group = None
    if c.level > 1:
        c.record(
            _ISSUE, _COMM, op.flags, op.name_id, op.t0, op.t0, op.step, op.seq, op.group_id,
            NONE, NONE, NONE, 0, 0,
        )  # fmt: skip
    return op
