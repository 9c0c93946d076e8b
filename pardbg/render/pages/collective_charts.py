"""Sums of the listed operations: a line per kind, and charts.

A kind of collectives is (group, op, size), a kind of messages (edge, contents, size).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.bars import (
    Column,
    abreast,
    choose,
    headings,
    keys,
    panel_widths,
    rule,
    table_row,
)
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, fit, left, line, right, wrap
from pardbg.render.draw.plots import WHOLE, Point, Scale, Series, plot
from pardbg.render.draw.signs import SIGN
from pardbg.render.pages.findings import ordered

_LOOKS: Final = (("●", "spark"), ("◆", "loss"), ("■", "busy"), ("▲", "bubble"), ("×", "held"))
_ELSE: Final = ("+", "dim")
"""Styles of further ops, one each, as far as they suffice."""
_LEAST_ROWS: Final = 7
_BARS: Final = 16
"""Maximum number of ranks with a bar each; more ranks are dots."""
_NOISE_NS: Final = 5e6
"""Lateness below this is noise."""
_APART: Final = 4
_SIZES_LEAST: Final = 4
"""Minimum number of sizes, at least a factor _APART from each other, for fitting a line."""
_NEAR: Final = 1.5
"""Maximum factor between each size's time and the line."""
Rows = Sequence[CollectiveRow | P2PRow]


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum over all listed operations of one kind."""

    group: str
    """Name of the group; for messages of the edge."""
    op: str
    num_bytes: int
    number: int
    wait_ns: int | None
    """Wait summed over ranks and operations; None: not known for any of them."""
    skew_ns: float | None
    """Median skew; for messages the median time under way."""
    busbw_gbps: float | None
    """Median bus bandwidth; for messages bytes by the time under way."""


def _op(row: CollectiveRow | P2PRow) -> str:
    """Return the op of a row; for a message its contents without the number, ``F`` of ``F4``."""
    return row.op if isinstance(row, CollectiveRow) else row.label.rstrip("0123456789") or "message"


def _figures(row: CollectiveRow | P2PRow) -> tuple[int | None, float | None, float | None]:
    """Return (wait, skew or time under way, GB/s)."""
    if isinstance(row, CollectiveRow):
        return row.wait_ns, row.skew_ns, row.busbw_gbps
    took = row.transfer_ns
    return row.waited_ns, took, row.bytes / took if took and row.bytes else None


def sums(rows: Rows) -> list[Sum]:
    """Return a sum per kind, the largest total wait first."""
    kinds: dict[tuple[str, str, int], list[tuple[int | None, float | None, float | None]]]
    kinds = defaultdict(list)
    for row in rows:
        name = row.label or row.group
        if isinstance(row, P2PRow):
            name = f"{row.src} → {row.dst}"
        kinds[name, _op(row), row.bytes].append(_figures(row))
    found = []
    for kind, of in kinds.items():
        waits, skews, rates = zip(*of, strict=True)
        known = [wait for wait in waits if wait is not None]
        waited = sum(known) if known else None
        found.append(Sum(*kind, len(of), waited, _median(skews), _median(rates)))
    return sorted(
        found, key=lambda each: (-(each.wait_ns or 0), each.group, each.op, -each.num_bytes)
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


_OF_MESSAGES: Final = ("p2p-cycle", "p2p-tag-mismatch", "unpaired-send", "unpaired-recv",
                       "slow-link")  # fmt: skip
"""Kinds of findings that concern messages."""


def with_open_waits(
    snapshot: Snapshot, rows: Sequence[CollectiveRow | P2PRow]
) -> list[CollectiveRow | P2PRow]:
    """Return the rows; of those that lack a rank, with the wait up to now, or to the failure."""
    hang = snapshot.hang
    until_ns = (hang.until_ns if hang is not None else None) or snapshot.t_ns
    found: list[CollectiveRow | P2PRow] = []
    for row in rows:
        if row.verdict != "missing rank":
            pass
        elif isinstance(row, CollectiveRow):
            came = [one.came_ns for one in row.arrivals if one.came_ns is not None]
            row = replace(row, wait_ns=sum(max(0, until_ns - ns) for ns in came))
        elif row.send_ns is None and row.recv_ns is not None:
            row = replace(row, waited_ns=max(0, until_ns - row.recv_ns))
        found.append(row)
    return found


def said(snapshot: Snapshot, cells: int) -> list[Line]:
    """Draw the state of the listed operations: the worst finding about them, else the rank that
    comes last, or that no rank does."""
    rows = snapshot.collectives
    about = [f for f in ordered(snapshot.findings)
             if f.severity != "info" and (f.seq is not None or f.group)]  # fmt: skip
    wrong = sum(row.verdict not in ("matched", "incomplete") for row in rows)
    groups = len({row.key for row in rows})
    waited = sum(_figures(row)[0] or 0 for row in with_open_waits(snapshot, rows))
    moving = sum(row.transfer_ns or 0 for row in rows)
    numbers = (f"{words.plural(len(rows), 'operation')} in {words.plural(groups, 'group')}, "
               f"{f'{wrong} of them not matched' if wrong else 'none disagrees'}. "
               f"Ranks waited {words.duration(waited)} in sum; data moved for "
               f"{words.duration(moving)}.")  # fmt: skip
    late = next((one for one in lateness(rows) if one.stands_out), None)
    if about:
        return _of_finding(about[0], numbers, cells)
    if late is not None:  # no finding: the findings have reasons, as an overloaded host
        sign, style, loud = "●", "dim", "strong"
        text = (f"Rank {late.rank} comes last in {late.times_last} of {late.number}, "
                f"{words.duration(late.median_ns)} after the first in the median.")  # fmt: skip
    else:
        sign, style, loud = "●", "good", "strong"
        text = "No rank has been seen to wait."
        skews = [row.skew_ns for row in rows if row.skew_ns is not None]
        if skews:  # ranks that are late in turn, as with too few cores, are no cause
            text = ("No one rank keeps the others waiting: the last comes "
                    f"{words.duration(median(skews))} after the first in the median.")  # fmt: skip
    return _said(sign, style, text, loud, numbers, cells)


def said_p2p(snapshot: Snapshot, cells: int) -> list[Line]:
    """Draw the state of the messages: the worst finding about them, else the link whose receivers
    waited most."""
    rows, waited = snapshot.p2p, dict[tuple[int, int], int]()
    for row in with_open_waits(snapshot, rows):
        if isinstance(row, P2PRow):
            waited[row.src, row.dst] = waited.get((row.src, row.dst), 0) + (row.waited_ns or 0)
    wrong = sum(row.verdict not in ("matched", "incomplete") for row in rows)
    numbers = (f"{words.plural(len(rows), 'message')} on {words.plural(len(waited), 'link')}, "
               f"{f'{wrong} of them not matched' if wrong else 'none unmatched'}. Data was under "
               f"way for {words.duration(sum(row.moving_ns or 0 for row in rows))}.")  # fmt: skip
    about = [f for f in ordered(snapshot.findings)
             if f.severity != "info" and f.kind in _OF_MESSAGES]  # fmt: skip
    if about:
        return _of_finding(about[0], numbers, cells)
    (src, dst), most = max(waited.items(), key=lambda link: link[1])
    text = "No receive has been seen to wait."
    if most:
        text = (f"Receives waited {words.duration(sum(waited.values()))} in sum for their sends, "
                f"most on {src} → {dst}: {words.duration(most)}.")  # fmt: skip
    return _said("●", "good", text, "strong", numbers, cells)


def _of_finding(finding: Finding, numbers: str, cells: int) -> list[Line]:
    sign, style = SIGN[finding.severity]
    text = clean(finding.text[:1].upper() + finding.text[1:])
    loud = "bad" if finding.severity == "error" else "culprit"
    return _said(sign, style, text, loud, numbers, cells)


def _said(sign: str, style: str, text: str, loud: str, numbers: str, cells: int) -> list[Line]:
    """Draw a sentence, on two lines if it is long, with the numbers below."""
    first, *more = wrap(text, cells - 4, 2) or [""]
    return [line(Segment(f" {sign} ", style), Segment(first, loud)),
            *(line("   ", Segment(part)) for part in more),
            line("   ", Segment(clip(numbers, cells - 4), "dim"))]  # fmt: skip


def summary(rows: Rows, cells: int, limit: int) -> list[Line]:
    """Draw the table in at most ``limit`` lines; empty if there is no room for three kinds."""
    found = sums(rows)
    if limit < 3 or len(found) < 2:
        return []
    p2p = isinstance(rows[0], P2PRow)
    table: list[Column[Sum]] = [
        Column("by kind", 14, lambda kind: (clean(kind.group), "dim")),
        Column("what" if p2p else "op", 16, lambda kind: (clean(kind.op), "strong")),
        Column("bytes", 8, lambda kind: (words.size(kind.num_bytes), ""), align="right"),
        Column("×", 5, lambda kind: (str(kind.number), ""), align="right"),
        Column("waited", 9, lambda kind: (words.duration(kind.wait_ns), ""), align="right"),
        Column("under way" if p2p else "skew", 9,
               lambda kind: (words.duration(kind.skew_ns), ""), rank=1, align="right"),
        Column("rate" if p2p else "busbw", 9,
               lambda kind: (words.busbw(kind.busbw_gbps), ""), rank=2, align="right"),
    ]  # fmt: skip
    columns = choose(table, cells - 3)
    lines = [headings(columns), *(table_row(columns, kind, cells) for kind in found[: limit - 1])]
    if len(found) > limit - 1:
        more = f"  … {words.plural(len(found) - limit + 1, 'more kind')} that waited less"
        lines[-1] = line(Segment(more, "faint"))
    return lines


def charts(rows: Rows, cells: int, height: int, culprits: Collection[int] = ()) -> list[Line]:
    """Draw bus bandwidth by message size and lateness per rank, side by side, each op in a style of
    its own; for messages the rate, and the waiting time of each rank's receives."""
    if height < _LEAST_ROWS + 1 or not rows:
        return []
    sizes = panel_widths(cells, 2)
    size = sizes[-1]
    p2p = isinstance(rows[0], P2PRow)
    alike = {row.bytes for row in rows if row.bytes}
    by = f"at {words.size(*alike)}" if len(alike) == 1 else "by message size" if p2p else "by size"
    titles = (f"rate {by}", "how long each rank's receives waited") if p2p else (
        f"bus bandwidth {by}", "how late each rank came"
    )  # fmt: skip
    counted = Counter(_op(row) for row in rows)
    ordered = sorted(counted, key=lambda op: (-counted[op], op))
    looks = {op: _LOOKS[at] if at < len(_LOOKS) else _ELSE for at, op in enumerate(ordered)}
    panels: list[tuple[str, str, Sequence[Line]]] = []
    late = [] if p2p else late_bars(lateness(rows), size, culprits)
    if late and 2 * len(late) <= height - 1:
        late = [row for pair in zip(late, [()] * len(late), strict=True) for row in pair]
    if late and len(late) <= height - 1:
        panels.append(("how late each rank comes", "bar: median   ─┤ 95%", late))
    model = None if p2p else cost_of(rows)
    both = ((titles[0], _rates(rows), _SIZES, _RATES), (titles[1], _lateness(rows), _RANKS, _TIMES))
    for title, found, x, y in both[: 1 if panels else 2]:
        shown = [
            Series(tuple(found[op]), style, mark)
            for op, (mark, style) in looks.items()
            if found[op]
        ]
        note = ""
        if model is not None and x is _SIZES:
            shown.insert(0, Series(model.line, "dim", "·"))
            note = f"fit: {model.text}"
        chart = plot(shown, size, height - 2, x, y)
        panels += [(title, note, chart)] if chart else []
    if not panels:
        return []
    legend = keys(((*look, clean(op)) for op, look in looks.items()), size - 1)
    blocks = []
    for (title, note, drawn), cells_ in zip(panels, sizes, strict=False):
        named = [] if drawn is late else [line(" ", legend)] if drawn is panels[-1][2] else [()]
        blocks.append(([rule(title, cells_, note), *named, *drawn], cells_))
    return [fit(row, cells) for row in abreast(blocks)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a kind of collectives by size: ``start_ns + bytes * ns_per_byte``."""

    start_ns: float
    ns_per_byte: float
    bus: float
    """Bus bytes per byte of the message."""
    sizes: tuple[int, int]
    """The smallest and the largest observed size."""

    def time_ns(self, num_bytes: float) -> float:
        return self.start_ns + num_bytes * self.ns_per_byte

    @property
    def line(self) -> tuple[Point, ...]:
        """Return points of bus bandwidth by bytes, between the observed sizes."""
        low, high = self.sizes
        at = [low * (high / low) ** (part / 60) for part in range(61)]
        return tuple((size, self.bus * size / self.time_ns(size)) for size in at)

    @property
    def text(self) -> str:
        return f"{words.duration(self.start_ns)} + bytes / {words.busbw(1 / self.ns_per_byte)}"


def cost_of(rows: Rows) -> Cost | None:
    """Return the cost of the most frequent kind (op, group) with a valid fit: its sizes are far
    apart, and each is near the line (two sizes alone would prove no line); else None."""
    kinds: dict[tuple[str, tuple[int, str]], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if isinstance(row, CollectiveRow) and row.transfer_ns and row.bytes and row.busbw_gbps:
            kinds[row.op, row.key].append(row)
    found = (_fitted(of) for of in sorted(kinds.values(), key=len, reverse=True))
    return next((cost for cost in found if cost is not None), None)


def _fitted(rows: Sequence[CollectiveRow]) -> Cost | None:
    """Fit a line to the median times by size, with minimal relative errors."""
    times: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        times[row.bytes].append(row.transfer_ns or 0)
    known = [(size, median(took)) for size, took in sorted(times.items())]
    if len({int(math.log(size, _APART)) for size, _ in known}) < _SIZES_LEAST:
        return None
    weights = [1 / took**2 for _, took in known]
    total = sum(weights)
    mean_x = sum(w * size for w, (size, _) in zip(weights, known, strict=True)) / total
    mean_t = sum(w * took for w, (_, took) in zip(weights, known, strict=True)) / total
    above = sum(w * (x - mean_x) * (t - mean_t) for w, (x, t) in zip(weights, known, strict=True))
    slope = above / sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, known, strict=True))
    bus = median((row.busbw_gbps or 0) * (row.transfer_ns or 0) / row.bytes for row in rows)
    cost = Cost(mean_t - slope * mean_x, slope, bus, (known[0][0], known[-1][0]))
    if cost.start_ns <= 0 or slope <= 0:
        return None
    near = all(1 / _NEAR < took / cost.time_ns(size) < _NEAR for size, took in known)
    return cost if near else None


@dataclass(frozen=True, slots=True)
class Late:
    """Lateness of a rank in the listed collectives."""

    rank: int
    median_ns: float
    most_ns: float
    """95th percentile of the lateness."""
    times_last: int
    number: int

    @property
    def stands_out(self) -> bool:
        """Return whether the others wait for this rank in more than half of the collectives."""
        return self.times_last * 2 > self.number and self.median_ns > _NOISE_NS


def lateness(rows: Rows) -> list[Late]:
    """Return the lateness of each rank, by rank; empty if arrivals are not known."""
    late: dict[int, list[int]] = defaultdict(list)
    last: Counter[int] = Counter()
    for row in rows:
        if isinstance(row, P2PRow) or row.skew_ns is None:
            continue
        came = {a.rank: a.came_ns for a in row.arrivals if a.came_ns is not None}
        first = min(came.values(), default=0)
        for rank, t_ns in came.items():
            late[rank].append(t_ns - first)
        if row.last_rank is not None:
            last[row.last_rank] += 1
    return [
        Late(rank, median(times), sorted(times)[int(0.95 * (len(times) - 1))], last[rank],
             len(times))
        for rank, times in sorted(late.items())
    ]  # fmt: skip


def late_bars(found: Sequence[Late], cells: int, culprits: Collection[int]) -> list[Line]:
    """Draw a bar for each rank's median lateness, with a whisker up to its 95th percentile; ranks
    blamed by a finding are highlighted."""
    if not 2 <= len(found) <= _BARS:
        return []
    top = max(late.most_ns for late in found) or 1.0
    room = max(8, cells - 34)
    lines = []
    for late in found:
        style = "culprit" if late.rank in culprits else ""
        row = Row(room)
        bar, end = round(late.median_ns / top * (room - 1)), round(late.most_ns / top * (room - 1))
        row.fill(bar, end + 1, "─", "dim")
        row.put(end, "┤", "dim")
        row.fill(0, bar, "━", style or "spark")
        lines.append(line(
            Segment(left(f"r{late.rank}", 5), style or "strong"), row.line(),
            Segment(right(words.duration(late.median_ns), 9), style or "strong"),
            Segment(right(f"last {late.times_last} of {late.number}", 18), style or "dim"),
        ))  # fmt: skip
    return lines


def _rates(rows: Rows) -> dict[str, list[Point]]:
    """Return points of GB/s by bytes."""
    points: dict[str, list[Point]] = defaultdict(list)
    for row in rows:
        rate = _figures(row)[2]
        if rate and row.bytes:
            points[_op(row)].append((row.bytes, rate))
    return points


def _lateness(rows: Rows) -> dict[str, list[Point]]:
    """Return points by rank: the rank's lateness, or the waiting time of its receive."""
    points: dict[str, list[Point]] = defaultdict(list)
    for row in rows:
        if isinstance(row, P2PRow):
            points[_op(row)] += [(row.dst, row.waited_ns)] if row.waited_ns is not None else []
            continue
        if row.skew_ns is None:  # missing ranks, or hosts that run ahead of their devices
            continue
        came = [(a.rank, a.came_ns) for a in row.arrivals if a.came_ns is not None]
        first = min((t_ns for _, t_ns in came), default=0)
        points[row.op] += [(rank, t_ns - first) for rank, t_ns in came]
    return points


_SIZES: Final = Scale(words.size, log=True)
_RATES: Final = Scale(words.busbw, log=True)
_RANKS: Final = Scale(WHOLE, whole=True, unit="rank")
_TIMES: Final = Scale(words.duration, low=0.0)
