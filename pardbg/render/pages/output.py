"""The output page: what the job prints, line by line, made harmless for the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.output import OutputLine
from pardbg.render.draw.cells import Line, Picture, Segment, clean, clip, line
from pardbg.render.frame.empty import empty

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def output(
    snapshot: Snapshot, lines: Sequence[OutputLine], contains: str, cells: int, rows: int
) -> Picture:
    """The page at ``cells`` x ``rows``; the newest line is last."""
    if not lines:
        if contains:
            return empty(cells, rows, f"No line contains “{clean(contains)}”.", "esc clears it.")
        return empty(cells, rows, "The job has printed nothing yet.")
    shown = f"  filter “{clean(contains)}” · esc clears it" if contains else "  / filters"
    head = (line(Segment(f"  {words.plural(len(lines), 'line')}", "dim"), Segment(shown, "faint")),)
    body = tuple(output_line(entry, snapshot, cells) for entry in lines)
    return Picture(head, body, follow=True)


def output_line(entry: OutputLine, snapshot: Snapshot, cells: int) -> Line:
    """When, who, and what was printed."""
    when = words.offset(max(0, entry.t_ns - snapshot.t_begin_ns), 1e7)
    who = f"r{entry.rank}" if entry.rank is not None else ""
    style = "stderr" if entry.stream == "stderr" else ""
    text = clean(_ESCAPES.sub("", entry.text))
    return line(
        Segment(f" {when:>9} ", "faint"), Segment(f"{who:<4} ", "accent" if who else ""),
        Segment("! " if style else "  ", style), Segment(clip(text, max(4, cells - 18)), style),
    )  # fmt: skip
