"""Numbers that the device computes, read once it has: no call here waits for the device.

The stream that is current copies them to page-locked memory of the host, and records an event
behind that; the agent's thread reads the memory when the event is reached."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch

from pardbg_agent.hooks.device import cuda_runtime
from pardbg_agent.hooks.device.event_queue import MAX_EVENTS, EventPool

_EACH: Final = 8
"""Maximum number of numbers in a slot of the memory, of 8 bytes at most."""
Tell = Callable[[list[Any]], object]


class LateNumbers:
    """Numbers of one device. Raises RuntimeError where there is no page-locked memory."""

    def __init__(self, device: torch.device, new_event: Callable[[], Any]) -> None:
        """Set up the memory. ``new_event`` returns an event with ``record(stream)``, ``query()``"""
        size = (MAX_EVENTS, 8 * _EACH)
        memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        number = itertools.count()
        self._pool = EventPool(lambda: (new_event(), memory[next(number)]))
        self._awaited: deque[tuple[list[Any], list[Any], Tell]] = deque()
        c: Any = torch._C
        self.device, self._index = device, c._accelerator_getDeviceIndex
        self._stream: Callable[[int], Any] = c._accelerator_getStream
        module = torch.get_device_module(device)
        self.capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", bool)

    def read(self, numbers: Any, tell: Tell) -> bool:
        """Have the agent's thread call ``tell`` with the values of a tensor of one dimension.
        Return whether it will: not if too many are awaited."""
        parts = numbers.split(_EACH) if len(numbers) > _EACH else (numbers,)
        taken = [one for _ in parts if (one := self._pool.one()) is not None]
        if len(taken) < len(parts):
            self._give(taken)
            return False
        copies = [
            memory[: part.nbytes].view(part.dtype)
            for part, (_, memory) in zip(parts, taken, strict=True)
        ]
        for copy, part in zip(copies, parts, strict=True):
            copy.copy_(part, non_blocking=True)
        taken[-1][0].record(self._stream(self.device.index))
        self._awaited.append((taken, copies, tell))
        return True

    def here(self) -> Any:
        """Return a context in which the device is current."""
        current = self._index() == self.device.index
        return nullcontext() if current else cuda_runtime.using(self.device)

    def poll(self) -> bool:
        """Read the numbers that the device has reached; return whether more are to come. Call from
        the agent's thread."""
        while self._awaited and self._awaited[0][0][-1][0].query():
            taken, copies, tell = self._awaited.popleft()
            values = [value for copy in copies for value in copy.tolist()]
            self._give(taken)
            tell(values)
        return bool(self._awaited)

    def _give(self, taken: Sequence[Any]) -> None:
        for one in taken:
            self._pool.give(one)
