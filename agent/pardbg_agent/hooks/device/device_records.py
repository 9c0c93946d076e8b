"""Device times of this rank's ops, actions, phases, steps, FSDP units and spans, as DEVICE records.

Recorded at level full only; op times also at level summary, for its sums. An op stays open until
the device has ended it; the number of spans without times is in the status block. Ops that are
hooked in C++ are timed there (native/device.hpp)."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.device import cuda_runtime
from pardbg_agent.hooks.device.device_spans import DeviceSpan, DeviceTimes, NativeTimes, numbered
from pardbg_agent.hooks.device.late_numbers import LateNumbers
from pardbg_agent.wire import NO_GROUP, NONE, Flag, Kind, Lane

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

_DeviceError: Any = getattr(torch, "AcceleratorError", RuntimeError)  # before 2.8 it has no type
_DEVICE, _BEGIN = int(Kind.DEVICE), int(Kind.DEVICE_BEGIN)
_COMM, _PHASE, _STEP, _WAIT = int(Lane.COMM), int(Lane.PHASE), int(Lane.STEP), int(Lane.WAIT)
HOOK: Final = "device"
"""Name of this hook for the guard."""
_P2P, _INFERRED, _ASYNC = int(Flag.P2P), int(Flag.INFERRED), int(Flag.ASYNC)
_TIMED = int(Flag.DEVICE)
_SPAN, _USER = int(Kind.SPAN), int(Lane.USER)
CAPTURED: Final = "captured graph: ops inside are not timed"
_GAPS: Final = CAPTURED, "too much in flight: what is issued is not timed"
"""Names of gaps in a rank's device times."""
MAX_KEPT: Final = 256 << 20
"""Bytes of outputs, of ops that have not ended yet, that torch's allocator may keep for streams of
ours (``DeviceTimes.end_with``): freed ones come back when those are past the op."""


class _Records:
    """Base of the Python and C++ timers: one rank's spans, which the agent's thread reads."""

    times: Any
    _next: Callable[[str, Any], Any]
    """``_next(what, span)``: return the open phase or step, and open the next one."""

    def __init__(self, core: Core, device: torch.device) -> None:
        self._c, self.device = core, device
        self.numbers: LateNumbers | None = None
        with contextlib.suppress(RuntimeError):
            self.numbers = LateNumbers(device, self.times.new_event)
        self._polls = threading.Lock()
        self._failed = False
        """Whether the device has failed: its remaining events can no longer be read."""
        self._kept = False
        core.pollers.append(self.poll)

    # -- actions, FSDP units, the program's spans; phases, steps

    def begin(self, issued_ns: int, stream: Any = None) -> Any:
        """Begin a span on a stream (None: the current one), for ``ended``; None: not timed."""
        return self.times.begin(issued_ns, stream) if self._c.level > 1 else None

    def drop(self, span: Any) -> None:
        """Forget the span of a failed call."""
        self.times.drop(span)

    def ended(
        self, span: Any, lane: int, name_id: int, stage: int = NONE, mb: int = NONE,
        stream: Any = None, step: int | None = None,
    ) -> bool:  # fmt: skip
        """End a span; return, as the others do, whether it is timed."""
        if span is None:
            return False
        number = self._c.step if step is None else step
        return self._end(span, lane, name_id, number, stage, mb, stream)

    def _end(
        self, span: Any, lane: int, name_id: int, step: int, stage: int, mb: int, stream: Any
    ) -> bool:
        raise NotImplementedError

    def phase_begins(self, issued_ns: int) -> None:
        """Begin a phase of the main loop; drop the open phase if it did not end."""
        before = self._next("phase", self.begin(issued_ns))
        if before is not None:
            self.times.drop(before)

    def phase_ended(self, name_id: int) -> bool:
        """End the open phase of the main loop."""
        return self.ended(self._next("phase", None), _PHASE, name_id)

    def step_ended(self, step: int, t1_ns: int) -> bool:
        """End a training step, and begin the next one."""
        return self.ended(self._next("step", self.begin(t1_ns)), _STEP, 0, step=step)

    # -- the agent's thread

    def poll(self) -> bool:
        """Read the events that the device has reached; return whether more are to come."""
        if self._failed or not self._polls.acquire(blocking=False):
            return not self._failed
        try:
            with cuda_runtime.using(self.device):
                left = self._read()
                if self.numbers is not None:
                    left |= self.numbers.poll()
        except _DeviceError:  # the program's next call reports it, too
            self._failed = True
            return False
        else:
            self._mark_gaps()
            times, error = self.times, self.times.clock.error_ns
            self._c.status.device(
                times.lead_ns, times.newest_ns, NONE if error is None else error, times.num_left_out
            )
            return left
        finally:
            self._polls.release()

    def _read(self) -> bool:
        raise NotImplementedError

    def keep(self) -> None:
        """Keep this object alive past Python's exit, until closed: destroying events at exit, or
        after the device has failed, costs a context or a warning each."""
        self._kept = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def close(self) -> None:
        """Stop timing: close the ops that are still open, as their ends will not be read."""
        self.poll()
        with self._polls:
            self._close()
            if not self._failed and self._kept:
                self._kept = False
                with cuda_runtime.using(self.device):
                    self.times.close()
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))

    def _close(self) -> None:
        raise NotImplementedError

    def _mark_gaps(self) -> None:
        """Record periods in which spans were left out, as spans of the agent."""
        for name, (since, until) in zip(_GAPS, self.times.take_gaps(), strict=True):
            if since:
                self._c.record(
                    _SPAN, _USER, _INFERRED, self._c.defs.name(name), since, until, self._c.step, 0,
                    NO_GROUP, NONE, NONE, NONE, 0, 0,
                )  # fmt: skip


