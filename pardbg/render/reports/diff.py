"""Two runs side by side, in lines of 80 columns: what changed most first."""

from __future__ import annotations

import math

from pardbg.analysis.answers.checks import show
from pardbg.analysis.answers.diff import Diff, Row
from pardbg.render.draw.cells import clean, clip, left, right
from pardbg.words import change as signed

_MARKS = {"more": "▲", "less": "▼", "same": "=", "few": "?", "only a": "A", "only b": "B"}


def text(found: Diff) -> str:
    """The comparison; A and B are named as the files were."""
    changed = [row for row in found.rows if row.outcome not in ("same", "few")]
    same = [row for row in found.rows if row.outcome == "same"]
    few = [row for row in found.rows if row.outcome == "few"]
    lines = [f"A {clean(found.name_a)}   B {clean(found.name_b)}"]
    lines += [f"! {note}" for note in found.notes]
    lines += ["", _head("changed beyond noise" if changed else "no difference beyond noise")]
    lines += [_line(row) for row in changed]
    if same:
        lines += ["", _head("no difference beyond noise")] if changed else []
        lines += [_line(row) for row in same]
    if few:
        lines += ["", _head("too few values to tell")]
        lines += [_line(row) for row in few]
    if found.findings:
        lines += ["", f"findings{'A':>47}{'B':>12}"]
        for row in found.findings:
            name = f"  {row.severity} · {clean(row.kind)}"
            lines.append(f"{left(name, 48)}{_times(row.num_a):>7}{_times(row.num_b):>12}")
    return "\n".join(line.rstrip() for line in lines)


def _head(title: str) -> str:
    return f"{title:<38}{'A':>12}{'B':>12}{'change':>12}"


def _line(row: Row) -> str:
    cells = [right("–" if value is None else show(value, row.unit), 12) for value in (row.a, row.b)]
    name = left(clip(clean(row.name), 34), 36)
    return f"{_MARKS[row.outcome]} {name}{''.join(cells)}{right(change(row), 12)}{_noise(row)}"


def change(row: Row) -> str:
    """``+12.3%``; of fractions in points."""
    if row.a is None or row.b is None:
        return "only B" if row.a is None else "only A"
    if not (math.isfinite(row.a) and math.isfinite(row.b)):
        return "" if str(row.a) == str(row.b) else "not finite"
    if row.unit == "fraction":
        return signed(row.b - row.a, unit=" pt")
    if row.a == 0:
        return "" if row.b == 0 else "from 0"
    return signed(row.b / row.a - 1)


def _noise(row: Row) -> str:
    """The interval of the change, where there is one."""
    if row.low is None or row.high is None or not row.a:
        return ""
    if row.unit == "fraction":
        low, high = row.low, row.high
    else:
        low, high = row.low / row.a, row.high / row.a
    return f"  [{signed(low, unit='')}, {signed(high, unit='')}]"


def _times(number: int) -> str:
    return str(number) if number else "–"
