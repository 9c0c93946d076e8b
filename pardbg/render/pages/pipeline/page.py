"""The pipeline page: planned and observed schedule, ledger, the answer as text, the bubble by
step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.implied import ScheduleDetail
from pardbg.analysis.pipeline.ticks.cell import CellDetail
from pardbg.analysis.pipeline.values import ActionSpan, PipelineRank, PipelineStep, PipelineView
from pardbg.render.draw.axis import BREAK_CELLS, Axis, gaps, ruler
from pardbg.render.draw.bars import rule, spark
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Segment,
    clean,
    clip,
    crop,
    fit,
    left,
    line,
    line_width,
    spread,
)
from pardbg.render.draw.plots import by_step
from pardbg.render.frame.panels import empty
from pardbg.render.pages.pipeline import ledger
from pardbg.render.pages.pipeline.cell_strip import lit, strip_of
from pardbg.render.pages.pipeline.ledger import choices, lacks
from pardbg.render.pages.pipeline.schedule import (
    HELD,
    Density,
    duration_row,
    flight_row,
    gap_row,
    launch_row,
    legend,
    plan_row,
    seen_row,
    short_next,
)  # fmt: skip

PATH_ROWS = 26
"""Minimum rows of a page with an explanation of the critical path's marks."""
GUTTER = 15
"""Cells for marker, rank, stage and row name."""


_NO_DETAIL = ScheduleDetail({}, None, {})


@dataclass(frozen=True, slots=True)
class PipelinePageState:
    """The reader's view of the page: selection and form."""

    selected: int | None = None
    at_cursor: bool = False
    """Whether the user placed the cursor: then the interval at the cursor is explained."""
    action: str | None = None
    """The selected action of the selected rank."""
    cell: CellDetail | None = None
    """Facts about the selected action; None: not known."""
    least_span_ns: int = 0
    """Minimum time of the axis, ns: two runs above one another have the same scale."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Values shared by all rows of a picture."""

    view: PipelineView
    step: PipelineStep
    measured: PipelineStep
    axis: Axis
    now_ns: int
    cells: int
    detail: ScheduleDetail
    held: Mapping[int, str]
    look: PipelinePageState
    path: CriticalPath | None
    """Critical path of the step that the figures describe."""

    @property
    def cursor(self) -> int:
        return min(self.axis.x(self.now_ns), self.axis.cells - 1)

    @property
    def many(self) -> bool:
        return self.view.num_virtual > 1

    @property
    def chosen(self) -> ActionSpan | None:
        """Return the selected action as observed in the shown step."""
        look = self.look
        row = next((r for r in self.step.ranks if r.rank == look.selected), None)
        return next((a for a in row.actions if a.text == look.action), None) if row else None


