"""The timeline page: lanes of each rank on one time axis that ends at the cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from statistics import median

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import Lanes, LaneSpan, Spot, WaitedFor
from pardbg.analysis.pipeline.dependencies import parse
from pardbg.render.draw.axis import Axis, ruler
from pardbg.render.draw.bars import inspected, keys, rule
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
    overlay,
    plain,
)
from pardbg.render.frame.panels import empty
from pardbg.render.pages.pipeline.schedule import KIND_WORD
from pardbg.render.pages.pipeline.schedule import label as short
from pardbg_agent.tables.c10d_ops import kind_of

GUTTER = 15
MANY = 128
"""Number of ranks above which the page lists only those around the selected one."""
_NOTHING = LaneSpan(0, 0, "", "")
_BESIDE = 100
"""Cells from which on the longest ops stand beside the steps."""
_STEPS = 44
"""Cells of the list of steps."""
_FIGURES = 38
"""Cells of a line of the longest ops without the op's name."""
_NAME = 32
"""Most cells of an op's name, so that its figures stay beside it."""
_MESSAGES = ("comm.send", "comm.recv")
"""Styles of ops that each rank has for itself."""
_LEAST_LISTED = 3
"""Lines of these lists for which a page's rest is used."""
HATCHED = ("wait",)
"""Style roots drawn with a character instead of a fill."""


@dataclass(frozen=True, slots=True)
class Window:
    t0_ns: int
    t1_ns: int


def columns(cells: int) -> int:
    """Return the number of cells of the lanes at a terminal width."""
    return max(10, cells - GUTTER - 1)


Place = tuple[int, str]
"""(rank, lane)"""


def places(lanes: Lanes) -> list[Place]:
    """Return the (rank, lane) of each row of the page, top to bottom."""
    return [
        (rank, name)
        for rank in sorted(lanes)
        for name in [name for name, spans in lanes[rank].items() if spans] or [""]
    ]


def around(
    ranks: Sequence[int], chosen: int, rows: int, also: int | None
) -> tuple[int, ...] | None:
    """Return the ranks to list of many: at least a screen of ``rows`` lines before and after the
    selected one, and ``also``; None: all. The same result for ``rows`` neighbours."""
    if len(ranks) <= MANY:
        return None
    each = max(16, rows)
    at = ranks.index(chosen) // each if chosen in ranks else 0
    near = set(ranks[max(0, at - 1) * each : (at + 2) * each])
    if also is not None and also in ranks:
        near.add(also)
    return tuple(sorted(near))


def time_at(window: Window, cells: int, x: int) -> int:
    """Return the time in the middle of column ``x`` of the page."""
    share = (x - GUTTER + 0.5) / columns(cells)
    return window.t0_ns + round(share * (window.t1_ns - window.t0_ns))


