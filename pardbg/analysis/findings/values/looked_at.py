"""Ranks that looked for NaN in the inputs of their ops: on a device only samples are read, and of
some inputs none. Facts for detectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import device
from pardbg.analysis.findings.values.exchanged import SUMS
from pardbg.store.process import Process
from pardbg_agent import wire

LARGE_BYTES: Final = 16_384
FEW_BYTES: Final = 64
"""Maximum size of norms, losses and counts, in bytes: they are summed after what they are of."""
MAX_SUMS: Final = 2
"""Number of sums of LARGE_BYTES or more that ranks look at on a device: the first, the last."""
MAX_SENDS: Final = 32
"""Maximum number of a rank's messages in a step that it looks at on a device."""
_FINITE: Final = "inputs finite"
"""Name of the record of the steps before a rank's first number on a device that is not finite."""
_UNREAD: Final = "inputs unread"
"""Name of the records of steps in which inputs were due and not read; a = 1: and all before."""
_SEND: Final = int(wire.Flag.SEND)


def looked_at_inputs(view: View, ranks: Iterable[int], step: int) -> bool:
    """Return whether all these ranks looked for NaN in their ops' inputs in a step; in host memory
    each rank does."""
    return all(_looked(view, view.ranks[rank], step) for rank in ranks if rank in view.ranks)


def looked_at_sums(view: View, step: int, losses: dict[int, int]) -> bool:
    """Return whether all ranks looked for NaN in all large sums that the ``losses`` of a step,
    rank -> time, may come from: those of the step before, whose results the optimizer took, and
    those of the step itself until then."""
    return all(
        _all_sums(view, process, step, losses.get(rank, view.now_ns))
        for rank, process in view.ranks.items() if device(process)
    )  # fmt: skip


def _all_sums(view: View, process: Process, step: int, until_ns: int) -> bool:
    before = _large_sums(view, process, step, until_ns)
    if before > 1 or (before and not _looked(view, process, step)):
        return False
    passed = step == 0 or _looked(view, process, step - 1)
    return passed and _large_sums(view, process, step - 1) <= MAX_SUMS


def _large_sums(view: View, process: Process, step: int, until_ns: int | None = None) -> int:
    """Return the largest number of large sums on a group in a step."""
    groups, sizes = _moved(view, process, step, SUMS, until_ns)
    return int(np.bincount(groups[sizes >= LARGE_BYTES], minlength=1).max())


def mixed_elsewhere(view: View, rank: int, step: int, but: str) -> bool:
    """Return whether a rank on a device takes part, in a step, in all_to_alls, or in sums not on
    the group of key ``but``, whose inputs nobody looks at: a NaN that another rank brings to one of
    them is in its own values from there on, as with tensor or expert parallelism."""
    process = view.ranks[rank]
    if not device(process):
        return False
    tokens, sizes = _moved(view, process, step, ("all_to_all",))
    if (sizes[~np.isin(tokens, _without(process, ""))] > FEW_BYTES).any():
        return True
    groups, sizes = _moved(view, process, step, SUMS)
    counts = ~np.isin(groups, _without(process, but)) & (sizes > FEW_BYTES)
    large = np.bincount(groups[counts & (sizes >= LARGE_BYTES)], minlength=1)
    return bool((counts & (sizes < LARGE_BYTES)).any() or large.max() > MAX_SUMS)


def _without(process: Process, but: str) -> list[int]:
    """Return the ids of the group of a key, and of those of one rank."""
    return [i for i, group in process.groups.items() if group.key == but or len(group.ranks) < 2]


def _moved(
    view: View, process: Process, step: int, ops: Iterable[str], until_ns: int | None = None
) -> tuple[Any, Any]:
    """Return (group ids, bytes) of a rank's ops in a step, of those issued until a time."""
    issues, visible = view.rows(process, "issue")
    lo, hi = np.searchsorted(issues.col("step")[:visible], (step, step + 1))
    ids = [i for i, op in process.ops.items() if op.op in ops]
    of = np.isin(issues.col("name_id")[lo:hi], ids)
    if until_ns is not None:
        of &= issues.when[lo:hi] < until_ns
    return issues.col("group_id")[lo:hi][of], issues.col("a")[lo:hi][of]


def _looked(view: View, process: Process, step: int) -> bool:
    if not device(process):
        return True
    table, visible = view.rows(process, "issue_p2p")
    sends = (table.col("flags")[:visible] & _SEND != 0) & (table.col("step")[:visible] == step)
    if np.count_nonzero(sends) > MAX_SENDS or _off(view, process, step):
        return False
    table, visible = view.rows(process, "probe")
    names = table.col("name_id")[:visible]

    def told(name: str, *columns: str) -> Iterable[tuple[int, ...]]:
        rows = np.flatnonzero(np.isin(names, process.ids(name)))
        return table.tuples(rows, *columns)

    if any(step == of or (before and step < of) for of, before in told(_UNREAD, "step", "a")):
        return False
    until = (step <= newest and step % every == 0 for newest, every in told(_FINITE, "a", "b"))
    return any(of == step for (of,) in told("nan", "step")) or any(until)


def _off(view: View, process: Process, step: int) -> bool:
    """Return whether recording was off for a part of a step: then nothing was looked at."""
    table, visible = view.rows(process, "step")
    at, after = np.searchsorted(table.col("step")[:visible], (step, step + 1))
    begins = table.col("t0_ns")[at:after]
    ended = table.when[at:after]
    since = int(begins[0]) if len(begins) else view.now_ns
    return process.unrecorded_since(since, int(ended[-1]) if len(ended) else view.now_ns)
