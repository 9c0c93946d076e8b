"""The pipeline's schedule: planned and observed rows on one time axis.

An observed row is in proportion to time: a filled box per action with its label, shortened if
narrow; idle intervals shaded by cause, each with a character of its own; the running action in a
brighter shade that grows; and, if the rank is held, its next action after ``‖``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from pardbg import words
from pardbg.analysis.pipeline.dependencies import parse
from pardbg.analysis.pipeline.implied import Planned
from pardbg.analysis.pipeline.values import ActionSpan, Cause, PipelineRank
from pardbg.render.draw.axis import BREAK, Axis, mark_breaks
from pardbg.render.draw.bars import LEVELS
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, line, line_width

CAUSE_CHAR: dict[Cause, str] = {
    "warmup": "·", "dependency": "░", "communication": "~", "host": "╱",
    "launch": "╲", "cooldown": "˙",
}  # fmt: skip
CAUSE_WORD: dict[Cause, str] = {
    "warmup": "warm-up", "dependency": "dependency", "communication": "communication",
    "host": "host", "launch": "host-bound", "cooldown": "cool-down",
}  # fmt: skip
CAUSE_SHORT: dict[Cause, str] = {
    "warmup": "warm", "dependency": "dep", "communication": "comm", "host": "host",
    "launch": "late", "cooldown": "cool",
}  # fmt: skip
KIND_WORD = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}
HELD = "‖"
_SHORTEST_DURATION = 3
"""Minimum cells of a box with a readable duration: ``45`` and an edge."""
PAIRED = "═"
ON_PATH = "•"
AT_ONCE = "▚"
"""Character for two actions of a rank at the same time."""
IDLE = "idle: "
LAUNCH = LEVELS[1]


@dataclass(frozen=True, slots=True)
class Density:
    """Lines per rank; the richest density that fits is used."""

    plan: int = 1
    tall: int = 0
    """Additional lines of a box beyond the first."""
    launch: int = 0
    flight: int = 0
    gap: int = 0
    spare: int = 0
    """Lines that must stay free below the ranks for this density."""

    @property
    def lines(self) -> int:
        return self.plan + 1 + self.tall + self.launch + self.flight + self.gap

    def fits(self, ranks: int, room: int) -> bool:
        return ranks * self.lines - self.gap + self.spare <= room


def token(kind: str, microbatch: int) -> str:
    """Return an action's style; neighbouring microbatches alternate between two shades, so boxes
    need no border."""
    base = kind if kind in "FBIW" else "X"
    return f"action.{base}.{'odd' if microbatch % 2 else 'even'}"


def label(
    stage: int, kind: str, microbatch: int, cells: int, many_stages: bool, later: bool = False
) -> str:
    """Return the longest label that fits: ``4F5``, ``F5``, ``F``; in short forms a stage that is
    not the rank's first is ``f5``, ``f``."""
    short = kind if len(kind) == 1 else {"UNSHARD": "U", "RESHARD": "R"}.get(kind, "G")
    number = str(microbatch) if microbatch >= 0 else ""
    letter = short.lower() if later else short
    forms = [letter + number, letter]
    if many_stages:
        forms.insert(0, f"{stage}{short}{number}")
    return next((form for form in forms if len(form) <= cells), "")


_NUMBERED = 4
"""Minimum cells of a kind's boxes that have numbers where other kinds of the row have none."""


