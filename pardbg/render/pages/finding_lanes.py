"""The picture of a finding: earlier activity of ranks, waiting ranks, and the culprits' places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import Lanes, LaneSpan
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.stall_kinds import MissingRank, Stalled
from pardbg.render.draw.axis import Axis, ruler
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Segment, clean, clip, fit, left, line, overlay, width
from pardbg.render.frame.activity import activity_text
from pardbg.render.frame.stacks import spots, spots_in_reach, tree
from pardbg.render.pages.output import printed_last
from pardbg.render.pages.timeline import HATCHED, Window, lane

_GUTTER: Final = 7
_WIDE: Final = 106
"""Cells from which on the stacks are beside the output."""
_ELSEWHERE: Final = ("ended", "lost", "unknown", "waiting")
_LANES: Final = (("compute", "phase"), ("wait", "comm"))
"""Lanes by preference: the first existing one of each row is drawn, one row below the other."""


def lanes_around(
    snapshot: Snapshot, finding: Finding | None, lanes: Lanes, window: Window, cells: int,
    apart: int = 0, tall: int = 1,
) -> list[Line]:  # fmt: skip
    """Draw two lanes per rank, ``tall`` lines each, so many lines ``apart``, up to the finding's
    moment; without a finding up to the cursor."""
    span = window.t1_ns - window.t0_ns
    if span <= 0 or not any(lanes.values()):
        return []
    axis = Axis(window.t0_ns, span, max(10, cells - _GUTTER))
    stalled = finding is not None and isinstance(finding.facts, Stalled)
    culprits = finding.culprits if finding is not None else ()
    lines: list[Line] = [(), _title(finding, window, cells)]
    lines.append(line(left("", _GUTTER), *ruler(axis, None, snapshot.t_begin_ns).line()))
    stands = _standing(snapshot, finding) if finding is not None else {}
    waits = {row.rank: row for row in snapshot.ranks if row.state == "waiting"}
    for rank in sorted(lanes):
        shown = shown_lanes(lanes[rank])
        for at, name in enumerate(shown):
            style = "culprit" if rank in culprits else ""
            head = Segment(left(f"r{rank}" if not at else "", _GUTTER), style)
            drawn = lane(lanes[rank][name], axis)
            if stalled:
                last = lanes[rank][name][-1]
                drawn = _with_wait(drawn, last, axis, snapshot.t_ns)
                if rank in waits and name == shown[-1]:
                    drawn = _with_open_wait(drawn, last, axis, waits[rank], snapshot.t_ns)
            if not at and (place := stands.get(rank)):
                since = max(lanes[rank][one][-1].t1_ns for one in shown)
                drawn = _with_place(drawn, axis, since, snapshot.t_ns, place)
            lines.append(line(head, *drawn))
            lines += [line(" " * _GUTTER, *map(_below, drawn))] * (tall - 1)
        lines += [()] * apart if rank < max(lanes) else []
    return lines


def _title(finding: Finding | None, window: Window, cells: int) -> Line:
    across = words.duration(window.t1_ns - window.t0_ns)
    if finding is None:
        return rule("what ran last", cells, f"{across} up to the cursor   3 has all")
    wait = window.t1_ns > finding.t_ns
    return rule("around it", cells, f"{across}{', all of the wait' if wait else ' up to it'}")


def ran_last(snapshot: Snapshot, lanes: Lanes, window: Window, cells: int, rows: int) -> list[Line]:
    """Draw the lanes up to the cursor as tall as they fit into ``rows`` lines; empty: none fit."""
    tries = (lanes_around(snapshot, None, lanes, window, cells, 1, tall) for tall in (2, 1))
    return next((lines for lines in tries if len(lines) <= rows), [])


def shown_lanes(lanes: Mapping[str, Sequence[LaneSpan]]) -> list[str]:
    """Return the lanes of a rank that are drawn: the first existing one of each row."""
    there = ([name for name in names if lanes.get(name)] for names in _LANES)
    return [names[0] for names in there if names]


def _below(run: Segment) -> Segment:
    """Return a run without its text, of which the line above has the words."""
    hatched = run.style.partition(".")[0] in HATCHED
    return run._replace(text=("░" if hatched else " ") * width(run.text))


def stacks_beside(
    snapshot: Snapshot, finding: Finding, output: Sequence[OutputLine], cells: int, rows: int
) -> list[Line]:
    """Draw the job's last output in at most ``rows`` lines; at the left of it, for a standstill on
    a wide screen, the ranks' stacks as one tree."""
    printed = printed_last(output, snapshot.t_begin_ns, cells, rows)
    if cells < _WIDE or not isinstance(finding.facts, Stalled) or not snapshot.stacks:
        return printed
    half = cells // 2 - 1
    stacks = {stack.rank: spots(stack.frames) for stack in snapshot.stacks}
    right = printed_last(output, snapshot.t_begin_ns, half, rows)[1:]
    half = half if right else cells
    drawn = tree(stacks, half, finding.culprits, rows - 3)
    if len(drawn) + 2 > rows:
        return printed
    left = [rule("where every rank stands", half), *drawn]
    pairs = zip_longest(left, right, fillvalue=())
    return [(), *(line(fit(a, half), "  ", fit(b, half)) for a, b in pairs)]