class DeviceRecords(_Records):
    """Timer in Python; calls ``op_done(op, end_ns, is_bound)`` at an op's end (0: unknown)."""

    def __init__(
        self, core: Core, device: torch.device, op_done: Callable[[Any, int, bool], None]
    ) -> None:
        self._op_done = op_done
        self.times = DeviceTimes(device)
        self._open: dict[int, tuple[DeviceSpan, Any]] = {}
        """Open ops by token, until their end is read."""
        self._batch: list[int] = []
        """Ops between a backend's group start and end, which share one Work."""
        self._unwaited: dict[Any, list[int]] = {}
        """Such ops by a weak reference to their Work, until a stream waits for it: its Future, of
        no tensor, has no event of its end (NCCL)."""
        self._bounds: dict[int, tuple[DeviceSpan, Any]] = {}
        """Others that nothing but a wait ends, until then, or until they are seen complete."""
        self._kept_bytes, self._kept_lock = 0, threading.Lock()
        self._current: dict[str, Any] = {}
        self._next = self._exchange
        super().__init__(core, device)

    # -- ops

    def op_begins(self, op: Any, in_batch: bool) -> bool:
        """Begin timing an op that is about to be issued: its arrival is when the current stream
        gets there. Return whether the op is timed."""
        # At level summary, too: else its Work would be polled, and held with the op's memory.
        span = self.times.begin(op.t0)
        if span is None:
            return False
        span.ended = partial(self._op_ended, op)
        self._open[op.token] = span, op
        if in_batch:
            self._batch.append(op.token)
        return True

    def op_issued(self, token: int, work: Any) -> None:
        """Note that the op was issued; ``work`` is None where it runs on the current stream."""
        if token in self._open and token not in self._batch:
            self._end_op(token, work)

    def op_refused(self, token: int) -> None:
        """Drop the span of an op that the backend refused."""
        span, _ = self._open.pop(token, (None, None))
        if span is not None:
            self.times.drop(span)

    def op_stands(self, op: Any) -> None:
        """Note that the current stream is about to wait for an asynchronous op: if it is the one of
        the phases, it stands from then on to the op's end."""
        if op.flags & (_P2P | _ASYNC | _TIMED) != _ASYNC | _TIMED or self._c.level < 2:
            return
        if not self.times.computing():
            return
        waited_ns = now_ns()
        found = self._open.get(op.token) or self._bounds.get(op.token)
        if found is None:  # it has ended
            span = DeviceSpan(waited_ns, None, waited_ns=waited_ns, stood_ns=waited_ns)
            self._stood(op, span)
        elif found[0].stood is None:
            found[0].stood = partial(self._stood, op)
            self.times.stands(found[0], waited_ns)

    def _stood(self, op: Any, span: DeviceSpan) -> None:
        begin = span.stood_ns
        self._c.record(
            _DEVICE, _WAIT, op.flags & ~_TIMED, op.name_id, begin, max(begin, span.end_ns), op.step,
            op.seq, op.group_id, op.stage, op.mb, op.peer, begin - span.waited_ns, span.error_ns,
        )  # fmt: skip

    def op_waited(self, token: int) -> bool:
        """The current stream is past a wait for the op; return whether that ends it."""
        found = self._bounds.pop(token, None)
        if found is not None:
            self._open[token] = found
            self._past([token], by_wait=True)
        return found is not None

    def op_over(self, token: int) -> None:
        """The op was seen complete: no wait is to end it."""
        if (found := self._bounds.pop(token, None)) is not None:
            self.times.drop(found[0])

    def batch_issued(self, work: Any) -> None:
        """Note that the collected batch was issued: all its ops share one end."""
        batch, self._batch = self._batch, []
        if work is None:
            self._past(batch, by_wait=False)
        elif batch:
            self._unwaited[weakref.ref(work, self._gone)] = batch

    def waited(self, work: Any) -> None:
        """Note that the current stream waits for a Work: a batch's Work ends all of its ops."""
        if self._unwaited:
            self._past(self._unwaited.pop(weakref.ref(work), []), by_wait=True)

    def batch_refused(self) -> None:
        """Drop the collected batch, which will not be issued: its ops will not end."""
        batch, self._batch = self._batch, []
        self._forget(batch)

    def _past(self, batch: list[int], by_wait: bool) -> None:
        """End these ops at the current stream's next work, which comes after them."""
        for token in batch:
            if token in self._open:
                span, op = self._open[token]
                span.by_wait = by_wait
                self._end_op(token, None)
                if not self.follows(token):
                    self._op_done(op, 0, False)

    def _gone(self, ref: Any) -> None:
        self._forget(self._unwaited.pop(ref, []))

    def _forget(self, batch: list[int]) -> None:
        for token in batch:
            span, op = self._open.pop(token, (None, None))
            if span is not None:
                self.times.drop(span)
                self._op_done(op, 0, False)

    def follows(self, token: int) -> bool:
        """Return whether this timer will report the end of the op."""
        return token in self._open

    def _end_op(self, token: int, work: Any) -> None:
        span, op = self._open[token]
        known = self.times.end(span) if work is None else self._end_with(span, op, work)
        if not known:
            del self._open[token]

    def _end_with(self, span: DeviceSpan, op: Any, work: Any) -> bool:
        # Pairs have streams of their own in the backend; a group has one for all else.
        peer = op.peer if op.flags & _P2P else NONE
        size = op.b or op.a
        if self._keep(size):
            span.kept_bytes = size
            if self.times.end_with(span, work, op.group_id, peer):
                return True
            span.kept_bytes = 0
            self._keep(-size)
        self._bounds[op.token] = span, op
        return False

    def _keep(self, num_bytes: int) -> bool:
        """Have the allocator keep so many bytes more; False: that would be too many."""
        with self._kept_lock:
            fits = self._kept_bytes + num_bytes <= MAX_KEPT
            self._kept_bytes += num_bytes if fits else 0
        return fits

    def _op_ended(self, op: Any, span: DeviceSpan) -> None:
        self._open.pop(op.token, None)
        self._keep(-span.kept_bytes)
        if span.begin_ns and span.end_ns:
            self._write(_DEVICE, op, span, span.end_ns)
        if self._c.level < 2:  # the sum is of device times
            op = op._replace(t0=span.begin_ns or op.t0)
        self._op_done(op, span.end_ns, span.by_wait)

    def _write(self, kind: int, op: Any, span: DeviceSpan, t1_ns: int) -> None:
        if self._c.level < 2:
            return
        self._c.record(
            kind, _COMM, op.flags, op.name_id, span.begin_ns, t1_ns, op.step, op.seq, op.group_id,
            op.stage, op.mb, op.peer, span.lead_ns, span.error_ns,
        )  # fmt: skip

    # -- the rest

    def _exchange(self, what: str, span: Any) -> Any:
        if what == "phase" and span is not None:
            self.times.computes_here()
        before, self._current[what] = self._current.get(what), span
        return before

    def _end(
        self, span: Any, lane: int, name_id: int, step: int, stage: int, mb: int, stream: Any
    ) -> bool:
        span.ended = partial(self._span_ended, lane, name_id, step, stage, mb)
        return bool(self.times.end(span, stream))

    def _span_ended(
        self, lane: int, name_id: int, step: int, stage: int, mb: int, span: DeviceSpan
    ) -> None:
        if span.begin_ns and span.end_ns:
            self._c.record(
                _DEVICE, lane, 0, name_id, span.begin_ns, span.end_ns, step, 0, NO_GROUP, stage, mb,
                NONE, span.lead_ns, span.error_ns,
            )  # fmt: skip

    def _read(self) -> bool:
        begun = [
            (span, op) for span, op in (*self._open.values(), *self._bounds.values())
            if span.begin_ns and not span.is_told
        ]  # fmt: skip
        left = bool(self.times.poll())
        for span, op in begun:
            if not span.end_ns:  # since the poll before
                span.is_told = True
                self._write(_BEGIN, op, span, span.begin_ns)
        return left

    def _close(self) -> None:
        while self._open:
            _, (_, op) = self._open.popitem()
            self._op_done(op, 0, False)


