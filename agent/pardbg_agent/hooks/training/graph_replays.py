"""Replays of captured graphs: captured work runs on the device again, without any hook."""

from __future__ import annotations

from typing import Any

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.context import phase_record
from pardbg_agent.hooks.device.device_records import CAPTURED, HOOK
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import Flag, Kind, Lane

_SPAN, _USER, _TIMED = int(Kind.SPAN), int(Lane.USER), int(Flag.DEVICE)


def install(patches: Patches, late: LateImports) -> None:
    """Hook the graphs of torch's devices."""
    for module, name in (("cuda", "CUDAGraph"), ("accelerator", "Graph")):
        owner = getattr(getattr(torch, module, None), name, None)
        if owner is not None:  # torch.accelerator came with 2.6, its Graph later
            patches.around(owner, "replay", "device graph", _before, _after)


def _before(c: _core.Core, *_: Any) -> Any:
    t0 = now_ns()
    if c.device is None or c.level < 2:
        return None
    return t0, c.guard.call(HOOK, c.device.begin, t0)


def _after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    t0, span = what
    name = c.defs.name(CAPTURED)
    timed = c.device is not None and c.guard.call(HOOK, c.device.ended, span, _USER, name)
    phase_record(c, _SPAN, _USER, _TIMED if timed else 0, CAPTURED, t0, t1)
