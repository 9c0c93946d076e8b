"""The output page: the job's output line by line, made harmless for the terminal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.render.draw.axis import Axis, ruler
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Picture, Row, Segment, clean, clip, fit, line, selected
from pardbg.render.frame.panels import empty
from pardbg.render.frame.stacks import fold

MOST: Final = 2000
"""Maximum number of lines on the page."""
_QUIET_NS: Final = 5_000_000_000
"""Age of the newest line from which on the page tells it."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def matches(lines: Sequence[OutputLine], contains: str) -> list[int]:
    """Return the lines that contain the text."""
    return [at for at, entry in enumerate(lines) if contains.lower() in entry.text.lower()]


def output(
    snapshot: Snapshot,
    lines: Sequence[OutputLine],
    contains: str,
    cells: int,
    rows: int,
    at: int | None = None,
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; the newest line is last.

    ``at``: the line selected by a search for ``contains``; without ``at`` only lines that contain
    the text are shown.
    """
    if not lines:
        if contains:
            return empty(cells, rows, f"No line contains “{clean(contains)}”.", "esc clears it.")
        return empty(cells, rows, "The job has printed nothing yet.")
    shown = f"  filter “{clean(contains)}” · n N search in all lines · esc clears it"
    if at is not None:
        found = matches(lines, contains)
        number = found.index(at) + 1 if at in found else 0
        shown = f"  “{clean(contains)}” {number} of {len(found)} · n N next, before · esc clears it"
    errors = sum(entry.stream == "stderr" for entry in lines)
    note = f", {errors} on stderr" if errors else ""
    whose = [entry.rank for entry in lines if entry.rank is not None]
    ranks = f" of {clip(words.ranks_text(whose), 20)}" if whose else ""
    ranks += " and the job" * (0 < len(whose) < len(lines))
    age = snapshot.t_ns - lines[-1].t_ns
    quiet = f"; none for {words.duration(age)}" if snapshot.live and age > _QUIET_NS else ""
    count = f"{'newest ' * (len(lines) >= MOST)}{words.plural(len(lines), 'line')}"
    said = f"{count}{ranks}{note}{quiet}."
    end = Segment(shown if contains else "  / filters", "faint")
    head = (fit(line(Segment(" ● ", "good"), Segment(said, "strong"), end), cells),)
    body: list[Line] = []
    focus = None
    for index, entry in enumerate(lines):
        drawn = output_lines(entry, snapshot.t_begin_ns, cells)
        if index == at:
            focus = len(body)
            drawn = tuple(fit(selected(row), cells, "+sel") for row in drawn)
        body += drawn
    if at is None:
        body += _course(snapshot, lines, cells, rows - len(body) - 2)
    return Picture(head, tuple(body), focus=focus, follow=at is None)


def printed_last(output: Sequence[OutputLine], begin_ns: int, cells: int, rows: int) -> list[Line]:
    """Draw the job's last lines of output if there are so many rows; empty with fewer."""
    made: list[Line] = []
    for entry in reversed(output):
        drawn = output_lines(entry, begin_ns, cells)
        if len(made) + len(drawn) > rows - 2:  # its heading
            break
        made = [*drawn, *made]
    return [(), rule("printed last", cells, "9 has all"), *made] if made else []


def _course(snapshot: Snapshot, lines: Sequence[OutputLine], cells: int, rows: int) -> list[Line]:
    """Draw, if there is room, the times at which each rank printed on each stream."""
    whose: dict[int, list[OutputLine]] = defaultdict(list)
    for entry in sorted(lines, key=lambda entry: entry.stream == "stderr"):  # errors over the rest
        whose[-1 if entry.rank is None else entry.rank].append(entry)
    span = snapshot.t_ns - snapshot.t_begin_ns
    if rows < len(whose) + 4 or span <= 0:
        return []
    axis = Axis(snapshot.t_begin_ns, span, max(10, cells - 42))
    drawn = [(), line(" ", rule("printed over time", cells - 2, "■ stdout   ! stderr"))]
    drawn.append(line(" " * 10, *ruler(axis).line()))
    for rank, own in sorted(whose.items()):
        row = Row(axis.cells)
        for entry in own:
            mark = ("!", "stderr") if entry.stream == "stderr" else ("■", "spark")
            row.put(min(axis.x(entry.t_ns), axis.cells - 1), *mark)
        errors = sum(entry.stream == "stderr" for entry in own)
        text = f"  {words.plural(len(own), 'line')}" + (f", {errors} on stderr" if errors else "")
        source = "job" if rank < 0 else f"r{rank}"
        drawn.append(line(Segment(f"  {source:<8}", "accent"), row.line(), Segment(text, "dim")))
    return drawn


_MOST_ROWS: Final = 4
"""Maximum rows of a printed line; a longer line ends in ``…``."""


@lru_cache(maxsize=4096)
def output_lines(
    entry: OutputLine, begin_ns: int, cells: int, most: int = _MOST_ROWS
) -> tuple[Line, ...]:
    """Draw time, rank and text of a line, in at most ``most`` rows."""
    when = words.stamp(max(0, entry.t_ns - begin_ns))
    source = f"r{entry.rank}" if entry.rank is not None else ""
    style = "stderr" if entry.stream == "stderr" else ""
    text, room = clean(_ESCAPES.sub("", entry.text)).rstrip(), max(4, cells - 18)
    underline = not text.strip(" ^~")  # of a traceback: folded it would point at nothing
    folded = [text[:room]] if underline else fold(clip(text, most * room), room)
    if len(folded) > most:
        folded[most - 1 :] = [clip(" ".join(folded[most - 1 :]), room)]
    start = line(
        Segment(f" {when:>9} ", "faint"), Segment(f"{source:<4} ", "accent" if source else ""),
        Segment("! " if style else "  ", style), Segment(folded[0], style),
    )  # fmt: skip
    return (start, *(line(" " * 17, Segment(row, style)) for row in folded[1:]))
