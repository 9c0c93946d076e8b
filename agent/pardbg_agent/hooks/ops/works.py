"""Completion of issued ops, and the host's waits for them, taken at the cheapest true place:
- a synchronous op of Python: in the ``Work.wait`` that follows at once (DONE_WAITED);
- an asynchronous one, or one that C++ issued (DDP's reducer): in its future's callback
  (DONE_COMPLETED). It runs on the backend's worker, which may get the GIL for it late; ops that DDP
  waited for in a backward are complete at the backward's end at the latest (DONE_WAITED);
- gloo's send, recv and reduce_scatter have no future: in ``Work.wait``;
- functional collectives: their wait is ``_c10d_functional::wait_tensor``, matched by storage;
- on a device ``Work.wait`` returns before the op is complete: there events tell (``hooks.device``,
  DONE_DEVICE). Where they cannot, one after the wait does (and DONE_POLLED), and until then the
  agent's thread polls ``is_completed`` (DONE_POLLED). For that the Work is held until the wait, or
  the poll that sees it complete (as long as the thread sleeps, wire.BEAT_NS at most, longer than
  needed), at most MAX_POLLED of them.

No tensor is held anywhere, and Works only in that last case: elsewhere a weak reference to the
Work's Python object leads to the op's numbers."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.context import LOCAL, Context, Op, OpenWorks, local, of
from pardbg_agent.hooks.device import cuda_runtime
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.ops import late_inputs
from pardbg_agent.hooks.patching import Patches, unframed, unseen, wait_gate
from pardbg_agent.hooks.watch import op_watches
from pardbg_agent.life.own_frames import hide_own
from pardbg_agent.tables.c10d_ops import C10D_OPS, C10dOp
from pardbg_agent.wire import NONE, Flag, Kind, Lane

MAX_POLLED: Final = 256
MAX_TENSORS: Final = 1024
SHORT_NS: Final = 2_000
"""Minimum length of a WAIT record: a shorter wait found the op complete."""

_DONE, _WAIT, _COMM, _LANE_WAIT = int(Kind.OP_DONE), int(Kind.WAIT), int(Lane.COMM), int(Lane.WAIT)
_FAILED = int(Flag.FAILED)
COMPLETED, WAITED, POLLED, DEVICE = (
    int(Flag.DONE_COMPLETED), int(Flag.DONE_WAITED), int(Flag.DONE_POLLED), int(Flag.DONE_DEVICE),
)  # fmt: skip

_ref = weakref.ref
_Work: Any = torch._C._distributed_c10d.Work
_storage: Any = getattr(torch._C, "_storage_id", torch.Tensor.data_ptr)
"""Key by which this torch, too, finds the Work of a tensor: empty tensors have no address."""


def done(c: _core.Core, op: Op, t1: int, source: int) -> None:
    """Record the op's completion; the first caller writes the record."""
    token, name_id, t0, step, seq, group_id, flags, stage, mb, peer, a, b, _ = op
    if not c.ops.completed(token):
        return
    if c.watches.slow is not None:
        c.guard.call("watch slow", op_watches.op_ended, c, op, t1)
    if c.level > 1:
        c.record(
            _DONE, _COMM, flags | source, name_id, t0, t1, step, seq, group_id, stage, mb, peer,
            a, b,
        )  # fmt: skip
    else:
        c.sums.add((name_id, group_id, flags, max(a, b), t1 - t0))


def stands(c: _core.Core, op: Op) -> None:
    """Have the device tell when its stream reaches a wait for the op."""
    if c.device is not None and not op.host_waits:
        c.guard.call(HOOK, c.device.op_stands, op)


