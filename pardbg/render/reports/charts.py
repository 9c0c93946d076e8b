"""The report's pictures: schedule, ledger, steps, memory, collectives, as SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from pardbg.analysis.answers.moments import Moment
from pardbg.analysis.answers.report_pipeline import RankUse
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.analysis.pipeline.implied import Planned, lay_out, makespan
from pardbg.analysis.pipeline.values import PipelineRank, PipelineStep
from pardbg.render.draw.svg import Svg, fits, ticks
from pardbg.render.pages.finding_lanes import shown_lanes
from pardbg.render.pages.pipeline.schedule import CAUSE_WORD, label
from pardbg.words import binary_size, count, duration, number, percent

WIDTH: Final = 1000.0
LEFT: Final = 64.0
RIGHT: Final = 12.0
MAX_RANKS: Final = 64
"""Maximum number of ranks in a picture; the tables and ``--json`` have all."""
MAX_BARS: Final = 240
_PLAN_H, _SEEN_H, _GAP = 9.0, 24.0, 10.0
_LANE_H: Final = 18.0
_LANE_STYLE: Final = {
    "F": "F", "B": "B", "I": "I", "W": "W", "forward": "F", "backward": "B", "optimizer": "O",
    "data": "A",
}  # fmt: skip
"""Action or phase -> letter of its style."""
LANE_KEYS: Final = (
    ("F", "forward"), ("B", "backward"), ("O", "optimizer"), ("X", "other phases"), ("C", "ops"),
    ("S", "waits"),
)  # fmt: skip
MEMORY: Final = (
    ("parameters", "P"), ("gradients", "G"), ("optimizer state", "O"), ("activations", "A"),
)  # fmt: skip
"""(category of memory, letter of its style)"""


def schedule(step: PipelineStep, num_stages: int) -> str:
    """Draw the observed actions in proportion to time below the planned ones, idle time by
    cause."""
    rows = step.ranks[:MAX_RANKS]
    plan = lay_out(step, step, num_stages) if any(row.plan for row in rows) else {}
    window = max(step.t1_ns - step.t0_ns, round(makespan(plan)), 1)
    height = 22 + len(rows) * (_PLAN_H + _SEEN_H + _GAP)
    svg = Svg(WIDTH, height, f"schedule of step {step.step}, planned and seen")
    scale = (WIDTH - LEFT - RIGHT) / window
    many = any(len(row.stages) > 1 for row in rows)
    for tick in ticks(window, 8):
        x = LEFT + tick * scale
        svg.line(x, 14, x, height, "grid")
        svg.text(x + 3, 10, _mark(tick, duration), "t dim")
    for at, row in enumerate(rows):
        top = 18 + at * (_PLAN_H + _SEEN_H + _GAP)
        svg.text(LEFT - 8, top + _PLAN_H + 16, f"rank {row.rank}", "t", "end")
        _plan_row(svg, plan.get(row.rank, ()), top, scale)
        _seen_row(svg, row, step, top + _PLAN_H, scale, many)
    return svg.markup()


def _mark(tick: float, show: Callable[[float], str]) -> str:
    return show(tick) if tick else "0"


def _plan_row(svg: Svg, boxes: Sequence[Planned], top: float, scale: float) -> None:
    for box in boxes:
        width = (box.t1_ns - box.t0_ns) * scale
        style = f"plan {_kind(box.kind)}"
        svg.rect(LEFT + box.t0_ns * scale, top + 3, width - 0.8, _PLAN_H - 4, style,
                 f"planned {box.text}")  # fmt: skip


def _seen_row(
    svg: Svg, row: PipelineRank, step: PipelineStep, top: float, scale: float, many: bool
) -> None:
    for idle in row.idles:
        begin, length = idle.t0_ns - step.t0_ns, idle.t1_ns - idle.t0_ns
        waits = f", waits for {idle.producer}" if idle.producer else ""
        svg.rect(LEFT + begin * scale, top, length * scale, _SEEN_H, f"idle {idle.cause}",
                 f"idle {duration(length)}: {CAUSE_WORD[idle.cause]}{waits}")  # fmt: skip
    for action in row.actions:
        end = action.t1_ns if action.t1_ns is not None else step.t1_ns
        x, width = LEFT + (action.t0_ns - step.t0_ns) * scale, (end - action.t0_ns) * scale
        odd = " odd" if action.microbatch % 2 else ""
        svg.rect(x, top, max(width, 0.6), _SEEN_H, f"act {_kind(action.kind)}{odd}",
                 f"{action.text}: {duration(end - action.t0_ns)}")  # fmt: skip
        words = label(action.stage, action.kind, action.microbatch, int((width - 3) / 6.3), many)
        if words:
            svg.text(x + width / 2, top + 16, words, f"on {_kind(action.kind)}{odd}", "middle")


def _kind(kind: str) -> str:
    return kind if kind in ("F", "B", "I", "W") else "X"


def moment(drawn: Moment, culprits: Sequence[int], begin_ns: int) -> str:
    """Draw the activity of ranks in a window: two rows a rank, one of phases or actions, one of
    waits or ops. Labels of the axis count from ``begin_ns``."""
    rows = [
        (rank, names) for rank in sorted(drawn.lanes) if (names := shown_lanes(drawn.lanes[rank]))
    ]
    height = 22 + sum(len(names) * _LANE_H + _GAP for _, names in rows)
    svg = Svg(WIDTH, height, "timeline of some ranks")
    window = max(1, drawn.t1_ns - drawn.t0_ns)
    scale = (WIDTH - LEFT - RIGHT) / window
    for tick in ticks(window, 8):
        svg.line(LEFT + tick * scale, 14, LEFT + tick * scale, height, "grid")
        svg.text(LEFT + tick * scale + 3, 10, duration(drawn.t0_ns - begin_ns + tick), "t dim")
    top = 18.0
    for rank, names in rows:
        style = "t strong" if rank in culprits else "t"
        svg.text(LEFT - 8, top + 13, f"rank {rank}", style, "end")
        if rank in culprits and drawn.stands:
            last = max((s.t1_ns for name in names for s in drawn.lanes[rank][name]), default=0)
            there = LaneSpan(last, drawn.t1_ns, drawn.stands, "stands")
            _span(svg, there, drawn, top, scale)
        for name in names:
            for span in drawn.lanes[rank][name]:
                _span(svg, span, drawn, top, scale)
            top += _LANE_H
        top += _GAP
    return svg.markup()


def _span(svg: Svg, span: LaneSpan, drawn: Moment, top: float, scale: float) -> None:
    begin, end = max(span.t0_ns, drawn.t0_ns), min(span.t1_ns, drawn.t1_ns)
    x, width = LEFT + (begin - drawn.t0_ns) * scale, (end - begin) * scale
    if end <= begin:
        return
    _, _, what = span.style.partition(".")
    style = _LANE_STYLE.get(what, {"wait": "S", "stands": "bar over"}.get(span.style, "C"))
    if span.style.startswith(("action", "phase")) and what not in _LANE_STYLE:
        style = "X"
    title = f"{span.label}: {duration(span.t1_ns - span.t0_ns)}"
    svg.rect(x, top, max(width, 0.6), _LANE_H - 2, f"lane {style}", title)
    if fits(span.label, width):
        svg.text(x + 3, top + 12, span.label, "t halo" if style in "CS" else f"on {style}")


def ledger(use: Sequence[RankUse]) -> str:
    """Draw busy and idle by cause per rank, as shares of the window over all steps."""
    shown = use[:MAX_RANKS]
    svg = Svg(WIDTH, len(shown) * 26 + 4, "bubble ledger: busy and idle by cause, per rank")
    room = WIDTH - LEFT - RIGHT
    for at, row in enumerate(shown):
        top, x = at * 26 + 2, LEFT
        svg.text(LEFT - 8, top + 15, f"rank {row.rank}", "t", "end")
        parts = [("busy", "busy", "busy", row.busy)]
        parts += [
            (cause, f"idle {cause}", CAUSE_WORD[cause], share) for cause, share in row.idle.items()
        ]
        for part, style, word, share in parts:
            width = share * room
            svg.rect(x, top, width, 20, style, f"{word}: {percent(share)}")
            text = percent(share)
            if part == "busy" and fits(f"busy {text}", width):
                text = f"busy {text}"
            if fits(text, width):
                svg.text(x + width / 2, top + 14, text, f"on {part}", "middle")
            x += width
    return svg.markup()


def steps(rows: Sequence[StepRow]) -> str:
    """Draw a bar per step (or per few), the median as a line, and the loss above."""
    bars = _thinned(rows)
    top = max(row.duration_ns for row in rows)
    typical = median(row.duration_ns for row in rows)
    high = min(top, 2.5 * typical) * 1.08  # one slow first step must not flatten the rest
    losses = [(r.step, r.loss) for r in rows if r.loss is not None and math.isfinite(r.loss)]
    svg = Svg(WIDTH, 190, "time of each step" + (", and loss" if losses else ""))
    base, room = 168.0, WIDTH - LEFT - (64 if losses else RIGHT)
    for tick in ticks(high):
        y = base - tick / high * 150
        svg.line(LEFT, y, LEFT + room, y, "grid")
        svg.text(LEFT - 8, y + 4, _mark(tick, duration), "t dim", "end")
    each = room / len(bars)
    for at, (first, last, value) in enumerate(bars):
        height = min(value, high) / high * 150
        named = f"step {first}" if first == last else f"steps {first}–{last}, median"
        svg.rect(LEFT + at * each + each * 0.1, base - height, each * 0.8, height,
                 "bar over" if value > high else "bar", f"{named}: {duration(value)}")  # fmt: skip
    y = base - typical / high * 150
    svg.line(LEFT, y, LEFT + room, y, "median")
    svg.text(LEFT + 4, y - 4, f"median {duration(typical)}", "t strong halo")
    svg.text(LEFT, 185, f"step {bars[0][0]}", "t dim")
    svg.text(LEFT + room, 185, f"step {bars[-1][1]}", "t dim", "end")
    _loss_line(svg, losses, rows, room, base)
    return svg.markup()


def _thinned(rows: Sequence[StepRow]) -> list[tuple[int, int, float]]:
    """Return (first step, last step, median ns) per bar."""
    per = math.ceil(len(rows) / MAX_BARS)
    parts = [rows[i : i + per] for i in range(0, len(rows), per)]
    return [(p[0].step, p[-1].step, median(row.duration_ns for row in p)) for p in parts]


def _loss_line(
    svg: Svg, losses: Sequence[tuple[int, float]], rows: Sequence[StepRow], room: float, base: float
) -> None:
    if len(losses) < 2:
        return
    low, high = min(v for _, v in losses), max(v for _, v in losses)
    span, first = (high - low) or 1.0, rows[0].step
    each = room / max(1, rows[-1].step - first + 1)
    every = math.ceil(len(losses) / 1000)
    points = [
        (LEFT + (step - first + 0.5) * each, base - 10 - (value - low) / span * 130)
        for step, value in losses[::every]
    ]
    svg.path(points, "loss")
    svg.text(LEFT + room + 6, base - 136, number(high), "t loss")
    svg.text(LEFT + room + 6, base - 6, number(low), "t loss")
    svg.text(LEFT + room + 6, base - 70, "loss", "t loss")


def memory(rows: Sequence[MemoryRow]) -> str:
    """Draw each rank's memory by category, with a mark at the expectation of the model's ZeRO
    level."""
    tops = [max(sum(n or 0 for n in sizes(row)), row.expected_bytes or 0) for row in rows]
    top = max(tops, default=0) or 1
    svg = Svg(WIDTH, len(rows) * 26 + 22, "memory per rank by category")
    room = WIDTH - LEFT - 150
    unit = next((1 << shift for shift in (30, 20, 10) if top >= 2 << shift), 1)
    for tick in (unit * value for value in ticks(top / unit)):
        svg.line(LEFT + tick / top * room, 14, LEFT + tick / top * room, len(rows) * 26 + 20,
                 "grid")  # fmt: skip
        svg.text(LEFT + tick / top * room + 3, 10, _mark(tick, binary_size), "t dim")
    for at, row in enumerate(rows):
        y, x = at * 26 + 18, LEFT
        svg.text(LEFT - 8, y + 15, f"rank {row.rank}", "t", "end")
        for (word, letter), size in zip(MEMORY, sizes(row), strict=True):
            width, text = (size or 0) / top * room, binary_size(size or 0)
            svg.rect(x, y, width, 20, f"mem {letter}", f"{word}: {text}")
            if fits(text, width):
                svg.text(x + width / 2, y + 14, text, f"on mem {letter}", "middle")
            x += width
        if row.expected_bytes is not None:
            mark = LEFT + row.expected_bytes / top * room
            svg.line(mark, y - 2, mark, y + 22, "expected")
        if row.unattributed_bytes is not None:
            svg.text(x + 8, y + 14, f"+ {binary_size(row.unattributed_bytes)} else", "t dim")
    return svg.markup()


def sizes(row: MemoryRow) -> tuple[int | None, ...]:
    """Return the bytes in the order of MEMORY."""
    return (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
            row.activations_peak_bytes)  # fmt: skip


def last_ranks(rows: Sequence[CollectiveRow], ranks: Sequence[int]) -> str:
    """Draw how often each rank arrived last at a collective, with the wait it caused; of many ranks
    those with the longest waits."""
    times: Counter[int] = Counter()
    waits: Counter[int] = Counter()
    for row in rows:
        if row.last_rank is not None:
            times[row.last_rank] += 1
            waits[row.last_rank] += row.wait_ns or 0
    shown = sorted(sorted(ranks, key=lambda rank: -waits[rank])[:MAX_RANKS])
    top = max((waits[rank] for rank in shown), default=0) or 1
    svg = Svg(WIDTH, len(shown) * 22 + 4, "wait that each rank caused by coming last")
    room = WIDTH - LEFT - 260
    for at, rank in enumerate(shown):
        y, width = at * 22 + 2, waits[rank] / top * room
        svg.text(LEFT - 8, y + 13, f"rank {rank}", "t", "end")
        svg.rect(LEFT, y, width, 16, "late", f"{duration(waits[rank])} of waiting")
        often = "once" if times[rank] == 1 else f"{count(times[rank])} times"
        text = f"last {often}, the others waited {duration(waits[rank])}"
        svg.text(LEFT + width + 8, y + 12, text if times[rank] else "never last", "t dim")
    return svg.markup()
