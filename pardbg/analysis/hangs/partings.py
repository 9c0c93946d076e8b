"""Point at which the ops of two ranks parted before a mismatch showed it: an op too few in a
forward is matched by one of the same kind, until a much later backward reaches another op."""

from __future__ import annotations

from typing import Final, NamedTuple

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.op_rows import CollectiveRow

_UNSHARD: Final = " unshard"
_WAIT: Final = " wait"
_MOST_UNITS: Final = 4
_MOST: Final = 20_000
"""Maximum number of ops and units of a step that are looked at."""


class Parting(NamedTuple):
    """First phase of a step in which two ranks issued unlike numbers of ops on a group."""

    phase: str
    ranks: tuple[int, int]
    ops: tuple[int, int]
    units: tuple[tuple[int, tuple[str, ...]], ...]
    """(rank, sharded units that the other rank gathered in the phase and this one did not)"""


class _Phase(NamedTuple):
    name: str
    t0_ns: int
    t1_ns: int
    ops: int


def parting(view: View, row: CollectiveRow, one: int, other: int) -> Parting | None:
    """Return the parting in this op's step, in a phase that had ended on both ranks before the op;
    None: they do not differ, or it is not known."""
    phases = [_phases(view, row, rank) for rank in (one, other)]
    if not all(phases) or phases[0][0].ops != phases[1][0].ops:  # they parted in a step before
        return None
    for a, b in zip(phases[0][1:], phases[1][1:], strict=False):
        if a.name != b.name:
            return None
        if a.ops != b.ops:
            units = _units(view, row, one, a), _units(view, row, other, b)
            lacks = ((one, units[1] - units[0]), (other, units[0] - units[1]))
            told = tuple((rank, tuple(sorted(of)[:_MOST_UNITS])) for rank, of in lacks if of)
            return Parting(a.name, (one, other), (a.ops, b.ops), told)
    return None


def _phases(view: View, row: CollectiveRow, rank: int) -> list[_Phase]:
    """Return the phases of the op's step that ended before it, after a leading entry with the
    number of the step's first op; empty if ops are missing."""
    process, issued = view.ranks.get(rank), row.issued.get(rank)
    if process is None or issued is None or row.step is None:
        return []
    table, rows = view.step_rows(process, "issue", row.step)
    own = process.group_ids(row.key)
    ops = sorted(
        (seq, t0) for gid, seq, t0 in table.tuples(rows[:_MOST], "group_id", "seq", "t0_ns")
        if gid in own and seq < row.seq
    )  # fmt: skip
    if not ops or [seq for seq, _ in ops] != list(range(ops[0][0], row.seq)):
        return []
    table, rows = view.step_rows(process, "phase", row.step)
    found = [_Phase("", 0, 0, ops[0][0])]
    for t0, t1, name in sorted(table.tuples(rows[:_MOST], "t0_ns", "t1_ns", "name_id")):
        if t1 <= issued and t0 >= found[-1].t1_ns:
            inside = sum(t0 <= t < t1 for _, t in ops)
            found.append(_Phase(process.name(name), t0, t1, inside))
    return found


def _units(view: View, row: CollectiveRow, rank: int, phase: _Phase) -> set[str]:
    """Return the sharded units that a rank gathered in a phase."""
    process = view.ranks[rank]
    table, rows = view.step_rows(process, "fsdp", row.step or 0)
    names = (
        process.name(name) for t0, name in table.tuples(rows[:_MOST], "t0_ns", "name_id")
        if phase.t0_ns <= t0 < phase.t1_ns
    )  # fmt: skip
    units = (name.removesuffix(_UNSHARD) for name in names if name.endswith(_UNSHARD))
    return {unit for unit in units if not unit.endswith(_WAIT)}