def waited(c: _core.Core, op: Op, t0: int, t1: int, failed: bool) -> None:
    """Record the host's wait for the op, t0..t1."""
    if c.watches.slow is not None:
        LOCAL.state.own_ns = t1
    if c.level > 1 and (t1 - t0 >= SHORT_NS or failed):
        c.record(
            _WAIT, _LANE_WAIT, op.flags | (_FAILED if failed else 0), op.name_id, t0, t1, c.step,
            op.seq, op.group_id, op.stage, op.mb, op.peer, op.a, op.b,
        )  # fmt: skip
    if op.host_waits or failed:
        done(c, op, t1, WAITED | (_FAILED if failed else 0))
    elif c.device is not None and c.guard.call(HOOK, c.device.op_waited, op.token):
        of(c).works.polled.pop(op.token, None)


def device_done(c: _core.Core, op: Op, end_ns: int, is_bound: bool) -> None:
    """Note that an op has ended on the device; ``end_ns`` 0: the time is not known."""
    if end_ns:
        done(c, op, end_ns, DEVICE | POLLED if is_bound else DEVICE)
    else:
        c.ops.completed(op.token)


def work_of(result: Any) -> Any:
    """Return the Work in a c10d op's result; None: the op runs on the current stream."""
    boxed = result[-1] if type(result) is tuple else result
    return None if boxed is None else _Work.unbox(boxed)


def _no_work(c: _core.Core, op: Op) -> None:
    """Close an op that has no Work: it is on the backend's current stream, or in a batch."""
    if not _on_device(c, op) and not _batched(op):
        c.ops.completed(op.token)


def _on_device(c: _core.Core, op: Op) -> bool:
    """Return whether the device will report the op's end, or a graph captured the op: then it ends
    with its call, and its Work must not be asked."""
    device = c.device
    if device is None or device.follows(op.token):
        return device is not None
    captured = bool(not op.host_waits and c.guard.call(HOOK, device.times.capturing))
    if captured:
        late_inputs.choice(c, of(c).part(late_inputs.Looks)).captured = True
        done(c, op, now_ns(), 0)
        device.op_over(op.token)
    return captured


def _batched(op: Op) -> bool:
    """Return whether the Work of a batch, which is yet to come, will report the op."""
    state = local()
    if state.nest.coalescing and not op.host_waits:
        state.batch.append(op)
    return bool(state.nest.coalescing) and not op.host_waits


def follow(c: _core.Core, op: Op, result: Any) -> None:
    """Follow an op that C++ issued to its completion: no immediate wait for it is known."""
    work = work_of(result)
    if work is None:
        _no_work(c, op)
    else:
        _seen_to(c, (c.context or of(c)).works, op, work)


def _seen_to(c: _core.Core, works: OpenWorks, op: Op, work: Any) -> bool:
    """Follow an op by its Work's future, or by polling. False: the Work has no future."""
    if not op.host_waits:
        if not _on_device(c, op):
            _poll_later(c, works, op, work)
        return True
    no_future, followed = works.no_future, works.followed
    if no_future and (op.group_id, op.name_id) in no_future:
        return False
    try:
        future = work.get_future()
    except (RuntimeError, NotImplementedError):
        no_future.add((op.group_id, op.name_id))
        return False
    followed.add(op.token)
    future.add_done_callback(partial(_complete, c, op, followed))
    state = LOCAL.state
    if state.nest.backward:
        state.futures.append((op, future))
    return True


@unseen
def _complete(c: _core.Core, op: Op, followed: set[int], _: Any) -> None:
    t1 = now_ns()
    followed.discard(op.token)
    try:
        done(c, op, t1, COMPLETED)
    except Exception as error:  # noqa: BLE001 - the guard; a call less for each op
        c.guard.failed("completion", error)


def backward_ended(c: _core.Core, t1: int) -> None:
    """Complete the ops that DDP's reducer has waited for, in C++, in this backward. Their callbacks
    may still wait for the GIL, which the host thread took first: an op complete now was complete at
    ``t1``. The futures are held until here, and no longer."""
    state, followed = LOCAL.state, of(c).works.followed
    futures, state.futures = state.futures, []
    for op, future in futures:
        if op.token in followed and future.done():
            done(c, op, t1, WAITED)


