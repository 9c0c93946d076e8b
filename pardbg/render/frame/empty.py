"""What a page says when it has nothing to show."""

from __future__ import annotations

from pardbg.render.draw.cells import Line, Picture, Segment, clip, line, width, wrap


def empty(cells: int, rows: int, title: str, *why: str) -> Picture:
    """A calm page: what is not here, and where to look or what to do."""
    lines: list[Line] = [()] * max(1, rows // 3)
    lines.append(_centred(title, cells, "strong"))
    lines.append(())
    for text in why:
        lines += [_centred(part, cells, "dim") for part in wrap(text, max(20, cells - 8))]
    return Picture(body=tuple(lines))


def _centred(text: str, cells: int, style: str) -> Line:
    text = clip(text, cells)
    return line(" " * ((cells - width(text)) // 2), Segment(text, style))
