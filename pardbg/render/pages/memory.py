"""The memory page: each rank's bytes by category, beside the expected bytes, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.analysis.pipeline.in_flight import Peak
from pardbg.render.draw.bars import keys, resample, rule, shares, spark
from pardbg.render.draw.cells import (
    Drawn,
    Line,
    Picture,
    Row,
    Segment,
    fit,
    left,
    line,
    line_width,
    right,
    selected,
)
from pardbg.render.frame.panels import empty
from pardbg.render.pages.memory_course import (
    BESIDE,
    CATEGORIES,
    LEAST_ALIKE,
    TOTAL_ROWS,
    course,
    legend,
    parts,
    sharding,
    whole,
)
from pardbg.render.pages.zero_ladder import counted, ladder, note, verdict, zero_of

SHORT = {
    "parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ",
    "other": "other",
}  # fmt: skip
GUTTER = 7
LEAST_CHART = 10
"""Rows from which on memory over time is drawn."""
_LEAST_ALONE: Final = 8
"""The same where no ladder of ZeRO levels wants the room."""
_CHARTS: Final = 17
"""Rows reserved for the charts before a rank gets more than two."""
SMALL = 24
"""Minimum number of rows of a page with blank lines."""
_OFF: Final = 0.01
"""Relative difference up to which actual bytes count as the expected ones."""
_OUTLIER: Final = 0.1
"""Share of a rank's total from which on its bytes above the median are drawn as excess."""


@dataclass(frozen=True, slots=True)
class _Scale:
    bar: int
    top: float
    figures: int
    """Cells of each category's column; 0: no columns."""
    usual: Mapping[int | None, float]
    """Expected bytes of a rank -> median total of all ranks with this expectation."""
    other: bool
    """Whether bars include "other". A resident set is mostly other, Python and its libraries: on
    its scale the rest would be invisible, so it is left out while no rank has an excess."""

    def parts(self, row: MemoryRow) -> tuple[tuple[str, int], ...]:
        """Return (letter, bytes) of a rank's bar."""
        return parts(row) if self.other else parts(row)[:-1]

    def excess(self, row: MemoryRow) -> int:
        """Return the bytes that a rank holds above the median of its like; 0 if these are few."""
        return _excess(row, self.usual)

    @classmethod
    def of(cls, rows: tuple[MemoryRow, ...], bar: int, figures: int) -> _Scale:
        """Return a common scale for all ranks."""
        alike: dict[int | None, list[int]] = {}
        for row in rows:
            alike.setdefault(row.expected_bytes, []).append(row.total_bytes or 0)
        usual = {of: median(all_) for of, all_ in alike.items() if len(all_) >= LEAST_ALIKE}
        other = any(row.total_kind != "rss" or _excess(row, usual) for row in rows)
        sums = [sum(v for name, v in parts(row) if other or name != "U") for row in rows]
        top = max([*sums, *(row.expected_bytes or 0 for row in rows), 1]) * 1.04
        return cls(bar, top, figures, usual, other)


def _excess(row: MemoryRow, usual: Mapping[int | None, float]) -> int:
    total = row.total_bytes or 0
    over = total - round(usual.get(row.expected_bytes, total))
    return over if over > _OUTLIER * total else 0


def has_figures(snapshot: Snapshot) -> bool:
    """Return whether any memory figure of a rank is known."""
    return any(row.total_bytes or any(value for _, value in parts(row)) for row in snapshot.memory)