def _poll_later(c: _core.Core, works: OpenWorks, op: Op, work: Any) -> None:
    polled = works.polled
    if _batched(op):
        return
    if len(polled) >= MAX_POLLED:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):
            _over(c, polled.pop(next(iter(polled)))[0])
    polled[op.token] = op, work
    if poll not in c.pollers:
        c.pollers.append(poll)


def _over(c: _core.Core, op: Op) -> None:
    """The op is followed no more."""
    c.ops.completed(op.token)
    if c.device is not None:
        c.guard.call(HOOK, c.device.op_over, op.token)


def poll() -> bool:
    """Poll open device ops for completion; return whether there were any. The agent's thread calls
    it; never blocks."""
    c = _core.CURRENT
    if c is None:
        return False
    polled = of(c).works.polled
    num = len(polled)
    with cuda_runtime.relaxed(c.identity.device):
        for op, work in list(polled.values()):
            if work.is_completed() and polled.pop(op.token, None) is not None:
                done(c, op, now_ns(), POLLED)
                _over(c, op)
    return num > 0


def expect_tensor(c: _core.Core, op: Op, tensors: Any) -> None:
    """Remember a functional collective by its output tensors, which the program will wait for."""
    known = of(c).works.tensors
    if len(known) >= MAX_TENSORS:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):
            del known[next(iter(known))]
    for tensor in tensors if isinstance(tensors, list) else (tensors,):
        known[_storage(tensor)] = op


def tie(c: _core.Core, op: Op, work: Any, has_future: bool) -> None:
    """Tie an op to its Work, which Python got from an asynchronous op (or one on a device)."""
    known = (c.context or of(c)).works
    told = (has_future or not op.host_waits) and _seen_to(c, known, op, work)
    gone = known.gone
    if gone is None:
        gone = known.gone = partial(_gone, known)
    known.live[_ref(work, gone)] = op, not told


@unseen
def _gone(known: OpenWorks, ref: Any) -> None:
    found = known.live.pop(ref, None)
    if found is not None and found[1]:
        c = _core.CURRENT
        if c is not None:
            c.ops.completed(found[0].token)  # no wait: its end time is not known


def install(patches: Patches, wait_of: Any = None) -> None:
    """Hook ProcessGroup's methods and Work.wait. ``wait_of`` makes the hook of a Work.wait where
    ops are hooked in C++, which needs no hook on the methods."""
    group = torch._C._distributed_c10d.ProcessGroup
    for spec in C10D_OPS if wait_of is None else ():
        for name in spec.methods:
            if hasattr(group, name):
                patches.set(group, name, _method(getattr(group, name), spec))
    patches.wrap(group, "_start_coalescing", _start_coalescing)
    patches.wrap(group, "_end_coalescing", _end_coalescing)
    for kind in (_Work, *_Work.__subclasses__()):  # FakeWork has a wait of its own
        if "wait" in vars(kind):
            patches.set(kind, "wait", (wait_of or _wait)(kind.wait))
    patches.wrap(torch._C.Future, "wait", _future_wait)


