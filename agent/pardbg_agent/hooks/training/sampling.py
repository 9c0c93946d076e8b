"""Epochs in one order: a DistributedSampler that shuffles draws its order from its epoch's number,
which the program has to set (``set_epoch``).

- **same order**: b = how many times in a row it began an epoch of the same number (a), each time
  after steps of training. Not where modules that train are in eval mode, or without gradients: the
  order of an evaluation matters to nobody.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.module_settings import Evaluated
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NO_GROUP, NONE, Kind, Lane

MAX_TOLD: Final = 64
"""Records of one sampler."""
_PROBE, _LANE = int(Kind.PROBE), int(Lane.COUNTER)


@dataclass(slots=True)
class _Epoch:
    """The newest one of a sampler."""

    number: int
    step: int
    times: int = 1
    """Epochs in a row that had this number."""


class Epochs(weakref.WeakKeyDictionary[Any, _Epoch]):
    """sampler -> _Epoch"""


def install(patches: Patches, late: LateImports) -> None:
    """Hook the sampler's begin of an epoch."""
    late.when_imported(
        "torch.utils.data.distributed",
        lambda m: patches.around(m.DistributedSampler, "__iter__", "sampler", _begins),
    )


def _begins(c: _core.Core, sampler: Any) -> None:
    if sampler.shuffle is not True or not torch.is_grad_enabled() or _evaluates(c):
        return
    known, number = context.of(c).part(Epochs), int(sampler.epoch)
    before = known.get(sampler)
    if before is None or before.number != number or c.step <= before.step:
        known[sampler] = _Epoch(number, c.step)
        return
    before.step, before.times = c.step, before.times + 1
    if before.times <= MAX_TOLD:
        t = now_ns()
        c.record(
            _PROBE, _LANE, 0, c.defs.name("same order"), t, t, c.step, 0, NO_GROUP, NONE, NONE,
            NONE, number, before.times,
        )  # fmt: skip


def _evaluates(c: _core.Core) -> bool:
    """Return whether a module with parameters that are trained is in eval mode."""
    modules = (ref() for ref in context.of(c).part(Evaluated))
    evaluated = (m for m in modules if m is not None and not m.training)
    return any(p.requires_grad for m in evaluated for p in m.parameters())
