"""Every collective and p2p op, seen where all of them pass: the c10d dispatcher ops.

A Python kernel registered for BackendSelect records the issue and redispatches.
``redispatch_boxed`` releases the GIL; calling a backend with the GIL held can deadlock with gloo's
worker.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import Library

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context, groups, works
from pardbg_agent.hooks.context import LOCAL, Context, Group, Op
from pardbg_agent.hooks.ops import REDUCE, SPECS, Args, Spec
from pardbg_agent.hooks.patching import wait_gate
from pardbg_agent.wire import NONE, Flag, Gate, Kind, Lane

KERNEL_NS = 4_500
"""What the way through a Python kernel costs by itself (boxing, unboxing), measured with
tests/bench/bench_collective.py: added to the hooks' own cost, which cannot see it."""

_ISSUE, _COMM = int(Kind.OP_ISSUE), int(Lane.COMM)
_ASYNC, _P2P, _SEND, _FAILED = int(Flag.ASYNC), int(Flag.P2P), int(Flag.SEND), int(Flag.FAILED)
_key = torch._C.DispatchKey.BackendSelect
_AFTER = torch._C._dispatch_keyset_full_after(_key)
_unbox = torch._C._distributed_c10d.ProcessGroup.unbox
num_kernel_calls = 0
"""Ops that went through a Python kernel: gives every tensor of theirs a Python object."""


class Dispatcher:
    """The registration, for torch before 2.14."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []

    def install(self) -> None:
        """Register a kernel for each op that this torch has."""
        library = Library("c10d", "IMPL")
        for spec in SPECS:
            packet = getattr(torch.ops.c10d, spec.torch_name, None)
            if packet is not None:
                kernel = make_kernel(spec, packet.default._handle.redispatch_boxed)
                library.impl(spec.torch_name, kernel, "BackendSelect", with_keyset=True)
        functional = Library("_c10d_functional", "IMPL")
        op = torch.ops._c10d_functional.wait_tensor.default
        functional.impl(
            "wait_tensor", make_wait_kernel(op._handle.redispatch_boxed), "BackendSelect",
            with_keyset=True,
        )  # fmt: skip
        self._libraries = [library, functional]

    def uninstall(self) -> None:
        """Unregister: from here on ops take torch's own way."""
        for library in self._libraries:
            library._destroy()
        self._libraries = []


def make_kernel(spec: Spec, redispatch: Any) -> Any:
    """The kernel of one op. Whatever the hook does, the op is issued exactly once."""
    gate, hook = gate_of(spec), f"c10d.{spec.torch_name}"
    begin_issue, end_issue, after = begin, end, _AFTER

    def kernel(keyset: Any, *args: Any) -> Any:
        global num_kernel_calls
        num_kernel_calls += 1
        entered = now_ns()
        c = _core.CURRENT or _core.ensure()
        op = None
        if c.level and hook not in c.guard.disabled:
            try:
                op = begin_issue(c, spec, gate, args)
            except Exception as error:  # noqa: BLE001 - the guard
                c.guard.failed(hook, error)
        if op is None:
            return redispatch(keyset & after, *args)
        try:
            result = redispatch(keyset & after, *args)
        except BaseException:
            failed(c, op)
            raise
        t1 = now_ns()
        try:
            end_issue(c, spec, op, t1, args, result)
        except Exception as error:  # noqa: BLE001 - the guard
            c.guard.failed(hook, error)
        c.hook_ns += op.t0 - entered + now_ns() - t1 + KERNEL_NS
        c.hook_calls += 1
        return result

    return kernel


def gate_of(spec: Spec) -> int:
    """The gate class of an op."""
    if not spec.p2p:
        return int(Gate.COLLECTIVE)
    return int(Gate.SEND if spec.send else Gate.RECV)


