"""The debug page: where each rank is held and what comes next, stacks, the audit trail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pardbg import words
from pardbg.analysis.base.values import RankNow, Snapshot
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    line_width,
    selected,
    width,
    wrap,
)  # fmt: skip
from pardbg.render.pages.debug.stacks import Stack, tree
from pardbg.render.pages.overview import SIGNS

_VIEWER = re.compile(r"(view-[0-9a-f]{4})[0-9a-f]+")
_REASON_LINES = 4
_ANSWER_ROWS = 3
"""A long line of the console takes so many."""
_TWICE = re.compile(r"^(\w+) by (\S+): \1$")


@dataclass(frozen=True, slots=True)
class DebugPageState:
    selected: int | None = None
    stacks: dict[int, Stack] = field(default_factory=dict)
    """What ``where`` brought, the last time it was asked."""
    stacks_ns: int | None = None
    console: tuple[tuple[str, str], ...] = ()
    """(text, style) of commands typed and their answers, oldest first."""
    can_control: bool = True


def debug(snapshot: Snapshot, cells: int, rows: int, look: DebugPageState | None = None) -> Picture:
    """The page at ``cells`` x ``rows``; side by side where it is wide."""
    look = look or DebugPageState()
    wide = cells >= 120
    head = (*_status(snapshot, look, cells), ())
    room = rows - len(head)
    left_size = cells * 3 // 5 if wide else cells
    ranks, focus, places = _ranks(snapshot, left_size, look)
    if wide:
        return _side_by_side(snapshot, cells, room, look, head, ranks, focus, places)
    stacks = _stacks(look, snapshot, cells)
    # The trail takes what ranks and stacks leave, and never less than a quarter.
    spare = room - len(ranks) - len(stacks) - 2
    logs = _log(snapshot, look, cells, max(3, room // 4, spare))
    stacks = stacks[: max(0, room - len(logs) - min(len(ranks), room // 2) - 1)]
    foot = (*stacks, *logs)
    return Picture(head, tuple(ranks), foot, focus=focus, rows=tuple(places))


def _side_by_side(
    snapshot: Snapshot,
    cells: int,
    room: int,
    look: DebugPageState,
    head: tuple[Line, ...],
    ranks: list[Line],
    focus: int | None,
    places: list[int],
) -> Picture:
    left_size = cells * 3 // 5
    right_size = cells - left_size - 3
    stacks = _stacks(look, snapshot, left_size)
    logs = _log(snapshot, look, right_size, room)
    stack_rows = min(len(stacks), max(room // 3, room - len(ranks) - 1))
    list_rows = room - stack_rows
    if len(ranks) > list_rows:
        start = max(0, min((focus or 0) - list_rows // 2, len(ranks) - list_rows))
        ranks, places = ranks[start : start + list_rows], places[start : start + list_rows]
    blank = [()] * max(0, list_rows - len(ranks) - 1) if stacks else []
    column = [*ranks, *([()] if stacks else []), *stacks[:stack_rows], *blank]
    body = []
    for at in range(room):
        start_line = column[at] if at < len(column) else ()
        end_line = logs[at] if at < len(logs) else ()
        body.append(line(fit(start_line, left_size), Segment(" │ ", "rule"), end_line))
    return Picture(head, tuple(body), rows=tuple(places))


def _status(snapshot: Snapshot, look: DebugPageState, cells: int) -> tuple[Line, ...]:
    """Mode, lease, what is pending, and why: in lines of its own where it is long."""
    control = snapshot.control
    if not look.can_control and control.mode == "running":
        return (line(Segment("  a recording: nothing to control; ←→ moves in time", "dim")),)
    held = "‖ held" if control.waiting else "‖ held at a cut"
    sign, style = {"running": ("▶ running", "good"), "pausing": ("◌ pausing", "held"),
                   "held": (held, "held"), "stepping": ("▹ stepping", "held"),
                   }[control.mode]  # fmt: skip
    parts = [Segment("  "), Segment(sign, style)]
    if control.controller:
        parts += [Segment("  by ", "dim"), Segment(_VIEWER.sub(r"\1", clean(control.controller)))]
    if control.lease_ns is not None:
        style = "warn" if control.lease_ns < 4e9 else "strong"
        parts += [Segment("  lease ", "dim"), Segment(words.countdown(control.lease_ns), style)]
    if control.timeout_ns is not None:
        style = "bad" if control.timeout_ns < 60e9 else "warn"
        limit = words.countdown(control.timeout_ns)
        parts += [Segment("  first timeout in ", "dim"), Segment(limit, style)]
    pending = words.plural(control.pending, "pending op") if control.pending else "no pending op"
    parts += [Segment(f"  {pending}", "warn" if control.pending else "dim")]
    reason = clean(control.reason)
    short = line_width(parts) + width(reason) + 2 <= cells
    if reason and short:
        parts += [Segment(f"  {reason}", "dim")]
    if control.mode == "running":
        parts += [Segment("  space holds every rank at a consistent cut", "faint")]
    more = () if short else wrap(reason, cells - 4, _REASON_LINES)
    return (fit(parts, cells), *(line(Segment(f"    {text}", "strong")) for text in more))


def _ranks(
    snapshot: Snapshot, cells: int, look: DebugPageState
) -> tuple[list[Line], int | None, list[int]]:
    now_size = max(20, min(44, cells - 38))
    title = f"  {'rank':>4}  {'stage':<5}  {left('now', now_size)}  {'since':>8}  next"
    lines: list[Line] = [line(Segment(clip(title, cells), "dim"))]
    places = [-1]
    focus = None
    nexts = _nexts(snapshot)
    for rank in snapshot.ranks:
        coming = snapshot.control.waiting.get(rank.rank) or nexts.get(rank.rank, "")
        made = _rank(rank, snapshot, coming, now_size, max(22, cells - now_size - 27))
        if rank.rank == look.selected:
            focus = len(lines)
            made = fit(selected(made), cells, "+sel")
        lines.append(made)
        places.append(rank.rank)
    lines += _breaks(snapshot, cells)
    return lines, focus, places + [-1] * (len(lines) - len(places))


def _breaks(snapshot: Snapshot, cells: int) -> list[Line]:
    """Breakpoints and watches, with how often each matched; nothing where none is set."""
    lines: list[Line] = []
    for one in snapshot.control.breaks:
        matched = f"matched {one.hits} ×" if one.hits else "not matched yet"
        where = "" if one.ranks == "all" else f"on {one.ranks}  "
        once = "once  " if one.once else ""
        made = line(
            Segment(f"  {'◉' if one.watch else '●'}{one.number:>3}  ", "held"),
            Segment(f"{'watch ' if one.watch else ''}{clean(one.condition)}", "strong"),
            Segment(f"  {where}{once}{matched}", "dim"),
        )  # fmt: skip
        lines.append(fit(made, cells))
    return lines


def _nexts(snapshot: Snapshot) -> dict[int, str]:
    """What comes next per rank: what control says, else the plan."""
    found: dict[int, str] = {}
    step = snapshot.pipeline.step if snapshot.pipeline else None
    for rank in step.ranks if step else ():
        if rank.next_action:
            found[rank.rank] = rank.next_action
    return {**found, **snapshot.control.held}


def _rank(rank: RankNow, snapshot: Snapshot, coming: str, now_size: int, room: int) -> Line:
    sign, style = SIGNS[rank.state]
    since = "" if rank.since_ns is None else words.duration(
        max(0, snapshot.t_ns - rank.since_ns))  # fmt: skip
    stages = ",".join(map(str, rank.stages))
    text = clip(clean(rank.now) or rank.state, now_size - 2)
    return line(
        Segment(f"  {rank.rank:>4}  ", "strong"),
        Segment(f"{stages:<5}  ", "dim"),
        Segment(f"{sign} ", style),
        Segment(left(text, now_size - 2), "" if rank.state == "running" else style),
        Segment(f"  {since:>8}  ", "dim"),
        Segment(clip(clean(coming), room), "strong"),
    )


def _stacks(look: DebugPageState, snapshot: Snapshot, cells: int) -> list[Line]:
    if not look.stacks:
        text = "w asks every rank for its stack" if look.can_control else "no stacks in a recording"
        return [line(" ", rule("stacks", cells - 2)), line(Segment(f"  {text}", "faint"))]
    age = ""
    if look.stacks_ns is not None:
        age = f"{words.duration(max(0, snapshot.t_ns - look.stacks_ns))} ago"
    return [line(" ", rule("stacks", cells - 2, age)), *tree(look.stacks, cells)]


def _brief(text: str) -> str:
    """An audit line without what it says twice, viewers' names cut short."""
    text = _VIEWER.sub(r"\1", clean(text))
    return _TWICE.sub(r"\1 by \2", text)


