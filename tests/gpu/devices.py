"""A kind of device as the rows need it: kernels of a stated length, and the truth about them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch

MS = 1_000_000


class Device(Protocol):
    """One process's device."""

    name: str

    def spin(self, ms: float) -> None:
        """Launch a kernel that takes about so long."""

    def truth(self) -> contextlib.AbstractContextManager[list[tuple[int, int]]]:
        """Collect (begin, end) in ns of those kernels that are launched inside; filled at exit."""

    def syncs(self) -> int | None:
        """Return the number of synchronizing calls so far; None: it cannot be counted."""

    def limit_memory(self, num_bytes: int | None) -> None:
        """Give this process no more memory than it has and so many bytes more; None: no limit."""

    def contexts(self) -> list[int]:
        """Return the devices that this process has a context on: hundreds of MB each."""


def own_index(num_devices: int) -> int:
    """Return this rank's device: one of its own where there are as many."""
    return int(os.environ.get("LOCAL_RANK", "0")) % max(1, num_devices)


class Sim:
    """The simulated accelerator, which logs what each kernel took."""

    name = "sim"

    def __init__(self) -> None:
        import pardbg.lab.sim.device as sim

        self._sim = sim
        torch.accelerator.set_device_index(own_index(torch.accelerator.device_count()))

    def spin(self, ms: float) -> None:
        self._sim.spend(ms, "spin")

    @contextlib.contextmanager
    def truth(self) -> Iterator[list[tuple[int, int]]]:
        found: list[tuple[int, int]] = []
        self._sim.take_log()
        yield found
        torch.accelerator.synchronize()
        found += [(e[4], e[5]) for e in self._sim.take_log() if e[0] == "spin"]

    def syncs(self) -> int | None:
        return int(self._sim.counts()["syncs"])

    def limit_memory(self, num_bytes: int | None) -> None:
        torch.accelerator.empty_cache()
        self._sim.settings.memory = (
            0 if num_bytes is None else torch.accelerator.memory_reserved() + num_bytes
        )

    def contexts(self) -> list[int]:
        bits = self._sim.counts()["contexts"]
        return [index for index in range(bits.bit_length()) if bits >> index & 1]


class Cuda:
    """A CUDA (or ROCm) device; torch.profiler's kernel times are the truth."""

    name = "cuda"

    def __init__(self) -> None:
        torch.cuda.set_device(own_index(torch.cuda.device_count()))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for cycles in (1_000_000, 10_000_000):  # the first one warms up
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            self._cycles_per_ms = cycles / begin.elapsed_time(end)

    def spin(self, ms: float) -> None:
        torch.cuda._sleep(int(ms * self._cycles_per_ms))

    @contextlib.contextmanager
    def truth(self) -> Iterator[list[tuple[int, int]]]:
        kinds, found = torch.profiler.ProfilerActivity, list[tuple[int, int]]()
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as seen:
            yield found
            torch.cuda.synchronize()
        events: Any = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
        found += sorted(
            (e.start_ns(), e.start_ns() + e.duration_ns()) for e in events
            if e.device_type() == torch.autograd.DeviceType.CUDA and "spin" in e.name()
        )  # fmt: skip

    def syncs(self) -> int | None:
        return None

    def limit_memory(self, num_bytes: int | None) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        wanted = total if num_bytes is None else torch.cuda.memory_reserved() + num_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted / total))

    def contexts(self) -> list[int]:
        c: Any = torch._C
        return [n for n in range(torch.cuda.device_count()) if c._cuda_hasPrimaryContext(n)]


def device(name: str) -> Device:
    """Return this process's device of a kind."""
    return Sim() if name == "sim" else Cuda()


def settle(seconds: float) -> None:
    """Leave the agent's thread time to read what the device has reached."""
    time.sleep(seconds)
