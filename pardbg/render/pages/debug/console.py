"""The console: what was asked and answered, and the audit trail, in the order of their times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Line, Segment, clean, line, width
from pardbg.words import offset

_VIEWER: Final = re.compile(r"\b(view-[0-9a-f]{4})([0-9a-f]*)")
_STAMP: Final = 12


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the console."""

    t_ns: int
    """When it came, by the run's clock; a recording's audit trail comes before all of them."""
    text: str
    style: str = ""


def console(snapshot: Snapshot, typed: Sequence[Entry], you: str, cells: int) -> list[Line]:
    """All lines, the newest last; ``you`` is this viewer's name in the audit trail."""
    trail = [
        (t_ns, at, _trail(t_ns - snapshot.t_begin_ns, _named(text, you), cells))
        for at, (t_ns, text) in enumerate(snapshot.control.log)
        if not (you and text.startswith(f"inspect by {you}"))  # it stands there as it was typed
    ]
    told = "\n".join(text for _, text in snapshot.control.log)
    said = [
        (one.t_ns, at, _typed(one, cells))
        for at, one in enumerate(typed, len(trail))
        if not (one.text and f"→ {one.text}\n" in f"{told}\n")  # the trail has it, with its time
    ]
    return [row for _, _, rows in sorted(trail + said, key=lambda e: e[:2]) for row in rows]


def _named(text: str, you: str) -> str:
    """Viewers by the begin of their names, this one as ``you``."""
    text = text.replace(you, "you") if you else text
    return _VIEWER.sub(r"\1", clean(text))


def _trail(since_ns: int, text: str, cells: int) -> list[Line]:
    stamp = offset(max(0, since_ns), 1e7)
    rows = fold(text, cells - _STAMP - 1)
    return [
        line(Segment(f" {stamp if at == 0 else '':>{_STAMP - 3}}  ", "faint"), Segment(row, "dim"))
        for at, row in enumerate(rows)
    ]


def _typed(one: Entry, cells: int) -> list[Line]:
    text = clean(one.text.expandtabs(4))
    return [line(Segment(f" {row}", one.style)) for row in fold(text, cells - 2)]


def fold(text: str, cells: int) -> list[str]:
    """``text`` over as many rows as it needs; the indentation is kept on each."""
    indent = " " * min(len(text) - len(text.lstrip()), cells // 2)
    rows: list[str] = []
    while width(text) > cells:
        cut = _last_fitting(text, cells)
        rows.append(text[:cut].rstrip())
        text = f"{indent}  {text[cut:].lstrip()}"
    return [*rows, text]


def _last_fitting(text: str, cells: int) -> int:
    """Where to cut: after the last blank that fits, unless that wastes half a row."""
    end = len(text)
    while width(text[:end]) > cells:
        end -= max(1, (width(text[:end]) - cells) // 2)
    blank = text.rfind(" ", 0, end) + 1
    return blank if blank > max(end // 2, len(text) - len(text.lstrip())) else max(1, end)