def timeline(
    snapshot: Snapshot,
    lanes: Lanes,
    window: Window,
    cells: int,
    rows: int,
    chosen: int | None = None,
    spot: Spot | None = None,
    about: WaitedFor | None = None,
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; ``rows`` of the picture index `places`.

    ``about``: op and rank that the selected box at ``spot`` waited for.
    """
    if not any(span for rank in lanes.values() for span in rank.values()):
        if not lanes and not snapshot.ranks:
            return empty(cells, rows, "Nothing to draw yet.", "No rank has reported.")
        return empty(cells, rows, "Nothing ran in this window.",
                     "− shows more time, ←→ move, a comma steps back, f follows.")  # fmt: skip
    axis = Axis(window.t0_ns, max(1, window.t1_ns - window.t0_ns), columns(cells))
    span = spot.span(lanes) if spot is not None else None
    foot = (*_inspected(snapshot, lanes, spot, span, about, cells), _legend(lanes, cells))
    shown = places(lanes)
    room = rows - 2 - len(foot)
    spaced = len(shown) + len(lanes) <= room
    tall = 2 if 2 * len(shown) + len(lanes) <= room else 1
    index: list[int] = []
    starts: dict[Place, int] = {}
    before = None
    for at, (rank, name) in enumerate(shown):
        if spaced and before not in (None, rank):
            index.append(at - 1)
        starts[rank, name] = len(index)
        index += [at] * tall
        before = rank

    arrow = None
    if spot is not None and about is not None and span is not None:
        arrow = _arrow(starts, spot, span, about, axis)

    def draw(y: int) -> Line:
        return row(y) if arrow is None else arrow.over(row(y), y)

    def row(y: int) -> Line:
        at = index[y]
        rank, name = shown[at]
        low = y - starts[rank, name]
        if low >= tall:
            return ()  # between two ranks
        mark = span if spot is not None and (spot.rank, spot.lane) == (rank, name) else None
        first = not low and (at == 0 or shown[at - 1][0] != rank)
        gutter = _gutter(rank, "" if low else name, first, rank == chosen)
        return line(*gutter, *lane(lanes[rank].get(name, ()), axis, mark, not low))

    focus = next((y for (rank, name), y in starts.items() if rank == chosen
                  and (spot is None or name == spot.lane)), None)  # fmt: skip
    below = _in_sight(snapshot, lanes, window, cells, room - len(index))
    return Picture(_head(snapshot, window, axis, lanes, span is not None),
                   Drawn(len(index), draw, below), foot, focus=focus,
                   rows=tuple(index))  # fmt: skip


def _in_sight(
    snapshot: Snapshot, lanes: Lanes, window: Window, cells: int, rows: int
) -> list[Line]:
    """Draw the longest ops of the window beside its steps, in at most ``rows`` lines."""
    most, size = rows - 4, cells - 2
    if most < _LEAST_LISTED:
        return []
    steps = _steps(lanes, window, _STEPS, most) if cells >= _BESIDE else []
    size -= _STEPS + 2 if steps else 0
    ops = _longest(snapshot, lanes, window, size, most)
    if not ops:
        return [(), *(line(" ", row) for row in _steps(lanes, window, cells - 2, most))]
    pairs = zip_longest(ops, steps, fillvalue=())
    return [(), *(line(" ", fit(a, size), "  " if steps else "", b) for a, b in pairs)]


def _longest(snapshot: Snapshot, lanes: Lanes, window: Window, cells: int, rows: int) -> list[Line]:
    """List the ops that took longest, a collective by the rank that was longest in it; those that
    begin before the window are not whole."""
    found = [
        (span.t1_ns - span.t0_ns, rank, span)
        for rank, row in lanes.items()
        for span in row.get("comm", ())
        if span.number == 1 and span.t0_ns > window.t0_ns and span.label
    ]
    each: dict[tuple[str, int, int], tuple[int, int, LaneSpan]] = {}
    for took, rank, span in sorted(found, key=lambda one: -one[0]):
        whose = (rank, span.t0_ns) if span.style in _MESSAGES else (0, 0)
        each.setdefault((span.label, *whose), (took, rank, span))
    if not each:
        return []
    room = min(cells - _FIGURES, _NAME)
    lines: list[Line] = [rule("longest ops in sight", cells, f"of {len(found)} boxes with one op")]
    for took, rank, span in list(each.values())[:rows]:
        at = words.offset(max(0, span.t0_ns - snapshot.t_begin_ns), 1e6)
        name, after = clip(clean(span.label), room), " so far" if span.is_open else ""
        lines.append(line(left(f" r{rank}", 6), Segment(left(name, room), "strong"),
                          Segment(f"{words.duration(took):>8}"), Segment(left(after, 7), "dim"),
                          Segment(f"  from {at}", "dim")))  # fmt: skip
    return lines


def _steps(lanes: Lanes, window: Window, cells: int, rows: int) -> list[Line]:
    """List the newest steps that lie within the window on each rank that is drawn, with the rank
    that was fastest, and the slowest."""
    known: dict[str, dict[int, int]] = {}
    for rank, row in lanes.items():
        for span in row.get("step", ()):
            whole = window.t0_ns < span.t0_ns and span.t1_ns < window.t1_ns and not span.is_open
            if whole and span.number == 1:
                known.setdefault(clean(span.label), {})[rank] = span.t1_ns - span.t0_ns
    full = [(name, took) for name, took in known.items() if len(took) == len(lanes)][-rows:]
    if not full or len(lanes) < 2:
        return []
    lines: list[Line] = [rule("whole steps in sight", cells, f"{len(lanes)} ranks")]
    for name, took in full:
        fast, slow = min(took, key=lambda r: took[r]), max(took, key=lambda r: took[r])
        lines.append(line(
            Segment(left(f" {name}", 12), "strong"), Segment(f"{words.duration(took[fast]):>8}"),
            Segment(f" r{fast}", "dim"), Segment(f" to {words.duration(took[slow])}"),
            Segment(f" r{slow}", "dim"),
        ))  # fmt: skip
    return lines


def _head(
    snapshot: Snapshot, window: Window, axis: Axis, lanes: Lanes, held: bool
) -> tuple[Line, ...]:
    notes = []
    if 1 < len(lanes) < len(snapshot.ranks) > MANY:
        notes.append(f"ranks {words.rank_set(lanes)} of {len(snapshot.ranks)}")
    behind, hang = snapshot.t_ns - window.t1_ns, snapshot.hang
    if behind > 0 and held and snapshot.live:
        notes.append(f"stays {words.duration(behind)} back for the box (esc follows)")
    elif behind > 0 and snapshot.control.held:
        notes.append(f"up to the cut; held for {words.duration(behind)} since")
    elif hang is not None and (more := (hang.until_ns or snapshot.t_ns) - window.t1_ns) > 0:
        notes.append(f"{words.duration(more)} more of the wait follow")
    elif behind > 0:
        notes.append(f"no record for {words.duration(behind)}")
    notes.append(f"{words.duration(axis.ns_per_cell)} a column")
    cells, said = GUTTER + axis.cells, _verdict(window, lanes, snapshot.run.times == "device")
    note = clip("  " + " · ".join(notes), max(0, cells - line_width(said)))
    times = line(left("", GUTTER), *ruler(axis, None, snapshot.t_begin_ns).line())
    return line(*said, Segment(note, "dim")), times


def _verdict(window: Window, lanes: Lanes, on_device: bool) -> Line:
    """Return the window's length and the op that is open longest, else the longest wait; boxes of
    several waits have no length of their own."""
    across = words.duration(window.t1_ns - window.t0_ns)
    waiting = "stands" if on_device else "wait"
    spans = [(name, rank, span) for rank, row in lanes.items() for name in ("comm", waiting)
             for span in row.get(name, ()) if span.t1_ns > window.t0_ns]  # fmt: skip
    still = [(rank, span) for _, rank, span in spans if span.is_open]
    waits = [(rank, span) for name, rank, span in spans if name == waiting and span.number == 1]
    if not (still or waits):
        return line(Segment(" ● ", "good"), Segment(f"{across} across.", "strong"))
    rank, span = max(still or waits, key=lambda one: one[1].t1_ns - one[1].t0_ns)
    took = words.duration(span.t1_ns - span.t0_ns)
    sign = Segment(" ◷ ", "warn") if still else Segment(" ● ", "good")
    said = f"r{rank} is in an op for" if still else f"longest wait seen: r{rank}'s,"
    text = f"{across} across; {said} {took}."
    return line(sign, Segment(text, "strong"))


def _gutter(rank: int, name: str, first: bool, chosen: bool) -> Line:
    mark = Segment(("▸" if first else "│") if chosen else " ", "accent")
    label = Segment(left(f"r{rank}" if first else "", 5), "strong" if chosen else "")
    return fit(line(mark, label, Segment(left(clean(name), 8), "dim"), " "), GUTTER)


@dataclass(frozen=True, slots=True)
class _Arrow:
    """An arrow from the selected wait to the culprit's arrival, over blank cells, with a sign at
    its end."""

    x: int
    between: range
    end: int
    sign: str

    def over(self, row: Line, y: int) -> Line:
        """Return row ``y`` with the arrow."""
        if y == self.end:
            return overlay(row, self.x, self.sign, "culprit")
        if y in self.between and not plain(row)[self.x : self.x + 1].strip():
            return overlay(row, self.x, "│", "culprit")
        return row


def _arrow(
    starts: Mapping[Place, int], spot: Spot, span: LaneSpan, about: WaitedFor, axis: Axis
) -> _Arrow | None:
    """Return the arrow; None if no rank arrived later, or if that rank is not listed."""
    begin = starts[spot.rank, spot.lane]
    others = [y for (rank, _), y in starts.items() if rank == about.rank]
    comm = starts.get((about.rank if about.rank is not None else -1, "comm"))
    if not others or about.rank is None:
        return None
    end = comm if comm is not None else others[-1]
    at = axis.x(span.t1_ns if about.came_ns is None else about.came_ns)
    at = GUTTER + min(max(at, 0), axis.cells - 1)
    step = 1 if end > begin else -1
    sign = "●" if about.came_ns is not None else "✗"
    return _Arrow(at, range(begin + step, end, step), end, sign)


def _inspected(
    snapshot: Snapshot,
    lanes: Lanes,
    spot: Spot | None,
    span: LaneSpan | None,
    about: WaitedFor | None,
    cells: int,
) -> tuple[Line, ...]:
    """Draw the facts of the selected box: its duration compared to its kind, and its culprit."""
    if spot is None or span is None:
        return ()
    name = clean(about.op if about is not None else span.label) or span.style.partition(".")[2]
    took, begin = span.t1_ns - span.t0_ns, span.t0_ns - snapshot.t_begin_ns
    like = [s.t1_ns - s.t0_ns for row in lanes.values() for s in row.get(spot.lane, ())
            if s.style == span.style]  # fmt: skip
    head: list[Segment] = [
        Segment(f"r{spot.rank} ", "dim"),
        Segment(f"{spot.lane} " if spot.lane in ("wait", "gate") else "", "dim"),
        Segment(f"{name}  ", "strong"), Segment(words.duration(took), "strong"),
        Segment(f"  median {words.duration(round(median(like)))} of {len(like)} in sight", "dim"),
    ]  # fmt: skip
    until = f"to {words.offset(begin + took, 1e5)} " if cells >= 100 else ""
    tail = [Segment(f"from {words.offset(begin, 1e5)} {until} ", "dim")]
    if about is not None:
        tail.append(Segment(f"{words.size(about.bytes)}  ", "") if about.bytes else Segment(""))
        if about.rank is None:
            tail.append(Segment("nobody came later", "dim"))
        else:
            late = words.duration(about.late_ns)
            came = f"not there after {late}" if about.came_ns is None else f"{late} later"
            text = f"waited for r{about.rank}: {came}"
            tail.append(Segment(text, "culprit"))
    return (), *inspected(head, tail, cells)


def lane(
    spans: Sequence[LaneSpan], axis: Axis, mark: LaneSpan | None = None, named: bool = True
) -> Line:
    """Draw one lane: a box per span, labelled if the label fits; ``mark`` is the selected span.

    A box is over those that begin before it, so no cell is painted beyond a span's own time; but of
    boxes that begin in one cell, the first keeps that cell.
    """
    cells, t0, scale = axis.cells, axis.t0_ns, axis.cells / axis.span_ns
    owner, before, marked = [-1] * cells, -1, (-1, 0, 0)
    for at, span in enumerate(spans):
        begin = start = round((span.t0_ns - t0) * scale) if span.t0_ns > t0 else 0
        end = round((span.t1_ns - t0) * scale)
        if end <= begin + 1:
            end = begin + 1
        elif begin == before:
            start += 1
        before = begin
        if end > cells:
            end = cells
        owner[start:end] = [at] * (end - start)
        if span is mark:
            marked = at, start, end
    at, start, end = marked
    owner[start:end] = [at] * (end - start)
    runs: list[Segment] = []
    begin, last, odd = 0, "", False
    while begin < cells:
        at, end = owner[begin], begin + 1
        while end < cells and owner[end] == at:
            end += 1
        span = spans[at] if at >= 0 else _NOTHING
        odd = bool(last) and span.style == last and not odd
        last = span.style
        if span is mark:
            runs.append(Segment(_shown(span.label, span.style, end - begin), "chosen"))
        else:
            runs += _box(span.label, span.style, end - begin, odd, named)
        begin = end
    return tuple(runs)


def _shown(label: str, style: str, size: int) -> str:
    """Return the text in a box of ``size`` cells."""
    root = style.partition(".")[0]
    if root in HATCHED:
        return "░" * size
    action = parse(label) if root == "action" else None
    if action is not None:
        label = short(action.stage, action.kind, action.microbatch, size, False)
    elif root == "comm" and len(label) > size:
        label = _shorter(clean(label), size)
    elif len(label) > size:
        first, _, number = clean(label).partition(" ")
        if root == "step":
            label = number if len(number) <= size else ""
        else:
            label = first if len(first) <= size else _cut(first, size)
    else:
        label = clean(label)
    return left(label, size)


def _shorter(label: str, size: int) -> str:
    """Return the first of ``all_reduce #43``, ``all_reduce``, ``AR #43`` and ``AR`` that fits."""
    op, _, rest = label.partition(" ")
    number = rest.rpartition(" ")[2] if "#" in rest else rest
    short_op = kind_of(op).label
    tries = (f"{op} {number}", op, f"{short_op or op} {number}", short_op)
    return next((text for text in tries if 0 < len(text) <= size), _cut(short_op or op, size))


def _cut(name: str, size: int) -> str:
    """Return the begin of a name; in a very narrow box only the first letter."""
    return clip(name, size) if size >= 4 else name[:1]


@lru_cache(maxsize=16384)
def _box(label: str, style: str, size: int, odd: bool, named: bool) -> tuple[Segment, ...]:
    """Return a box of ``size`` cells, blank without a style. Cached: frames repeat most boxes."""
    hatched = style.partition(".")[0] in HATCHED
    text = _shown(label, style, size) if named or hatched else " " * size
    if style.startswith("action") and style.count(".") == 1:
        return (Segment(text, style + (".odd" if odd else ".even")),)
    if odd and len(text.rstrip()) <= 1:  # the one before it has the letter
        edge = Segment("▏", style + "+edge")
        return (edge, Segment(text[1:], style)) if size > 1 else (edge,)
    return (Segment(text, style),)


def _legend(lanes: Mapping[int, Mapping[str, tuple[LaneSpan, ...]]], cells: int) -> Line:
    styles: dict[str, None] = {}
    for rank in list(lanes.values())[:4]:
        for spans in rank.values():
            for span in spans[:200]:
                styles.setdefault(span.style)
    items: list[tuple[str, str, str]] = []
    for style in sorted(styles):
        root, _, name = style.partition(".")
        sample = "░░" if root in HATCHED else "  "
        word = KIND_WORD.get(name, (name or root).lower()) if root == "action" else name or root
        word = f"{kind_of(word).label} {word}".lstrip() if root == "comm" else word
        items.append((sample, style, clean(word).replace("_", " ") + " "))
    if any(span.number > 1 for rank in lanes.values() for spans in rank.values()
           for span in spans[:200]):  # fmt: skip
        items.insert(0, ("×", "", "several "))
    return line("  ", keys(items, cells - 2))
