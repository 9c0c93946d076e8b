"""The debug page: held ranks and their next ops, stacks, the source of the selected frame, the
audit trail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import (
    Drawn,
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
)
from pardbg.render.draw.signs import SIGN, SIGNS
from pardbg.render.frame.activity import activity_text, now_title
from pardbg.render.frame.audit_trail import viewer
from pardbg.render.frame.control_words import waits_text, why_text
from pardbg.render.frame.stacks import Entry, Stack, console, fold, spots, spots_in_reach, tree
from pardbg.render.pages.output import printed_last
from pardbg.session.source_files import SourceLines

_REASON_LINES = 4
WIDE: Final = 100
"""Cells from which on the source is beside ranks and stacks; else below them."""
_WAIT_NS: Final = 1_000_000_000
"""Time inside an op after which a rank counts as waiting."""
_EDGE: Final = 10
"""Cells of a heading that a panel's edge takes beside the title."""
_UNSTAGED: Final = 20
_STAGED: Final = 27
"""Cells of a rank's line beside its activity and its next op, without and with stages."""
_PRINTED: Final = 6
"""Lines left for the job's output before each frame gets a line of its own."""
_NARROW_STACKS: Final = 3
_NARROW_SOURCE: Final = 9
"""Lines that further stacks leave for the source when it is below them."""


@dataclass(frozen=True, slots=True)
class DebugPageState:
    selected: int | None = None
    stacks: dict[int, Stack] = field(default_factory=dict)
    """Answer to the last ``where``: rank -> stack."""
    stacks_ns: int | None = None
    console: tuple[Entry, ...] = ()
    """Typed commands with their answers, oldest first."""
    can_control: bool = True
    ended: bool = False
    """Whether the job that was live here has ended."""
    you: str = ""
    """This viewer's name in the audit trail."""
    source: SourceLines | None = None
    """Source lines around the selected frame."""
    frame: int = 0
    """Number of the selected frame; 0 the innermost."""
    every_frame: bool = False
    """Whether libraries' frames count."""
    output: Sequence[OutputLine] = ()
    """Last output of the job, oldest first; drawn if lines are left."""
    more: Callable[[int, int], list[Line]] | None = None
    """(cells, rows) -> the picture of the standstill, for the room below stacks and source; of what
    ran last while there is none."""


def _other_version(found: SourceLines, function: str) -> bool:
    """Return whether the line is outside of the stack's function: the file has changed since."""
    at = found.place.line - found.first
    here = found.lines[at]
    if not here.strip():
        return True
    depth = len(here) - len(here.lstrip())
    for text in reversed(found.lines[:at]):
        inner = len(text) - len(text.lstrip())
        named = re.match(r"\s*(?:async )?def (\w+)", text)
        if text.strip() and inner < depth:
            depth = inner
            if named is not None:
                return function.isidentifier() and named[1] != function
    return False


def stacks_shown(snapshot: Snapshot, look: DebugPageState) -> tuple[dict[int, Stack], int | None]:
    """Return the newest stacks with their time: requested by the user, or recorded at a
    standstill, for ranks that stand there still."""
    there = [stack for stack in snapshot.stacks if not stack.is_past]
    recorded = {stack.rank: spots(stack.frames) for stack in there}
    taken = max((stack.t_ns for stack in there), default=None)
    if look.stacks and (taken is None or (look.stacks_ns or 0) >= taken):
        return {**recorded, **look.stacks}, look.stacks_ns
    return recorded, taken


