"""The ledger: busy and idle time of each rank in figures, a sentence on an idle interval; and the
lines under the page's title: the pipelines to select, and what a run without a schedule lacks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.mesh import PipelineName
from pardbg.analysis.pipeline.values import (
    ActionSpan,
    Cause,
    Idle,
    PipelineRank,
    PipelineStep,
    PipelineView,
)
from pardbg.render.draw.bars import shares, stacked
from pardbg.render.draw.cells import Line, Segment, crop, left, line, line_width, right
from pardbg.render.pages.pipeline.schedule import CAUSE_CHAR, CAUSE_SHORT, CAUSE_WORD

BAR = 14
_TELLING: tuple[Cause, ...] = ("dependency", "communication", "host", "launch")


def size(cells: int, causes: Sequence[Cause]) -> int:
    """Return the number of cells the ledger takes at a terminal width."""
    if cells >= 140:
        return BAR + 1 + 5 + 6 * len(causes)
    return 5 + 5 * len(causes) if cells >= 100 else 11


def heading(cells: int, note: str, causes: Sequence[Cause]) -> Line:
    """Return the names of the ledger's columns; ``note`` names the step if there is room."""
    if cells < 100:
        return line(Segment("busy idle", "dim"))
    wide = cells >= 140
    each = 6 if wide else 5
    names = "".join(right(CAUSE_SHORT[cause], each) for cause in causes)
    title = left(note, BAR + 1) + right("busy", 5) if wide else right("busy", 5)
    return line(Segment(title + names, "dim"))


def figures(rank: PipelineRank, cells: int, causes: Sequence[Cause]) -> Line:
    """Return one rank's busy share and idle shares by cause, percent of the window: 100 in sum."""
    window = rank.busy_ns + sum(rank.idle_ns.values())
    if window <= 0 or not rank.idle_ns:
        return line(Segment(right(words.UNKNOWN, size(cells, causes)), "faint"))
    busy = rank.busy_ns / window
    share = {cause: rank.idle_ns.get(cause, 0) / window for cause in causes}
    most = max(share, key=lambda cause: share[cause])
    hundredths = dict(zip(causes, shares(list(share.values()), 100), strict=True))
    if cells < 100:
        text = f"{left(CAUSE_SHORT[most], 4)}{hundredths[most]:2}" if hundredths[most] else ""
        return line(_busy(busy), " ", Segment(text, _loud(most, share)))
    wide = cells >= 140
    each = 6 if wide else 5
    parts: list[Segment | str | Line] = []
    if wide:
        pieces = [(busy, "▇", "busy")] + [
            (share[c], CAUSE_CHAR[c], f"idle.{c}") for c in causes
        ]  # fmt: skip
        parts += [stacked(pieces, BAR), "  "]
    parts.append(_busy(busy, 4 if wide else 5))
    for cause in causes:
        style = _loud(cause, share) if cause == most else "dim"
        text = str(hundredths[cause] or "·")
        parts.append(Segment(right(text, each), style if text != "·" else "faint"))
    return line(*parts)


def _busy(share: float, cells: int = 4) -> Segment:
    return Segment(right(words.percent(share, 0), cells), "strong")


def _loud(cause: Cause, share: dict[Cause, float]) -> str:
    return "warn" if cause in _TELLING and share[cause] >= 0.05 else "dim"


def path_words(path: CriticalPath) -> Line:
    """Return the shares of the critical path in one line."""
    whole = max(path.window_ns, 1)
    most = sorted(path.by_rank().items(), key=lambda item: -item[1])[:4]
    ranks = ", ".join(f"r{rank} {words.percent(ns / whole, 0)}" for rank, ns in most)
    return line(
        Segment("• ", "accent"),
        Segment(f"critical path of step {path.step}: compute ", "dim"),
        Segment(words.percent(path.compute_ns / whole, 0), "strong"),
        Segment(f" ({ranks})", "dim"),
        Segment("  tensors on their way ", "dim"),
        Segment(words.percent(path.tensor_ns / whole, 0), "strong"),
        Segment(f" in {path.hops} hops", "dim"),
        Segment("  host ", "dim"),
        Segment(words.percent(path.host_ns / whole, 0), "strong"),
    )


