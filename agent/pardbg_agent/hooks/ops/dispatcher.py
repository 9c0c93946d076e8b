"""Hooks for every collective and p2p op at the c10d dispatcher ops, which all ops pass.

A Python kernel registered for BackendSelect records the issue and redispatches, the GIL released:
calling a backend with the GIL held can deadlock with gloo's worker. One effect a program can see: a
backend's refusal with another exception (gloo: ValueError) arrives as a RuntimeError with the same
text. The native hooks leave the exception as it is."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.library import Library

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm.op_arguments import Args
from pardbg_agent.hooks.context import LOCAL, Op
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.ops import works
from pardbg_agent.hooks.ops.issue import failed, lost, make_begin
from pardbg_agent.hooks.patching import unframed, unseen
from pardbg_agent.life.own_frames import hide_own
from pardbg_agent.tables.c10d_ops import C10D_OPS, MONITORED_BARRIER, C10dOp
from pardbg_agent.wire import NONE, Flag, Kind, Lane

KERNEL_NS = 4_500
"""Cost of an empty Python kernel (boxing, unboxing) in ns, measured with
tests/bench/bench_collective.py: added to the hooks' own cost, which cannot include it."""

_ISSUE, _COMM, _ASYNC = int(Kind.OP_ISSUE), int(Lane.COMM), int(Flag.ASYNC)
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class Dispatcher:
    """Op hooks as Python kernels of the c10d ops: the only choice before torch 2.14."""

    name = "dispatcher"
    types = context.IN_PYTHON

    def __init__(self) -> None:
        self._libraries: list[Any] = []

    def install(self) -> None:
        library = Library("c10d", "IMPL")
        for spec in C10D_OPS:
            packet = getattr(torch.ops.c10d, spec.torch_name, None)
            if packet is not None:
                kernel = make_kernel(spec, packet.default._handle.redispatch_boxed)
                library.impl(spec.torch_name, kernel, "BackendSelect", with_keyset=True)
        self._libraries = [library, watch_waits()]

    def uninstall(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries = []


def make_kernel(spec: C10dOp, redispatch: Any) -> Any:
    """Return the kernel of one op. Whatever the hook does, it issues the op exactly once."""
    begin, ends = make_begin(spec), _ends(spec)
    hook, below = f"c10d.{spec.torch_name}", _below

    @unseen
    def kernel(keyset: Any, *args: Any) -> Any:
        try:
            entered = now_ns()
            rest = below.get(_key(keyset)) or _rest(keyset)
            c = _core.CURRENT or _core.ensure()
            state = LOCAL.state
            op = begin(c, args, state)
            if op is None:
                return redispatch(rest, *args)
            try:
                result = redispatch(rest, *args)
            except BaseException:
                failed(c, op)
                raise
            t1 = now_ns()
            try:
                _, name_id, t0, step, seq, group_id, flags, stage, mb, peer, a, b, _ = op
                if c.level > 1:
                    c.record(
                        _ISSUE, _COMM, flags, name_id, t0, t1, step, seq, group_id, stage, mb, peer,
                        a, b,
                    )  # fmt: skip
                if flags & _ASYNC:
                    (c.context or context.of(c)).sites.note(t0)
                if c.device is not None and not op.host_waits:
                    c.guard.call(HOOK, c.device.op_issued, op.token, works.work_of(result))
                if state.group is not None:
                    state.op = op  # the method that Python called ties it to its Work
                else:
                    ends(c, op, args, result)
                c.hook_ns += t0 - entered + now_ns() - t1 + KERNEL_NS
                c.hook_calls += 1
            except Exception as error:  # noqa: BLE001 - the guard
                lost(c, hook, error)
                c.ops.completed(op.token)  # nothing else may report its end
            return result
        except BaseException as error:
            hide_own(error)
            raise

    return kernel


_key: Any = getattr(torch._C.DispatchKeySet, "raw_repr", repr)  # torch 2.4 has no raw_repr
_below: dict[Any, Any] = {}
"""Bits of a keyset -> its keys below this kernel. Few keysets differ; ``&`` takes longer."""


def _rest(keyset: Any) -> Any:
    rest = _below[_key(keyset)] = keyset & _AFTER
    return rest


def _ends(spec: C10dOp) -> Any:
    functional, future = spec.functional or spec.p2p, spec.future

    def ends(c: _core.Core, op: Op, args: Args, result: Any) -> None:
        if functional:
            works.expect_tensor(c, op, args[0])
        if future or not op.host_waits:
            works.follow(c, op, result)

    return ends


def watch_waits() -> Any:
    """Register a kernel for wait_tensor, for which torch has no hook."""
    library = Library("_c10d_functional", "IMPL")
    op = torch.ops._c10d_functional.wait_tensor.default
    library.impl(
        "wait_tensor", make_wait_kernel(op._handle.redispatch_boxed), "BackendSelect",
        with_keyset=True,
    )  # fmt: skip
    return library


def make_wait_kernel(redispatch: Any) -> Any:
    """Return the kernel of wait_tensor, where functional collectives and DTensor wait, in C++."""
    after = _AFTER

    @unseen
    def kernel(keyset: Any, tensor: Any) -> Any:
        try:
            c, op = _core.CURRENT, None
            if c is not None and c.level and (x := context.of(c)).works.tensors:
                op = c.guard.call("wait_tensor", works.wait_tensor, x, tensor)
            if c is None or op is None:
                return redispatch(keyset & after, tensor)
            works.stands(c, op)
            failed, t0 = True, now_ns()
            try:
                result = redispatch(keyset & after, tensor)
                failed = False
            finally:
                t1 = now_ns()
                c.guard.call("wait_tensor", works.waited, c, op, t0, t1, failed)
                c.hook_ns += now_ns() - t1 + KERNEL_NS // 2
            return result
        except BaseException as error:
            hide_own(error)
            raise

    return kernel


# -- gloo's monitored_barrier: no dispatcher op and no Work, only this method


def monitored(original: Any) -> Any:
    """Return ``monitored_barrier`` with its op hooked: the barrier bypasses the dispatcher."""
    begin = make_begin(MONITORED_BARRIER)

    @unframed
    @functools.wraps(original)
    def barrier(self: Any, *args: Any, **kwargs: Any) -> Any:
        c, op = _core.CURRENT, None
        if c is not None:
            op = c.guard.call("monitored_barrier", _enter, c, begin, self)
        if c is None or op is None:
            return original(self, *args, **kwargs)
        refused = True
        try:
            result = original(self, *args, **kwargs)
            refused = False
        finally:
            c.guard.call("monitored_barrier", works.waited, c, op, op.t0, now_ns(), refused)
        return result

    return barrier


def _enter(c: _core.Core, begin: Any, pg: Any) -> Op | None:
    """Issue an op that waits inside its call: recorded before, as the wait has no end yet."""
    state = LOCAL.state
    state.group = pg
    try:
        op: Op | None = begin(c, (None, pg, False), state)
    finally:
        state.group = None
    if op is not None and c.level > 1:
        c.record(
            _ISSUE, _COMM, op.flags, op.name_id, op.t0, op.t0, op.step, op.seq, op.group_id,
            NONE, NONE, NONE, 0, 0,
        )  # fmt: skip
    return op
