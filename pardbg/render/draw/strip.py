"""Strips of shares of steps, with a column of cells per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pardbg.render.draw.bars import LEVELS
from pardbg.render.draw.cells import Line, Row

_EIGHTHS: Final = 8
_WIDEST: Final = 16
"""Maximum cells of a step."""


def cells_each(number: int, cells: int) -> int:
    """Return how many cells each of ``number`` steps takes."""
    return min(_WIDEST, max(1, cells // max(1, number)))


def strip(
    columns: Sequence[Sequence[tuple[float, str]] | None], cells: int, rows: int, each: int = 1,
    signs: Mapping[str, str] | None = None,
) -> list[Line]:  # fmt: skip
    """Draw columns of (share, style) from below, ``each`` cells wide, in ``rows`` lines. The rest
    up to 1, and a column of None, stay empty. A cell with more than two parts shows the two
    largest; with ``signs`` (style -> character, without block characters) only the largest."""
    drawn = [Row(cells) for _ in range(rows)]
    for at, column in enumerate(columns[-(cells // each) :]):
        begin = 0.0
        parts = []
        for share, style in column or ():
            parts.append((begin, begin := begin + max(share, 0.0), style))
        for line_, row in enumerate(reversed(drawn)):
            inside = [
                (min(end * rows - line_, 1.0) - max(start * rows - line_, 0.0), style)
                for start, end, style in parts
            ]
            char, style = _cell(inside) if signs is None else _largest(inside, signs)
            row.fill(at * each, (at + 1) * each, char, style)
    return [row.line() for row in drawn]


def _cell(inside: Sequence[tuple[float, str]]) -> tuple[str, str]:
    """Return a cell's character and style for its parts from below: the lower part as ink, the
    upper one as background, ``strip.lower/strip.upper``."""
    there = [(share, style) for share, style in inside if share > 0]
    rest = 1.0 - sum(share for share, _ in there)
    there += [(rest, "")] if rest > 1 / (2 * _EIGHTHS) else []
    two = sorted(sorted(there, reverse=True, key=lambda part: part[0])[:2], key=there.index)
    if not two or not two[0][1]:
        return " ", ""
    (lower, ink), (upper, ground) = two[0], two[1] if len(two) > 1 else (0.0, "")
    eighths = round(lower / (lower + upper) * _EIGHTHS)
    if eighths >= _EIGHTHS:
        return LEVELS[-1], f"strip.{ink}"
    if eighths == 0:
        return (LEVELS[-1], f"strip.{ground}") if ground else (" ", "")
    return LEVELS[eighths - 1], f"strip.{ink}/strip.{ground}" if ground else f"strip.{ink}"


def _largest(inside: Sequence[tuple[float, str]], signs: Mapping[str, str]) -> tuple[str, str]:
    """Return sign and style of a cell's largest part."""
    most, style = max(inside, key=lambda part: part[0], default=(0.0, ""))
    return (signs[style], f"strip.{style}") if most > 0 else (" ", "")