def path_text(path: CriticalPath) -> str:
    """Return the critical path's shares as plain text."""
    whole = max(path.window_ns, 1)
    parts = (path.compute_ns / whole, path.tensor_ns / whole, path.host_ns / whole)
    compute, tensors, host = (words.percent(part, 0) for part in parts)
    return f"critical path: compute {compute}, tensors {tensors} in {path.hops} hops, host {host}"


def flight(rank: PipelineRank, cells: int) -> Line:
    """Draw a rank's microbatches in flight, with their bound and the bytes of their activations."""
    bound = rank.in_flight_bound or rank.max_in_flight
    full = "■" * min(rank.in_flight, 8) + "□" * max(0, min(bound, 8) - rank.in_flight)
    over = rank.in_flight_bound is not None and rank.max_in_flight > rank.in_flight_bound
    figure = f" {rank.in_flight}/{bound}" if bound else f" {rank.in_flight}"
    if cells < 100:
        return line(Segment(full[:5], "flight"), Segment(figure, "warn" if over else "dim"))
    held = f"  {words.binary_size(rank.activation_bytes)}" if rank.activation_bytes else ""
    return line(
        Segment("in flight ", "faint"),
        Segment(full, "flight"),
        Segment(figure, "warn" if over else "dim"),
        Segment(held, "dim"),
    )


def choose_idle(
    view: PipelineView, cursor_ns: int, rank: int | None, at_cursor: bool
) -> tuple[PipelineStep, Idle, bool] | None:
    """Return (step, idle interval, False) of the selected rank at the cursor, else its largest
    significant interval (True)."""
    if at_cursor and view.step is not None:
        for row in view.step.ranks:
            if row.rank == rank:
                under = [i for i in row.idles if i.t0_ns <= cursor_ns <= i.t1_ns]
                if under:
                    return view.step, under[-1], False
    for step in (view.last_complete, view.step):
        if step is not None:
            idles = [idle for row in step.ranks for idle in row.idles]
            telling = [idle for idle in idles if idle.cause in _TELLING] or idles
            if telling:
                return step, max(telling, key=lambda idle: idle.t1_ns - idle.t0_ns), True
    return None


def explain(step: PipelineStep, idle: Idle, largest: bool, cells: int) -> Line:
    """Draw an idle interval as text: rank, time, duration, cause; with its step, as the picture
    may be of the next one."""
    whole = _explain(step, idle, f"largest idle of step {step.step}: " if largest else "idle: ")
    short = f"step {step.step}: " if largest else ""
    return whole if line_width(whole) <= cells else _explain(step, idle, short)


def _explain(step: PipelineStep, idle: Idle, head: str) -> Line:
    where = f"rank {idle.rank} at {words.offset(max(0, idle.t0_ns - step.t0_ns))}"
    return line(
        Segment("▌ ", "accent"),
        Segment(head, "dim"),
        Segment(where, "strong"),
        Segment(
            f" {'' if 'idle' in head else 'idle '}for {words.duration(idle.t1_ns - idle.t0_ns)}  "
        ),
        Segment(CAUSE_WORD[idle.cause], "warn" if idle.cause in _TELLING else "dim"),
        Segment(": ", "dim"),
        *_why(step, idle),
    )


def _why(step: PipelineStep, idle: Idle) -> list[Segment]:
    producer = idle.producer or "its input"
    on = f" on rank {idle.producer_rank}" if idle.producer_rank is not None else ""
    if idle.cause == "dependency":
        ran = (a for row in step.ranks for a in row.actions if a.text == idle.producer)
        slower = _slower(step, next(ran, None))
        return [Segment("waits for "), Segment(producer, "strong"), Segment(on), *slower]
    if idle.cause == "communication":
        return [Segment(producer, "strong"), Segment(f" is done{on}; its tensor is on the way")]
    if idle.cause == "warmup":
        tail = [Segment(": waits for "), Segment(producer, "strong"), Segment(on)]
        return [Segment("nothing has reached it yet"), *(tail if idle.producer else ())]
    if idle.cause == "cooldown":
        return [Segment("it has done its last action; others finish")]
    if idle.cause == "launch":
        return [Segment("its input was there; the host had launched nothing")]
    return [Segment("its input was there; the process was busy elsewhere")]


