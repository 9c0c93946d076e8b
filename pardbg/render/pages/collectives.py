"""The collectives page: each op matched over its ranks, arrivals and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.matching import LAST
from pardbg.analysis.comm.op_rows import Arrival, CollectiveRow, P2PRow
from pardbg.render.draw.axis import Axis, nice_step
from pardbg.render.draw.bars import LEVELS, Column, choose, facts, headings, rule, table_row
from pardbg.render.draw.cells import (
    Drawn,
    Line,
    Picture,
    Row,
    Segment,
    clean,
    clip,
    fit,
    line,
    width,
)  # fmt: skip
from pardbg.render.frame.panels import empty, no_match
from pardbg.render.pages.collective_charts import charts, said, said_p2p, summary, with_open_waits

_LATE_SHARE = 0.5
_SKEW_NS, _SKEW_TIMES = 5e6, 2.0
"""Skew below this, or below so many times the transfer, is noise and not highlighted."""


_VERDICT_ROWS = 19  # from which on the verdict stands above the list
SUMMARY_ROWS = 26
"""Minimum number of rows for a table by kind over the list."""
CHART_ROWS = 34
"""Minimum number of rows for charts under the list."""
_GOOD = ("matched", "incomplete")
_AXIS_CELLS = 116
_ON_AXIS = 16
"""Minimum cells, and maximum number of ranks, for drawing arrivals as dots on a time axis."""
LIST_ROWS = 6
"""Minimum number of visible rows of the list, whatever is drawn below, if there is room."""


@dataclass(frozen=True, slots=True)
class CollectivesPageState:
    key: RowKey | None = None
    """The selected row (`key_of`); None follows the newest."""
    contains: str = ""
    p2p: bool = False
    by_wait: bool = False
    """Whether the list is sorted by waiting time, longest first; else by time."""


RowKey = tuple[tuple[int, str], str, int, int, int, int]
"""(epoch, group key), group name, then seq, or order, src, dst and tag."""


def key_of(row: CollectiveRow | P2PRow) -> RowKey:
    """Return the identity of a row, which does not change while the list grows."""
    if isinstance(row, CollectiveRow):
        return (row.key, row.group, row.seq, -1, -1, 0)
    return (row.key, row.group, row.order, row.src, row.dst, row.tag)


def shows_p2p(snapshot: Snapshot, swapped: bool) -> bool:
    """Return whether to show p2p: if there are no collectives, or if the user swapped the lists."""
    return (not snapshot.collectives and bool(snapshot.p2p)) != swapped


def rows_of(snapshot: Snapshot, look: CollectivesPageState) -> Sequence[CollectiveRow | P2PRow]:
    """Return the rows the page lists, oldest first."""
    chosen = snapshot.p2p if shows_p2p(snapshot, look.p2p) else snapshot.collectives
    rows = with_open_waits(snapshot, chosen)
    if look.contains:
        rows = [row for row in rows if look.contains.lower() in _text(row)]
    return sorted(rows, key=_cost, reverse=True) if look.by_wait else rows


def _cost(row: CollectiveRow | P2PRow) -> int:
    return (row.wait_ns if isinstance(row, CollectiveRow) else row.waited_ns) or 0


def _text(row: CollectiveRow | P2PRow) -> str:
    if isinstance(row, CollectiveRow):
        texts = (
            row.label or row.group, row.axis, f"#{row.seq}", operation(row), row.dtype, row.verdict,
            verdict(row), row.detail, words.size(row.bytes),
            "" if row.last_rank is None else f"r{row.last_rank}",
        )  # fmt: skip
        return " ".join(map(str, texts)).lower()
    edge = f"{row.src} → {row.dst} {row.src}→{row.dst} {row.src}->{row.dst}"
    return f"{row.group} {edge} {row.label} {row.verdict} {_p2p_verdict(row)[0]}".lower()


def begins_at(snapshot: Snapshot, rows: Sequence[CollectiveRow | P2PRow], by_wait: bool) -> int:
    """Return the row to show while none is selected: a mismatch that ranks are stuck at; in a hang
    the op with a missing culprit, else with any missing rank; else the newest."""
    newest, hang = 0 if by_wait else len(rows) - 1, snapshot.hang
    mismatches = {(f.group, f.seq) for f in snapshot.findings if f.kind.endswith("-mismatch")}
    if by_wait or not (hang or mismatches):
        return newest
    bad = [(i, row) for i, row in enumerate(rows) if row.verdict not in _GOOD and _is_open(row)]
    apart = (i for i, row in bad if row.verdict.endswith("mismatch"))
    if hang is None:  # uneven shares may be called so until all have come: no finding
        ops = ((i, row) for i, row in bad if isinstance(row, CollectiveRow))
        return next((i for i, row in ops if (row.group, row.seq) in mismatches), newest)
    of = (i for i, row in bad if not _missing(row).isdisjoint(hang.culprits))
    return next(apart, next(of, bad[0][0] if bad else newest))


def _missing(row: CollectiveRow | P2PRow) -> set[int]:
    if isinstance(row, CollectiveRow):
        return set(row.missing)
    return {row.src if row.send_ns is None else row.dst}


def _is_open(row: CollectiveRow | P2PRow) -> bool:
    if isinstance(row, P2PRow):
        return row.done_ns is None
    return any(a.issued_ns is not None and a.completed_ns is None for a in row.arrivals)


def collectives(
    snapshot: Snapshot, cells: int, rows: int, look: CollectivesPageState | None = None
) -> Picture:
    """Return the page at ``cells`` x ``rows``: the list, and the selected row over time below."""
    look = look or CollectivesPageState()
    listed = rows_of(snapshot, look)
    p2p = shows_p2p(snapshot, look.p2p)
    head: tuple[Line, ...] = (_title(snapshot, p2p, look, len(listed), cells),)
    if rows >= _VERDICT_ROWS and listed:
        head = (*(said_p2p if p2p else said)(snapshot, cells), *head)
    if not listed:
        if p2p:
            why = ("No send or receive yet.", "p shows the collectives.")
        else:
            why = ("No collective yet.", "p shows sends and receives.")
        blank = no_match(cells, rows - 1) if look.contains else empty(cells, rows - 1, *why)
        return Picture(head, blank.body)
    focus = next((i for i, row in enumerate(listed) if key_of(row) == look.key), None)
    first = begins_at(snapshot, listed, look.by_wait)
    if focus is None and first < len(listed) - 1:
        focus = first
    current = listed[-1 if focus is None else focus]
    table: Sequence[Column[Any]] = _p2p_columns(
        cells, snapshot.t_begin_ns, snapshot.run.exit_code is not None
    )
    if not p2p:
        own = [row for row in listed if isinstance(row, CollectiveRow)]
        table = _columns(own, cells, look.by_wait, snapshot.run.exit_code is not None)
    columns = choose(table, cells - 3)
    foot: tuple[Line, ...] = ()
    if rows >= SUMMARY_ROWS or (look.by_wait and rows >= 16):
        head = (*head, *summary(listed, cells, 4 if rows < CHART_ROWS else 7), ())
        if rows >= CHART_ROWS:
            blamed = {r for f in snapshot.findings if f.severity != "info" for r in f.culprits}
            foot = ((), *charts(listed, cells, min(14, rows // 4), blamed))
    if rows >= 16 and isinstance(current, CollectiveRow):
        room = rows - len(head) - len(foot) - LIST_ROWS - 2
        most = max(3, min(rows // 3, room))
        foot = (*foot, (), *arrivals(current, snapshot, cells, most))
    elif rows >= SUMMARY_ROWS and isinstance(current, P2PRow):
        foot = (*foot, (), *message(current, snapshot.t_ns, cells))

    def draw(index: int) -> Line:
        row = listed[index]
        return table_row(columns, row, cells, row is current)

    body = Drawn(len(listed), draw)
    return Picture((*head, headings(columns)), body, foot, focus=focus, follow=focus is None,
                   rows=tuple(range(len(listed))))  # fmt: skip


def _title(
    snapshot: Snapshot, p2p: bool, look: CollectivesPageState, number: int, cells: int
) -> Line:
    def mark(on: bool, text: str) -> Segment:
        return Segment(text, "strong" if on else "dim")

    shown = f" · {number} match “{clean(look.contains)}”" if look.contains else ""
    skews = [r.skew_ns for r in snapshot.collectives if r.skew_ns is not None]
    note = ""
    if skews and not p2p:
        note = f"   skew: median {words.duration(median(skews))}"
        note += f", largest {words.duration(max(skews))}"
    return fit(
        line(
            "  ",
            mark(not p2p, f"collectives {_newest(snapshot.collectives)}{_one_group(snapshot)}"),
            Segment(" │ ", "rule"),
            mark(p2p, f"p2p {_newest(snapshot.p2p)}"),
            Segment("   most waiting first" if look.by_wait else "", "accent"),
            Segment(shown, "warn"),
            Segment(note, "dim"),
        ),
        cells,
    )


def _one_group(snapshot: Snapshot) -> str:
    """Return the group's name if all collectives are of one group."""
    names = {row.label or row.group for row in snapshot.collectives}
    return f" on {clean(min(names))}" if len(names) == 1 else ""


