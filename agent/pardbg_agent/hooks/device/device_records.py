"""Device times of this rank's ops, actions, phases and steps, as DEVICE records.

Kept at level full only. An op stays open until the device has ended it; what could not be timed is
said by ``lost`` in the status block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from pardbg_agent.hooks.device.device_spans import DeviceSpan, DeviceTimes
from pardbg_agent.wire import NO_GROUP, NONE, Flag, Kind, Lane

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

_DEVICE, _BEGIN = int(Kind.DEVICE), int(Kind.DEVICE_BEGIN)
_COMM, _COMPUTE, _PHASE, _STEP = (
    int(Lane.COMM), int(Lane.COMPUTE), int(Lane.PHASE), int(Lane.STEP),
)  # fmt: skip
HOOK: Final = "device"
"""Its name for the guard."""
_P2P: Final = int(Flag.P2P)


class DeviceRecords:
    """One rank's. ``op_done(op, end_ns)``: an op has ended; 0: it is not known when."""

    def __init__(
        self, core: Core, device: torch.device, op_done: Callable[[Any, int], None]
    ) -> None:
        self._c, self._op_done = core, op_done
        self.times = DeviceTimes(device)
        self._open: dict[int, tuple[DeviceSpan, Any]] = {}
        """Ops by token, until their end is read."""
        self._batch: list[int] = []
        """Ops between a backend's group start and end, which has one Work for all."""
        self._phase: DeviceSpan | None = None
        self._step: DeviceSpan | None = None
        self._polls = threading.Lock()
        core.pollers.append(self.poll)

    # -- ops

    def op_begins(self, op: Any, in_batch: bool) -> bool:
        """The op is issued next: its arrival is what the current stream reaches now. Return whether
        it is timed."""
        if self._c.level < 2:
            return False
        span = self.times.begin(op.t0, partial(self._op_ended, op))
        if span is not None:
            self._open[op.token] = span, op
            if in_batch:
                self._batch.append(op.token)
        return span is not None

    def op_issued(self, token: int, work: Any) -> None:
        """The op was issued; ``work`` is None where it runs on the current stream."""
        if token in self._open and token not in self._batch:
            self._end_op(token, work, is_batch=False)

    def op_refused(self, token: int) -> None:
        """The backend refused the op."""
        span, _ = self._open.pop(token, (None, None))
        if span is not None:
            self.times.drop(span)

    def batch_issued(self, work: Any) -> None:
        """The batch that was collected is issued: one end for all of its ops."""
        batch, self._batch = self._batch, []
        for token in batch:
            if token in self._open:
                op = self._open[token][1]
                self._end_op(token, work, is_batch=True)
                if not self.follows(token):
                    self._op_done(op, 0)

    def follows(self, token: int) -> bool:
        """Return whether the end of the op will come from here."""
        return token in self._open

    def _end_op(self, token: int, work: Any, is_batch: bool) -> None:
        span, op = self._open[token]
        if work is None:
            known = self.times.end(span)
        else:
            # Pairs have streams of their own in the backend; a group has one for all else.
            peer = op.peer if op.flags & _P2P and not is_batch else NONE
            known = self.times.end_with(span, work, (op.group_id, peer))
        if not known:
            del self._open[token]

    def _op_ended(self, op: Any, span: DeviceSpan) -> None:
        self._open.pop(op.token, None)
        if span.begin_ns and span.end_ns:
            self._write(_DEVICE, op, span, span.end_ns)
        self._op_done(op, span.end_ns)

    def _write(self, kind: int, op: Any, span: DeviceSpan, t1_ns: int) -> None:
        self._c.record(
            kind, _COMM, op.flags, op.name_id, span.begin_ns, t1_ns, op.step, op.seq, op.group_id,
            op.stage, op.mb, op.peer, span.lead_ns, span.error_ns,
        )  # fmt: skip

    # -- actions, phases, steps

    def begin(self, issued_ns: int) -> DeviceSpan | None:
        """Begin something that ``action_ended`` ends."""
        return self.times.begin(issued_ns, _ignore) if self._c.level > 1 else None

    def action_ended(self, span: DeviceSpan | None, name_id: int, stage: int, mb: int) -> bool:
        """End a pipeline action. This and the others return whether it is timed."""
        return self._end(span, _COMPUTE, name_id, stage, mb)

    def drop(self, span: DeviceSpan) -> None:
        """Forget an action that failed."""
        self.times.drop(span)

    def phase_begins(self, issued_ns: int) -> None:
        """Begin a phase of the main loop; one that did not end is forgotten."""
        if self._phase is not None:
            self.times.drop(self._phase)
        self._phase = self.begin(issued_ns)

    def phase_ended(self, name_id: int) -> bool:
        """End it."""
        span, self._phase = self._phase, None
        return self._end(span, _PHASE, name_id)

    def step_ended(self, step: int, t1_ns: int) -> bool:
        """End a training step, and begin the next one."""
        span, self._step = self._step, self.begin(t1_ns)
        return self._end(span, _STEP, 0, step=step)

    def _end(
        self, span: DeviceSpan | None, lane: int, name_id: int, stage: int = NONE, mb: int = NONE,
        step: int | None = None,
    ) -> bool:  # fmt: skip
        if span is None:
            return False
        number = self._c.step if step is None else step
        span.ended = partial(self._span_ended, lane, name_id, number, stage, mb)
        return self.times.end(span)

    def _span_ended(
        self, lane: int, name_id: int, step: int, stage: int, mb: int, span: DeviceSpan
    ) -> None:
        if span.begin_ns and span.end_ns:
            self._c.record(
                _DEVICE, lane, 0, name_id, span.begin_ns, span.end_ns, step, 0, NO_GROUP, stage, mb,
                NONE, span.lead_ns, span.error_ns,
            )  # fmt: skip

    # -- the agent's thread

    def poll(self) -> bool:
        """Read what the device has reached; return whether there is more to come."""
        if not self._polls.acquire(blocking=False):
            return True
        try:
            begun = [
                (span, op) for span, op in list(self._open.values())
                if span.begin_ns and not span.is_told
            ]  # fmt: skip
            left = self.times.poll()
            for span, op in begun:
                if not span.end_ns:  # since the poll before
                    span.is_told = True
                    self._write(_BEGIN, op, span, span.begin_ns)
            self._status()
            return left
        finally:
            self._polls.release()

    def _status(self) -> None:
        times, error = self.times, self.times.clock.error_ns
        self._c.status.device(
            times.lead_ns, times.newest_ns, NONE if error is None else error, times.num_left_out
        )

    def close(self) -> None:
        """Take the hooks off: ops whose end nobody will read are open no more."""
        self.poll()
        while self._open:
            _, (_, op) = self._open.popitem()
            self._op_done(op, 0)


def start(core: Core, device: torch.device, op_done: Callable[[Any, int], None]) -> None:
    """Time this rank's spans on its device from now on, if it has events that say times."""
    try:
        core.device = DeviceRecords(core, device, op_done)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        core.guard.disabled.add(HOOK)


def stop(core: Core) -> None:
    """Time none any more."""
    records, core.device = core.device, None
    if records is not None:
        core.guard.call(HOOK, records.close)


def _ignore(span: DeviceSpan) -> None:
    """A span whose end is not there yet."""