def even(sizes: Iterable[int]) -> int:
    """Return the length of labels in a row at which most boxes have the same form."""
    known = sorted(size for size in sizes if size > 0)
    return known[len(known) // 4] if known else 0


def _even_by_kind(
    boxes: Sequence[ActionSpan | Planned], axis: Axis, origin_ns: int = 0
) -> dict[str, int]:
    """Return `even` of the row by kind, for kinds with room for numbers of their own boxes: short
    backwards take none from long forwards."""
    sizes: dict[str, list[int]] = {box.kind: [] for box in boxes}
    for box in boxes:
        if box.t1_ns is not None:
            sizes[box.kind].append(axis.x(origin_ns + box.t1_ns) - axis.x(origin_ns + box.t0_ns))
    most = even(size for of in sizes.values() for size in of)
    return {kind: own if (own := even(of)) >= _NUMBERED else most for kind, of in sizes.items()}


def plan_row(
    boxes: Sequence[Planned],
    axis: Axis,
    many_stages: bool,
    cursor: int | None = None,
    pairs: Sequence[tuple[str, str]] = (),
) -> Row:
    """Draw the plan: a label at each action's begin and a thin line over its duration, a double
    line for an overlapped forward and backward."""
    row = Row(axis.cells)
    painted = 0
    paired = {action for pair in pairs for action in pair}
    lowest = min((box.stage for box in boxes), default=0)
    most = _even_by_kind(boxes, axis, axis.t0_ns)
    for box in boxes:
        start, end = axis.x(axis.t0_ns + box.t0_ns), axis.x(axis.t0_ns + box.t1_ns)
        start = max(start, painted)
        if end <= start:
            continue
        style = f"plan.{box.kind if box.kind in 'FBIW' else 'X'}"
        row.fill(start, end, PAIRED if box.text in paired else "─", style)
        size, later = min(end - start, max(1, most[box.kind])), box.stage > lowest
        text = label(box.stage, box.kind, box.microbatch, size, many_stages, later)
        row.put(start, text, style)
        painted = end
    _mark_cursor(row, cursor)
    return row


def seen_row(
    rank: PipelineRank, axis: Axis, now_ns: int, many_stages: bool,
    path: Collection[str] = (),
) -> Row:  # fmt: skip
    """Draw the observed actions up to ``now_ns`` over idle intervals; actions of the critical path
    are marked at their end if there is room."""
    row = Row(axis.cells)
    for idle in rank.idles:
        start, end = axis.x(idle.t0_ns), axis.x(min(idle.t1_ns, now_ns))
        row.fill(start, end, CAUSE_CHAR[idle.cause], f"idle.{idle.cause}")
        if idle.producer and end - start >= len(idle.producer) + 3:
            row.put(start + 1, f"◂{idle.producer}", f"idle.{idle.cause}")
    end = 0
    lowest = min(rank.stages, default=0)
    most = _even_by_kind(rank.actions, axis)

    def named(a: ActionSpan, cells: int) -> str:
        size = min(cells, max(1, most[a.kind])) if a.t1_ns is not None else cells
        return label(a.stage, a.kind, a.microbatch, size, many_stages, a.stage > lowest)

    for action in rank.actions:
        begin = axis.x(action.t0_ns)
        if end - begin >= 2:  # an edge shared by rounding is one cell
            style = token(action.kind, action.microbatch)
            row.fill(begin + 1, end, AT_ONCE, style)
            if action.t1_ns is not None and axis.x(action.t1_ns) <= end:  # within the other one
                text = label(action.stage, action.kind, action.microbatch, end - begin - 1, False)
                row.put(begin + 1, text, style)
        end = _box(row, action, axis, now_ns, named, end)
        if action.text in path and 0 < end <= row.size and row.chars[end - 1] == " ":
            row.chars[end - 1] = ON_PATH
    mark_breaks(row, axis)
    return row


def short_next(text: str, many_stages: bool) -> str:
    """Return the next action without the rank's only stage: ``F5``; an op's text unchanged."""
    action = parse(text)
    if action is not None and not many_stages:
        return text[len(str(action.stage)) :]
    return clip(clean(text), 20)


def _box(
    row: Row, action: ActionSpan, axis: Axis, now_ns: int, named: Callable[[ActionSpan, int], str],
    painted: int,
) -> int:  # fmt: skip
    """Paint one action, with a label by ``named``; return the end of the painted cells."""
    running = action.t1_ns is None
    start = max(axis.x(action.t0_ns), painted)
    end = axis.x(now_ns if action.t1_ns is None else action.t1_ns)
    if end <= start and (running or start > painted):
        end = start + 1
    if end <= start:
        return painted
    style = token(action.kind, action.microbatch)
    if running:
        style = style.rsplit(".", 1)[0] + ".now"
    row.fill(start, end, " ", style)
    text = named(action, end - start)
    row.put(start, text, style)
    if running and end - start > len(text):
        row.put(end - 1, "▸", style)
    return min(end, axis.cells)


def duration_row(rank: PipelineRank, axis: Axis, now_ns: int, words_in: bool = True) -> Row:
    """Draw the lower part of the boxes: each action's duration, if wanted and if most fit."""
    row = Row(axis.cells)
    sizes = [axis.x(a.t1_ns) - axis.x(a.t0_ns) for a in rank.actions if a.t1_ns is not None]
    words_in = words_in and even(sizes) >= _SHORTEST_DURATION
    for idle in rank.idles:
        end = axis.x(min(idle.t1_ns, now_ns))
        row.fill(axis.x(idle.t0_ns), end, " ", f"idle.{idle.cause}")
    painted = 0
    for action in rank.actions:
        ended = now_ns if action.t1_ns is None else action.t1_ns
        start, end = max(axis.x(action.t0_ns), painted), axis.x(ended)
        if end <= start:
            continue
        style = token(action.kind, action.microbatch)
        style = style + ".low" if action.t1_ns is not None else style.rsplit(".", 1)[0] + ".now"
        row.fill(start, end, " ", style)
        text = words.duration(ended - action.t0_ns)
        forms = (text, text.split(" ")[0], text.split(".")[0].split(" ")[0])
        fitting = next((form for form in forms if len(form) < end - start), "")
        row.put(start, fitting if words_in else "", style)
        painted = end
    mark_breaks(row, axis)
    return row


def flight_row(
    rank: PipelineRank, curve: Sequence[tuple[int, int]], axis: Axis, now_ns: int
) -> Row:
    """Draw microbatches in flight over the same time, as a step curve below the boxes.

    ``curve``: (t_ns, microbatches) at each change.
    """
    row = Row(axis.cells)
    top = max(rank.max_in_flight, rank.in_flight_bound or 0, 1)
    ends = [axis.x(t_ns) for t_ns, _ in curve[1:]] + [axis.x(now_ns)]
    for (t_ns, level), end in zip(curve, ends, strict=False):
        if level > 0:
            mark = LEVELS[min(7, max(0, level * 8 // top - 1))]
            row.fill(axis.x(t_ns), end, mark, "flight.curve")
    mark_breaks(row, axis)
    return row


def launch_row(launches: Iterable[ActionSpan], axis: Axis) -> Row:
    """Draw the times at which the host launched actions, a thin line each."""
    row = Row(axis.cells)
    for one in launches:
        start = axis.x(one.t0_ns)
        kind = one.kind if one.kind in "FBIW" else "X"
        row.fill(start, max(start + 1, axis.x(one.t1_ns or one.t0_ns)), LAUNCH, f"plan.{kind}")
    mark_breaks(row, axis)
    return row


def _mark_cursor(row: Row, cursor: int | None) -> None:
    if cursor is not None and row.blank(cursor):
        row.put(cursor, "┊", "faint")


def gap_row(axis: Axis, cursor: int | None) -> Row:
    """Draw an empty row with the cursor."""
    row = Row(axis.cells)
    _mark_cursor(row, cursor)
    return row


def legend(
    kinds: Sequence[str], cells: int, causes: Sequence[Cause], paired: bool = False,
    many_stages: bool = False, launches: bool = False, breaks: bool = False,
) -> Line:  # fmt: skip
    """Return the meaning of letters and shadings, as far as they fit: of idle time in the ledger's
    short words, unless the whole words of all fit; never a sign without its word."""
    signs = [(kind, f"plan.{kind}", KIND_WORD.get(kind, kind)) for kind in kinds]
    signs += [("f", "plan.F", "later stage")] if many_stages else []
    signs += [(PAIRED * 2, "plan.F", "planned to overlap")] if paired else []
    signs += [(LAUNCH * 2, "plan.F", "launch")] if launches else []
    signs += [(BREAK * 2, "gap", "time left out")] if breaks else []
    for named in (CAUSE_WORD, CAUSE_SHORT):
        idle = [(CAUSE_CHAR[cause] * 2, f"idle.{cause}", named[cause]) for cause in causes]
        entries = [
            line(Segment("  " * (at > 0) + IDLE * (at == len(signs)), "dim"),
                 Segment(sign, style), Segment(f" {word}", "dim"))
            for at, (sign, style, word) in enumerate((*signs, *idle))
        ]  # fmt: skip
        if sum(map(line_width, entries)) <= cells:
            break
    kept: list[Segment] = []
    for entry in entries:
        if line_width((*kept, *entry)) > cells:
            break
        kept += entry
    return tuple(kept)