def _newest(rows: Sequence[object]) -> str:
    """Return the number of rows as text, or that only the newest of more are listed."""
    return f"newest {LAST}" if len(rows) >= LAST else str(len(rows))


def _columns(
    listed: Sequence[CollectiveRow], cells: int, by_wait: bool, ended: bool
) -> list[Column[CollectiveRow]]:
    most = max(len(row.arrivals) for row in listed)
    marks = min(most, 64 if cells >= 180 else 32 if cells >= 110 else 16)
    labels = (width(clean(row.label or row.group)) for row in listed)
    came = _arrivals_column(listed, cells, max(7, marks))
    on_axis = came.title != "arrival"
    room = 16 if on_axis else max(14, min(22, cells - 96))
    made: list[Column[CollectiveRow]] = [
        Column("pg", min(14, max(labels, default=4)), lambda r: (clean(r.label or r.group), "dim")),
        Column("step", 6, lambda r: ("", "") if r.step is None else (f"{r.step}", "dim"), rank=5),
        Column("seq", 6, lambda r: (str(r.seq), ""), align="right"),
        Column("op", room, lambda r: (operation(r, room), "strong")),
        Column("bytes", 8, lambda r: (words.size(r.bytes), ""), rank=2, align="right"),
        came,
        Column("last", 5, lambda r: ("" if r.last_rank is None else f"r{r.last_rank}", ""), rank=3,
               align="right"),
        Column("skew", 9, lambda r: (words.duration(r.skew_ns), "warn" if _skewed(r) else ""),
               rank=1, align="right"),
        Column("wait", 9, lambda r: (words.duration(r.wait_ns), "dim"), rank=0 if by_wait else 6,
               align="right"),
        Column("transfer", 9, lambda r: (words.at_most(r.transfer_ns, r.transfer_most_ns), ""),
               rank=4, align="right"),
        Column("busbw", 9, lambda r: (words.busbw(r.busbw_gbps), "dim"), rank=5, align="right"),
        Column("verdict", 14, lambda r: (verdict(r, ended), "bad" if _is_bad(r) else
                                         "warn" if _skewed(r) else "dim")),
        Column("in words", max(10, min(44, cells - 128)),
               lambda r: (clean(r.detail), "bad" if _is_bad(r) else "dim"), rank=9),
    ]  # fmt: skip
    alike = len({row.label or row.group for row in listed}) == 1  # the title names it
    hidden = {"last", "pg"} if on_axis and alike else {"last"} if on_axis else set()
    return [column for column in made if column.title not in hidden]