def _method(original: Any, spec: C10dOp) -> Any:
    reduces, has_future = spec.reduce >= 0, spec.future

    @unseen
    def issue(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            c = _core.CURRENT
            if c is None or not c.level:
                return original(self, *args, **kwargs)
            state = LOCAL.state
            state.group = self
            if reduces:
                try:  # the dispatcher's ReduceOp is opaque to Python; the options are not
                    state.reduce = hash(args[-1].reduceOp)
                except (AttributeError, IndexError):
                    state.reduce = -1
            try:
                work = original(self, *args, **kwargs) if kwargs else original(self, *args)
            finally:
                state.group = None
            op = state.op
            if op is not None:
                state.op = None
                try:  # not guard.call: a call less for each op
                    if work is None:
                        _no_work(c, op)
                    elif op.flags & _ASYNC or not op.host_waits:
                        tie(c, op, work, has_future)
                    else:
                        if state.sync_op is not None:  # its wait is not hooked
                            c.ops.completed(state.sync_op.token)
                        state.sync_id, state.sync_op = id(work), op
                except Exception as error:  # noqa: BLE001 - the guard
                    c.guard.failed("works", error)
                    c.ops.completed(op.token)
            return work
        except BaseException as error:
            hide_own(error)
            raise

    return issue


_ASYNC, _P2P = int(Flag.ASYNC), int(Flag.P2P)


def _wait(original: Any) -> Any:
    @unseen
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            c, state = _core.CURRENT, LOCAL.state
            op = state.sync_op
            if op is not None and state.sync_id == id(self):
                state.sync_op = None
            elif c is not None:
                live = (c.context or of(c)).works.live
                found = live.pop(_ref(self), None) if live else None
                op = None if found is None else found[0]
            if c is None or op is None:
                result = original(self, *args, **kwargs)
                if c is not None and c.device is not None:
                    c.guard.call(HOOK, c.device.waited, self)
                return result
            stands(c, op)
            failed, t0 = True, now_ns()
            try:
                result = original(self, *args, **kwargs) if args or kwargs else original(self)
                failed = False
            finally:
                t1 = now_ns()
                if op.peer == NONE and op.flags & _P2P and not failed:
                    op = c.guard.call("any source", _came, c, op, self) or op
                try:
                    waited(c, op, t0, t1, failed)
                except Exception as error:  # noqa: BLE001 - the guard; a call less for each op
                    c.guard.failed("wait", error)
                c.hook_ns += now_ns() - t1
            return result
        except BaseException as error:
            hide_own(error)
            raise

    return wait


def _future_wait(original: Any) -> Any:
    """Hook Future.wait: a frame of this wrapper in a stack shows a wait for a Work's future."""

    @unseen
    def wait(self: Any) -> Any:
        try:
            return original(self)
        except BaseException as error:
            hide_own(error)
            raise

    return wait


def _came(c: _core.Core, op: Op, work: Any) -> Op:
    """Return a completed any-source receive with its sender, which its Work has as a group rank."""
    ranks = next(g.ranks for g in of(c).groups.values() if g.group_id == op.group_id)
    return op._replace(peer=ranks[work._source_rank()])


def wait_tensor(x: Context, tensor: Any) -> Op | None:
    """Return the open op whose output ``tensor`` is, or None."""
    if type(tensor) is not torch.Tensor or tensor.is_meta:
        return None  # a fake one, while a graph is traced
    return x.works.tensors.pop(_storage(tensor), None)


def _start_coalescing(original: Any) -> Any:
    @unframed
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        c = _core.CURRENT
        if c is not None and c.gate.closed:
            from pardbg_agent.wire import GATE_OPS

            wait_gate(c, GATE_OPS, "a batch of ops")
        result = original(self, *args, **kwargs)
        if local().nest.coalescing:  # its body failed, so it was not ended
            _batch_ended(None, failed=True)
        local().nest.coalescing = 1
        return result

    return start


def _batch_ended(work: Any, failed: bool) -> None:
    c, state = _core.CURRENT, local()
    state.nest.coalescing = 0
    batch, state.batch = state.batch, []
    if c is None:
        return
    for op in batch:
        if work is None:
            c.ops.completed(op.token)
        else:
            _poll_later(c, of(c).works, op, work)
    if c.device is not None:
        if failed:
            c.guard.call(HOOK, c.device.batch_refused)
        else:
            c.guard.call(HOOK, c.device.batch_issued, work)


def _end_coalescing(original: Any) -> Any:
    @unframed
    def end(self: Any, *args: Any, **kwargs: Any) -> Any:
        work, failed = None, True
        try:
            work = original(self, *args, **kwargs)
            failed = False
        finally:
            _batch_ended(work, failed)
        return work

    return end