def debug(snapshot: Snapshot, cells: int, rows: int, look: DebugPageState | None = None) -> Picture:
    """Draw the page at ``cells`` x ``rows``: ranks with their stacks and the source of the selected
    frame; below, over the full width, the console, which scrolls and shows its newest line."""
    look = look or DebugPageState()
    status = _status(snapshot, look, cells)
    lines = console(snapshot, look.console, look.you, cells)
    room = rows - len(status) - 1
    below = min(max(rows * 2 // 5, 5), max(len(lines), 2))
    over, places = _over(snapshot, look, cells, max(4, room - below))
    head = (*status, *over, line(" ", rule("console", cells - 2)))
    if not lines:
        hint = "nothing has been held, stepped or asked yet" if look.can_control else (
            f"{_what(look)}: nothing was held, stepped or asked in it up to here"
        )  # fmt: skip
        lines = [line(Segment(f"  {hint}", "faint"))]
    return Picture(
        head, tuple(lines), follow=True, head_rows=(*[-1] * len(status), *places, -1)
    )  # fmt: skip


def _over(
    snapshot: Snapshot, look: DebugPageState, cells: int, rows: int
) -> tuple[list[Line], list[int]]:
    """Draw ranks, stacks and source in exactly ``rows`` lines; also return each line's rank (-1:
    none)."""
    shown, taken = stacks_shown(snapshot, look)
    beside = cells >= WIDE and bool(shown)  # without a frame there is no source
    left_size = min(max(54, cells // 2, _wished(snapshot) + 1), cells * 3 // 5) if beside else cells
    ranks, focus, places = _ranks(snapshot, left_size - beside, look)
    size = cells - left_size - 2
    tall = rows - len(ranks) - 1 - _PRINTED * bool(look.output) if beside else 0
    stacks = _stacks(shown, taken, look, snapshot, left_size, tall)
    if not beside:
        found, places = _window(ranks, places, focus, max(2, min(len(ranks), rows // 2)))
        few = min(max(_NARROW_STACKS, rows - len(found) - _NARROW_SOURCE), rows - len(found))
        found += stacks[: max(0, few)]
        if look.more is not None and not shown:
            printed = min(len(look.output), _PRINTED) + 3 if look.output else 1
            found += [line(" ", row) for row in look.more(cells - 2, rows - len(found) - printed)]
        below = frame_source(shown, look, cells - 2, rows - len(found))
        last = printed_last(look.output, snapshot.t_begin_ns, cells - 2, rows - len(found))
        found += [line(" ", row) for row in below or last]
    else:
        few = min(len(stacks), max(rows // 2, rows - len(ranks)))
        column, places = _window(ranks, places, focus, rows - few)
        column += stacks[:few]
        room = rows - len(column)
        last = printed_last(look.output, snapshot.t_begin_ns, left_size - 2, room)
        column += [line(" ", row) for row in last]
        tall = rows - 1 if look.more is None else max(rows // 2, len(column))
        code = frame_source(shown, look, size, min(tall, rows - 1))
        over = max(len(column), len(code))
        below = look.more(cells - 2, rows - over - 1) if look.more is not None else []
        pairs = zip_longest(column, code, *([[()] * rows] if not below else []), fillvalue=())
        found = [line(fit(a, left_size), " ", b) for a, b, *_ in pairs]
        found += [line(" ", row) for row in below]
    found += [()] * (rows - len(found))
    return found, places + [-1] * (rows - len(places))


def _window(
    lines: Sequence[Line], places: list[int], focus: int | None, rows: int
) -> tuple[list[Line], list[int]]:
    """Return at most ``rows`` of the lines: the heading, and the lines around the selected one."""
    if len(lines) <= rows:
        return list(lines), list(places)
    start = max(1, min((focus or 1) - rows // 2, len(lines) - rows + 1))
    end = start + rows - 1
    return [lines[0], *lines[start:end]], [places[0], *places[start:end]]


def frame_source(
    shown: Mapping[int, Stack], look: DebugPageState, cells: int, rows: int
) -> list[Line]:
    """Draw the source of the selected rank's frame, with the frame's place and number above."""
    stack = shown.get(-1 if look.selected is None else look.selected, ())
    known = spots_in_reach(stack, look.every_frame)
    if not known:
        return source(look.source, "source", cells, rows, stack)
    at = min(look.frame, len(known) - 1)
    nth = f", frame {at} of {len(known)}" if len(known) > 1 else ""
    function = known[at].text.rpartition(" ")[2]
    note = f"r{look.selected}"
    if width(known[at].text + note + nth) + _EDGE <= cells:
        note += nth
    return source(look.source, known[at].text, cells, rows, stack, note, function)


def _status(snapshot: Snapshot, look: DebugPageState, cells: int) -> tuple[Line, ...]:
    """Draw mode, lease, pending ops and the reason, on several lines if needed."""
    control = snapshot.control
    if control.mode == "running":
        return (_free(snapshot, look, cells),)
    held = "‖ held" if control.waiting else "‖ held at a cut"
    sign = {"pausing": "◌ pausing", "stepping": "▹ stepping"}.get(control.mode.value, held)
    parts = [Segment("  "), Segment(sign, "held")]
    if control.controller:
        parts += [Segment("  by ", "dim"), Segment(clean(viewer(control.controller, look.you)))]
    if control.lease_ns is not None:
        style = "warn" if control.lease_ns < 4e9 else "strong"
        parts += [Segment("  lease ", "dim"), Segment(words.countdown(control.lease_ns), style)]
    if control.timeout_ns is not None:
        style = "bad" if control.timeout_ns < 60e9 else "warn"
        limit = words.countdown(control.timeout_ns)
        parts += [Segment("  first timeout in ", "dim"), Segment(limit, style)]
    pending = (
        f"{words.plural(control.pending, 'op')} pending" if control.pending else "nothing pending"
    )
    parts += [Segment(f"  {pending}", "warn" if control.pending else "dim")]
    reason = clean(why_text(control.why))
    short = line_width(parts) + width(reason) + 2 <= cells
    if reason and short:
        parts += [Segment(f"  {reason}", "dim")]
    more = () if short else wrap(reason, cells - 4, _REASON_LINES)
    return (fit(parts, cells), *(line(Segment(f"    {text}", "strong")) for text in more))


def _free(snapshot: Snapshot, look: DebugPageState, cells: int) -> Line:
    """Draw waiting ranks, and hints for the user while no rank is held."""
    hang = snapshot.hang
    hint = "space holds every rank at a consistent cut" if look.can_control else (
        f"{_what(look)}: ←→ moves in time, :up and :down go through the frames"
    )  # fmt: skip
    gone = [rank.rank for rank in snapshot.ranks if rank.state == "lost"]
    over = [rank.rank for rank in snapshot.ranks if rank.state in ("ended", "lost")]
    standing = (rank for rank in snapshot.ranks if rank.state == "waiting")
    waits = [r.rank for r in standing if snapshot.t_ns - (r.since_ns or 0) >= _WAIT_NS]
    shown, style = "▶ running", "good"
    if hang is not None:
        holding = f"{words.ranks_text(hang.culprits)} hold{'s' * (len(hang.culprits) == 1)}"
        text = f"{holding} {words.ranks_text(hang.waiting)} up" if hang.waiting else hang.kind
        if hang.until_ns is not None:
            text = f"ended with {hang.kind}"
        sign, style = SIGN[hang.severity]
        shown = f"{sign} {text}"
    elif over and len(over) == len(snapshot.ranks):
        shown, style = "■ ended", "dim"
        hint = hint if not look.can_control else "every rank's process is gone"
    elif gone:
        left_over = words.plural(len(snapshot.ranks) - len(over), "rank")
        shown = f"✗ {words.ranks_text(gone)} {words.agreed('is', gone)} gone, {left_over} left"
        style = "bad"
    elif waits:
        shown, style = f"◷ {words.ranks_text(waits)} {words.waits_text(waits)} in an op", "warn"
    if hang is None and (error := snapshot.trouble) is not None:
        whose = f" of {words.ranks_text(error.culprits)}" * bool(error.culprits)
        shown, style = f"✗ {clean(error.kind)}{whose}", "bad"
    hint = clip(hint, max(0, cells - width(shown) - 5))
    return fit(line("  ", Segment(shown, style), Segment(f"   {hint}", "faint")), cells)


def _what(look: DebugPageState) -> str:
    """Return the reason why commands are not possible."""
    return "the job has ended" if look.ended else "a recording"


def _ranks(
    snapshot: Snapshot, cells: int, look: DebugPageState
) -> tuple[Sequence[Line], int | None, list[int]]:
    staged, coming = _is_staged(snapshot), _coming(snapshot)
    fixed = _STAGED if staged else _UNSTAGED
    now_size = _now_size(snapshot, coming, cells - fixed)
    stage = f"{'stage':<5}  " if staged else ""
    after = "  next" * any(coming.values())
    now = left(now_title(snapshot.run.times), now_size)
    title = f"  {'rank':>4}  {stage}{now}  {'since':>8}{after}"
    heading = line(Segment(clip(title, cells), "dim"))
    room = max(8, cells - now_size - fixed)

    def draw(at: int) -> Line:
        if at == 0:
            return heading
        rank = snapshot.ranks[at - 1]
        row = fit(_rank(rank, snapshot, coming.get(rank.rank, ""), now_size, staged, room), cells)
        return fit(selected(row), cells, "+sel") if rank.rank == look.selected else row

    breaks = break_lines(snapshot, cells)
    places = [-1, *(rank.rank for rank in snapshot.ranks), *[-1] * len(breaks)]
    focus = places.index(look.selected) if look.selected in places else None
    return Drawn(1 + len(snapshot.ranks), draw, breaks), focus, places


def _is_staged(snapshot: Snapshot) -> bool:
    return any(rank.stages for rank in snapshot.ranks)


def _coming(snapshot: Snapshot) -> dict[int, str]:
    """Return rank -> its next op, what it waits for, or the place of a culprit."""
    about = snapshot.trouble
    where = (about.where or "").partition(" ")[0] if about is not None else ""  # no function
    found = _nexts(snapshot)
    found |= {rank: waits_text(waits) for rank, waits in snapshot.control.waiting.items()}
    for rank in about.culprits if about is not None else ():
        found[rank] = where or "others wait for it" * (snapshot.hang is not None)
    return found


def _most_now(snapshot: Snapshot) -> int:
    """Return the cells that the longest activity takes, with its sign."""
    texts = {activity_text(now) for now in {r.now for r in snapshot.ranks}}
    return max(18, min(44, max(map(width, texts), default=0) + 2))


def _wished(snapshot: Snapshot) -> int:
    """Return the cells in which no activity and no next op of a rank is cut."""
    coming = max(map(width, _coming(snapshot).values()), default=0)
    return (_STAGED if _is_staged(snapshot) else _UNSTAGED) + _most_now(snapshot) + coming


def _now_size(snapshot: Snapshot, coming: Mapping[int, str], cells: int) -> int:
    """Return the cells for ranks' activities, which share a line with their next ops."""
    longest = max(map(width, coming.values()), default=0)
    return max(18, min(_most_now(snapshot), cells - min(16, longest)))


def break_lines(snapshot: Snapshot, cells: int) -> list[Line]:
    """Draw breakpoints and watches with their matches; empty if there are none."""
    lines: list[Line] = []
    for one in snapshot.control.breaks:
        matched = f"matched {one.hits} ×" if one.hits else "not matched yet"
        where = "" if one.on is None else f"on {words.rank_set(one.on, '-')}  "
        once = "once  " if one.once else ""
        text = line(
            Segment(f"  {'◉' if one.kind else '●'}{one.number:>3}  ", "held"),
            Segment(f"{'watch ' if one.kind else ''}{clean(one.condition)}", "strong"),
            Segment(f"  {where}{once}{'' if one.enabled else 'disabled  '}{matched}", "dim"),
        )  # fmt: skip
        lines.append(fit(text, cells))
    return lines


def _nexts(snapshot: Snapshot) -> dict[int, str]:
    """Return rank -> next op, by control, else by the plan after the rank's current action."""
    found: dict[int, str] = {}
    step, now = snapshot.pipeline.step if snapshot.pipeline else None, snapshot.t_ns
    rows = {row.rank: row for row in snapshot.ranks}
    for rank in step.ranks if step else ():
        plan, row = [*filter(None, rank.plan), ""], rows.get(rank.rank)
        if row is not None and row.now.what in plan[:-1]:
            found[rank.rank] = plan[plan.index(row.now.what) + 1]
        elif row is not None and (row.since_ns or 0) <= now:
            found[rank.rank] = rank.next_action or ""
    found |= snapshot.control.held
    over = {row.rank for row in snapshot.ranks if row.state in ("ended", "lost")}
    return {rank: coming for rank, coming in found.items() if rank not in over}


def _rank(
    rank: RankNow, snapshot: Snapshot, coming: str, now_size: int, staged: bool, room: int
) -> Line:
    sign, style = SIGNS[rank.state]
    age_ns = snapshot.t_ns - (rank.since_ns or snapshot.t_ns)
    since = words.duration(age_ns) if age_ns > 0 else ""
    stages = ",".join(map(str, rank.stages))
    doing = rank.state if rank.state == "held" and coming else activity_text(rank.now) or rank.state
    text = clip(doing, now_size - 2)
    return line(
        Segment(f"  {rank.rank:>4}  ", "strong"),
        Segment(f"{stages:<5}  " if staged else "", "dim"),
        Segment(f"{sign} ", style),
        Segment(left(text, now_size - 2), "" if rank.state == "running" else style),
        Segment(f"  {since:>8}  ", "dim"),
        Segment(clip(clean(coming), room), "strong"),
    )


def _stacks(
    shown: Mapping[int, Stack],
    taken: int | None,
    look: DebugPageState,
    snapshot: Snapshot,
    cells: int,
    rows: int,
) -> list[Line]:
    if not shown:
        text = "w asks every rank for its stack" if look.can_control else (
            "none recorded up to here: they are taken when ranks stand still"
        )  # fmt: skip
        return [line(" ", rule("stacks", cells - 2)), line(Segment(f"  {text}", "faint"))]
    age = ""
    if taken is not None:
        after = taken - snapshot.t_ns
        age = f"{words.duration(abs(after))} {'ago' if after <= 0 else 'after this moment'}"
        age += ", they run on" * (taken == look.stacks_ns and snapshot.control.mode == "running")
    culprits = snapshot.hang.culprits if snapshot.hang is not None else ()
    return [line(" ", rule("stacks", cells - 2, age)), *tree(shown, cells, culprits, rows)]


def source(
    found: SourceLines | None, title: str, cells: int, rows: int, stack: Stack = (),
    note: str = "", function: str = "",
) -> list[Line]:  # fmt: skip
    """Draw a heading and the lines around the current one, or all frames of the stack if the source
    is missing, in at most ``rows`` lines; empty without a frame. ``function``: the function of the
    line at the time of the stack."""
    if found is None or rows < 2:
        return []
    lines = [line(rule(title, cells, note))]
    if not found.lines:
        where = f"{found.place.file}:{found.place.line}: {found.note}"
        lines += [line(Segment(f" {text}", "faint")) for text in fold(clean(where), cells - 2)]
        lines += [()] + [
            line(Segment(f" {clip(spot.text, cells - 2)}", "strong" if spot.user else "dim"))
            for spot in reversed(stack)
        ]  # its frames at least, the innermost first
        return lines[:rows]
    if found.note:
        lines.append(line(Segment(f" {clip(found.note, cells - 1)}", "faint")))
    if _other_version(found, function):
        note = clip(" another version of this file ran: its lines were others", cells)
        lines.append(line(Segment(note, "warn")))
    room = rows - len(lines)
    at = found.place.line - found.first
    start = max(0, min(at - room // 2, len(found.lines) - room))
    digits = len(str(found.first + len(found.lines)))
    for index, text in enumerate(found.lines[start : start + room], start):
        number = f"{found.first + index:>{digits}} "
        now = index == at
        heading = line(
            Segment(number, "accent" if now else "faint"),
            Segment("▶ " if now else "  ", "accent"),
            Segment(clip(clean(text.expandtabs(4)), cells - digits - 3), "strong" if now else ""),
        )
        lines.append(fit(selected(heading), cells, "+sel") if now else heading)
    return lines
