"""Issue of an op, whichever hook reports it: gate, number, name, open op, record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import call_sites, context
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.comm.op_arguments import Args, any_contents, bytes_per_rank, contents_of
from pardbg_agent.hooks.context import Context, Group, Op, Signature, State
from pardbg_agent.hooks.device import device_records
from pardbg_agent.hooks.memory import device_memory, usage
from pardbg_agent.hooks.ops import late_inputs, works
from pardbg_agent.hooks.watch import probes
from pardbg_agent.hooks.watch.op_watches import Coming, at_gate
from pardbg_agent.hooks.watch.probes import check_input
from pardbg_agent.tables.c10d_ops import C10dOp
from pardbg_agent.wire import MAX_PARTS, NONE, REDUCE, Flag, Kind, Lane

_ISSUE, _PART, _COMM = int(Kind.OP_ISSUE), int(Kind.PART), int(Lane.COMM)
_ASYNC, _P2P, _SEND, _FAILED = int(Flag.ASYNC), int(Flag.P2P), int(Flag.SEND), int(Flag.FAILED)
_unbox = torch._C._distributed_c10d.ProcessGroup.unbox
_TIMED = int(Flag.DEVICE)
_new_op = tuple.__new__
"""Constructor of Op: Op's own is a Python function, twice as slow, and this runs for every op."""


def lost(c: _core.Core, hook: str, error: BaseException) -> None:
    """Report that an op's hook failed and is off: from now on records of this rank's ops are
    incomplete."""
    c.guard.failed(hook, error)
    c.guard.call("unrecorded", c.unrecorded.begins, now_ns(), True)


def make_count(spec: C10dOp) -> Any:
    """Return the hook for level off, and after a failure: it only counts ops, so that this rank's
    sequence numbers stay equal to those of other ranks."""
    contents, group_at, peer_at, tag_at = contents_of(spec), spec.group, spec.root, spec.tag

    def number(c: _core.Core, args: Args, state: State) -> None:
        tensor, _, _ = contents(args)
        if tensor is not None and tensor.is_meta:
            return  # not a real op
        pg = _unbox(args[group_at]) if state.group is None else state.group
        group, peer, tag = groups.group_of(context.of(c), pg), NONE, 0
        if spec.p2p:
            tag = args[tag_at]
            peer = _rank_at(group, args[peer_at]) if peer_at >= 0 and args[peer_at] >= 0 else NONE
        seq = c.ops.next_seq(group.key, spec.p2p)
        c.ops.passed(group.key, seq, spec.p2p, spec.send, peer, tag)

    def count(c: _core.Core, args: Args, state: State) -> None:
        state.numbered = True
        if c.run is not None:
            c.guard.call("c10d.count", number, c, args, state)

    return count


def make_begin(spec: C10dOp) -> Any:
    """Return the guarded hook that runs before the op enters the backend. The hook returns the Op;
    None where the op is only counted (``make_count``), or not real (a fake tensor)."""
    begin = _begin(spec)
    return begin if spec.parts is None else _with_parts(spec, begin)


def _with_parts(spec: C10dOp, begin: Any) -> Any:
    def tell(c: _core.Core, op: Op, args: Args, state: State) -> None:
        pg = _unbox(args[spec.group]) if state.group is None else state.group
        group = groups.group_of(context.of(c), pg)
        num = len(group.ranks)
        tell_parts(c, op, group, *(bytes_per_rank(spec, args, num, side) for side in (1, 0)))

    def begin_and_tell(c: _core.Core, args: Args, state: State) -> Op | None:
        op: Op | None = begin(c, args, state)
        if op is not None:
            c.guard.call("c10d.parts", tell, c, op, args, state)
        return op

    return begin_and_tell


