"""Memory of the rank's device: its allocator's statistics, and allocations that failed.

An allocator with an observer (CUDA's) reports each failed request where it is made; with any other
allocator the uncaught torch.OutOfMemoryError is reported. Never starts a device or waits for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.control.inspect import frames_of, traceback_of
from pardbg_agent.hooks.context import of
from pardbg_agent.wire import STATUS_NOW, STATUS_NOW_OFFSET, DefKind

MAX_REPORTS: Final = 16
"""Maximum number of failed requests reported: a program that probes its batch size has many."""
_SIZE: Final = re.compile(r"Tried to allocate ([\d.]+) (bytes|[KMGT]i?B)")
_UNITS: Final = {"b": 0, "K": 10, "M": 20, "G": 30, "T": 40}
Parts = Callable[[_core.Core], Mapping[str, int]]
"""Returns bytes by purpose."""


def id_of(device: torch.device) -> str:
    """Return the unique id of a device that is in use; empty where torch has none."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def stats(c: _core.Core) -> Mapping[str, Any] | None:
    """Return the allocator's nested statistics; None while the rank uses no device."""
    device = c.identity.device
    torch_c: Any = torch._C
    if hasattr(torch_c, "_accelerator_getDeviceStats"):
        if device == "cpu" or not torch_c._accelerator_isAllocatorInitialized():
            return None
        found: Mapping[str, Any] = torch_c._accelerator_getDeviceStats(_index(c))
        return found
    if device == "cuda" and torch.cuda.is_initialized():
        return torch.cuda.memory_stats_as_nested_dict(_index(c))
    return None


def held(c: _core.Core) -> dict[str, tuple[int, int]]:
    """Return (bytes, their peak) by ``allocated`` and ``reserved``, as far as the allocator has
    them; empty while the rank uses no device, or where a pluggable one keeps no statistics."""
    return c.guard.call("allocator", _held, c) or {}


def _held(c: _core.Core) -> dict[str, tuple[int, int]]:
    found, said = {}, stats(c) or {}
    for name in ("allocated", "reserved"):
        now = said.get(f"{name}_bytes", {}).get("all", {})
        if "current" in now:
            found[name] = int(now["current"]), int(now.get("peak", now["current"]))
    return found


def limit_bytes(c: _core.Core) -> int:
    """Return the bytes that the rank may allocate on its device, which is in use."""
    index = _index(c)
    if c.identity.device != "cuda":
        return int(torch.accelerator.get_memory_info(index)[1])
    # A constant of the device: no call that could wait.
    total = int(torch.cuda.get_device_properties(index).total_memory)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(index)
    return max(1, int(total * min(1.0, float(share))))


def _index(c: _core.Core) -> int:
    """Return the index of the rank's device, which need not be the program's current one."""
    if c.device is not None:
        return int(c.device.device.index)
    current: Any = getattr(torch._C, "_accelerator_getDeviceIndex", None)  # torch 2.5 has none
    return int((current or torch.cuda.current_device)())


# -- failed requests


@dataclass(slots=True)
class FailedRequests:
    """State of failed requests for one Core."""

    watched: bool = False
    observed: bool = False
    """Whether the allocator reports failed requests."""
    num_reported: int = 0


_attached: set[str] = set()
"""Device types whose allocator has our observer, which cannot be removed."""


def watch(c: _core.Core, device: str, parts: Parts) -> None:
    """Report failed requests on devices of this type, which is in use, from now on."""
    known = of(c).part(FailedRequests)
    if known.watched or c.run is None:
        return
    known.watched = True
    c.out_of_memory = partial(_raised, c, parts)
    attach = getattr(torch._C, f"_{device}_attach_out_of_memory_observer", None) or getattr(
        torch.get_device_module(device), "attach_out_of_memory_observer", None
    )
    if attach is not None and device not in _attached:
        attach(partial(_observed, parts))
        _attached.add(device)
    known.observed = attach is not None


def _observed(parts: Parts, device: int, asked: int, limit: int, free: int) -> None:
    """Report a failed request; called in the allocating thread, before the allocator raises."""
    c = _core.CURRENT
    if c is not None and c.run is not None:
        frames = frames_of(sys._getframe())
        c.guard.call("out of memory", _report, c, parts, device, asked, limit, free, frames)


def _raised(c: _core.Core, parts: Parts, error: BaseException) -> None:
    """Report an uncaught torch.OutOfMemoryError that no observer has reported."""
    if not of(c).part(FailedRequests).observed:
        frames = traceback_of(error.__traceback__)
        free, limit = c.guard.call("device limit", _memory_info, c) or (None, 0)
        _report(c, parts, _index(c), _asked(str(error)), limit, free, frames)


def _memory_info(c: _core.Core) -> tuple[int, int]:
    free, limit = torch.accelerator.get_memory_info(_index(c))
    return free, limit


def _asked(text: str) -> int | None:
    found = _SIZE.search(text)
    return int(float(found[1]) * (1 << _UNITS[found[2][0]])) if found else None


def _report(
    c: _core.Core, parts: Parts, index: int, asked: int | None, limit: int, free: int | None,
    frames: Any,
) -> None:  # fmt: skip
    known = of(c).part(FailedRequests)
    if known.num_reported >= MAX_REPORTS:
        return
    known.num_reported += 1
    step, phase, action, stage, mb, *_ = STATUS_NOW.unpack_from(c.ring.buffer, STATUS_NOW_OFFSET)
    by_kind = {kind: held(c).get(kind, (0, 0))[0] for kind in ("allocated", "reserved")}
    c.defs.put(
        DefKind.OUT_OF_MEMORY, t_ns=now_ns(), device=f"{c.identity.device}:{index}", asked=asked,
        limit=limit, free=free, **by_kind, parts=c.guard.call("memory", parts, c) or {}, step=step,
        phase=phase, action=action, stage=stage, mb=mb, frames=frames,
    )  # fmt: skip
