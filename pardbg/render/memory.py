"""The memory page: what the bytes of each rank are, beside what is expected, and their course."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.model import MemoryRow, Snapshot
from pardbg.render import words
from pardbg.render.cells import Line, Picture, Row, Run, fit, left, line, right, selected
from pardbg.render.empty import empty
from pardbg.render.sparks import resample, shares, spark

CATEGORIES = (
    ("P", "parameters"), ("G", "gradients"), ("O", "optimizer"), ("A", "activations"),
    ("U", "other"),
)  # fmt: skip
SHORT = {
    "parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ",
    "other": "other",
}  # fmt: skip
GUTTER = 6


@dataclass(frozen=True, slots=True)
class _Scale:
    bar: int
    top: float
    figures: int
    """Cells of each category's column; 0: no columns."""


def parts(row: MemoryRow) -> tuple[tuple[str, int], ...]:
    """(letter, bytes) of the stacked bar. A resident set also holds Python and its libraries, so
    what is not attributed belongs into the bar only where a device counted it."""
    values = (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
              row.activations_bytes,
              row.unattributed_bytes if row.total_kind == "allocated" else 0)  # fmt: skip
    return tuple(
        (letter, max(value or 0, 0)) for (letter, _), value in zip(CATEGORIES, values, strict=True)
    )


def memory(snapshot: Snapshot, cells: int, rows: int, chosen: int | None = None) -> Picture:
    """The page at ``cells`` x ``rows``."""
    if not snapshot.memory:
        return empty(cells, rows, "No memory figures yet.",
                     "They come with the first optimizer step.")  # fmt: skip
    sums = [sum(value for _, value in parts(row)) for row in snapshot.memory]
    top = max([*sums, *(row.expected_bytes or 0 for row in snapshot.memory), 1]) * 1.04
    each = 13 if cells >= 140 else 10 if cells >= 110 else 0
    tail = each * len(CATEGORIES) + 14
    scale = _Scale(max(16, cells - GUTTER - tail - 2), top, each)
    density = 3 if len(snapshot.memory) * 3 <= rows - 5 else 1
    if density == 3 and len(snapshot.memory) * 4 <= rows - 5:
        density = 4
    body: list[Line] = []
    places: list[int] = []
    for row in snapshot.memory:
        lines = _rank(row, scale, cells, density, row.rank == chosen)
        body += lines
        places += [row.rank] * len(lines)
    focus = places.index(chosen) if chosen in places else None
    return Picture(_head(snapshot, scale, cells), tuple(body), _foot(cells, rows, snapshot),
                   focus=focus, rows=tuple(places))  # fmt: skip


def _head(snapshot: Snapshot, scale: _Scale, cells: int) -> tuple[Line, ...]:
    first = snapshot.memory[0]
    each = scale.figures
    names = "".join(
        right(word if each > len(word) else SHORT[word], each) for _, word in CATEGORIES if each
    )
    total = "resident set" if first.total_kind == "rss" else "allocated"
    ends = "0" + right(words.memory(scale.top), scale.bar - 1)
    return (
        (),
        line(Run(left(" rank", GUTTER), "dim"), Run(ends, "faint"),
             Run(names, "dim"), Run(right(total, 13), "dim")),
    )  # fmt: skip


def _rank(row: MemoryRow, scale: _Scale, cells: int, density: int, chosen: bool) -> list[Line]:
    mark = Run("▸" if chosen else " ", "accent")
    name = line(mark, Run(left(f"r{row.rank}", GUTTER - 1), "strong" if chosen else ""))
    drawn = stack(row, scale.bar, scale.top, mark_expected=density == 1)
    figures = line(*_figures(row, scale), Run(right(words.memory(row.total_bytes), 13), "strong"))
    main = line(name, drawn, figures)
    lines = [fit(selected(main), cells, "+sel") if chosen and density == 1 else main]
    if density >= 3:
        lines.append(line(" " * GUTTER, _expected(row, scale)))
        lines.append(line(" " * GUTTER, _history(row, scale.bar)))
    if density >= 4:
        lines.append(())
    return lines


def _figures(row: MemoryRow, scale: _Scale) -> list[Run]:
    if not scale.figures:
        return []
    values = (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
              row.activations_bytes, row.unattributed_bytes)  # fmt: skip
    return [
        Run(right(words.memory(value), scale.figures), "dim" if letter == "U" else "")
        for (letter, _), value in zip(CATEGORIES, values, strict=True)
    ]


def stack(row: MemoryRow, size: int, top: float, mark_expected: bool) -> Line:
    """The stacked bar with a letter in each part that has room for one."""
    drawn = Row(size, " ", "")
    pieces = parts(row)
    at = 0
    for (letter, _), cells in zip(
        pieces, shares([value / top for _, value in pieces], size), strict=True
    ):
        drawn.fill(at, at + cells, " ", f"mem.{letter}")
        if cells >= 1:
            drawn.put(at + (cells - 1) // 2, letter, f"mem.{letter}")
        at += cells
    drawn.fill(at, size, "·", "rule")
    if mark_expected and row.expected_bytes:
        drawn.put(min(size - 1, round(row.expected_bytes / top * size)), "┃", "expected")
    return drawn.line()


def _expected(row: MemoryRow, scale: _Scale) -> Line:
    """A marker under the bar where parameters, gradients and optimizer are expected to end."""
    if row.expected_bytes is None:
        return line(Run("no expectation: the kind of sharding is not known", "faint"))
    drawn = Row(scale.bar)
    at = min(scale.bar - 1, round(row.expected_bytes / scale.top * scale.bar))
    have = sum(value for letter, value in parts(row) if letter in "PGO")
    text = f"expected P+G+O {words.memory(row.expected_bytes)}"
    off = have / row.expected_bytes - 1 if row.expected_bytes else 0.0
    style = "warn" if abs(off) > 0.1 else "dim"
    note = f", have {words.memory(have)} ({off:+.0%})" if abs(off) > 0.01 else ", as measured"
    if len(text + note) + 2 > max(at, scale.bar - at):
        text = f"expected {words.memory(row.expected_bytes)}"
        note = "" if style == "dim" else f" {off:+.0%}"
    start = at + 2 if at + 2 + len(text + note) <= scale.bar else at - 1 - len(text + note)
    drawn.put(max(0, start), text, "dim")
    drawn.put(max(0, start) + len(text), note, style)
    drawn.put(at, "▲", "expected")
    return drawn.line()


def _history(row: MemoryRow, size: int) -> Line:
    """The total over the run; its own scale, said beside it."""
    values = resample([value for _, value in row.history], min(size - 26, 120))
    if len(values) < 2:
        return ()
    low, high = min(values), max(values)
    span = f"  {words.memory(low)} – {words.memory(high)}"
    return line(Run(spark(values, len(values)), "spark"), Run(span, "faint"))


def _foot(cells: int, rows: int, snapshot: Snapshot) -> tuple[Line, ...]:
    parts_: list[Run] = [Run("  ")]
    for letter, word in CATEGORIES:
        parts_ += [Run(f" {letter} ", f"mem.{letter}"), Run(f" {word}  ", "dim")]
    parts_ += [Run("▲┃", "expected"), Run(" expected", "dim")]
    note = ""
    if any(row.total_kind == "rss" for row in snapshot.memory):
        note = "   other is not in the bar"
    if cells < 100:
        parts_ = [run for run in parts_ if run.text not in (" U ", " other  ")]
    return ((), fit((*parts_, Run(note, "faint")), cells)) if rows >= 12 else ()