def memory(
    snapshot: Snapshot,
    cells: int,
    rows: int,
    chosen: int | None = None,
    peaks: Mapping[int, Peak] | None = None,
    ascii_: bool = False,
) -> Picture:
    """Return the page at ``cells`` x ``rows``. ``peaks``: rank -> the action at the rank's peak."""
    if not has_figures(snapshot):
        return empty(cells, rows, "No memory figures yet.",
                     "They come with the first optimizer step.")  # fmt: skip
    each = 13 if cells >= 140 else 10 if cells >= 110 else 0
    tail = each * len(CATEGORIES) + 14
    scale = _Scale.of(snapshot.memory, max(16, cells - GUTTER - tail - 2), each)
    drawn = _sharding(snapshot, cells, rows)
    legend_ = _foot(cells, rows, scale.other, bool(drawn))
    top = 4 if rows >= SMALL else 2
    left_over = rows - (3 if not drawn else 2) - top - len(drawn)
    density = _density(len(snapshot.memory), left_over, bool(drawn))
    by_rank = peaks or {}

    @cache
    def of(at: int) -> list[Line]:
        row = snapshot.memory[at]
        told = row.rank == own.rank
        peak = by_rank.get(row.rank)
        return _rank(row, scale, cells, density, row.rank == chosen, peak, told)

    number = len(snapshot.memory) * density
    places = tuple(row.rank for row in snapshot.memory for _ in range(density))
    focus = places.index(chosen) if chosen in places else None
    own = next((row for row in snapshot.memory if row.rank == chosen), snapshot.memory[0])
    own = replace(own, zero=zero_of(snapshot, own))
    spare = rows - top - number - len(drawn) - len(legend_)
    about = whole(own, cells)
    room = spare - len(about)
    over = any(scale.excess(row) for row in snapshot.memory)
    ladder_ = _ladder(own, cells)
    least = LEAST_CHART if ladder_ else _LEAST_ALONE
    charts = course(snapshot, own, cells, room, over, ascii_) if room >= least else []
    steps = [] if charts and cells >= BESIDE else ladder_
    below: list[Line] = []
    for section in (about, charts, steps):
        if section and len(section) <= spare:
            below += section
            spare -= len(section)
    body = Drawn(number, lambda at: of(at // density)[at % density], below)
    foot = (*drawn, *legend_)
    return Picture(_head(snapshot, scale, cells, rows), body, foot, focus=focus, rows=places)


def _density(number: int, rows: int, sharded: bool) -> int:
    """Return the number of lines of each of ``number`` ranks: 4 for bar, expectation, history and a
    blank line; 2 for the bar and a note; or 1 for the bar if charts need the room."""
    most = rows - (0 if sharded else TOTAL_ROWS + _CHARTS)
    for lines in (4, 2):
        if number * lines <= most:
            return lines
    return 2 if number * 4 <= rows else 1


def _ladder(own: MemoryRow, cells: int) -> list[Line]:
    drawn = ladder(own, cells - 2)
    title = "ZeRO levels, between steps"
    if not drawn or own.zero is None:
        return []
    return [(), line(" ", rule(title, cells - 2, note(own.zero))), *(line(" ", *r) for r in drawn)]


def _sharding(snapshot: Snapshot, cells: int, rows: int) -> list[Line]:
    """Draw a sharded step in the rows left by a line per rank, or in half of the page if that
    suffices."""
    if snapshot.sharding is None:
        return []
    taken = (3 if rows < SMALL else 5) + len(snapshot.memory)
    room = max(rows - taken, rows // 2 - 2)
    drawn = sharding(snapshot.sharding, cells, min(room, len(snapshot.sharding.units) + 5))
    return [(), *drawn] if drawn and rows >= SMALL else drawn


def _head(snapshot: Snapshot, scale: _Scale, cells: int, rows: int) -> tuple[Line, ...]:
    first = snapshot.memory[0]
    each = scale.figures
    names = "".join(
        right(word if each > len(word) else SHORT[word], each) for _, word in CATEGORIES if each
    )
    total = "resident set" if first.total_kind == "rss" else "allocated"
    kind, left_out = (total, "") if scale.other else ("memory", ", other left out")
    top = words.binary_size(scale.top)
    ends = "╷0" + right(top, scale.bar - 2)
    excess = {row.rank: scale.excess(row) for row in snapshot.memory}
    # A device's total is of a step's end, when activations are gone.
    beside = ", and a step's activations" if kind == "allocated" else ""
    title = f"{kind} by rank{beside}"
    named = [(), line(" ", rule(title, cells - 2, f"one scale, 0 – {top}{left_out}"))]
    return (
        verdict(snapshot.memory, excess, cells, snapshot.findings),
        *(named if rows >= SMALL else ()),
        line(Segment(left("  rank", GUTTER), "dim"), Segment(ends, "faint"),
             Segment(names, "dim"), Segment(right(total, 13), "dim")),
    )  # fmt: skip


def _rank(
    row: MemoryRow,
    scale: _Scale,
    cells: int,
    density: int,
    chosen: bool,
    peak: Peak | None,
    told: bool,
) -> list[Line]:
    mark = Segment("▸" if chosen else " ", "accent")
    style = "bad" if row.failed else "strong" if chosen else ""
    name = line(" ", mark, Segment(left(f"r{row.rank}", GUTTER - 2), style))
    over = scale.excess(row)
    drawn = stack(row, scale, density == 1)
    total = Segment(right(words.binary_size(row.total_bytes), 13), "culprit" if over else "strong")
    figures = line(*_figures(row, scale), total)
    main = line(name, drawn, figures)
    lines = [fit(selected(main), cells, "+sel") if chosen and density <= 2 else main]
    if density == 2:
        lines.append(_brief(row, scale, cells, peak, told))
    if density > 2:
        lines.append(_expected(row, scale, cells))
        history = line(" " * GUTTER, _history(row, scale.bar))
        if peak is not None:
            both = line(*history, Segment(f"   {peak.text}", "dim"))  # the peak says more
            alone = line(" " * GUTTER, Segment(peak.text, "dim"))
            history = both if line_width(both) <= cells else fit(alone, cells)
        lines.append(history)
    if density >= 4:
        lines.append(())
    return lines


def _figures(row: MemoryRow, scale: _Scale) -> list[Segment]:
    if not scale.figures:
        return []
    values = (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
              row.activations_bytes, row.unattributed_bytes)  # fmt: skip
    return [
        Segment(right(words.binary_size(value), scale.figures), "dim" if letter == "U" else "")
        for (letter, _), value in zip(CATEGORIES, values, strict=True)
    ]


def stack(row: MemoryRow, scale: _Scale, mark_expected: bool) -> Line:
    """Return the stacked bar with a letter in each part that has room for it, and its excess."""
    size, top, over = scale.bar, scale.top, scale.excess(row)
    drawn = Row(size, " ", "")
    pieces = scale.parts(row)
    at = 0
    for (letter, value), cells in zip(
        pieces, shares([value / top for _, value in pieces], size), strict=True
    ):
        cells = max(cells, 1 if value else 0)  # what is there must be seen
        drawn.fill(at, at + cells, " ", f"mem.{letter}")
        if cells >= 1:
            drawn.put(at + (cells - 1) // 2, letter, f"mem.{letter}")
        at += cells
    if over:
        start, text = at - max(1, round(over / top * size)), f"+{words.binary_size(over)}"
        drawn.fill(start, at, " ", "alarm.warn")
        drawn.put(start + 1, text if len(text) + 2 <= at - start else "", "alarm.warn")
    drawn.fill(at, size, "·", "rule")
    if mark_expected and row.expected_bytes:
        end = min(size - 1, round(row.expected_bytes / top * size))
        drawn.put(end, "┃" if drawn.chars[end] in " ·" else "", "expected")  # never over a letter
    return drawn.line()


def _expected(row: MemoryRow, scale: _Scale, cells: int) -> Line:
    """Draw a marker under the bar at the expected end of parameters, gradients and optimizer."""
    if row.expected_bytes is None:
        text = "no expectation: the kind of sharding is not known"
        return line(" " * GUTTER, Segment(text, "faint"))
    at = GUTTER + min(scale.bar - 1, round(row.expected_bytes / scale.top * scale.bar))
    have = sum(value for letter, value in parts(row) if letter in "PGO")
    measured = None not in (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes)
    text = f"expected P+G+O {words.binary_size(row.expected_bytes)}"
    off = have / row.expected_bytes - 1 if row.expected_bytes else 0.0
    style = "warn" if abs(off) > 0.1 and measured else "dim"
    note = (
        ", measured after the first step"
        if not measured
        else f", have {words.binary_size(have)} ({words.change(off, 0)})"
        if abs(off) > 0.01
        else ", as measured"
    )
    said = Segment(text, "dim"), Segment(note, style)
    if at + 2 + len(text + note) <= cells:
        return line(" " * at, Segment("▲ ", "expected"), *said)
    return line(" " * (at - 1 - len(text + note)), *said, Segment(" ▲", "expected"))


def _history(row: MemoryRow, size: int) -> Line:
    """Draw the total over the run on its own scale, with figures that change within a step."""
    values = resample([value for _, value in row.history], min(size - 26, 120))
    if len(values) < 2:
        return (Segment(_moves(row).lstrip(), "dim"),)
    low, high = min(values), max(values)
    ends = dict.fromkeys((words.binary_size(low), words.binary_size(high)))
    span = f"  {' – '.join(ends)}"
    return line(Segment(spark(values, len(values)), "spark"), Segment(span, "faint"),
                Segment(_moves(row), "dim"))  # fmt: skip


def _brief(row: MemoryRow, scale: _Scale, cells: int, peak: Peak | None, told: bool) -> Line:
    """Draw one line: the expectation, if ``told`` or if it is not met, else the figures that change
    within a step."""
    have, want = counted(row), row.expected_bytes
    text = peak.text if peak is not None else _moves(row).lstrip()
    if told or (have is not None and want and abs(have / want - 1) > _OFF):
        made = _expected(row, scale, cells)
        room = line_width(made) + 3 + len(text) <= cells
        return fit(line(made, Segment(f"   {text}", "dim") if text and room else ()), cells)
    return fit(line(" " * GUTTER, Segment(text, "dim")), cells) if text else ()


def _moves(row: MemoryRow) -> str:
    """Return figures that change within a step; the bar shows the time between two steps."""
    text = ""
    if row.peak_bytes and row.total_bytes and row.peak_bytes > 1.05 * row.total_bytes:
        text += f"   peak {words.binary_size(row.peak_bytes)}"
    if row.gathered_peak_bytes:
        text += f"   a step gathers up to {words.binary_size(row.gathered_peak_bytes)} beside P"
    least, peak = row.activations_least_bytes, row.activations_peak_bytes
    if least is not None and peak is not None and least < 0.9 * peak:
        text += f"   activations {words.binary_size(least)} to {words.binary_size(peak)}, by step"
    return text


def _foot(cells: int, rows: int, other: bool, sharded: bool) -> tuple[Line, ...]:
    parts_: list[Segment] = [Segment("  ")]
    for letter, word in CATEGORIES if other else CATEGORIES[:-1]:
        said = word if cells >= (100 if other else 80) else SHORT[word]
        said += " within a step" * (letter == "A" and cells >= 116)  # the total is between steps
        parts_ += [Segment(f" {letter} ", f"mem.{letter}"), Segment(f" {said}  ", "dim")]
    moment = " between steps" if cells >= 104 else ""
    parts_ += [Segment("▲┃", "expected"), Segment(f" expected{moment}", "dim")]
    if not other and cells >= 132:
        parts_.append(Segment("   other is not in the bars", "faint"))
    if rows < 12:
        return ()
    if sharded and rows < SMALL:  # one line must do
        known = [(letter, f"mem.{letter}", SHORT[word]) for letter, word in CATEGORIES[:4]]
        letters = [("┃", "expected", "expected"), *known]
        return (line(legend(), keys(letters, cells - line_width(legend()))),)
    if sharded:
        return (fit(legend(), cells), fit(parts_, cells))
    return ((), fit(parts_, cells))
