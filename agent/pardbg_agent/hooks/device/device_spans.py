"""Begin and end times, on the device, of work that the host has issued: events, without waits.

The training's threads record events on the streams that are current there; the agent's thread reads
them when they are done. An op's end is an event after the call where the op runs on the current
stream; an asynchronous op's is on a stream of our own, made to wait for its Future. (Never by
``add_done_callback``: its stream is the pool's, see ``OwnStreams``. Never by ``Work.wait`` on
another stream: it lets go of what keeps the allocator from reusing the memory too early.)"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.device import anchors, cuda_runtime, event_queue
from pardbg_agent.hooks.device.anchors import Anchor, DeviceClock
from pardbg_agent.hooks.device.event_queue import EventPool, EventQueue

MAX_STREAMS: Final = 64
BEGIN, END, STANDS = range(3)
"""Meanings of a span's events: its begin, its end, a stream that waits for its end."""


class OwnStreams:
    """Streams of our own, one per internal stream of the backend, by any key; made when first asked
    for, on the current device.

    ``torch.Stream()``, NCCL's streams and those of a Future's callbacks come from one pool of 32:
    an event recorded on a pool stream is read late where the program's kernels are queued before
    it, and a wait there delays the program's kernels. These lie outside of the pool where possible.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_key: dict[Any, Any] = {}

    def of(self, key: Any) -> Any | None:
        """Return the stream of a key; None if there are too many streams."""
        found = self._by_key.get(key)
        if found is None and len(self._by_key) < MAX_STREAMS:
            found = self._by_key[key] = self.new()
        return found

    def new(self) -> Any:
        """Return a new stream, from the pool (whose ends may be read late) as a last resort."""
        runtime = cuda_runtime.of(self._device.type)
        module: Any = torch.get_device_module(self._device)
        make = getattr(module, "own_stream", None) if runtime is None else runtime.new_stream
        try:
            return make() if make is not None else torch.Stream(self._device)
        except RuntimeError:
            return torch.Stream(self._device)


_wait: Any = torch._C.Future.wait
"""torch's Future.wait, taken before any hook wraps it."""


@dataclass(slots=True, eq=False)
class DeviceSpan:
    """Span of time on the device; a time of 0 means not reached yet, as far as is known."""

    issued_ns: int
    end_event: Any
    ended: Callable[[DeviceSpan], None] = lambda span: None
    """Called by the agent's thread when both events have been read."""
    begin_ns: int = 0
    end_ns: int = 0
    error_ns: int = 0
    """The larger of both times' errors."""
    waited_ns: int = 0
    stood_ns: int = 0
    """When the host had a stream wait for it, and when the stream got there (then, until told)."""
    stood: Callable[[DeviceSpan], None] | None = None
    """Called once both that and the end are known."""
    num_read: int = 0
    is_told: bool = False
    by_wait: bool = False
    kept_bytes: int = 0
    """These are for the caller."""

    @property
    def lead_ns(self) -> int:
        """Return how far the host was ahead of the device when it issued this span."""
        return self.begin_ns - self.issued_ns


@dataclass(slots=True)
class Gap:
    """Period, on the host's clock, in which spans were left out."""

    number: int = 0
    since_ns: int = 0
    until_ns: int = 0

    def note(self) -> None:
        """Count a span that is left out now."""
        self.number, self.until_ns = self.number + 1, now_ns()
        self.since_ns = self.since_ns or self.until_ns

    def take(self) -> tuple[int, int]:
        """Return (from, to) of spans left out since the last call; (0, …) if none was."""
        since, self.since_ns = self.since_ns, 0
        return since, self.until_ns


def _new_event_of(device: torch.device) -> Callable[[], Any]:
    """Return a constructor of timing events. Raises if the device has none."""
    new_event = partial(torch.Event, device, enable_timing=True)
    new_event()
    return new_event


def numbered(device: torch.device) -> torch.device:
    """Return the device with its index: the current device's if it has none."""
    c: Any = torch._C
    index = c._accelerator_getDeviceIndex() if device.index is None else device.index
    return torch.device(device.type, int(index))


