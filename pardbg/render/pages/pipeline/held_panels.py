"""Panels under the tick grid while ranks are held: the console, and beside it the source of the
selected rank's frame with breakpoints and watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.events.control_facts import Hit
from pardbg.render.draw.bars import GAP, abreast, rule
from pardbg.render.draw.cells import Line, Segment, fit, line
from pardbg.render.frame.stacks import console
from pardbg.render.pages.debug import DebugPageState, break_lines, frame_source, stacks_shown

_WIDE: Final = 110
"""Cells from which on the source is beside the console."""
_SOURCE: Final = 8
"""Minimum lines of source, however many breakpoints there are."""


def held_panels(
    snapshot: Snapshot, look: DebugPageState, prompt: str, cells: int, rows: int
) -> list[Line]:
    """Draw the panels in exactly ``rows`` lines, the newest line of the console last."""
    size = (cells - 2 - GAP) * 11 // 20
    beside = _beside(snapshot, look, cells - 2 - GAP - size, rows) if cells >= _WIDE else []
    room = size if beside else cells - 2
    asks = line(Segment(f" {prompt} ", "prompt"), Segment(": types here", "faint"))
    lines = [*console(snapshot, look.console, look.you, room), *[asks] * look.can_control]
    lines = lines[-(rows - 2) :]
    lines += [()] * (rows - 2 - len(lines))
    left = [line(rule("console", room, "7 Debug has all")), *lines, ()]
    return abreast([(left, room), *([(beside, cells - 2 - GAP - size)] if beside else [])])


def hits(snapshot: Snapshot) -> Mapping[int, str]:
    """Return rank -> the breakpoint or watch that holds the rank."""
    found = (fact for fact in snapshot.control.why if isinstance(fact, Hit))
    return {hit.rank: f"{'watch' if hit.watch else 'breakpoint'} {hit.number}" for hit in found}


def _beside(snapshot: Snapshot, look: DebugPageState, cells: int, rows: int) -> list[Line]:
    """Draw the source, with breakpoints below; empty if neither is known."""
    known = break_lines(snapshot, cells)
    breaks = known[max(0, len(known) - max(0, rows - _SOURCE - 3)) :]  # the newest
    if breaks:
        of = f" of {len(known)}" if len(breaks) < len(known) else ""
        title = rule("breakpoints and watches", cells, f"{len(breaks)}{of}")
        breaks = [line(title), *breaks, ()]
    shown, _ = stacks_shown(snapshot, look)
    found = frame_source(shown, look, cells, rows - len(breaks) - 1)
    found = [fit(row, cells) for row in found]
    if not found:
        return breaks
    return [*found, *[()] * (rows - len(breaks) - len(found)), *breaks]