def _begin(spec: C10dOp) -> Any:
    op_name, name, p2p, send = spec.kind, spec.torch_name, spec.p2p, spec.send
    contents, group_at, peer_at, tag_at = contents_of(spec), spec.group, spec.root, spec.tag
    async_at, reduces, gathers = spec.is_async, spec.reduce >= 0, spec.gathers
    count, hook = make_count(spec), f"c10d.{spec.torch_name}"
    (least, few), least_late = probes.sizes(reduces, spec.probed), late_inputs.least(spec)
    nothing: Any = "" if p2p else NONE
    always = _P2P | _ASYNC | (_SEND if send else 0) if p2p else 0

    def begin(c: _core.Core, args: Args, state: State) -> Op | None:
        if not c.level or hook in c.guard.disabled:
            count(c, args, state)
            return None
        state.numbered = False
        try:
            try:
                tensor, a, b = contents(args)
            except (RuntimeError, NotImplementedError):  # sparse and nested tensors
                tensor, a, b = any_contents(args)
            on_cpu, dtype = tensor is None or tensor.is_cpu, getattr(tensor, "dtype", None)
            if not on_cpu and _is_fake(c, tensor, op_name):
                return None
            x, pg, what = c.context or context.of(c), state.group, nothing
            tag, stage, mb = args[tag_at] if p2p else 0, NONE, NONE
            if pg is None:
                pg = _unbox(args[group_at])
            elif reduces:
                what = state.reduce
            peer = args[peer_at] if peer_at >= 0 else NONE
            if p2p and x.labels and tensor is not None:
                what, stage, mb = x.labels.pop((tensor.data_ptr(), send), ("", NONE, NONE))
            key = (name, id(pg), dtype, what, peer, tag)
            known = x.signatures.get(key)
            if known is None or known[0]() is not pg:
                known = _sign(x, spec, key, pg, dtype, what, peer, tag)
            _, group_key, group_id, name_id, peer, next_seq = known
            if c.gate.closed and not state.nest.coalescing:
                _at_gate(c, spec, x, pg, args, (tensor, dtype, a, b, peer), (what, stage, mb))
            looks = on_cpu and (a >= least or a <= few)
            bad = check_input(c, tensor, gathers, reduces) if looks else None
            flags = always or (_ASYNC if len(args) <= async_at or args[async_at] else 0)
            seq = next_seq()
            state.numbered = True
            t0 = now_ns()
            op: Op = _new_op(Op, (
                c.ops.issued(group_key, group_id, op_name, seq, p2p, send, peer, tag, name_id,
                             t0, -1, a, b),
                name_id, t0, c.step, seq, group_id, flags | state.thread, stage, mb, peer, a, b,
                on_cpu,
            ))  # fmt: skip
            if bad is not None:
                c.guard.call("probe", probes.tell, c, op, bad, gathers)
            if not on_cpu and a >= least_late:
                _look_late(c, spec, state, op, group_key, tensor, what if reduces else NONE)
            return op if on_cpu or c.device is None else _arrives(c, op, state, tensor)
        except Exception as error:  # noqa: BLE001 - the guard
            lost(c, hook, error)
            return None if state.numbered else count(c, args, state)

    return begin


def _look_late(
    c: _core.Core, spec: C10dOp, state: State, op: Op, group_key: str, tensor: Any, reduce: Any
) -> None:  # fmt: skip
    """Have the device look at an op's input if it is due, which C++ decides for the ops it knows.
    Of lists of tensors no sample is taken."""
    looks, due = late_inputs.looks(c), state.look
    if looks is None or (reduce != NONE and reduce not in late_inputs.SUMS):
        return
    if due is None:
        due = late_inputs.choice(c, looks).due(op.step, group_key, spec.send)
    if due:
        whole = spec.probed and not spec.coalesced
        late_inputs.timed_look(c, looks, op, tensor if whole else None, state.look is not None)


def _arrives(c: _core.Core, op: Op, state: State, tensor: Any) -> Op:
    """Return the op, flagged if it is timed on the device, which must be the rank's."""
    if tensor.device != c.device.device:
        return op
    timed = c.guard.call(device_records.HOOK, c.device.op_begins, op, state.nest.coalescing)
    return op._replace(flags=op.flags | _TIMED) if timed else op