class DeviceTimes:
    """Spans of one device, which is the current one. Raises if the device has no timing events."""

    def __init__(self, device: torch.device) -> None:
        c: Any = torch._C
        self._device, self.new_event = device, _new_event_of(device)
        self._index: Callable[[], int] = c._accelerator_getDeviceIndex
        self._waits_beside = cuda_runtime.waits_beside()
        self._current: Callable[[], Any] = partial(c._accelerator_getStream, device.index)
        self._set_current = c._accelerator_setStream
        module = torch.get_device_module(device)
        self.capturing = getattr(module, "is_current_stream_capturing", bool)
        self.streams = OwnStreams(device)
        self._computes: Any = None
        self.clock = DeviceClock(self.new_event, self.streams.new())
        self.pool, self.queue = EventPool(self.new_event), EventQueue()
        self.lead_ns = 0
        """Host lead of the span that was reached last, at ``newest_ns``."""
        self.newest_ns = 0
        self.captured, self.refused = Gap(), Gap()
        """Spans left out because their stream captured a graph, whose events have no times, and
        spans left out because too many were in flight."""
        self.num_lost = 0
        """Spans whose times could not be read."""

    @property
    def num_left_out(self) -> int:
        """Return the number of spans without times, for whatever reason."""
        return self.captured.number + self.refused.number + self.num_lost

    def take_gaps(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the periods of captured and of refused spans since the last call."""
        return self.captured.take(), self.refused.take()

    @property
    def num_in_flight(self) -> int:
        """Number of events that spans hold."""
        return self.pool.num_in_flight

    def begin(self, issued_ns: int, stream: Any = None) -> DeviceSpan | None:
        """Begin a span at the next work on the stream (None: the current one). Return None if the
        span is left out (and counted)."""
        with self._here():
            if self.capturing():
                self.captured.note()
                return None
            events = self.pool.take()
            if events is None:
                self.refused.note()
                return None
            begin, end = events
            span, stream = DeviceSpan(issued_ns, end), stream or self._current()
            begin.record(stream)
        self.queue.put(stream, begin, (span, BEGIN))
        return span

    def stands(self, span: DeviceSpan, waited_ns: int) -> None:
        """Note that the current stream is about to wait for the span's end."""
        event = None if self.capturing() else self.pool.one()
        if event is None:
            return
        with self._here():
            stream = self._current()
            event.record(stream)
        span.waited_ns = waited_ns
        self.queue.put(stream, event, (span, STANDS))

    def computes_here(self) -> None:
        """Note that the current stream is the one of the training's phases."""
        self._computes = self._current()

    def computing(self) -> bool:
        """Return whether the current stream is the one of the phases, as far as is known."""
        return self._computes is None or bool(self._current() == self._computes)

    def end(self, span: DeviceSpan, stream: Any = None) -> bool:
        """End a span after the last work issued on the stream. False: the span is dropped."""
        with self._here():
            if self.capturing():
                self.captured.note()
                self.drop(span)
                return False
            stream = stream or self._current()
            span.end_event.record(stream)
        self.queue.put(stream, span.end_event, (span, END))
        return True

    def end_with(self, span: DeviceSpan, work: Any, group_id: int, peer: int) -> bool:
        """End the span when the asynchronous op of a Work does, on the backend's stream of this
        group (and peer, for p2p). Until then torch's allocator keeps the op's outputs, even if
        freed. False: the end is not to be had so."""
        with self._here():
            stream = self._past(work, group_id, peer) if self._waits_beside else None
            if stream is None:
                return False
            span.end_event.record(stream)
        self.queue.put(stream, span.end_event, (span, END))
        return True

    def _past(self, work: Any, group_id: int, peer: int) -> Any | None:
        """Return a stream of our own that waits for the op's end."""
        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError):  # a backend without
            return None
        # One that is not done would make the host wait.
        done = future is not None and future.done() and not self.capturing()
        stream = self.streams.of((group_id, peer)) if done else None
        if stream is None:
            return None
        before = self._current()
        self._set_current(stream)
        try:
            _wait(future)
        finally:
            self._set_current(before)
        return stream

    def _here(self) -> AbstractContextManager[None]:
        """Make the span's device current, which it is unless the program names devices itself."""
        current = self._index() == self._device.index
        return nullcontext() if current else cuda_runtime.using(self._device)

    def drop(self, span: DeviceSpan) -> None:
        """Forget a span that will have no end."""
        self.pool.give(span.end_event)

    def poll(self) -> bool:
        """Read completed events; return whether more are to come. Call from the agent's thread."""
        self.clock.tend()
        return self.clock.error_ns is None or self.queue.reap(self._seen)

    def close(self) -> None:
        """Release all events."""
        self.clock.close()
        self.pool, self.queue = EventPool(self.new_event), EventQueue()

    def _seen(self, event: Any, meaning: tuple[DeviceSpan, int]) -> None:
        span, point = meaning
        try:
            found = self.clock.host_time(event)
        except RuntimeError:  # of another device
            found = None
        self.pool.give(event)
        span.num_read += point != STANDS
        if found is None:
            self.num_lost += 1
        else:
            at, error = found
            span.error_ns = max(span.error_ns, error)
            if point == STANDS:
                span.stood_ns = at
            elif point == BEGIN:
                span.begin_ns = self.newest_ns = at
                self.lead_ns = span.lead_ns
            else:
                span.end_ns = at
        if span.stood_ns and span.end_ns and span.stood is not None:
            told, span.stood = span.stood, None
            told(span)
        if span.num_read < 2 or point == STANDS:
            return  # their streams are read in any order
        if span.end_ns and span.begin_ns - span.end_ns <= span.error_ns:
            span.end_ns = max(span.begin_ns, span.end_ns)  # each is off by up to that
        span.ended(span)


class NativeTimes:
    """DeviceTimes in C++ (native/device.hpp), with anchors taken here, from events of its own:
    torch's events keep the GIL while the driver makes them wait for another thread."""

    def __init__(self, device: torch.device, module: Any) -> None:
        _new_event_of(device)
        self.new_event: Callable[[], Any] = partial(module.Event, device)
        self.streams = OwnStreams(device)
        limits = (
            event_queue.MAX_EVENTS, event_queue.MAX_LANES, anchors.KEPT, anchors.WANDER,
            anchors.RESOLUTION_NS,
        )  # fmt: skip
        runtime = cuda_runtime.of(device.type)
        addresses = (0, 0) if runtime is None else runtime.addresses
        may_wait = cuda_runtime.waits_beside()
        self.native: Any = module.Device(device, self.streams.of, may_wait, *addresses, *limits)
        self.clock = DeviceClock(self.new_event, self.streams.new(), taken=self._add_anchor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def _add_anchor(self, anchor: Anchor) -> None:
        self.native.add_anchor(
            anchor.event, anchor.host_ns, anchor.error_ns, anchor.drift, anchor.drift_error
        )

    def poll(self) -> bool:
        """Read completed events; return whether more are to come. Call from the agent's thread."""
        self.clock.tend()
        left: bool = self.native.poll()
        return left

    def close(self) -> None:
        """Release all events."""
        self.clock.close()
        self.native.close()