class NativeRecords(_Records):
    """Timer in C++, which times ops by itself and shares phases and steps with Python."""

    def __init__(self, core: Core, device: torch.device, module: Any) -> None:
        self.times = NativeTimes(device, module)
        self._native = core.native.table
        self._native.time_on(self.times.native)
        self._next = self.times.native.next
        self.batch_issued: Callable[[Any], None] = self.times.native.batch_issued
        self.batch_refused: Callable[[], None] = self.times.native.batch_refused
        super().__init__(core, device)

    def op_begins(self, op: Any, in_batch: bool) -> bool:
        """Return False: C++ times the op itself."""
        return False

    def _end(
        self, span: Any, lane: int, name_id: int, step: int, stage: int, mb: int, stream: Any
    ) -> bool:
        ended: bool = self.times.native.ended(span, lane, name_id, step, stage, mb, stream)
        return ended

    def _read(self) -> bool:
        left = bool(self.times.poll())
        if failure := self.times.native.failure:
            self._c.guard.failed(HOOK, RuntimeError(failure))
        return left

    def _close(self) -> None:
        self._native.time_on(None)


def start(
    core: Core, device: torch.device, op_done: Callable[[Any, int, bool], None], native: Any
) -> None:
    """Time this rank's spans on its device from now on, if the device has timing events.
    ``native``: the C++ module, where ops are hooked there."""
    try:
        device = numbered(device)
        with cuda_runtime.using(device):
            if native is None:
                records: _Records = DeviceRecords(core, device, op_done)
            else:
                records = NativeRecords(core, device, native)
        records.keep()
        core.device = records
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        core.guard.disabled.add(HOOK)


def stop(core: Core) -> None:
    """Stop timing on the device."""
    records, core.device = core.device, None
    if records is not None:
        core.guard.call(HOOK, records.close)