def _log(snapshot: Snapshot, look: DebugPageState, cells: int, limit: int) -> list[Line]:
    """The audit trail, then what was typed here and answered."""
    trail: Sequence[tuple[int, str]] = snapshot.control.log
    console = look.console[-max(2, limit // 2) :]
    keep = max(1, limit - 1 - (len(console) + 1 if console else 0))
    lines: list[Line] = [line(" ", rule("audit trail", cells - 2))]
    for t_ns, text in trail[-keep:]:
        when = words.offset(max(0, t_ns - snapshot.t_begin_ns), 1e7)
        for at, part in enumerate(wrap(_brief(text), cells - 13, 2)):
            stamp = f" {when:>9}  " if at == 0 else " " * 12
            lines.append(line(Segment(stamp, "faint"), Segment(part)))
    lines[1:] = lines[1:][-keep:]
    if not trail:
        lines.append(line(Segment("  nothing has been held or stepped yet", "faint")))
    if console:
        lines.append(line(" ", rule("console", cells - 2)))
        for text, style in console:
            text = clean(text)
            parts = [text] if width(text) <= cells - 2 else wrap(text, cells - 4, _ANSWER_ROWS)
            for at, part in enumerate(parts):
                lines.append(line("   " if at else " ", Segment(clip(part, cells - 2), style)))
    return lines