def _is_fake(c: _core.Core, tensor: Any, op_name: str) -> bool:
    """Return whether a tensor outside host memory is on no device either, while a graph is traced.
    Else its device becomes this rank's; not a barrier's, for which torch takes the current device:
    0, if none was set."""
    if tensor.is_meta:
        return True
    if c.device is None and c.run is not None and op_name != "barrier":
        device_id = c.guard.call("device id", device_memory.id_of, tensor.device)
        c.computes_on(tensor.device.type, device_id or "")
        c.guard.call("out of memory", device_memory.watch, c, tensor.device.type, usage.parts_now)
        done = partial(works.device_done, c)
        c.guard.call(
            device_records.HOOK, device_records.start, c, tensor.device, done, groups.PROCESS.module
        )
    return False


def _at_gate(
    c: _core.Core, spec: C10dOp, x: Context, pg: Any, args: Args,
    seen: tuple[Any, Any, int, int, int],
    what: tuple[Any, int, int],
) -> None:  # fmt: skip
    """Wait at the gate. ``seen``: tensor, dtype, bytes in and out, peer. ``what``: a p2p op's label
    or a collective's reduction; stage, microbatch."""
    reduce, label = (NONE, what[0]) if spec.p2p else (what[0], "")
    at_gate(Coming(c, spec, groups.group_of(x, pg), args, *seen, reduce, label, what[1], what[2]))


def tell_parts(
    c: _core.Core, op: Op, group: Group, sent: Sequence[int], expected: Sequence[int]
) -> None:
    """Record the bytes that an op sends to each peer and expects from each."""
    if c.level < 2 or not len(sent) == len(expected) == len(group.ranks) <= MAX_PARTS:
        return
    for peer, num_bytes, back in zip(group.ranks, sent, expected, strict=True):
        if (num_bytes or back) and peer not in (c.identity.rank, groups.UNKNOWN):
            c.record(
                _PART, _COMM, 0, op.name_id, op.t0, op.t0, op.step, op.seq, op.group_id, NONE,
                NONE, peer, num_bytes, back,
            )  # fmt: skip


def _sign(
    x: Context, spec: C10dOp, key: Any, pg: Any, dtype: Any, reduce: Any, peer: int, tag: int
) -> Signature:
    """Return the Signature of such ops on this group. ``peer``: root or peer, as a group rank."""
    group = groups.group_of(x, pg)
    if peer >= 0:
        peer = _rank_at(group, peer) if spec.p2p else max(NONE, _rank_at(group, peer))
    # The peer of a p2p op is in its records; it is not part of its name.
    name = (spec.torch_name, dtype, reduce, tag if spec.p2p else peer)
    name_id = x.names.get(name) or _define(
        x, spec, name, dtype, reduce, NONE if spec.p2p else peer, tag
    )
    known = x.signatures[key] = Signature(
        group.ref, group.key, group.group_id, name_id, peer,
        x.core.ops.counter(group.key, spec.p2p),
    )  # fmt: skip
    return known


def _rank_at(group: Group, at: int) -> int:
    """Return the global rank of a group rank; NONE if out of range, which the backend refuses."""
    return group.ranks[at] if at < len(group.ranks) else NONE


def failed(c: _core.Core, op: Op) -> None:
    """Record that the backend refused the op."""
    if c.device is not None:
        c.guard.call(device_records.HOOK, c.device.op_refused, op.token)
    c.ops.completed(op.token)
    if c.level > 1:
        c.record(
            _ISSUE, _COMM, op.flags & ~_TIMED | _FAILED, op.name_id, op.t0, now_ns(), op.step,
            op.seq, op.group_id, op.stage, op.mb, op.peer, op.a, op.b,
        )  # fmt: skip


def _define(
    x: Context, spec: C10dOp, key: Any, dtype: Any, reduce: Any, root: int, tag: int
) -> int:
    """Return the id of an op's signature, kept under ``key``. For a p2p op that a pipeline
    labelled, ``reduce`` is F or B."""
    if not spec.p2p:
        reduce = REDUCE[reduce] if 0 <= reduce < len(REDUCE) else ""
    known = x.core.defs.op(
        spec.kind, "" if dtype is None else str(dtype).removeprefix("torch."), reduce, root, tag,
        spec.coalesced, call_sites.here,
    )  # fmt: skip
    x.names[key] = known
    return known
