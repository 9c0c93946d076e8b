"""Slices of a lane that overlap, spread over rows in which they nest: what trace viewers draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAX_ROWS = 16
"""Maximum number of rows; further slices share the last."""


def nesting_rows(begins: Array, ends: Array) -> tuple[Array, list[int]]:
    """Return (order by begin, the row of each in that order).

    In one row a slice begins after the one before it has ended, or lies whole within it.
    """
    order = np.lexsort((-ends, begins))
    t0, t1 = begins[order], ends[order]
    if not bool((t0[1:] < t1[:-1]).any()):
        return order, [0] * len(order)
    return order, _spread(t0.tolist(), t1.tolist())


def _spread(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """First row that fits; each row keeps the ends of what is still open in it, innermost last."""
    rows: list[list[int]] = [[]]
    placed = []
    for t0, t1 in zip(begins, ends, strict=True):
        at = next((i for i, row in enumerate(rows) if _fits(row, t0, t1)), len(rows))
        if at == len(rows) < MAX_ROWS:
            rows.append([])
        at = min(at, len(rows) - 1)
        rows[at].append(t1)
        placed.append(at)
    return placed


def _fits(row: list[int], t0: int, t1: int) -> bool:
    while row and row[-1] <= t0:
        row.pop()
    return not row or t1 <= row[-1]
