"""The source around the selected frame, its current line always in sight."""

from __future__ import annotations

from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Segment, clean, clip, fit, line
from pardbg.session.source_files import SourceLines

_ABOVE = 0.5
"""Share of the rows that lies over the current line."""


def source(found: SourceLines | None, title: str, cells: int, rows: int) -> list[Line]:
    """A heading and the lines around the current one, in at most ``rows`` lines; nothing where no
    frame is known."""
    if found is None or rows < 2:
        return []
    lines = [line(" ", rule(title, cells - 2, ""))]
    if not found.lines:
        where = f"{found.place.file}:{found.place.line}"
        return [*lines, line(Segment(clip(f"  {clean(where)}: {found.note}", cells), "faint"))]
    room = rows - 1
    at = found.place.line - found.first
    start = max(0, min(at - int(room * _ABOVE), len(found.lines) - room))
    digits = len(str(found.first + len(found.lines)))
    for index, text in enumerate(found.lines[start : start + room], start):
        number = f" {found.first + index:>{digits}} "
        now = index == at
        made = line(
            Segment(number, "accent" if now else "faint"),
            Segment("▶ " if now else "  ", "accent"),
            Segment(clip(clean(text.expandtabs(4)), cells - digits - 5), "strong" if now else ""),
        )
        lines.append(fit(tuple(Segment(r.text, r.style + "+sel") for r in made), cells, "+sel")
                     if now else made)  # fmt: skip
    return lines