def _slower(step: PipelineStep, action: ActionSpan | None) -> list[Segment]:
    """Return ``, 12% over its stage's median`` if the action took so much longer."""
    if action is None or action.t1_ns is None:
        return []
    same: Sequence[int] = [
        a.t1_ns - a.t0_ns
        for row in step.ranks
        for a in row.actions
        if a.stage == action.stage and a.kind == action.kind and a.t1_ns is not None
    ]
    usual = median(same)
    over = (action.t1_ns - action.t0_ns) / usual - 1 if usual else 0.0
    if over < 0.08:
        return []
    return [
        Segment(", "),
        Segment(f"{words.percent(over, 0)} over", "bad"),
        Segment(" its stage's median"),
    ]


_KEYS = " [ ]"
_LACKS = {
    "chain": (
        "No schedule: these ranks hand the batch on by send and receive of their own.",
        "No schedule: these ranks hand the batch on by send and receive of their own. F and B"
        " are their forward and backward as seen; there is no plan to lay beside them.",
    ),
    "observed": (
        "No plan: the program shows no schedule object. Actions are as seen.",
        "No plan: the program shows no schedule object. Actions are as seen; what they imply and"
        " what comes next is not known.",
    ),
}


def lacks(view: PipelineView, cells: int) -> tuple[Line, ...]:
    """Return a line about the missing plan, if rows have no plan."""
    short, long = _LACKS.get(view.source, ("", ""))
    text = long if len(long) + 2 <= cells else short
    return (crop(line(Segment(f" {text}", "dim")), cells),) if text else ()


def choices(snapshot: Snapshot, cells: int) -> tuple[Line, ...]:
    """Draw the run's pipelines with their bubbles, as many as fit around the selected one, and the
    worst one's name."""
    names, view = snapshot.pipelines, snapshot.pipeline
    if len(names) < 2 or view is None:
        return ()
    tail = line(*_worst(names), Segment(_KEYS, "accent"), Segment(" another ", "dim"))
    room = cells - line_width(tail) - 2
    shown = min(view.index, len(names) - 1)
    first, last = shown, shown + 1
    while last - first < len(names):
        wider = (first, last + 1) if last < len(names) else (first - 1, last)
        if first > 0 and last < len(names) and (last - shown) > (shown - first):
            wider = (first - 1, last)
        if line_width(_row(names, shown, *wider)) > room:
            break
        first, last = wider
    row = _row(names, shown, first, last)
    gap = max(1, cells - line_width(row) - line_width(tail))
    return (crop(line(*row, " " * gap, *tail), cells),)


def _row(names: tuple[PipelineName, ...], shown: int, first: int, last: int) -> Line:
    parts: list[Segment | str] = [Segment(f" {len(names)} pipelines ", "dim")]
    parts += [Segment(" …", "faint")] if first > 0 else []
    for index in range(first, last):
        here = index == shown
        share = words.percent(names[index].bubble_fraction)
        parts += [Segment(" ▸" if here else "  ", "accent"),
                  Segment(names[index].label, "strong" if here else "dim"),
                  Segment(f" {share}", "warn" if here else "dim")]  # fmt: skip
    parts += [Segment("  …", "faint")] if last < len(names) else []
    return line(*parts)


def _worst(names: tuple[PipelineName, ...]) -> list[Segment]:
    known = [name for name in names if name.bubble_fraction is not None]
    if not known:
        return []
    worst = max(known, key=lambda name: name.bubble_fraction or 0.0)
    return [Segment("worst ", "dim"), Segment(worst.label)]
