"""Gradients that ranks exchange, by the bytes they sum after each backward. Facts for detectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.store.definitions import GroupDef, ModelDef
from pardbg.store.process import Process
from pardbg.store.table import Table

MIN_STEPS: Final = 3
"""Minimum steps of a run that has ended. While it runs, local SGD may average later."""
SMALL_BYTES: Final = 1024
"""Losses, counts and flags are smaller, gradients and activations larger."""
PHASES_BACK: Final = 1 << 14
"""Phases per rank that are looked at where not all of a run matter."""
_BACKWARDS: Final = 16


def averages_on(view: View, process: Process, model: ModelDef) -> Iterable[tuple[GroupDef, int]]:
    """Return (group, times) where exactly a model's bytes, or twice as many, are summed between
    each of the last backwards and the optimizer's step after it: gradients, since parameters are
    averaged after a step. In the model's dtype, where it has one: in another they take more."""
    begun, _, _ = backwards(view, process, PHASES_BACK)
    steps, _, _ = backwards(view, process, PHASES_BACK, "optimizer")
    begun = begun[begun < steps.max(initial=0)][-_BACKWARDS:]
    if len(begun) < MIN_STEPS:
        return
    until = steps[steps.searchsorted(begun)]
    ops = [
        i for i, op in process.ops.items()
        if op.op == "all_reduce" and model.dtype in ("", op.dtype)
    ]  # fmt: skip
    issues, part = issued_since(view, process, begun[0])
    when, groups = issues.when[part], issues.col("group_id")[part]
    at = begun.searchsorted(when, "right") - 1
    inside = (when < until[at]) & np.isin(issues.col("name_id")[part], ops)
    for group_id in np.unique(groups[inside]).tolist():
        of = inside & (groups == group_id)
        moved = np.bincount(at[of], issues.col("a")[part][of], len(begun))
        for times in (1, 2):
            beyond = moved - times * model.parameters_bytes
            exact = ((beyond >= 0) & (beyond <= SMALL_BYTES)).all()
            if exact and group_id in process.groups:
                yield process.groups[group_id], times


def may_share_losses(view: View, process: Process) -> bool:
    """Return whether ranks exchange something from a forward's begin (where none is known, from an
    optimizer's step) to the backward after it: backward may begin from a loss that they averaged,
    or that follows from what all of them computed. Buffers and batches are broadcast."""
    begun, _, _ = backwards(view, process, PHASES_BACK)
    computed, _, _ = backwards(view, process, PHASES_BACK, "forward")
    if not len(computed):
        _, computed, _ = backwards(view, process, PHASES_BACK, "optimizer")
    if not len(begun) or not len(computed):
        return False
    issues, part = issued_since(view, process, begun[0])
    when, ops = issues.when[part], [i for i, op in process.ops.items() if op.op != "broadcast"]
    computed = np.sort(computed)[np.sort(computed).searchsorted(when, "right") - 1]
    mixes = np.isin(issues.col("name_id")[part], ops) & (issues.col("a")[part] > 0)
    before = (computed <= when) & (computed > begun[begun.searchsorted(when, "right") - 1])
    return bool((mixes & before).any())


def issued_since(view: View, process: Process, since_ns: int) -> tuple[Table, slice]:
    table, visible = view.rows(process, "issue")
    return table, slice(int(table.when[:visible].searchsorted(since_ns)), visible)


def backwards(
    view: View, process: Process, last: int = 1 << 62, of: str = "backward"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin and end of each backward among the last phases, in ns, and its step, by their begin."""
    table, visible = view.rows(process, "phase")
    lo = max(0, visible - last)
    names = [i for i, name in process.names.items() if name == of]
    rows = lo + np.flatnonzero(np.isin(table.col("name_id")[lo:visible], names))
    rows = rows[table.col("t0_ns")[rows].argsort()]
    begun, ended, steps = (table.col(c)[rows] for c in ("t0_ns", "t1_ns", "step"))
    return begun, ended, steps
