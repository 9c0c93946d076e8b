"""One cell of the tick grid: its duration beside others of its kind, its inputs and outputs, and
the ranks that waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import control_view
from pardbg.analysis.base.holds import unheld_ns
from pardbg.analysis.pipeline.chains import completions
from pardbg.analysis.pipeline.dependencies import parse, producer, twin
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts, step_rows
from pardbg.analysis.pipeline.ticks.grid import TickCell, TickGrid, tick_grids
from pardbg.store.store import Store
from pardbg_agent import wire

HELD_MODES: Final = ("held", "stepping")
"""Control modes in which ranks stand at their gates."""
_STEPS: Final = 8
"""Number of newest steps over which a median is taken."""


@dataclass(frozen=True, slots=True)
class TicksWant:
    """Selection of the user on the tick page."""

    rank: int
    """Rank whose pipeline comes first if there are very many."""
    action: str | None = None
    """Action of the chosen cell, ``2B5``; None: none is chosen."""
    always: bool = False
    """Whether to show the grids even while no rank is held."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor sent or received by an action."""

    bytes: int
    peer: int
    """Rank at the other end."""
    ns: int | None
    """Time from issue to completion on this rank, in ns; None: not complete."""


@dataclass(frozen=True, slots=True)
class CellDetail:
    """Details of one action of the step that is shown."""

    rank: int
    action: str
    tick: int
    duration_ns: int | None
    """Duration in ns; None: it has not begun, or no record of it has come."""
    median_ns: int | None
    """Median duration of the same stage and kind on the rank over the newest steps, in ns."""
    num_like_it: int
    """Number of actions in that median."""
    received: tuple[Transfer, ...]
    sent: tuple[Transfer, ...]
    needs: str | None
    """Action whose output the cell's action takes; None: it takes none."""
    waited_ns: int
    """Time that the rank waited for the input of the cell's action, in ns."""
    waiters: tuple[tuple[int, str, int], ...]
    """(rank, action, ns) of the actions that waited for the cell's action."""
    runs: bool = False
    """Whether the action still runs, so that ``duration_ns`` is that so far."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Contents of the tick page."""

    grids: tuple[TickGrid, ...]
    cell: CellDetail | None = None


def ticks_shown(store: Store, t_ns: int | None, want: TicksWant) -> Ticks | None:
    """Return the grids and the chosen cell; None if no rank is held, unless ``always``."""
    view = View(store, t_ns)
    if not want.always and control_view(view).mode not in HELD_MODES:
        return None
    grids = tick_grids(view, want.rank)
    return Ticks(grids, cell_detail(view, grids, want) if want.action is not None else None)


def cell_detail(view: View, grids: Sequence[TickGrid], want: TicksWant) -> CellDetail | None:
    """Return details of the chosen cell; None if no pipeline of the rank has the action."""
    for grid in grids:
        for row in grid.rows:
            if row.rank == want.rank:
                found = next((c for c in row.cells if c.action == want.action), None)
                if found is not None:
                    layout = layouts(view)[grid.index]
                    return _detail(view, layout, grid.step, row.rank, found)
    return None


def _detail(view: View, layout: Layout, step: int, rank: int, cell: TickCell) -> CellDetail | None:
    action, runs = cell.action, cell.state == "running"
    parsed = parse(action)
    if parsed is None:
        return None
    span = next((s for s in step_rows(view, layout, step)[rank] if s.text == action), None)
    took = None
    if span is not None and span.t1_ns is not None:
        took = span.t1_ns - span.t0_ns
    elif cell.span is not None and runs:
        took = unheld_ns(view, rank, cell.span.t0_ns, view.t_ns)
    like = _durations(view, layout, rank, parsed.stage, parsed.kind)
    came, went = _transfers(view, rank, step, parsed.stage, parsed.kind, parsed.microbatch)
    waited, waiters = _waits(view, layout, step, rank, action)
    return CellDetail(
        rank, action, cell.tick, took, round(median(like)) if like else None, len(like),
        came, went, producer(action, layout.num_stages), waited, waiters, runs,
    )  # fmt: skip


def _durations(view: View, layout: Layout, rank: int, stage: int, kind: str) -> list[int]:
    """Return durations of the rank's actions of this stage and kind in the newest steps, in ns."""
    newest = newest_step(view, layout)
    last = -1 if newest is None else newest
    return [
        span.t1_ns - span.t0_ns
        for step in range(max(0, last - _STEPS + 1), last + 1)
        for span in step_rows(view, layout, step)[rank]
        if span.t1_ns is not None and (span.stage, span.kind) == (stage, kind)
    ]


def _transfers(
    view: View, rank: int, step: int, stage: int, kind: str, mb: int
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """Return (received, sent): the rank's labelled messages of this stage and microbatch. A
    forward's carry the label F; a backward's, whole or of the input alone, carry B."""
    process = view.ranks.get(rank)
    label = {"F": "F", "B": "B", "I": "B"}.get(kind)
    if process is None or label is None:
        return (), ()
    table, rows = view.step_rows(process, "issue_p2p", step)
    rows = rows[(table.col("stage")[rows] == stage) & (table.col("microbatch")[rows] == mb)]
    done = completions(view, process, step)
    names = ("name_id", "flags", "peer", "a", "t0_ns", "group_id", "seq")
    made: tuple[list[Transfer], list[Transfer]] = ([], [])
    for name, flags, peer, size, t0, group, seq in table.tuples(rows, *names):
        op = process.ops.get(name)
        if op is not None and op.reduce == label:
            end = done.get((group, seq))
            sent = bool(flags & int(wire.Flag.SEND))
            made[sent].append(Transfer(size, peer, None if end is None else end - t0))
    return tuple(made[0]), tuple(made[1])


def _waits(
    view: View, layout: Layout, step: int, rank: int, action: str
) -> tuple[int, tuple[tuple[int, str, int], ...]]:
    """Return (ns that the rank waited for the input, other ranks' waits for the action)."""
    made = pipeline_step(view, layout, step)
    waited, waiters = 0, []
    for row in made.ranks if made is not None else ():
        begins = sorted((a.t0_ns, a.text) for a in row.actions)
        for idle in row.idles:
            if idle.cause != "dependency" or idle.producer is None:
                continue
            after = next((text for t0, text in begins if t0 >= idle.t1_ns), row.next_action)
            length = idle.t1_ns - idle.t0_ns
            if row.rank == rank and after == action:
                waited += length
            elif after is not None and idle.producer in (action, twin(action)):
                waiters.append((row.rank, after, length))
    return waited, tuple(waiters)
