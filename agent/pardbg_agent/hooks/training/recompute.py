"""Activation checkpointing: forwards recomputed in backward, and the bytes they hold then.

``torch.utils.checkpoint`` without reentrance recomputes a forward inside ``_recomputation_hook``,
one object per region and backward. (The reentrant variant has no such place and is not hooked.)"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import local
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import Flag, Kind, Lane

NAME = "recompute"


def install(patches: Patches, late: LateImports) -> None:
    """Hook the checkpointed regions as soon as the program imports them."""
    late.when_imported("torch.utils.checkpoint", functools.partial(_hook, patches))


def _hook(patches: Patches, module: ModuleType) -> None:
    region = getattr(module, "_recomputation_hook", None)
    if region is None:
        return
    patches.around(region, "__init__", NAME, _made)
    patches.around(region, "__enter__", NAME, _begins)
    patches.around(region, "__exit__", NAME, _ends)


def _made(c: _core.Core, region: Any, frame: Any, gid: Any) -> None:
    region._pardbg_where = frame, gid


def _begins(c: _core.Core, region: Any) -> None:
    local().recompute += 1
    region._pardbg_t0 = now_ns()


def _ends(c: _core.Core, region: Any, *_: Any) -> None:
    t0 = vars(region).pop("_pardbg_t0", None)
    if t0 is None:
        return  # begun before us
    local().recompute -= 1
    if local().recompute:
        return  # a region within a region is part of it
    context.phase_record(
        c, int(Kind.PHASE), int(Lane.PHASE), int(Flag.RECOMPUTE), NAME, t0, now_ns()
    )
    x = context.of(c)
    if x.loop.saved is not None:
        x.recomputed_bytes = max(x.recomputed_bytes, _held(x.loop.saved, *region._pardbg_where))


def _held(saved: Any, frame: Any, gid: Any) -> int:
    """Return the bytes that autograd holds for the region beyond those held since the forward."""
    region, count = frame(), saved.beside()
    for tensor in region.recomputed[gid].values() if region is not None else ():
        count.add(tensor)
    return int(count.num_bytes)
