"""Sharded steps: times at which each unit of parameters is gathered (whole)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_rows
from pardbg.store.process import Process
from pardbg_agent.wire import WAIT_UNSHARD


class Stretch(NamedTuple):
    t0_ns: int
    t1_ns: int


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Parameters that are gathered and freed together (a unit of fully_shard)."""

    name: str
    bytes: int
    """Bytes of the unit's whole parameters."""
    fetching: tuple[Stretch, ...]
    """Stretches from the all_gather's issue to the copied-out parameters."""
    whole: tuple[Stretch, ...]
    reducing: tuple[Stretch, ...]
    """Stretches in which gradients are reduced and scattered."""


@dataclass(frozen=True, slots=True)
class ShardingView:
    """Last complete step of a rank in fully sharded training."""

    rank: int
    step: int
    t0_ns: int
    t1_ns: int
    phases: tuple[tuple[str, int, int], ...]
    """(name, t0, t1) of each phase, in ns"""
    units: tuple[UnitRow, ...]
    """Units in the order of their first use."""
    curve: tuple[tuple[int, int], ...]
    """(t_ns, bytes of whole parameters from then on)"""
    peak_bytes: int
    whole_bytes: int
    """Bytes of all units together."""


_VERBS: Final = WAIT_UNSHARD, "unshard", "reshard", "reduce", "forward", "backward"
"""Verbs in records' names, longest first, as one may be the end of another."""
MAX_ROWS: Final = 20_000
"""Maximum number of records of a step that are read."""


def sharding_view(view: View) -> ShardingView | None:
    """Return the last complete step of the lowest rank that shards, as all ranks do the same."""
    counts = view.all("fsdp").counts.tolist()
    for (rank, process), visible in zip(view.ranks.items(), counts, strict=True):
        ended = last_step_rows(view, process, 1) if visible else []
        if ended:
            return _step(view, process, rank, ended[-1])
    return None


def gathered_peak(view: View, process: Process) -> int | None:
    """Return the peak bytes of whole parameters in a process's last complete step."""
    table, visible = view.rows(process, "fsdp")
    ended = last_step_rows(view, process, 1) if visible else []
    if not ended:
        return None
    rows = table.step_rows(ended[-1][0], ended[-1][0], visible)
    return int(table.col("b")[rows].max()) if len(rows) else None


def _step(
    view: View, process: Process, rank: int, ended: tuple[int, int, int]
) -> ShardingView | None:
    step, t0, t1 = ended
    units, curve = _units(view, process, step)
    if not units:
        return None
    return ShardingView(
        rank=rank,
        step=step,
        t0_ns=t0,
        t1_ns=t1,
        phases=_phases(view, process, step),
        units=tuple(unit.row(name, t1) for name, unit in units.items()),
        curve=tuple(curve),
        peak_bytes=max((size for _, size in curve), default=0),
        whole_bytes=sum(unit.size for unit in units.values()),
    )


def _units(
    view: View, process: Process, step: int
) -> tuple[dict[str, _Unit], list[tuple[int, int]]]:
    """Return (units in order of first use, (time, bytes whole from then on))."""
    table, rows = view.step_rows(process, "fsdp", step)
    columns = ("name_id", "t0_ns", "t1_ns", "a", "b")
    units: dict[str, _Unit] = {}
    curve: list[tuple[int, int]] = []
    ordered = sorted(table.tuples(rows[:MAX_ROWS], *columns), key=lambda row: (row[2], row[1]))
    for name_id, t0, t1, size, whole in ordered:  # streams of a device end in any order
        name, verb = split_name(process.name(name_id))
        units.setdefault(name, _Unit(size)).take(verb, t0, t1)
        if not curve or curve[-1][1] != whole:
            curve.append((t1, whole))
    return units, curve


def split_name(name: str) -> tuple[str, str]:
    """Return (``layers.0``, ``wait unshard``) for ``layers.0 wait unshard``."""
    for verb in _VERBS:
        if name.endswith(f" {verb}"):
            return name.removesuffix(f" {verb}"), verb
    return name, ""


class _Unit:
    """Intervals of a unit, collected from its records."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._fetching, self._whole, self._reducing = (list[Stretch]() for _ in range(3))
        self._since_ns: int | None = None
        """Time since which the unit has been whole; None: it is not."""

    def take(self, verb: str, t0: int, t1: int) -> None:
        fetching = self._fetching
        if verb == "unshard":
            fetching.append(Stretch(t0, t1))
        elif verb == WAIT_UNSHARD:
            if fetching and (not self._whole or self._whole[-1].t1_ns <= fetching[-1].t0_ns):
                fetching[-1] = Stretch(fetching[-1].t0_ns, t1)
            self._since_ns = t1
        elif verb == "reshard":
            self._thrown_away(t1)
        elif verb == "reduce":
            self._reducing.append(Stretch(t0, t1))

    def row(self, name: str, end_ns: int) -> UnitRow:
        """Return the unit's row at the step's end."""
        self._thrown_away(end_ns)
        stretches = self._fetching, self._whole, self._reducing
        return UnitRow(name, self.size, *map(tuple, stretches))

    def _thrown_away(self, t_ns: int) -> None:
        if self._since_ns is not None:
            self._whole.append(Stretch(self._since_ns, t_ns))
        self._since_ns = None


def _phases(view: View, process: Process, step: int) -> tuple[tuple[str, int, int], ...]:
    table, rows = view.step_rows(process, "phase", step)
    phases = table.tuples(rows[:64], "name_id", "t0_ns", "t1_ns")
    return tuple((process.name(i), t0, t1) for i, t0, t1 in phases)
