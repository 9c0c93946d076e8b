"""Uneven inputs (``DistributedDataParallel.join``): a rank without batches takes part in the
reductions of the others. Each of their steps counts as one of its own: equal numbers are equal
steps."""

from __future__ import annotations

import weakref
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.hooks import context
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.hooks.training.cycle import Cycle
from pardbg_agent.life.late_imports import LateImports


class _Shadowing:
    """State of this rank since its inputs ended."""

    def __init__(self) -> None:
        self.joins: Any = weakref.WeakSet()
        self.step = -1
        """Number of the step when it last asked which ranks still have inputs."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook the query that a joined rank makes before each step of the other ranks."""
    late.when_imported(
        "torch.distributed.algorithms.join",
        lambda m: patches.around(m.Join, "_get_num_nonjoined_procs", "join", _before),
    )


def _before(c: _core.Core, join: Any, *_: Any) -> None:
    x = context.of(c)
    shadowing = x.part(_Shadowing)
    if join not in shadowing.joins:
        shadowing.joins.add(join)
    elif c.step == shadowing.step and x.part(Cycle).used and _reduced(join):
        step_phases.step_ended(c, x)
    shadowing.step = c.step


def _reduced(join: Any) -> bool:
    """Return whether the other ranks' last backward was averaged (not in ``no_sync``)."""
    models = (getattr(hook, "ddp", None) for hook in join._join_hooks)
    return all(getattr(model, "require_forward_param_sync", True) for model in models)