def _arrivals_column(
    listed: Sequence[CollectiveRow], cells: int, marks: int
) -> Column[CollectiveRow]:
    """Return the column of arrivals: on one time axis, if there is room and there are few ranks."""
    skews = sorted(row.skew_ns for row in listed if row.skew_ns)
    few = max(len(row.arrivals) for row in listed) <= _ON_AXIS
    if cells < _AXIS_CELLS or not few or not skews:
        return Column("arrival", marks, draws=strip)
    most = nice_step(skews[int(0.95 * (len(skews) - 1))] * 1.1)
    title = f"who came when, 0 – {words.duration(most)}"
    return Column(title, 26, draws=lambda row, size: _on_axis(row, size, most), wish=60)


def _on_axis(row: CollectiveRow, cells: int, most_ns: float) -> Line:
    """Draw a dot for each rank on an axis of ``most_ns``, with the last rank's name; ``▸`` if that
    rank came later than the axis shows."""
    came = sorted((a.came_ns, a.rank) for a in row.arrivals if a.came_ns is not None)
    if not came or _of_hosts(row):
        return (Segment("on the host ahead of the devices" if came else "", "faint"),)
    made, room = Row(cells), cells - 6
    places = [min(room, round((t - came[0][0]) / most_ns * room)) for t, _ in came]
    made.fill(0, places[-1], "─", "rule")
    for place in places[:-1]:
        made.put(place, "●", "on.time")
    loud = _skewed(row) and row.last_rank is not None
    beyond = came[-1][0] - came[0][0] > most_ns
    made.put(places[-1], "▸" if beyond else "●", "late" if loud else "strong")
    whole = row.last_rank is not None
    made.put(places[-1] + 1, f"r{came[-1][1]}" if whole else "", "late" if loud else "dim")
    return made.line()


