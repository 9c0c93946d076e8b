"""Samples that a DistributedSampler gives a rank, and their order: one that shuffles draws it from
its epoch's number, which the program has to set (``set_epoch``).

- **part of samples**: a = number of parts, b = the rank's; at the begin of each epoch.
- **same order**: b = number of epochs in a row with the same number (a), each with steps before the
  next epoch of any sampler. Not where modules that train are in eval mode, or without gradients:
  the order of an evaluation has no effect."""

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
from pardbg_agent.wire import Kind

MAX_TOLD: Final = 64
"""Maximum number of records of one kind, of one sampler."""


@dataclass(slots=True)
class _Epoch:
    """Epoch of a sampler."""

    number: int
    step: int
    times: int
    """Number of epochs in a row that had this epoch number."""
    trained: bool = False
    """Whether steps came before any sampler's next epoch."""


class Epochs:
    """Newest epoch of each sampler, and of all samplers."""

    def __init__(self) -> None:
        self.of: Any = weakref.WeakKeyDictionary()
        self.newest: _Epoch | None = None
        self.number = 0
        """Number of epochs of training that were begun."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook the sampler's begin of an epoch."""
    late.when_imported(
        "torch.utils.data.distributed",
        lambda m: patches.around(m.DistributedSampler, "__iter__", "sampler", _begins),
    )


def _begins(c: _core.Core, sampler: Any) -> None:
    known, number = context.of(c).part(Epochs), int(sampler.epoch)
    if known.newest is not None:
        known.newest.trained = c.step > known.newest.step
    before: _Epoch | None = known.of.get(sampler)
    one = known.of[sampler] = known.newest = _Epoch(number, c.step, 1)
    if not torch.is_grad_enabled() or _evaluates(c):
        return
    known.number += 1
    if known.number <= MAX_TOLD:
        parts, part = int(sampler.num_replicas), int(sampler.rank)
        c.mark(Kind.PROBE, "part of samples", now_ns(), parts, part)
    if before is None or before.number != number or not before.trained:
        return
    if sampler.shuffle is True:
        one.times = before.times + 1
        if one.times <= MAX_TOLD:
            c.mark(Kind.PROBE, "same order", now_ns(), number, one.times)


def _evaluates(c: _core.Core) -> bool:
    """Return whether a module with parameters that are trained is in eval mode."""
    modules = (ref() for ref in context.of(c).part(Evaluated))
    evaluated = (m for m in modules if m is not None and not m.training)
    return any(p.requires_grad for m in evaluated for p in m.parameters())
