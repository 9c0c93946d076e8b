"""What an optimizer is set to, and to what its gradients are clipped, where ranks should have equal
ones. Told at an optimizer's step that has checksums."""

from __future__ import annotations

import functools
import zlib
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.memory import wrappers
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NO_GROUP, NONE, Flag, Kind, Lane

GROUPS_BIT: Final = 32
NO_LIMIT: Final = 1e6
"""Norm of gradients that no training clips to."""
_NUMBERS: Final = (int, float, bool, tuple)
"""Types of settings that are read: a tensor may be on a device."""
_OWN_NAMES: Final = ("step", "rank", "local_rank", "seed")
"""Of numbers that ranks may have of their own. Where a rank has no part of a group, fused
optimizers do not count its steps."""
_PROBE, _LANE, _FLOAT = int(Kind.PROBE), int(Lane.COUNTER), int(Flag.FLOAT)
_HOOK: Final = "probe.clip"


class Clipped:
    """The newest call that clipped gradients."""

    def __init__(self) -> None:
        self.step, self.limit = NONE, 0.0
        self.by_norm = False
        """By the norm of just those that it was given."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook what clips gradients."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clips = functools.partial(_clips, name == "clip_grad_norm_")
        patches.around(torch.nn.utils, name, _HOOK, clips)
    late.when_imported(
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        lambda m: patches.around(
            m.FullyShardedDataParallel, "clip_grad_norm_", _HOOK, functools.partial(_clips, False)
        ),
    )


def _clips(
    by_norm: bool, c: _core.Core, owner: Any, limit: Any = None, *_: Any, **__: Any
) -> None:  # fmt: skip
    """Note the limit. Without one the call asks for the norm, for a log of one rank perhaps."""
    if type(limit) in (int, float) and limit < NO_LIMIT:
        clipped = context.of(c).part(Clipped)
        clipped.step, clipped.limit, clipped.by_norm = c.step, float(limit), by_norm


def tell(c: _core.Core, optimizer: Any, look: int, wrapped: bool) -> None:
    """Write the PROBE record ``settings`` of an optimizer: a = its first learning rate (float64),
    b = a number that is equal where all of its numbers are, but those of _OWN_NAMES, and to what
    its gradients were clipped; from bit GROUPS_BIT on how many groups it has. And ``clips shard``
    where torch's own function clipped what FSDP1 shards: not where DDP has ``wrapped`` something
    that it may have been called for."""
    x = context.of(c)
    clipped, t = x.part(Clipped), now_ns()
    of = [
        [(name, v) for name, v in group.items() if type(v) in _NUMBERS and name not in _OWN_NAMES]
        for group in optimizer.param_groups
    ]
    rate = dict(of[0]).get("lr", 0.0)
    if clipped.step == c.step:
        clipped.step = NONE
        of.append([("clip", clipped.limit)])
        if clipped.by_norm and not wrapped and _shards_flat(x):
            c.record(
                _PROBE, _LANE, 0, c.defs.name("clips shard"), t, t, c.step, look, NO_GROUP, NONE,
                NONE, NONE, 0, 0,
            )  # fmt: skip
    digest = zlib.crc32(repr(of).encode()) | len(optimizer.param_groups) << GROUPS_BIT
    c.record_f(
        _PROBE, _LANE, _FLOAT, c.defs.name("settings"), t, t, c.step, look, NO_GROUP, NONE, NONE,
        NONE, rate, digest,
    )  # fmt: skip


def _shards_flat(x: context.Context) -> bool:
    """Return whether FSDP1 cuts parameters, and nothing else does."""
    held = wrappers.held(x)
    return bool(held) and not x.fsdp_groups and all(one.parameters_sharded for one in held)