def _is_bad(row: CollectiveRow) -> bool:
    return row.verdict not in ("matched", "incomplete")


def _p2p_columns(cells: int, begin_ns: int, ended: bool) -> list[Column[P2PRow]]:
    def sent(row: P2PRow) -> str:
        return "not sent" if row.send_ns is None else words.stamp(row.send_ns - begin_ns)

    return [
        Column("pg", 8, lambda r: (clean(r.group), "dim"), rank=5),
        Column("edge", 8, lambda r: (f"{r.src} → {r.dst}", "strong")),
        Column("what", max(10, min(24, cells - 76)), lambda r: (clean(r.label), ""), rank=1),
        Column("n", 6, lambda r: (str(r.order), "dim"), rank=4, align="right"),
        Column("bytes", 8, lambda r: (words.size(r.bytes), ""), rank=2, align="right"),
        Column("sent", 9, lambda r: (sent(r), "dim"), rank=3, align="right"),
        Column("receiver waited", 15,
               lambda r: (words.duration(r.waited_ns) if r.waited_ns else "·", ""), rank=4,
               align="right"),
        Column("under way", 9,
               lambda r: (words.at_most(r.moving_ns, r.moving_ns if r.polled else None),
                          "dim" if r.done_ns else ""), rank=2,
               align="right"),
        Column("verdict", 14, lambda r: _p2p_verdict(r, ended)),
    ]  # fmt: skip


def operation(row: CollectiveRow, cells: int = 99) -> str:
    """Return ``all_reduce max``, without the reduction if there is no room."""
    text = f"{row.op} {row.reduce}".rstrip()
    return clean(text if len(text) <= cells else row.op)


def _skewed(row: CollectiveRow) -> bool:
    """Return whether waiting for the last rank cost far more than moving the data."""
    most_ns = _transfer_most_ns(row)
    if row.skew_ns is None or most_ns is None:
        return False
    return row.skew_ns > _SKEW_NS and row.skew_ns > _SKEW_TIMES * most_ns


def _transfer_most_ns(row: CollectiveRow) -> int | None:
    """Return an upper bound of the data's transfer time, ns. If the ranks' completions have several
    sources, none of them is before the true one."""
    known = row.transfer_ns if row.transfer_ns is not None else row.transfer_most_ns
    if known is not None or not all(a.completed_ns and a.source for a in row.arrivals):
        return known
    came = max(((a.issued_ns or 0) - a.held_ns for a in row.arrivals), default=0)
    left = (a.completed_ns - a.held_ns - a.held_in_ns for a in row.arrivals if a.completed_ns)
    return max(0, max(left) - came) if row.arrivals else None


def verdict(row: CollectiveRow, ended: bool = False) -> str:
    """Return ``MISSING 2`` for missing ranks, ``waits for 2`` while they may still come; ``ended``:
    no more can come, and ops under way never complete."""
    if row.missing:
        verb = "waits for" if row.verdict == "incomplete" else "MISSING"
        return f"{verb} {words.rank_set(row.missing)}"
    if row.verdict == "matched":
        return "late" if _skewed(row) and row.last_rank is not None else "matched"
    return row.verdict.upper() if row.verdict != "incomplete" else _open(ended)