def pipeline(
    snapshot: Snapshot,
    cells: int,
    rows: int,
    look: PipelinePageState | None = None,
    detail: ScheduleDetail | None = None,
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; without ``detail`` only observed rows."""
    look = look or PipelinePageState()
    view = snapshot.pipeline
    early = view is None and not any(rank.step_ns for rank in snapshot.ranks)
    if early and (snapshot.live or snapshot.t_ns < snapshot.t_end_ns):
        return empty(cells, rows, "No pipeline up to here.",
                     "The first step is not over at this moment.")  # fmt: skip
    if view is None and snapshot.no_pipeline:
        return empty(
            cells, rows, "No pipeline is known in this run.", f"{clean(snapshot.no_pipeline)}.",
            "If it is one, name its actions: pardbg_agent.action (README).",
        )  # fmt: skip
    if view is None:
        return empty(
            cells, rows, "No pipeline in this run.",
            "Its steps are on 3 Timeline, its collectives on 4.",
        )  # fmt: skip
    step = view.step or view.last_complete
    title = (*_title(view, cells), *choices(snapshot, cells), *lacks(view, cells))
    if step is None:
        return Picture(head=title, body=_waiting(view))
    frame = _frame(snapshot, view, step, cells, look, detail or _NO_DETAIL)
    if rows < PATH_ROWS:
        frame = replace(frame, path=None)
    head = (*title, *_heads(frame, rows))
    foot = _foot(frame, rows)
    below = 0 if rows < 18 else 1 if rows < 26 else 2  # of the legend
    room = rows - len(head) - len(foot) - below - 1
    density = _density(frame, room)
    body, places = _ranks(frame, density)
    spare = room - len(body)
    if spare >= 7 and len(view.bubble_history) > 1:
        body = (*body, *_history(frame, min(spare - 1, 18)))
    else:
        foot = (_bubbles(view, cells), *foot)
    foot = (*foot, *_legend(frame, density)[-below:]) if below else foot
    focus = places.index(look.selected) if look.selected in places else None
    return Picture(head=head, body=body, foot=foot, focus=focus, rows=places)


def _frame(
    snapshot: Snapshot,
    view: PipelineView,
    step: PipelineStep,
    cells: int,
    look: PipelinePageState,
    detail: ScheduleDetail,
) -> _Frame:
    done = view.last_complete
    measured = done or step
    now = max(snapshot.t_ns, step.t1_ns)
    if step.complete or snapshot.control.mode == "held":
        now = min(snapshot.t_ns, step.t1_ns)  # nothing runs: nothing moves
    if step.held_ns:
        now = step.t1_ns  # its times are without the holds, the cursor's is not
    elif snapshot.hang is not None and snapshot.hang.until_ns is not None:
        now = max(step.t0_ns, min(now, snapshot.hang.until_ns))  # the job failed then
    width = max(16, cells - GUTTER - ledger.size(cells, view.causes) - 3)
    actions = [action for row in step.ranks for action in row.actions]
    took = (action.t1_ns - action.t0_ns for action in actions if action.t1_ns is not None)
    most = max(took, default=now)  # what runs for far longer may never end: the rest is cut
    spans = [
        (a.t0_ns, min(now, a.t0_ns + most) if a.t1_ns is None else a.t1_ns) for a in actions
    ]  # fmt: skip
    breaks = gaps(spans, now)
    planned = max((row[-1].t1_ns for row in detail.boxes.values() if row), default=0.0)
    span = max(now - step.t0_ns - sum(end - begin for begin, end in breaks), planned, 1)
    if done is not None and not breaks:
        span = max(span, done.t1_ns - done.t0_ns)
    # The breaks keep some cells of their own, taken from the others.
    span = max(span, look.least_span_ns)
    span *= width / max(8, width - BREAK_CELLS * len(breaks))
    axis = Axis(step.t0_ns, span * 1.005, width, breaks)
    held = snapshot.control.held
    return _Frame(view, step, measured, axis, now, cells, detail, held, look, detail.path)


def _title(view: PipelineView, cells: int) -> tuple[Line, ...]:
    shape = f"p={view.num_ranks} m={view.num_microbatches}"
    shape += f" v={view.num_virtual}" if view.num_virtual > 1 else ""
    short = view.schedule.removeprefix("Schedule")
    name = [
        Segment((view.schedule if cells >= 100 else short) or "no schedule", "strong"),
        Segment(f"  {shape}", "dim"),
        Segment(
            "  paced compute" if cells >= 100 and view.paced else "  paced" if view.paced else "",
            "dim",
        ),
        Segment(f"  predicted {clean(view.predicted)}" if view.predicted else "", "accent"),
    ]
    figures = _figures(view)
    if line_width(name) + line_width(figures) + 4 <= cells:
        return (spread(line(" ", *name), line(*figures, " "), cells),)
    return (line(" ", *name), line(" ", *figures))


def _figures(view: PipelineView) -> Line:
    step = view.last_complete or view.step
    if step is None:
        return ()
    if view.times == "host":
        bound = words.percent(step.bound_fraction)
        return (Segment("host times: launches, not computation", "warn"),
                Segment("  bound ", "dim"), Segment(bound, "strong"))  # fmt: skip
    base = step.implied_fraction if step.implied_fraction is not None else step.bound_fraction
    bubble = step.bubble_fraction
    excess = None if base is None or bubble is None else bubble - base
    loud = "bad" if excess is not None and excess >= 0.05 else "strong"
    parts = [Segment("bubble " if step.complete else "bubble so far ", "dim"),
             Segment(words.percent(step.bubble_fraction), "warn")]  # fmt: skip
    for name, value in (("implied", step.implied_fraction), ("bound", step.bound_fraction)):
        parts += [Segment(f"  {name} ", "dim"), Segment(words.percent(value), "strong")]
    parts += [Segment("  excess ", "dim"), Segment(words.percent_rest(bubble, base), loud)]
    return tuple(parts)


def _waiting(view: PipelineView) -> tuple[Line, ...]:
    plan = f"The plan of {view.schedule} is known: {view.num_ranks} ranks, "
    known = f"   {plan}{view.num_microbatches} microbatches." if view.schedule else ""
    said = line(Segment(" ○ ", "accent"), Segment("No action has run yet.", "strong"))
    return (said, line(Segment(known, "dim")))


def _ledger_step(frame: _Frame) -> PipelineStep:
    """Return the step of the figures: a complete step if there is one, so that they do not jump."""
    return frame.step if frame.step.complete else frame.measured


def _heads(frame: _Frame, rows: int) -> tuple[Line, ...]:
    step = frame.step
    note = f"step {_ledger_step(frame).step}"
    gutter = left(f"  step {step.step}", GUTTER)
    heading = line(
        Segment(gutter, "strong"),
        *ruler(frame.axis, frame.cursor).line(),
        "  ",
        *ledger.heading(frame.cells, note, frame.view.causes),
    )
    return ((), heading) if rows >= 18 else (heading,)


_DENSITIES: tuple[Density, ...] = (
    Density(tall=3, launch=1, flight=1, gap=2, spare=8),
    Density(tall=2, launch=1, flight=1, gap=1, spare=6),
    Density(tall=1, launch=1, flight=1, gap=1), Density(tall=1, gap=1), Density(gap=1),
    Density(), Density(plan=0),
)  # fmt: skip


def _density(frame: _Frame, room: int) -> Density:
    """Return the richest density at which the rows of all ranks fit."""
    total = len(frame.step.ranks)
    planned, launched = any(r.plan for r in frame.step.ranks), any(frame.view.launches.values())
    fitting = [replace(d, plan=d.plan * planned, launch=d.launch * launched) for d in _DENSITIES]
    return next((d for d in fitting if d.fits(total, room)), fitting[-1])


def _ranks(frame: _Frame, density: Density) -> tuple[tuple[Line, ...], tuple[int, ...]]:
    """Draw the rows of all ranks; also return each row's rank."""
    body: list[Line] = []
    places: list[int] = []
    for rank in frame.step.ranks:
        lines = _rank(frame, rank, density)
        body += lines
        places += [rank.rank] * len(lines)
    end = len(body) - density.gap
    return tuple(body[:end]), tuple(places[:end])


def _rank(frame: _Frame, rank: PipelineRank, density: Density) -> list[Line]:
    ended = next((r for r in _ledger_step(frame).ranks if r.rank == rank.rank), rank)
    causes = frame.view.causes
    figures = ledger.figures(ended, frame.cells, causes)
    flight = ledger.flight(rank, frame.cells)
    axis = frame.axis
    marked = frame.path.actions if frame.path is not None and frame.step.complete else ()
    held = frame.held.get(rank.rank)
    if held:  # in a place of its own: never among the actions
        gate = Segment(f"{HELD} {clip(short_next(held, frame.many), 18)}  ", "held")
        figures = crop(line(gate, *figures), ledger.size(frame.cells, causes))
    chosen = rank.rank == frame.look.selected
    seen = _lit(frame, rank, seen_row(rank, axis, frame.now_ns, frame.many, marked).line())
    stages = ",".join(map(str, rank.stages))
    lines = []
    if density.plan:
        # The plan knows no breaks: it lies on the same scale, uninterrupted.
        whole = Axis(axis.t0_ns, axis.span_ns, axis.cells)
        boxes = frame.detail.boxes.get(rank.rank, ())
        plan = plan_row(boxes, whole, frame.many, frame.cursor, rank.pairs)
        name = _name(rank.rank, stages, chosen, "plan")
        lines.append(_row(name, plan.line(), flight))
    first = not lines
    name = _name(rank.rank if first else None, stages if first else "", chosen,
                 "" if density == _DENSITIES[-1] else "seen")  # fmt: skip
    lines.append(_row(name, seen, figures))
    for at in range(density.tall):
        low = duration_row(rank, axis, frame.now_ns, words_in=at == 0).line()
        low = _lit(frame, rank, low)
        tail = flight if first and at == 0 else ()
        lines.append(_row(_name(None, "", chosen, ""), low, tail))
    if density.launch:
        launched = launch_row(frame.view.launches.get(rank.rank, ()), axis).line()
        lines.append(_row(_name(None, "", chosen, "host"), launched, ()))
    if density.flight:
        in_flight = frame.detail.in_flight.get(rank.rank, ())
        curve = flight_row(rank, in_flight, axis, frame.now_ns).line()
        lines.append(_row(_name(None, "", chosen, "flight"), curve, ()))
    gap = _row((), gap_row(axis, frame.cursor).line(), ())
    return lines + [gap] * density.gap


def _lit(frame: _Frame, rank: PipelineRank, row: Line) -> Line:
    """Return a line of a rank's boxes with the selected box highlighted."""
    span, axis = frame.chosen, frame.axis
    if span is None or span.rank != rank.rank:
        return row
    end = axis.x(frame.now_ns if span.t1_ns is None else span.t1_ns)
    return lit(row, axis.x(span.t0_ns), max(end, axis.x(span.t0_ns) + 1), span.kind)


def _name(rank: int | None, stages: str, chosen: bool, row: str) -> Line:
    mark = Segment("▸" if chosen and rank is not None else "│" if chosen else " ", "accent")
    name = f"r{rank}" if rank is not None else ""
    # "s4" leaves room before the row's name; of several stages the numbers say enough.
    stage = f"s{stages}" if 0 < len(stages) < 3 else stages
    return line(
        mark, Segment(left(name, 4), "strong" if chosen else ""), Segment(left(stage, 4), "dim"),
        Segment(left(row, 6), "faint" if row in ("plan", "flight") else "dim"),
    )  # fmt: skip


def _row(name: Line, cells: Line, tail: Line) -> Line:
    return line(fit(name, GUTTER), cells, "  ", tail)


def _foot(frame: _Frame, rows: int) -> tuple[Line, ...]:
    cells = frame.cells
    lines: list[Line] = [()] if rows >= 26 else []
    if frame.chosen is not None:
        return (*lines, *strip_of(frame.step, frame.chosen, frame.look.cell, frame.path, cells))
    found = ledger.choose_idle(frame.view, frame.now_ns, frame.look.selected, frame.look.at_cursor)
    if found is not None:
        step, idle, largest = found
        lines.append(crop(ledger.explain(step, idle, largest, cells), cells))
    if frame.path is not None:
        lines.append(crop(ledger.path_words(frame.path), cells))
    return tuple(lines)


def _legend(frame: _Frame, density: Density) -> tuple[Line, ...]:
    """Draw a blank line and the meaning of the rows."""
    kinds = {a.kind for r in frame.step.ranks for a in r.actions if a.kind in "FBIW"}
    paired, launches = any(rank.pairs for rank in frame.step.ranks), bool(density.launch)
    ordered = sorted(kinds, key="FBIW".index)
    size, causes = frame.cells - 2, frame.view.causes
    cut = bool(frame.axis.breaks)
    return (), line("  ", legend(ordered, size, causes, paired, frame.many, launches, cut))


def _bubbles(view: PipelineView, cells: int) -> Line:
    """Draw the bubble by step, with its range."""
    history = view.bubble_history
    if not history:
        why = "times are the host's" if view.times == "host" else "no complete step yet"
        return line(Segment(f"  bubble by step: {why}", "dim"))
    values = [value for _, value in history]
    low, high = min(values), max(values)
    size = max(8, min(64, cells - 52, len(values)))
    steps = f"steps {history[0][0]}–{history[-1][0]}" if history[1:] else f"step {history[0][0]}"
    return line(
        Segment("  bubble by step ", "dim"),
        Segment(spark(values, size, low=low - 0.4 * (high - low)), "bubble"),
        Segment(f"  {steps}  ", "dim"),
        Segment(words.percent(low) + (f"–{words.percent(high)}" if high > low else "")),
    )


def _history(frame: _Frame, height: int) -> tuple[Line, ...]:
    """Draw, if there is room, the measured bubble of each step, with the implied one dim."""
    measured, implied = frame.view.bubble_history, frame.view.implied_history
    if not measured:
        return ()
    chart = by_step(measured, frame.cells - 4, height - 1, "bubble", words.percent, beside=implied)
    note = f"measured {words.percent(measured[-1][1])}"
    if implied:
        note += f", implied (dim) {words.percent(implied[-1][1])}"
    title = line(" ", rule("bubble by step", frame.cells - 2, note))
    return ((), title, *(line("  ", row) for row in chart)) if chart else ()


def longest_ns(snapshot: Snapshot) -> int:
    """Return the time that the page's axis must cover, in ns."""
    view = snapshot.pipeline
    steps = (view.step, view.last_complete) if view is not None else ()
    return max((step.t1_ns - step.t0_ns for step in steps if step is not None), default=0)
