"""Settings of an optimizer and the limit its gradients are clipped to, which ranks should have
equal. Recorded at an optimizer's step that has checksums."""

from __future__ import annotations

import functools
import zlib
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.tensors import number_of
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NONE, Kind

GROUPS_BIT: Final = 32
NO_LIMIT: Final = 1e6
"""Gradient norm that no training clips to."""
_NUMBERS: Final = (int, float, bool)
"""Types of settings that are read, also in tuples, and in tensors of one number on the host."""
_OWN_NAMES: Final = ("step", "rank", "local_rank", "seed")
"""Settings that may differ between ranks. On a rank without a part of a group, fused optimizers do
not count its steps."""
_HOOK: Final = "probe.clip"


class Clipped:
    """Latest call that clipped gradients."""

    def __init__(self) -> None:
        self.step, self.limit = NONE, 0.0
        self.part = ""
        """``clips shard`` or ``clips stage`` if torch's own function clipped gradients of a model
        that FSDP1 shards, or of a pipeline's stage; else empty."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook the functions that clip gradients."""
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
    """Note the limit. A call without one asks only for the norm, perhaps for one rank's log."""
    if type(limit) in (int, float) and limit < NO_LIMIT:
        clipped = context.of(c).part(Clipped)
        clipped.step, clipped.limit = c.step, float(limit)
        stage = context.of(c).actions is not None
        part = "clips shard" if _of_fsdp(owner) else "clips stage" if stage else ""
        clipped.part = part if by_norm else ""


def _of_fsdp(parameters: Any) -> bool:
    """Return whether these are the ``parameters()`` of FSDP1. The generator's frame shows its
    module: reading from the generator would take the parameters from the program."""
    frame = getattr(parameters, "gi_frame", None)
    module = frame.f_locals.get("self") if frame is not None else None
    return type(module).__name__ == "FullyShardedDataParallel"


def _number(setting: Any) -> Any:
    """Return a setting as numbers; None: it is something else, or on a device, which would wait."""
    if type(setting) is tuple:
        return tuple(map(_number, setting))
    if type(setting) is not torch.Tensor:
        return setting if type(setting) in _NUMBERS else None
    here = setting.device.type == "cpu" and setting.numel() == 1 and setting.is_floating_point()
    return number_of(setting) if here else None


def tell(c: _core.Core, optimizer: Any, look: int) -> None:
    """Write the PROBE record ``settings`` of an optimizer: a = its first learning rate (float64), b
    = a checksum of all its numbers, without _OWN_NAMES, and of the limit its gradients were clipped
    to; from bit GROUPS_BIT on its number of groups. And write ``clips shard`` if torch's own
    function clipped FSDP1's gradients, ``clips stage`` if it did a pipeline's, with the limit in a:
    it knows only the rank's own norm."""
    clipped, t = context.of(c).part(Clipped), now_ns()
    of = [
        [(name, number) for name, value in group.items()
         if name not in _OWN_NAMES and (number := _number(value)) is not None]
        for group in optimizer.param_groups
    ]  # fmt: skip
    rate = dict(of[0]).get("lr", 0.0)
    if clipped.step == c.step:
        clipped.step = NONE
        of.append([("clip", clipped.limit)])
        if clipped.part:
            c.mark(Kind.PROBE, clipped.part, t, float(clipped.limit), seq=look)
    digest = zlib.crc32(repr(of).encode()) | len(optimizer.param_groups) << GROUPS_BIT
    c.mark(Kind.PROBE, "settings", t, float(rate), digest, look)
