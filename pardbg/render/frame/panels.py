"""Pages without data, and panels: the help, the bookmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Segment,
    clip,
    fit,
    left,
    line,
    right,
    width,
    wrap,
)
from pardbg.store.history import Bookmark


def empty(cells: int, rows: int, title: str, *why: str) -> Picture:
    """Return a calm page that states what is missing, and where to look or what to do."""
    lines: list[Line] = [()] * max(1, rows // 3)
    lines.append(_centred(title, cells, "strong"))
    lines.append(())
    for text in why:
        lines += [_centred(part, cells, "dim") for part in wrap(text, max(20, cells - 8))]
    return Picture(body=tuple(lines))


def coming(snapshot: Snapshot) -> str:
    """Return how far a job that starts has come; empty once it has ended a training step."""
    here, size = len(snapshot.ranks), snapshot.run.world_size
    if here < size:
        return f"{here} of {words.plural(size, 'rank')} have come"
    if not here:
        return "No rank has come yet"
    ended = any(rank.step_ns for rank in snapshot.ranks)
    return "" if ended else f"{words.plural(here, 'rank')} have come, none has ended a step"


def _centred(text: str, cells: int, style: str) -> Line:
    text = clip(text, cells)
    return line(" " * ((cells - width(text)) // 2), Segment(text, style))


TWO_COLUMNS: Final = 100
COMMANDS: Final = 70
"""Minimum cells of a column that has the commands, too."""
HelpRow = tuple[str, str, str, str]
"""Group title, keys as printed, command with its arguments, help."""


def help_page(rows: Sequence[HelpRow], cells: int, height: int) -> Picture:
    """Return all actions by group, in two columns if there is room; without commands if it is
    narrow."""
    groups: dict[str, list[HelpRow]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    wide = cells >= TWO_COLUMNS
    size = (cells - 3) // 2 if wide else cells
    blocks = [_block(title, entries, size) for title, entries in groups.items()]
    if not wide:
        return Picture(body=tuple(row for block in blocks for row in block))
    half = (sum(map(len, blocks)) + 1) // 2
    columns: list[list[Line]] = [[], []]
    for block in blocks:
        columns[0 if len(columns[0]) < half - len(block) // 2 else 1] += block
    tall = max(map(len, columns))
    body = [
        line(fit(columns[0][at] if at < len(columns[0]) else (), size), "   ",
             columns[1][at] if at < len(columns[1]) else ())
        for at in range(tall)
    ]  # fmt: skip
    return Picture(body=tuple(body))


def word_rows(words_: Sequence[tuple[Sequence[str], str]], cells: int) -> list[Line]:
    """Return the words of the screens and what they mean; ``words_``: (names, text)."""
    lines: list[Line] = [rule("Words", cells - 1)] if words_ else []
    for names, text in words_:
        parts = wrap(text, max(16, cells - 20))
        lines.append(line(" ", Segment(left(names[0], 17), "key"), Segment(parts[0])))
        lines += [line(" " * 18, Segment(part)) for part in parts[1:]]
    return lines


def _block(title: str, entries: Sequence[HelpRow], cells: int) -> list[Line]:
    lines: list[Line] = [rule(title, cells - 1)]
    roomy = cells >= COMMANDS
    for _, keys, command, text in entries:
        words = f":{command}" if command else ""
        first = left(keys, 10) if roomy else left(keys or words.partition(" ")[0], 16)
        start = [Segment(first, "key" if keys else "dim")]
        if roomy:
            start += [Segment(left(words, 24), "dim"), Segment(" ")]
        indent = 1 + sum(len(part.text) for part in start)
        parts = wrap(text, max(16, cells - indent - 2))
        lines.append(line(" ", *start, Segment(parts[0] if parts else "")))
        lines += [line(" " * indent, Segment(part)) for part in parts[1:]]
    return [*lines, ()]


def bookmark_list(
    marks: Sequence[Bookmark], snapshot: Snapshot | None, cells: int, rows: int
) -> Picture:
    """Draw number, time from the begin, wall clock and note; ``goto mark N`` goes there."""
    if not marks or snapshot is None:
        return empty(cells, rows, "no bookmark yet: m marks the moment on the screen")
    run = snapshot.run
    body: list[Line] = [
        line(
            " ",
            Segment(right(str(number), 3), "key"),
            "  ",
            Segment(right(words.offset(mark.t_ns - snapshot.t_begin_ns, 1e7), 10), "strong"),
            "  ",
            Segment(words.clock(run.wall_ns + mark.t_ns - run.t0_ns), "dim"),
            "  ",
            Segment(
                clip(mark.text, max(8, cells - 30)), "accent" if mark.t_ns == snapshot.t_ns else ""
            ),
        )
        for number, mark in enumerate(marks, 1)
    ]
    how = ":goto mark N goes there, :unmark N takes it away"
    foot = line(" ", Segment(left(how, cells - 1), "dim"))
    return Picture(body=tuple(body), foot=(foot,))
