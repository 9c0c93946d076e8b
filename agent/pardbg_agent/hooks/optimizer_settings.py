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
        self.alone = False
        """By torch's own function, of a model that FSDP1 shards."""


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
        clipped.step, clipped.limit = c.step, float(limit)
        clipped.alone = by_norm and _of_fsdp(owner)


def _of_fsdp(parameters: Any) -> bool:
    """Return whether these are the ``parameters()`` of FSDP1. The generator's frame tells whose
    they are: to read from it would take them from the program."""
    frame = getattr(parameters, "gi_frame", None)
    module = frame.f_locals.get("self") if frame is not None else None
    return type(module).__name__ == "FullyShardedDataParallel"


def tell(c: _core.Core, optimizer: Any, look: int) -> None:
    """Write the PROBE record ``settings`` of an optimizer: a = its first learning rate (float64),
    b = a number that is equal where all of its numbers are, but those of _OWN_NAMES, and to what
    its gradients were clipped; from bit GROUPS_BIT on how many groups it has. And ``clips shard``
    where torch's own function clipped what FSDP1 has."""
    clipped, t = context.of(c).part(Clipped), now_ns()
    of = [
        [(name, v) for name, v in group.items() if type(v) in _NUMBERS and name not in _OWN_NAMES]
        for group in optimizer.param_groups
    ]
    rate = dict(of[0]).get("lr", 0.0)
    if clipped.step == c.step:
        clipped.step = NONE
        of.append([("clip", clipped.limit)])
        if clipped.alone:
            c.record(
                _PROBE, _LANE, 0, c.defs.name("clips shard"), t, t, c.step, look, NO_GROUP, NONE,
                NONE, NONE, 0, 0,
            )  # fmt: skip
    digest = zlib.crc32(repr(of).encode()) | len(optimizer.param_groups) << GROUPS_BIT
    c.record_f(
        _PROBE, _LANE, _FLOAT, c.defs.name("settings"), t, t, c.step, look, NO_GROUP, NONE, NONE,
        NONE, rate, digest,
    )  # fmt: skip
