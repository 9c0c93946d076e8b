"""What shows a finding: where every rank is, and what ran around its moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import Lanes
from pardbg.analysis.findings.shared import Finding
from pardbg.render.draw.axis import Axis, ruler
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Segment, clean, clip, left, line
from pardbg.render.draw.severity import SIGNS
from pardbg.render.pages.debug.stacks import own_spots, stacks_of
from pardbg.render.pages.timeline import Window, lane

_GUTTER: Final = 7
_LANES: Final = (("compute", "phase"), ("wait", "comm"))
"""The first that is there of each is drawn, one over the other."""


def evidence(
    snapshot: Snapshot, finding: Finding, lanes: Lanes, window: Window, cells: int, rows: int
) -> list[Line]:
    """The sections that fit into ``rows``: places first, then the small timeline."""
    made: list[Line] = []
    for section in (
        _places(snapshot, finding, cells),
        _around(snapshot, finding, lanes, window, cells),
    ):
        if len(section) <= rows - len(made):
            made += section
    return made


def _places(snapshot: Snapshot, finding: Finding, cells: int) -> list[Line]:
    """A line per rank: what it does at the cursor and where; culprits stand out."""
    found = {stack.rank: stack.frames for stack in snapshot.stacks}
    stacks = stacks_of({"stacks": {str(rank): frames for rank, frames in found.items()}})
    size = max(16, cells // 2 - _GUTTER)
    lines: list[Line] = [(), rule("every rank", cells, "at the cursor")]
    for row in snapshot.ranks:
        sign, style = SIGNS[row.state]
        culprit = row.rank in finding.culprits
        spots = own_spots(stacks.get(row.rank, ()))
        place = spots[0].text if spots else ""
        if culprit and finding.where:
            place = clean(finding.where)
        now = left(clip(clean(row.now) or row.state, size), size)
        lines.append(line(
            Segment(left(f"r{row.rank}", 5), "culprit" if culprit else ""),
            Segment(f"{sign} ", style), Segment(now),
            Segment(clip(place, max(0, cells - size - _GUTTER)), "culprit" if culprit else "dim"),
        ))  # fmt: skip
    return lines


def _around(
    snapshot: Snapshot, finding: Finding, lanes: Lanes, window: Window, cells: int
) -> list[Line]:
    """Two lanes a rank, up to the finding's moment."""
    span = window.t1_ns - window.t0_ns
    if span <= 0 or not any(lanes.values()):
        return []
    axis = Axis(window.t0_ns, span, max(10, cells - _GUTTER))
    note = f"{words.duration(span)} up to it"
    lines: list[Line] = [(), rule("around it", cells, note)]
    lines.append(line(left("", _GUTTER), *ruler(axis, None, snapshot.t_begin_ns).line()))
    for rank in sorted(lanes):
        drawn = [name for names in _LANES if (name := _first(lanes[rank], names)) is not None]
        for at, name in enumerate(drawn):
            style = "culprit" if rank in finding.culprits else ""
            head = Segment(left(f"r{rank}" if not at else "", _GUTTER), style)
            lines.append(line(head, *lane(lanes[rank][name], axis)))
    return lines


def _first(lanes: Mapping[str, Sequence[object]], names: Sequence[str]) -> str | None:
    return next((name for name in names if lanes.get(name)), None)


def ahead(snapshot: Snapshot, known: Sequence[Finding], cells: int) -> list[Line]:
    """Findings of a recording that come after the cursor, dim, by time."""
    later = sorted((f for f in known if f.t_ns > snapshot.t_ns), key=lambda f: f.t_ns)
    lines: list[Line] = []
    for finding in later:
        at = words.offset(max(0, finding.t_ns - snapshot.t_begin_ns), 1e8)
        text = clip(f"  {at}  {clean(finding.kind)}  {clean(finding.text)}", cells - 2)
        lines.append(line(Segment(text, "faint")))
    head = rule(f"to come: {len(later)}", cells - 2, ":goto finding N goes there")
    return [(), line(" ", head), *lines] if lines else []
