"""Begin and end on the device of what the host has issued, by events: nothing here waits.

The training's threads record events on the streams that are current there; the agent's thread reads
them when they are done. An op's end is an event after the call where the op runs on the current
stream; an asynchronous op's is on a stream of our own, made to wait for its Future. (Never by
``add_done_callback``: its stream is the pool's, see ``own_streams``. Never by ``Work.wait`` on
another stream: it lets go of what keeps the allocator from reusing the memory too early.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pardbg_agent.hooks.device.anchors import DeviceClock
from pardbg_agent.hooks.device.event_queue import EventPool, EventQueue
from pardbg_agent.hooks.device.own_streams import OwnStreams

_wait: Any = torch._C.Future.wait
"""Before any hook wraps it."""


@dataclass(slots=True, eq=False)
class DeviceSpan:
    """From a begin to an end on the device; 0: not reached, as far as is known."""

    issued_ns: int
    end_event: Any
    ended: Callable[[DeviceSpan], None]
    """Called by the agent's thread when both events have been read."""
    begin_ns: int = 0
    end_ns: int = 0
    error_ns: int = 0
    """The larger of both times' errors."""
    num_read: int = 0
    is_told: bool = False
    """For the caller."""

    @property
    def lead_ns(self) -> int:
        """How far the host was ahead when it issued this."""
        return self.begin_ns - self.issued_ns


class DeviceTimes:
    """Spans of one device. Raises where the device has no timing events."""

    def __init__(self, device: torch.device) -> None:
        c: Any = torch._C
        new_event = partial(torch.Event, device, enable_timing=True)
        new_event()
        index = c._accelerator_getDeviceIndex() if device.index is None else device.index
        self._current: Callable[[], Any] = partial(c._accelerator_getStream, index)
        self._set_current = c._accelerator_setStream
        module = torch.get_device_module(device)
        self._capturing = getattr(module, "is_current_stream_capturing", bool)
        self.streams = OwnStreams(device)
        self.clock = DeviceClock(new_event, self.streams.new())
        self.pool, self.queue = EventPool(new_event), EventQueue()
        self.lead_ns = 0
        """Of the span that was reached last, at ``newest_ns``."""
        self.newest_ns = 0
        self.num_captured = 0
        """Spans left out because their stream captured a graph, whose events have no times."""
        self.num_lost = 0
        """Spans whose times could not be read."""

    @property
    def num_left_out(self) -> int:
        """Spans without times, for whatever reason."""
        return self.num_captured + self.num_lost + self.pool.refused

    def begin(self, issued_ns: int, ended: Callable[[DeviceSpan], None]) -> DeviceSpan | None:
        """Begin a span on the current stream, at what comes next there. None: left out, counted."""
        if self._capturing():
            self.num_captured += 1
            return None
        begin, end = self.pool.take(), self.pool.take()
        if begin is None or end is None:
            self._give_back(begin, end)
            return None
        span = DeviceSpan(issued_ns, end, ended)
        begin.record()
        self.queue.put(self._current(), begin, (span, True))
        return span

    def end(self, span: DeviceSpan) -> bool:
        """End it on the current stream, with what was issued there last. False: it is dropped."""
        if self._capturing():
            self.num_captured += 1
            self.drop(span)
            return False
        span.end_event.record()
        self.queue.put(self._current(), span.end_event, (span, False))
        return True

    def end_with(self, span: DeviceSpan, work: Any, key: Any) -> bool:
        """End it when the asynchronous op of a Work does. ``key``: of the backend's stream that the
        op is on. False: its end is not the device's to tell, and it is dropped."""
        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError):  # a backend without
            future = None
        # One that is not done would make the host wait.
        done = future is not None and future.done() and not self._capturing()
        stream = self.streams.of(key) if done else None
        if stream is None:
            self.drop(span)
            return False
        before = self._current()
        self._set_current(stream)
        try:
            _wait(future)
        finally:
            self._set_current(before)
        span.end_event.record(stream)
        self.queue.put(stream, span.end_event, (span, False))
        return True

    def drop(self, span: DeviceSpan) -> None:
        """Forget a span that will have no end."""
        self._give_back(span.end_event)

    def poll(self) -> bool:
        """Read what is done; return whether there is more to come. The agent's thread calls it."""
        self.clock.tend()
        return self.clock.error_ns is None or self.queue.reap(self._seen)

    def open_spans(self) -> list[tuple[DeviceSpan, bool]]:
        """Return what each stream is at: a span, and whether it has yet to begin."""
        return self.queue.heads()

    def _seen(self, event: Any, meaning: tuple[DeviceSpan, bool]) -> None:
        span, is_begin = meaning
        try:
            found = self.clock.host_time(event)
        except RuntimeError:  # of another device
            found = None
        self.pool.give(event)
        span.num_read += 1
        if found is None:
            self.num_lost += 1
        else:
            at, error = found
            span.error_ns = max(span.error_ns, error)
            if is_begin:
                span.begin_ns = self.newest_ns = at
                self.lead_ns = span.lead_ns
            else:
                span.end_ns = at
        if span.num_read == 2:  # their streams are read in any order
            span.ended(span)

    def _give_back(self, *events: Any) -> None:
        for event in events:
            if event is not None:
                self.pool.give(event)
