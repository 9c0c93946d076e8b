"""Collectives of a block compared with its siblings': ops that it lacks or issues twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.ops import UNKNOWN_OP, group_label, unknown_group
from pardbg.analysis.same.activations import Activation, place_in_block
from pardbg.events.fields import MAX_NUMBER
from pardbg.store.intake import ISSUE_COLLECTIVE
from pardbg.store.store import Store

Ops = Counter[tuple[str, str, int]]
"""(op, group, bytes) -> number of times"""


@dataclass(frozen=True, slots=True)
class Beside:
    """Collective that a block issues unlike most of its siblings, in its forward or backward."""

    block: str
    backward: bool
    op: str
    group: str
    bytes: int
    times: int
    usual: int
    """Number of times that most siblings issue it."""
    siblings: int
    """Number of blocks compared, itself included."""


def beside(
    store: Store, known: Sequence[Activation], name: str, backward: bool
) -> tuple[Beside, ...]:
    """Return the collectives in which the block of module ``name`` differs from most of its
    siblings, on the lowest rank that has the block."""
    block = _block(name)
    if not block:
        return ()
    alike = place_in_block(block)
    rank = min((a.order[0] for a in known if a.name == block), default=-1)
    found = {
        other: ops
        for other, spans in _spans(known, rank, backward).items()
        if place_in_block(other) == alike and (ops := _ops(store, rank, spans)) is not None
    }
    if block not in found or len(found) < 3:
        return ()
    keys = sorted({key for ops in found.values() for key in ops})
    usual = {key: Counter(o[key] for o in found.values()).most_common(1)[0][0] for key in keys}
    return tuple(
        Beside(block, backward, *key, found[block][key], usual[key], len(found))
        for key in keys
        if found[block][key] != usual[key]
    )


def _block(name: str) -> str:
    """Return the name up to its last number: ``blocks.1`` for ``blocks.1.mlp``."""
    parts = name.split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)


def _spans(
    known: Sequence[Activation], rank: int, backward: bool
) -> dict[str, list[tuple[int, int]]]:
    """Return module -> intervals in which it ran on a rank, in ns of its host's clock. A backward
    ends where that of a module begins that is not inside it."""
    if not backward:
        times = {a.name: a.times.get(rank, ()) for a in known if a.what == "out"}
        return {name: list(zip(t[::2], t[1::2], strict=False)) for name, t in times.items()}
    begins = sorted((t, a.name) for a in known if a.what == "d_out" for t in a.times.get(rank, ()))
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, (begin, name) in enumerate(begins):
        later = (t for t, other in begins[at + 1 :] if not other.startswith(f"{name}."))
        end = next(later, None)
        if end is not None:
            found[name].append((begin, end))
    return found


def _ops(store: Store, rank: int, spans: Sequence[tuple[int, int]]) -> Ops | None:
    """Return a rank's collectives in these intervals; None: it has no intervals."""
    process = store.rank_procs(None).get(rank)
    if process is None or not spans:
        return None
    process.settle()
    table, view = process.table(ISSUE_COLLECTIVE), View(store, None)
    found: Ops = Counter()
    for begin, end in spans:
        own = (min(max(t, 0), MAX_NUMBER) + process.offset_ns for t in (begin, end))
        lo, hi = (int(np.searchsorted(table.when, t, side="left")) for t in own)
        for op, group, a, b in table.tuples(np.arange(lo, hi), "name_id", "group_id", "a", "b"):
            of = process.groups.get(group) or unknown_group(process, group)
            name = process.ops.get(op, UNKNOWN_OP).op
            found[name, group_label(view, of), max(a, b, 0)] += 1
    return found