def _with_wait(drawn: Line, last: LaneSpan, axis: Axis, now_ns: int) -> Line:
    """Return a lane with the name of the wait at its end, and the wait's duration so far."""
    if last.style.partition(".")[0] not in HATCHED:
        return drawn
    text = f" {clean(last.label)}, {words.duration(min(last.t1_ns, now_ns) - last.t0_ns)} "
    at = axis.x(last.t0_ns) + 1
    room = min(axis.x(last.t1_ns), axis.cells) - at
    return overlay(drawn, at, text, last.style) if width(text) == len(text) < room else drawn


def _with_open_wait(drawn: Line, last: LaneSpan, axis: Axis, row: RankNow, now_ns: int) -> Line:
    """Return a lane with the wait that its rank is in now, for which no record has come yet."""
    if row.since_ns is None or last.t1_ns > row.since_ns:
        return drawn
    wait = LaneSpan(row.since_ns, now_ns, activity_text(row.now), HATCHED[0])
    at = max(axis.x(row.since_ns), axis.x(last.t1_ns)) + 1
    size = min(axis.x(now_ns), axis.cells) - at
    if size <= 0:
        return drawn
    return _with_wait(overlay(drawn, at, "░" * size, wait.style), wait, axis, now_ns)


def _standing(snapshot: Snapshot, finding: Finding) -> dict[int, str]:
    """Return rank -> its place, for living culprits that are not in an op others wait for."""
    if not isinstance(finding.facts, Stalled):
        return {}
    own = {stack.rank: spots_in_reach(spots(stack.frames)) for stack in snapshot.stacks}
    found = {rank: own[rank][0].text for rank in finding.culprits if own.get(rank)}
    if finding.where and len(finding.culprits) == 1:
        found[finding.culprits[0]] = clean(finding.where)
    living = {row.rank for row in snapshot.ranks if row.state not in _ELSEWHERE}
    return {rank: place for rank, place in found.items() if rank in living}


def _with_place(drawn: Line, axis: Axis, since_ns: int, now_ns: int, place: str) -> Line:
    """Return a lane with the place at which its rank has been since its last record."""
    at = axis.x(since_ns) + 1
    size = min(axis.x(now_ns), axis.cells) - at
    text = left(clip(f" {place}", max(0, size)), max(0, size))
    return overlay(drawn, at, text, "absent") if size > 3 and width(text) == len(text) else drawn


def arrivals(snapshot: Snapshot, finding: Finding) -> dict[int, str]:
    """Return rank -> arrival at the one op that others wait in: the first rank's time, for others
    the delay after it (at least their clock error); culprits are left out."""
    facts = finding.facts
    if not isinstance(facts, MissingRank) or len({wait.op for wait in facts.waits}) != 1:
        return {}
    since = {wait.rank: wait.since_ns for wait in reversed(facts.waits)}
    first = min(since, key=lambda rank: since[rank])
    errors = {row.rank: row.clock_error_ns for row in snapshot.ranks}
    found = {first: words.offset(max(0, since[first] - snapshot.t_begin_ns), 1e7)}
    for rank in since.keys() - {first}:
        one, other = errors.get(rank), errors.get(first)
        if one is not None and other is not None:
            later, error = since[rank] - since[first], one + other
            found[rank] = (
                f"+{words.duration(later)}" if later > error else f"±{words.duration(error)}"
            )
    gone = {row.rank for row in snapshot.ranks if row.state in ("ended", "lost")}
    return found | {rank: "never" if rank in gone else "not yet" for rank in finding.culprits}
