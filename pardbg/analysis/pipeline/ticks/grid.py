"""A pipeline's step by ticks instead of time: the step's partial order as a table.

A tick runs one compute action on each rank whose input is there. So an action's tick is one more
than the later of the action before it on its rank and the one whose output it needs. Durations
and holds do not matter: the table stays as it is however long somebody thinks between two ticks.

The order is the plan's; where there is none, that of the last complete step; else what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import control_view
from pardbg.analysis.pipeline.dependencies import COMPUTE, parse, producer, satisfied, twin
from pardbg.analysis.pipeline.in_flight import in_flight, in_flight_bound, levels
from pardbg.analysis.pipeline.mesh import place
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts, stated_span, states, step_rows
from pardbg.analysis.pipeline.play import uniform_slots
from pardbg.analysis.pipeline.values import ActionSpan
from pardbg.events import fields
from pardbg.events.control_codes import Mode, Verb
from pardbg.events.control_facts import Asked, Edited, Hit, Lapsed, Left, RunsOn

CellState = Literal["done", "last", "running", "next", "plan"]
OrderSource = Literal["plan", "step before", "seen"]
MOST: Final = 16
"""Maximum number of pipelines that get a grid."""
_LOOK_BACK: Final = 4
"""Number of steps to search back for a complete one, if no plan is known."""
_MOVES: Final = (Verb.STEP, Verb.TICK, Verb.OP)
"""Verbs whose effect is the actions that have run since."""
_LETS_RUN: Final = (Verb.CONTINUE, Verb.NEXT, Verb.UNTIL)
"""Verbs that let ranks run on; all other verbs move no rank."""
Order = Mapping[int, Sequence[str]]


@dataclass(frozen=True, slots=True)
class TickCell:
    """A compute action in the grid."""

    action: str
    """Text form of the action, ``2B5``."""
    stage: int
    kind: str
    microbatch: int
    tick: int
    """Number of the tick, from 1."""
    state: CellState
    """last: ran by the last verb, or in the newest whole tick; next: its input is available."""
    span: ActionSpan | None
    """The action as it ran; None: it has not begun, or no record of it has come."""


@dataclass(frozen=True, slots=True)
class TickRow:
    """A rank of the pipeline."""

    rank: int
    stages: tuple[int, ...]
    cells: tuple[TickCell, ...]
    gate: str
    """Gate at which the rank is held, in the agent's words; empty: not held."""
    waits_for: str | None
    """Action whose output the rank's next action needs and that has not run; None: none."""
    waits_rank: int | None
    in_flight: int
    in_flight_bound: int | None

    @property
    def ran(self) -> tuple[str, ...]:
        """Actions of the rank in the last tick."""
        return tuple(cell.action for cell in self.cells if cell.state == "last")

    @property
    def kept(self) -> list[tuple[TickCell, int]]:
        """Return (action that has run, microbatches in flight after it), in order."""
        ran = [cell for cell in self.cells if cell.state in ("done", "last")]
        after = levels([(cell.stage, cell.kind) for cell in ran])
        return [(cell, sum(now.values())) for cell, now in zip(ran, after, strict=True)]

    @property
    def coming(self) -> str | None:
        """Return the action that the next tick runs on this rank; None: none."""
        return next((cell.action for cell in self.cells if cell.state == "next"), None)


@dataclass(frozen=True, slots=True)
class TickGrid:
    """Grid of one step of one pipeline."""

    label: str
    """Place of the pipeline on the device mesh, or its ranks."""
    index: int
    """Index of the pipeline among the run's pipelines."""
    step: int
    tick: int
    """Newest tick all of whose actions have ended; 0: none yet."""
    num_ticks: int
    rows: tuple[TickRow, ...]
    num_stages: int
    source: OrderSource
    """Source of the order of the actions that have not run."""

    @property
    def num_actions(self) -> int:
        return sum(len(row.cells) for row in self.rows)

    @property
    def num_done(self) -> int:
        return sum(c.state in ("done", "last") for row in self.rows for c in row.cells)

    @property
    def column(self) -> int | None:
        """Return the tick of all actions that ran last; None: they are in several, or none ran."""
        ticks = {c.tick for row in self.rows for c in row.cells if c.state == "last"}
        return ticks.pop() if len(ticks) == 1 else None

    @property
    def many_stages(self) -> bool:
        """Return whether a rank has several stages, so that actions' names include the stage."""
        return any(len(row.stages) > 1 for row in self.rows)