def _p2p_verdict(row: P2PRow, ended: bool = False) -> tuple[str, str]:
    """Return a message's verdict; one side posted early, or a message under way, is no problem."""
    if row.verdict == "incomplete" and not ended:
        one = "posted" if row.send_ns is None else "sent" if row.recv_ns is None else _open(ended)
        return one, "dim"
    loud = {"matched": "dim", "incomplete": "warn"}
    return row.verdict, loud.get(row.verdict, "bad")


def _open(ended: bool) -> str:
    return "incomplete" if ended else "under way"


def strip(row: CollectiveRow, cells: int) -> Line:
    """Draw a mark per rank in the order of the group: its lateness, or that it is missing.

    ``▁`` first … ``█`` last, ``·`` missing; all ``▁`` if hosts issue ahead of their devices. With
    more ranks than cells: the latest of each bucket.
    """
    arrivals = row.arrivals
    if not arrivals:
        return (Segment(" " * cells),)
    times = [a.came_ns for a in arrivals if a.came_ns is not None]
    first, last = (min(times), max(times)) if times and not _of_hosts(row) else (0, 0)
    size = min(len(arrivals), cells)
    runs = []
    for at in range(size):
        bucket = arrivals[at * len(arrivals) // size : (at + 1) * len(arrivals) // size]
        runs.append(_mark(bucket, first, last, row.verdict != "incomplete"))
    return fit(runs, cells)


def _of_hosts(row: CollectiveRow) -> bool:
    """Return whether all ranks have issued the op on their hosts and the last arrival is unknown,
    as devices get there later."""
    return row.verdict == "matched" and row.skew_ns is None


def _mark(bucket: Sequence[Arrival], first: int, last: int, lost: bool) -> Segment:
    if any(a.issued_ns is None for a in bucket):
        return Segment("·", "gone" if lost else "dim")
    late = max(a.came_ns or 0 for a in bucket) - first
    share = late / (last - first) if last > first else 0.0
    loud = share > _LATE_SHARE and last - first > 1e6
    return Segment(LEVELS[min(7, int(share * 7.99))], "late" if loud else "on.time")


def arrivals(row: CollectiveRow, snapshot: Snapshot, cells: int, limit: int) -> tuple[Line, ...]:
    """Draw one op over time, a line per rank: arrival, wait, completion. With more ranks than
    ``limit``: culprits, then the last to arrive."""
    name = f"{operation(row)} {clean(row.label or row.group)} #{row.seq}"
    held = f"{words.size(row.bytes)} {clean(row.dtype)}"
    head = line(" ", rule(f"{name}  {held}", cells - 2, clip(clean(row.detail), cells // 2)))
    times = [t for a in row.arrivals for t in (a.came_ns, a.left_ns) if t is not None]
    if not times:
        return (head,)
    begin, end = min(times), max(times)
    for a in row.arrivals:
        if a.completed_ns is None:
            end = max(end, snapshot.t_ns - a.held_ns - a.held_in_ns)
    shown = _shown(row, snapshot, limit)
    size = max(10, cells - 40)
    last = max((a.came_ns for a in row.arrivals if a.came_ns is not None), default=begin)
    lines = [_arrival(a, begin, max(end - begin, 1), last, row, size) for a in shown]
    if len(shown) < len(row.arrivals):
        rest = len(row.arrivals) - len(shown)
        lines.append(line(Segment(f"  … {words.plural(rest, 'more rank')}", "faint")))
    return (head, *lines)


def _shown(row: CollectiveRow, snapshot: Snapshot, limit: int) -> list[Arrival]:
    """Return the arrivals to show in a few lines, in the order of the group."""
    held_up_by = snapshot.hang.culprits if snapshot.hang is not None else ()

    def weight(a: Arrival) -> tuple[bool, bool, float]:
        came = float("inf") if a.came_ns is None else a.came_ns
        return a.rank in held_up_by, a.rank in row.culprits, came

    chosen = {a.rank for a in sorted(row.arrivals, key=weight, reverse=True)[:limit]}
    return [a for a in row.arrivals if a.rank in chosen]


def _arrival(a: Arrival, begin: int, span: int, last: int, row: CollectiveRow, size: int) -> Line:
    drawn = Row(size)

    def x(t_ns: int) -> int:
        return min(size - 1, round((t_ns - begin) / span * (size - 1)))

    if a.came_ns is None:
        text = Segment("has not come", "dim" if row.verdict == "incomplete" else "bad")
    else:
        stop = a.left_ns if a.left_ns is not None else begin + span
        waits = stop if row.missing else min(last, stop)
        if _of_hosts(row):
            drawn.fill(x(a.came_ns), x(stop) + 1, "─", "dim")
        else:
            drawn.fill(x(a.came_ns), x(waits), "░", "waiting")
            drawn.fill(x(waits), x(stop) + 1 if not row.missing else 0, "━", "moving")
        drawn.put(x(a.came_ns), "●", "strong")
        text = Segment(_came(a, begin, bool(row.missing)), "dim")
    return line(Segment(f"  r{a.rank:<4} "), *drawn.line(), "  ", text)


def message(row: P2PRow, now_ns: int, cells: int) -> tuple[Line, ...]:
    """Draw a message over time: send, receive, completion."""
    name = f"{row.src} → {row.dst} {clean(row.label)}"
    head = line(" ", rule(f"{name}  {words.size(row.bytes)}", cells - 2, clean(row.group)))
    came = [t_ns for t_ns in (row.send_ns, row.recv_ns) if t_ns is not None]
    if not came:
        return (head,)
    begin, end = min(came), row.done_ns if row.done_ns is not None else max(now_ns, max(came))
    size = max(10, cells - 40)
    x = Axis(begin, max(1, end - begin), size - 1).x
    lines = []
    for what, rank, t_ns in (("sends", row.src, row.send_ns), ("receives", row.dst, row.recv_ns)):
        drawn, text = Row(size), "has not come"
        if t_ns is not None:
            both = max(came) if len(came) == 2 else end
            drawn.fill(x(t_ns), x(both), "░", "waiting")
            drawn.fill(x(both), x(end) + 1 if len(came) == 2 else 0, "━", "moving")
            drawn.put(x(t_ns), "●", "strong")
            text = f"+{words.duration(t_ns - begin)}"
        gutter = line(Segment(f"  r{rank:<4} "), Segment(f"{what:<9}", "dim"))
        lines.append(line(gutter, *drawn.line(), "  ", Segment(text, "dim")))
    return (head, *lines)


def _came(a: Arrival, begin: int, missing: bool) -> str:
    """Return when a rank came and how long it was in the op; where a rank is ``missing``, others
    left it, perhaps by an error."""
    after_ns = (a.came_ns or begin) - begin
    came = f"+{words.duration(after_ns)}" if after_ns else "first"
    if a.left_ns is None or a.came_ns is None:
        return f"{came:<10} in it"
    bound = "≤ " if a.source == "polled" else ""
    end = "left" if missing else f"{bound}{a.source}"
    return f"{came:<10} {words.duration(a.left_ns - a.came_ns):>9} {end}"


def detail(row: CollectiveRow | P2PRow, snapshot: Snapshot, cells: int, rows: int) -> Picture:
    """Draw the selected row in full, for the detail panel."""
    if isinstance(row, CollectiveRow):
        lines = arrivals(row, snapshot, cells, 4096)
        return Picture((lines[0],), lines[1:], (line(Segment(
            "  ● came   ░ waits for the last   ━ data moves", "dim")),))  # fmt: skip
    shown = [
        ("edge", f"{row.src} → {row.dst} on {clean(row.group)}"), ("what", clean(row.label)),
        ("number", str(row.order)), ("tag", str(row.tag)), ("bytes", words.size(row.bytes)),
        ("send issued", _at(row.send_ns, snapshot)), ("receive issued", _at(row.recv_ns, snapshot)),
        ("done", _at(row.done_ns, snapshot)), ("verdict", row.verdict),
    ]  # fmt: skip
    return Picture(body=tuple(facts(shown)))


def _at(t_ns: int | None, snapshot: Snapshot) -> str:
    return "not yet" if t_ns is None else words.offset(t_ns - snapshot.t_begin_ns, 1e6)
