"""Matched collectives as columns, for those who look at all of many: a row is made of those that
something is said of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from pardbg.analysis.base.matched import CollectiveRow
from pardbg.analysis.base.rank_columns import Columns
from pardbg.store.table import Array

TRUE_ENDS: Final = ("completed", "device")
"""Sources of a true end: one known only from a wait says when somebody looked."""
UNTIMED: Final = ("", "polled")
"""Sources that time nothing: that it completed is known, and not when, or not before a poll came
by."""

Make = Callable[[list[int]], Iterable[CollectiveRow]]
"""Makes rows of some."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Collectives in order of step, those of one step by their first arrival."""

    of: Columns
    """One value per collective: ``step``, ``group`` (a number), ``op`` (its place in ``ops``),
    ``bytes``, ``transfer_ns`` (-1: not known), ``wait_ns``, ``last_rank``, ``true_ends`` (of all
    ranks), ``count`` (of ranks)."""
    parts: Columns
    """One value per rank of each: ``rank``, ``issued_ns``, ``done_ns``."""
    ops: Sequence[str]
    make: Make

    def __len__(self) -> int:
        return len(self.of["step"])

    @cached_property
    def starts(self) -> Array:
        """Return the first part of each."""
        counts = self.of["count"]
        begins: Array = np.cumsum(counts) - counts
        return begins

    @cached_property
    def row_of(self) -> Array:
        """Return which collective each part is of."""
        return np.repeat(np.arange(len(self)), self.of["count"])

    @cached_property
    def _made(self) -> dict[int, CollectiveRow]:
        return {}

    def row(self, at: int) -> CollectiveRow:
        """Return a collective."""
        return self.rows([at])[0]

    def rows(self, wanted: Sequence[int]) -> list[CollectiveRow]:
        """Return some."""
        made = self._made
        if new := [at for at in wanted if at not in made]:
            made.update(zip(new, self.make(new), strict=True))
        return [made[at] for at in wanted]

    def half_ns(self) -> Array:
        """Return when half of the ranks of each had issued it."""
        ordered = np.lexsort((self.parts["issued_ns"], self.row_of))
        if not len(self):
            return ordered
        half: Array = self.parts["issued_ns"][ordered][self.starts + (self.of["count"] - 1) // 2]
        return half


def by_step(of: Columns, parts: Columns, ops: Sequence[str], make: Make) -> Collected:
    """Return collectives with two ranks at least in order of step: the step whose first one comes
    first is the first. Else their order stays."""
    _, firsts, inverse = np.unique(of["step"], return_index=True, return_inverse=True)
    order = np.argsort(firsts[inverse], kind="stable")
    order = order[of["count"][order] > 1]
    counts = of["count"][order]
    begins = (np.cumsum(of["count"]) - of["count"])[order]
    at = np.arange(int(counts.sum())) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return Collected(
        {name: column[order] for name, column in of.items()},
        {name: column[at] for name, column in parts.items()},
        ops,
        lambda places: make(order[places].tolist()),
    )


def of_rows(steps: Sequence[int], rows: Sequence[CollectiveRow]) -> Collected:
    """Return matched rows as columns; ``steps``: what to take for theirs."""
    keys = {key: i for i, key in enumerate(dict.fromkeys(row.key for row in rows))}
    ops = {op: i for i, op in enumerate(dict.fromkeys(row.op for row in rows))}
    values = [
        (step, keys[row.key], ops[row.op], row.bytes,
         -1 if row.transfer_ns is None else row.transfer_ns, row.wait_ns or 0,
         -1 if row.last_rank is None else row.last_rank,
         all(a.source in TRUE_ENDS for a in row.arrivals), len(row.arrivals))
        for step, row in zip(steps, rows, strict=True)
    ]  # fmt: skip
    names = (
        "step", "group", "op", "bytes", "transfer_ns", "wait_ns", "last_rank", "true_ends", "count",
    )  # fmt: skip
    parts = [a[:3] for row in rows for a in row.arrivals]
    return by_step(
        dict(zip(names, np.array(values, np.int64).reshape(-1, len(names)).T, strict=True)),
        dict(zip(("rank", "issued_ns", "done_ns"), np.array(parts, np.int64).reshape(-1, 3).T,
                 strict=True)),
        list(ops), lambda places: [rows[place] for place in places],
    )  # fmt: skip
