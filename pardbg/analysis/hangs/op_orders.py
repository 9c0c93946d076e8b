"""Orders of ops of ranks, compared with each rank's earlier ops and with other ranks': among ranks
that wait for each other, the odd one out left an op out or issued one too many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.ops import UNKNOWN_OP
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent import wire

_LAST: Final = 2048
"""Maximum number of ops compared, per rank and table."""
_CLEAR: Final = 2
"""Minimum factor between the repeats of the other ranks and those of the odd one."""
_LEAST: Final = 8
"""Minimum number of ops in the same order, for what follows them."""
_SEND: Final = int(wire.Flag.SEND)
_COLUMNS: Final = ("t0_ns", "name_id", "group_id", "peer", "flags")
_NO_PEER: Final = -2
Code = Callable[[Process, int, int, int, bool], object]
"""(process, op id, group id, peer relative to the own rank or _NO_PEER, whether it sends) -> value
that is compared"""


def odd_one_out(view: View, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the one of these ranks whose newest ops repeat least of its own earlier ones; without
    such a history, the one without which all ranks of the job have the same order; empty: not
    known."""
    repeated = {rank: _repeated(_order(view, rank, _own)) for rank in ranks}
    odd, *others = sorted(repeated, key=lambda rank: repeated[rank])
    if others and repeated[others[0]] >= max(_CLEAR * repeated[odd], 2):
        return (odd,)
    orders = {rank: _order(view, rank, _alike) for rank in view.ranks}
    found = [rank for rank in ranks if _all_fit([of for r, of in orders.items() if r != rank])]
    return (found[0],) if len(found) == 1 and not _all_fit(list(orders.values())) else ()


def followed(order: Sequence[object]) -> object | None:
    """Return the op that followed each time that the newest ops came in this order before: half as
    many as repeat, at least eight, of more than one kind. None: not known, or several did."""
    coded = _coded(order)
    run = next((i for i, one in enumerate(order[::-1]) if one != order[-1]), len(order))
    least = max(run + 1, _LEAST, _ends(coded, len(coded))[0] // 2)
    length, ends = _ends(coded, least)
    after = {order[end + 1] for end in ends.tolist()} if length == least else ()
    return after.pop() if len(after) == 1 else None


def _order(view: View, rank: int, code: Code) -> list[object]:
    """Return the codes of the rank's newest ops in order of issue."""
    process, size, rows = view.ranks[rank], len(view.ranks), []
    for name in ("issue", "issue_p2p"):
        table, visible = view.rows(process, name)
        tail = slice(max(0, visible - _LAST), visible)
        for t_ns, op, group, peer, flags in table.tuples(tail, *_COLUMNS):
            of = (peer - rank) % size if name == "issue_p2p" else _NO_PEER
            rows.append((t_ns, code(process, op, group, of, bool(flags & _SEND))))
    return [coded for _, coded in sorted(rows, key=lambda row: row[0])][-_LAST:]


def _own(process: Process, op: int, group: int, peer: int, send: bool) -> object:
    return op, group, peer, send


def _alike(process: Process, op: int, group: int, peer: int, send: bool) -> object:
    """Return the code of an op in terms shared by ranks of other groups and neighbours."""
    of = process.groups.get(group)
    return process.ops.get(op, UNKNOWN_OP).op, of and (of.axis, len(of.ranks)), peer, send


def _repeated(order: Sequence[object]) -> int:
    """Return the number of newest ops that occurred before in the same order."""
    return _ends(_coded(order), len(order))[0]


def _coded(order: Sequence[object]) -> Array:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in order], np.int64)


def _ends(coded: Array, most: int) -> tuple[int, Array]:
    """Return (number of newest ops, at most so many, that occurred before in the same order; where
    these occurrences end)."""
    length, ends = 0, np.arange(len(coded) - 1)
    while length < min(most, len(coded) - 1):
        more = ends[ends >= length]
        more = more[coded[more - length] == coded[len(coded) - 1 - length]]
        if not len(more):
            break
        length, ends = length + 1, more
    return length, ends


def _all_fit(orders: Sequence[Sequence[object]]) -> bool:
    """Return whether at least two orders are all prefixes of the longest of them."""
    longest = max(orders, key=len, default=())
    return len(orders) > 1 and all(of and of == longest[: len(of)] for of in orders)