def begin(c: _core.Core, spec: Spec, gate: int, args: Args) -> Op | None:
    """Gate, number, and what the op is. None: nothing to record (a fake tensor)."""
    local = LOCAL
    tensor, a, b = spec.tensors(args)
    on_cpu = tensor is None or tensor.is_cpu
    if not on_cpu and tensor.is_meta:
        return None
    x = context.of(c)
    group = groups.group_of(x, local.group or _unbox(args[spec.group]))
    peer, tag, stage, mb, label = NONE, 0, NONE, NONE, ""
    if spec.root >= 0:
        peer = group.ranks[args[spec.root]]
    if spec.p2p:
        tag = args[spec.tag]
        if x.labels and tensor is not None:
            label, stage, mb = x.labels.pop((tensor.data_ptr(), spec.send), ("", NONE, NONE))
    if c.gate.closed and not local.coalescing:
        wait_gate(c, gate, lambda: next_text(c, spec, group, peer, label, mb))
    flags = _P2P | (_SEND if spec.send else 0) if spec.p2p else 0
    if spec.is_async < 0 or len(args) <= spec.is_async or args[spec.is_async]:
        flags |= _ASYNC
    name_id = name_of(x, spec, tensor, label, peer, tag)
    seq = c.ops.next_seq(group.key, spec.p2p)
    t0 = now_ns()
    token = c.ops.issued(
        group.key, group.group_id, spec.op, seq, spec.p2p, spec.send, peer, tag, name_id, t0
    )
    return Op(
        token, name_id, t0, c.step, seq, group.group_id, flags, stage, mb, peer, a, b, on_cpu
    )


def end(c: _core.Core, spec: Spec, op: Op, t1: int, args: Args, result: Any) -> None:
    """The call into the backend returned."""
    if c.level > 1:
        c.record(
            _ISSUE, _COMM, op.flags, op.name_id, op.t0, t1, op.step, op.seq, op.group_id, op.stage,
            op.mb, op.peer, op.a, op.b,
        )  # fmt: skip
    local = LOCAL
    if local.group is not None:
        local.op = op  # the method that Python called ties it to its Work
        if op.host_waits and not (op.flags & _ASYNC and spec.future):
            return
    elif spec.functional:
        works.expect_tensor(op, args[0])
    if spec.future or not op.host_waits:
        works.follow(c, op, result)


def failed(c: _core.Core, op: Op) -> None:
    """The backend refused the op."""
    c.ops.completed(op.token)
    if c.level > 1:
        c.record(
            _ISSUE, _COMM, op.flags | _FAILED, op.name_id, op.t0, now_ns(), op.step, op.seq,
            op.group_id, op.stage, op.mb, op.peer, op.a, op.b,
        )  # fmt: skip


def name_of(x: Context, spec: Spec, tensor: Any, label: str, peer: int, tag: int) -> int:
    """Id of the op's signature. A p2p op that a pipeline labelled has F or B for ``reduce``."""
    dtype = None if tensor is None else tensor.dtype
    reduce: Any = label
    if spec.reduces:
        reduce = LOCAL.reduce if LOCAL.group is not None else NONE
    root = NONE if spec.p2p else peer
    key = (spec.torch_name, dtype, reduce, root, tag)
    known = x.names.get(key)
    if known is None:
        if spec.reduces:
            reduce = REDUCE[reduce] if 0 <= reduce < len(REDUCE) else ""
        known = x.names[key] = x.core.defs.op(
            spec.op, str(dtype).removeprefix("torch."), reduce, root, tag, spec.coalesced
        )
    return known


def next_text(
    c: _core.Core, spec: Spec, group: Group, peer: int, label: str, mb: int
) -> str:
    """What comes next at a gate: ``all_reduce dp #42``, ``SEND_F 2→3 mb4``."""
    if not spec.p2p:
        seq = c.ops.snapshot()["issued"].get(group.key, 0)
        return f"{spec.op} {group.name} #{seq}"
    me, other = c.identity.rank, "?" if peer < 0 else str(peer)
    ends = f"{me}→{other}" if spec.send else f"{other}→{me}"
    if label:
        return f"{spec.op.upper()}_{label} {ends} mb{mb}"
    return f"{spec.op} {ends}"


def make_wait_kernel(redispatch: Any) -> Any:
    """wait_tensor: functional collectives and DTensor wait here, in C++."""
    after = _AFTER

    def kernel(keyset: Any, tensor: Any) -> Any:
        c, op = _core.CURRENT, None
        if c is not None and c.level and works._tensors:
            op = c.guard.call("wait_tensor", works.wait_tensor, c, tensor)
        if c is None or op is None:
            return redispatch(keyset & after, tensor)
        failed, t0 = True, now_ns()
        try:
            result = redispatch(keyset & after, tensor)
            failed = False
        finally:
            t1 = now_ns()
            c.guard.call("wait_tensor", works.waited, c, op, t0, t1, failed)
            c.hook_ns += now_ns() - t1 + KERNEL_NS // 2
        return result

    return kernel
