"""The traffic page: who sends to whom, how fast, seen or modelled.

Up to a dozen ranks lie on a ring, neighbours joined by their traffic both ways; more make a
matrix. ``━━`` was observed (p2p), ``┄┄`` is modelled: what a ring algorithm would move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pardbg.analysis.model import Edge, Snapshot, TrafficView
from pardbg.render import words
from pardbg.render.bars import Column, choose, rule
from pardbg.render.cells import Line, Picture, Row, Run, clean, fit, line, selected
from pardbg.render.empty import empty
from pardbg.render.sparks import thin

NODE = 5
LINK = 20
HEAT = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Look:
    at: int = 0
    """The selected edge, by rate."""
    matrix: bool = False


def ordered(view: TrafficView) -> list[Edge]:
    """The busiest edges first."""
    return sorted(view.edges, key=lambda e: (-e.rate_bps, -e.bytes, e.src, e.dst))


def traffic(snapshot: Snapshot, cells: int, rows: int, look: Look | None = None) -> Picture:
    """The page at ``cells`` x ``rows``: picture, edges, operations."""
    look = look or Look()
    view = snapshot.traffic
    edges = ordered(view)
    if not edges and not view.ops:
        return empty(cells, rows, "No traffic yet.",
                     "Sends and receives are shown as they are seen; collectives as a ring "
                     "algorithm would move them.")  # fmt: skip
    ranks = sorted({rank for edge in edges for rank in (edge.src, edge.dst)})
    drawn = _drawing(view, ranks, cells, rows, look)
    head = (_title(view, cells), (), *drawn, *([()] if drawn else []))
    ops = _ops(view, cells, max(0, min(6, rows - len(head) - 8)))
    columns = choose(_columns(cells), cells - 3)
    names = line("  ", *(Run(c.cell(c.title) + "  ", "dim") for c in columns))
    top = max((edge.rate_bps for edge in edges), default=0.0)
    body = []
    for index, edge in enumerate(edges):
        made = line("  ", *(line(fit(_cell(c, edge, top), c.size), "  ") for c in columns))
        body.append(fit(selected(made), cells, "+sel") if index == look.at else made)
    return Picture((*head, names), (*body, *ops), focus=look.at if body else None,
                   rows=tuple(range(len(body))))  # fmt: skip


def _title(view: TrafficView, cells: int) -> Line:
    groups = "  ".join(
        f"{clean(g.axis or g.name)} ({words.plural(len(g.ranks), 'rank')}, {clean(g.backend)}) "
        f"{words.count(g.num_ops)} ops {words.size(g.bytes)}"
        for g in view.groups[:3]
    )
    made = line(
        "  ", Run(groups, "strong"), Run("   observed ", "dim"), Run("━━", "observed"),
        Run("  modelled ring ", "dim"), Run("┄┄", "modelled"),
        Run(f"   rates over {words.duration(view.window_ns)}", "faint"),
    )  # fmt: skip
    return fit(made, cells)


def _drawing(
    view: TrafficView, ranks: Sequence[int], cells: int, rows: int, look: Look
) -> list[Line]:
    """Ring or matrix, whichever fits and is asked for; nothing where neither does."""
    if len(ranks) < 2:
        return []
    edges = {(edge.src, edge.dst): edge for edge in view.edges}
    across = -(-len(ranks) // 2) if len(ranks) > 2 else 2
    height = 3 if len(ranks) == 2 else 8
    fits = 4 + across * NODE + (across - 1) * LINK <= cells and len(ranks) % 2 == 0
    if fits and not look.matrix and rows >= height + 10:
        return ring(ranks, edges, cells)
    if rows >= len(ranks) + 9 or look.matrix:
        return matrix(ranks, edges, cells, max(4, rows - 9))
    return []


def ring(ranks: Sequence[int], edges: Mapping[tuple[int, int], Edge], cells: int) -> list[Line]:
    """An even number of ranks on two rows, read clockwise."""
    half = len(ranks) // 2 if len(ranks) > 2 else 2
    top, bottom = ranks[:half], list(reversed(ranks[half:]))
    left = max(2, min((cells - half * NODE - (half - 1) * LINK) // 2, 8))
    lines = _ring_row(top, edges, left)
    if bottom:
        lines += _ring_sides(top, bottom, edges, left, half)
        lines += _ring_row(bottom, edges, left)
    return [row.line() for row in lines]


def _ring_row(ranks: Sequence[int], edges: Mapping[tuple[int, int], Edge], left: int) -> list[Row]:
    size = left + len(ranks) * NODE + (len(ranks) - 1) * LINK
    rows = [Row(size) for _ in range(3)]
    for at, rank in enumerate(ranks):
        x = left + at * (NODE + LINK)
        for row, text in zip(rows, ("╭───╮", f"│{rank:^3}│", "╰───╯"), strict=True):
            row.put(x, text, "dim")
        rows[1].put(x + 1, f"{rank:^3}", "strong")
        if at + 1 < len(ranks):
            _link(rows, x + NODE + 1, edges.get((rank, ranks[at + 1])), 0, True)
            _link(rows, x + NODE + 1, edges.get((ranks[at + 1], rank)), 2, False)
    return rows


def _link(rows: list[Row], x: int, edge: Edge | None, row: int, right: bool) -> None:
    if edge is None:
        return
    size = LINK - 2
    char, style = _dash(edge)
    rows[row].fill(x, x + size, char, style)
    rows[row].put(x + size - 1 if right else x, "▶" if right else "◀", style)
    text = f" {words.rate(edge.rate_bps)} "
    rows[row].put(x + (size - len(text)) // 2, text, "strong" if edge.active else "")


def _dash(edge: Edge) -> tuple[str, str]:
    char, style = ("━", "observed") if edge.source == "observed" else ("┄", "modelled")
    return char, "active" if edge.active else style


def _ring_sides(top: Sequence[int], bottom: Sequence[int], edges: Mapping[tuple[int, int], Edge],
                left: int, half: int) -> list[Row]:  # fmt: skip
    """The two vertical links: down at the right, up at the left, and their opposites."""
    rows = [Row(left + half * NODE + half * LINK) for _ in range(2)]
    ends = [(left + (half - 1) * (NODE + LINK), top[-1], bottom[-1])]
    if half > 1:
        ends.append((left, top[0], bottom[0]))
    for x, upper, lower in ends:
        down, up = edges.get((upper, lower)), edges.get((lower, upper))
        both = down is not None and up is not None
        if down is not None:
            _side(rows, x + (1 if both else 2), down, "▼", 1, x + NODE, 0)
        if up is not None:
            _side(rows, x + (3 if both else 2), up, "▲", 0, x + NODE, 1)
    return rows


def _side(rows: list[Row], x: int, edge: Edge, tip: str, at: int, label: int, line_at: int) -> None:
    _, style = _dash(edge)
    for row in rows:
        row.put(x, "┃" if edge.source == "observed" else "┆", style)
    rows[at].put(x, tip, style)
    rows[line_at].put(label + 1, f"{tip} {words.rate(edge.rate_bps)}",
                      "strong" if edge.active else "")  # fmt: skip


def matrix(ranks: Sequence[int], edges: Mapping[tuple[int, int], Edge], cells: int, rows: int
           ) -> list[Line]:  # fmt: skip
    """Senders down, receivers across; the taller the block, the higher the rate."""
    top = max((edge.rate_bps for edge in edges.values()), default=0.0) or 1.0
    each = 3 if len(ranks) * 3 + 14 <= cells else 1
    shown = list(ranks)[: max(1, (cells - 14) // each)]
    header = "".join(
        f"{rank:>{each}}" if each == 3 else (str(rank // 10 % 10) if rank % 10 == 0 else "·")
        for rank in shown
    )
    lines = [line(Run("   from │ to  ", "faint"), Run(header, "dim"))]
    for src in list(ranks)[: rows - 2]:
        runs: list[Run | str | Line] = [Run(f"  {src:>5} │     ", "dim")]
        for dst in shown:
            runs.append(_heat(edges.get((src, dst)), src == dst, top, each))
        lines.append(line(*runs))
    hidden = len(ranks) - (rows - 2)
    if hidden > 0:
        lines.append(line(Run(f"  … {hidden} more senders: the list below has all", "faint")))
    return lines


def _heat(edge: Edge | None, own: bool, top: float, each: int) -> Run:
    if own:
        return Run("╲".rjust(each), "faint")
    if edge is None:
        return Run("·".rjust(each), "faint")
    level = max(1, min(8, round(edge.rate_bps / top * 8)))
    return Run(HEAT[level].rjust(each), f"heat.{(level + 1) // 2}")


def _columns(cells: int) -> list[Column]:
    return [
        Column("edge", 11), Column("rate", 11, align="right"),
        Column("", max(8, min(40, cells - 84)), 3), Column("bytes", 9, 2, "right"),
        Column("ops", 7, 3, "right"), Column("source", 9, 1), Column("now", 9, 4),
    ]  # fmt: skip


def _cell(column: Column, edge: Edge, top: float) -> Line:
    char, style = _dash(edge)
    if column.title == "edge":
        return line(Run(f"{edge.src:>3} ", "strong"), Run(f"{char}{char}▶", style),
                    Run(f"{edge.dst:>3}", "strong"))  # fmt: skip
    if column.title == "":
        share = edge.rate_bps / top if top else 0.0
        plain_style = "observed" if edge.source == "observed" else "modelled"
        return (Run(thin(share, column.size), plain_style),)
    text, style = {
        "rate": (words.rate(edge.rate_bps), ""), "bytes": (words.size(edge.bytes), "dim"),
        "ops": (words.count(edge.num_ops), "dim"), "source": (edge.source, "dim"),
        "now": ("● moving" if edge.active else "", "active"),
    }[column.title]  # fmt: skip
    return (Run(column.cell(text), style),)


def _ops(view: TrafficView, cells: int, limit: int) -> tuple[Line, ...]:
    if limit < 3 or not view.ops:
        return ()
    lines: list[Line] = [(), line(" ", rule("operations", cells - 2, "median busbw"))]
    top = max(num_bytes for *_, num_bytes, _ in view.ops) or 1
    for group, op, number, num_bytes, busbw in view.ops[: limit - 2]:
        lines.append(line(
            "  ", Run(f"{clean(group)[:12]:<12} ", "dim"), Run(f"{clean(op)[:16]:<16} ", "strong"),
            Run(f"{words.count(number):>7}  "), Run(f"{words.size(num_bytes):>8}  "),
            Run(thin(num_bytes / top, max(4, min(30, cells - 72))), "spark"),
            Run(f"  {words.busbw(busbw):>10}", "dim"),
        ))  # fmt: skip
    return tuple(lines)