def tick_grids(view: View, rank: int | None = None) -> tuple[TickGrid, ...]:
    """Return a grid per pipeline of the run at the cursor, if there are too many those around the
    pipeline of ``rank``; empty if no pipeline has run and none is planned."""
    found = list(enumerate(layouts(view)))
    if len(found) > MOST:
        own = next((i for i, layout in found if rank in layout.ranks), 0)
        first = min(max(0, own - MOST // 2), len(found) - MOST)
        found = found[first : first + MOST]
    made = (_grid(view, index, layout) for index, layout in found)
    return tuple(grid for grid in made if grid is not None)


def _grid(view: View, index: int, layout: Layout) -> TickGrid | None:
    step = newest_step(view, layout)
    if step is None:
        if not layout.planned:
            return None
        step = _first_step(view, layout)
    seen = {
        rank: [span for span in row if span.kind in COMPUTE]
        for rank, row in step_rows(view, layout, step).items()
    }
    for rank, row in seen.items():
        inside = _held_inside(view, rank, step)
        if inside is not None and all(span.text != inside.text for span in row):
            row.append(inside)
    order, source = _order(view, layout, step, seen)
    ticks = tick_numbers(order, layout.num_stages)
    done = _done(seen, ticks, layout.num_stages)
    last, tick = _last(view, seen, ticks, done)
    held = control_view(view).held
    rows = tuple(
        _row(layout, rank, order[rank], seen.get(rank, []), ticks, done, last, held.get(rank, ""))
        for rank in layout.ranks
    )
    num_ticks = max(ticks.values(), default=0)
    label = place(view, layout)
    return TickGrid(label, index, step, tick, num_ticks, rows, layout.num_stages, source)


def _first_step(view: View, layout: Layout) -> int:
    """Return the step that ranks which have begun no action are in."""
    said = [states(view).get(p.proc, {}) for r in layout.ranks if (p := view.ranks.get(r))]
    return max((fields.integer(one, "step", 0) for one in said), default=0)


def _held_inside(view: View, rank: int, step: int) -> ActionSpan | None:
    """Return the action that a held rank has begun, with its gate inside; None: none."""
    process = view.ranks.get(rank)
    said = states(view).get(process.proc) if process is not None else None
    if not said or not said.get("held") or fields.integer(said, "step", -1) != step:
        return None
    return stated_span(said, rank, view.t_ns)


# -- the order


def _order(
    view: View, layout: Layout, step: int, seen: Mapping[int, Sequence[ActionSpan]]
) -> tuple[Order, OrderSource]:
    """Return (each rank's actions, seen then planned; source of the order of the planned)."""
    source: OrderSource = "plan"
    planned: Order = layout.order
    if not layout.planned:
        planned = _order_before(view, layout, step)
        source = "step before" if planned else "seen"
    texts = {rank: [span.text for span in seen.get(rank, ())] for rank in layout.ranks}
    return {rank: _then(texts[rank], planned.get(rank, ())) for rank in layout.ranks}, source


def _then(seen: Sequence[str], planned: Sequence[str]) -> list[str]:
    """Return recorded actions in their order, even if the plan differs, then planned ones."""
    known = {*seen, *(other for text in seen if (other := twin(text)) is not None)}
    return [*seen, *(text for text in planned if text not in known)]


def _order_before(view: View, layout: Layout, step: int) -> Order:
    """Return the order in which the newest complete step ran; empty if there is none."""
    for before in range(step - 1, max(-1, step - 1 - _LOOK_BACK), -1):
        rows = step_rows(view, layout, before)
        order = {r: [s.text for s in row if s.kind in COMPUTE] for r, row in rows.items()}
        if all(order.get(rank) for rank in layout.ranks):
            return order
    return {}


def tick_numbers(order: Order, num_stages: int) -> Mapping[str, int]:
    """Return action -> its tick, from 1."""
    return _tick_numbers(tuple((r, tuple(row)) for r, row in sorted(order.items())), num_stages)


@lru_cache(maxsize=64)
def _tick_numbers(
    order: tuple[tuple[int, tuple[str, ...]], ...], num_stages: int
) -> Mapping[str, int]:
    slots = uniform_slots(dict(order), num_stages)
    return {text: at + 1 for row in slots.values() for at, text in enumerate(row) if text}


def tick_ends(view: View, layout: Layout, step: int) -> list[tuple[int, int]]:
    """Return (tick, time at which all actions up to it had ended, in ns), by time, up to the first
    tick whose end is not known; of several ticks that end at one time, the last."""
    seen = {r: [s for s in row if s.kind in COMPUTE]
            for r, row in step_rows(view, layout, step).items()}  # fmt: skip
    ticks = tick_numbers(_order(view, layout, step, seen)[0], layout.num_stages)
    ends: dict[int, int] = {}
    for span in (span for row in seen.values() for span in row if span.t1_ns is not None):
        tick = ticks[span.text]
        ends[tick] = max(ends.get(tick, 0), span.t1_ns or 0)
    found: dict[int, int] = {}
    reached = 0
    for tick in range(1, max(ticks.values(), default=0) + 1):
        if tick not in ends:
            break
        reached = max(reached, ends[tick])
        found[reached] = tick
    return [(tick, t_ns) for t_ns, tick in sorted(found.items())]


# -- what has run, what comes


def _done(
    seen: Mapping[int, Sequence[ActionSpan]], ticks: Mapping[str, int], num_stages: int
) -> frozenset[str]:
    """Return the actions that have ended, and those that must have as their outputs are in use:
    their records are late (inferred forwards) or lost."""
    spans = [span for row in seen.values() for span in row]
    done = {span.text for span in spans if span.t1_ns is not None}
    needed = [producer(span.text, num_stages) for span in spans]
    while needed:
        text = needed.pop()
        other = twin(text) if text is not None else None
        text = other if other is not None and other in ticks and text not in ticks else text
        if text is not None and text in ticks and text not in done:
            done.add(text)
            needed.append(producer(text, num_stages))
    return frozenset(done)


def _last(
    view: View,
    seen: Mapping[int, Sequence[ActionSpan]],
    ticks: Mapping[str, int],
    done: frozenset[str],
) -> tuple[frozenset[str], int]:
    """Return (actions that ran since the last verb that moved ranks, or without one those of the
    newest tick whose actions have all ended; that tick)."""
    spans = [span for row in seen.values() for span in row if span.t1_ns is not None]
    since = _moved_ns(view)
    ran = [s for s in spans if since is not None and s.t1_ns is not None and s.t1_ns > since]
    left = [tick for action, tick in ticks.items() if action not in done]
    tick = min(left) - 1 if left else max(ticks.values(), default=0)
    if ran or (since is not None and control_view(view).mode == "held"):  # a verb may run no action
        return frozenset(s.text for s in ran), tick
    return frozenset(action for action, at in ticks.items() if at == tick), tick


def _moved_ns(view: View) -> int | None:
    """Return when the last verb was given, in ns; None unless it runs actions of held ranks."""
    events = view.store.controls.last(view.now_ns, 64)
    modes = (e.status.mode for _, e in reversed(events) if e.status is not None)
    if next(modes, Mode.RUNNING) not in (Mode.HELD, Mode.STEPPING) or view.run_end is not None:
        return None
    for t_ns, event in reversed(events):
        fact = event.fact
        verb = fact.verb if isinstance(fact, (Asked, Edited)) else None
        if verb in _MOVES:
            return int(t_ns)
        if verb in _LETS_RUN or isinstance(fact, (Left, Lapsed, RunsOn, Hit)):
            return None
    return None


def _row(
    layout: Layout,
    rank: int,
    order: Sequence[str],
    spans: Sequence[ActionSpan],
    ticks: Mapping[str, int],
    done: frozenset[str],
    last: frozenset[str],
    gate: str,
) -> TickRow:
    ran = {span.text: span for span in spans}
    coming = next((text for text in order if text not in ran and text not in done), None)
    runs = any(span.t1_ns is None for span in spans)
    ready = coming is not None and not runs and satisfied(coming, layout.num_stages, done)
    cells = []
    for text in order:
        action, span = parse(text), ran.get(text)
        if action is None:
            continue
        state: CellState = "plan"
        if text in done:
            state = "last" if text in last else "done"
        elif span is not None:
            state = "running"
        elif text == coming and ready:
            state = "next"
        cells.append(TickCell(text, *action, ticks[text], state, span))
    waits: tuple[str | None, int | None] = (None, None)
    if coming is not None and not ready and not runs:
        waits = _producer(layout, coming, done)
    ended = [(cell.stage, cell.kind) for cell in cells if cell.action in done]
    return TickRow(
        rank, layout.stages(rank), tuple(cells), gate, waits[0], waits[1],
        in_flight(ended)[0], in_flight_bound(layout, rank),
    )  # fmt: skip


def _producer(layout: Layout, action: str, done: frozenset[str]) -> tuple[str | None, int | None]:
    """Return (action that has to run before this one, its rank); (None, None): it has run."""
    needed = producer(action, layout.num_stages)
    if needed is None or needed in done or twin(needed) in done:
        return None, None
    other = twin(needed)
    known = {text for row in layout.order.values() for text in row}
    if other is not None and needed not in known and other in known:
        needed = other
    parsed = parse(needed)
    return needed, layout.stage_rank.get(parsed.stage) if parsed is not None else None
