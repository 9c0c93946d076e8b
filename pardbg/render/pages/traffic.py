"""The traffic page: bytes and rates between ranks, observed or modelled.

Ranks that talk to their neighbours lie on a ring, those that all talk to one form a star, and
everything else is a matrix. ``━━`` was observed (p2p), ``┄┄`` is modelled: the traffic of a ring
algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.p2p import RingStep
from pardbg.analysis.comm.traffic import BINS, Edge, GroupView, TrafficView
from pardbg.render.draw.bars import Column, choose, headings, resample, rule, spark, table_row, thin
from pardbg.render.draw.cells import (
    Drawn,
    Line,
    Picture,
    Segment,
    clean,
    clip,
    fit,
    line,
    line_width,
    spread,
)
from pardbg.render.draw.circle import Links, dash, hub_of, ring, star
from pardbg.render.draw.plots import DOT, Scale, Series, plot
from pardbg.render.frame.nccl_text import nccl_lines
from pardbg.render.frame.panels import empty
from pardbg.render.pages.exchange import exchange, exchanged, loads

MOST = 16
"""Ranks on a ring."""
_LITTLE = 10
"""An edge with less than this part of the busiest one's bytes does not decide the shape."""
HEAT = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class TrafficPageState:
    at: int = 0
    """The selected edge, by rate."""
    matrix: bool = False


def busiest(view: TrafficView) -> list[Edge]:
    """Return the edges, the busiest first."""
    return sorted(view.edges, key=lambda e: (-e.rate_bps, -e.bytes, e.src, e.dst))


def traffic(
    snapshot: Snapshot, cells: int, rows: int, look: TrafficPageState | None = None
) -> Picture:
    """Draw the page at ``cells`` x ``rows``: picture, edges, operations."""
    look = look or TrafficPageState()
    view = snapshot.traffic
    edges = busiest(view)
    if not edges and not view.ops:
        return empty(cells, rows, "No traffic yet.",
                     "Sends and receives are shown as they are seen; collectives as a ring "
                     "algorithm would move them.")  # fmt: skip
    ranks = sorted({rank for edge in edges for rank in (edge.src, edge.dst)})
    drawn = _drawing(view, ranks, cells, rows, look)
    if exchanged(view, ranks):
        drawn += loads(snapshot.ranks, cells, min(5, rows - len(drawn) - 5))
    head = (_title(view, cells), (), *drawn, *([()] if drawn else []))
    ops = _ops(view, cells, max(0, min(6, rows - len(head) - 8)))
    top = max((edge.rate_bps for edge in edges), default=0.0)
    columns = choose(_columns(cells, top), cells - 3)
    spare = rows - len(head) - 1 - len(edges) - len(ops)
    nccl = _nccl(view, cells, spare)
    spare -= len(nccl)
    chart = _course(edges[look.at] if look.at < len(edges) else None, edges, view, cells,
                    min(spare - 1, 24))  # fmt: skip
    head = (*head, headings(columns))

    def draw(index: int) -> Line:
        return table_row(columns, edges[index], cells, index == look.at)

    body = Drawn(len(edges), draw, [*ops, *nccl, *chart])
    return Picture(
        head, body, focus=look.at if edges else None, rows=tuple(range(len(edges)))
    )  # fmt: skip


def _course(
    chosen: Edge | None, edges: Sequence[Edge], view: TrafficView, cells: int, height: int
) -> list[Line]:
    """Draw the selected edge over the window, all others together behind it."""
    if chosen is None or not chosen.course or height < 9:
        return []
    each = view.window_ns / len(chosen.course)
    others = [
        sum(edge.course[at] for edge in edges if edge.course) for at in range(len(chosen.course))
    ]
    shown = [
        Series(
            tuple(((at + 0.5) * each - view.window_ns, rate) for at, rate in enumerate(rates)),
            style, mark,
        )
        for rates, style, mark in ((others, "faint", "·"), (chosen.course, chosen.source, DOT))
    ]  # fmt: skip
    title = f"bytes per second, {chosen.src} → {chosen.dst}"
    drawn = plot(shown, cells - 4, height - 2, _AGO, _RATE)
    head = line(" ", rule(title, cells - 2, f"{DOT} this edge, {chosen.source}   · all edges"))
    return [(), head, *(line("  ", row) for row in drawn)] if drawn else []


def _ago(t_ns: float) -> str:
    return f"−{words.offset(-t_ns, 2e8, 2e9)}" if t_ns <= -1e6 else "now"


_AGO: Final = Scale(_ago)
_RATE: Final = Scale(words.rate, low=0.0)


def _title(view: TrafficView, cells: int) -> Line:
    text = line("  ", Segment(clip("  ".join(_axes(view)), cells - 3), "strong"))
    ring_of = (
        "NCCL's ring" if view.nccl is not None and view.nccl.communicators else "modelled ring"
    )
    rates = f"   rates over {words.duration(view.window_ns)}"
    for more in (
        line(Segment("   observed ", "dim"), Segment("━━", "observed"),
             Segment(f"  {ring_of} ", "dim"), Segment("┄┄", "modelled")),
        line(Segment(rates, "faint")),
    ):  # fmt: skip
        if line_width(text) + line_width(more) <= cells:
            text = line(*text, *more)
    return fit(text, cells)


def _axes(view: TrafficView) -> list[str]:
    """Return what moved on each axis of the mesh, all its groups together, the most first; axes
    without an op only where none has any."""
    used = [group for group in view.groups if group.num_ops] or list(view.groups)
    axes: dict[tuple[str, int, str], list[GroupView]] = {}
    for group in used:
        axes.setdefault((group.axis or group.name, len(group.ranks), group.backend), []).append(
            group
        )
    said = []
    for (name, size, backend), groups in axes.items():
        num_bytes = sum(group.bytes for group in groups)
        many = f"{len(groups)} × " if len(groups) > 1 else ""
        text = f"{clean(name)} ({many}{words.plural(size, 'rank')}, {clean(backend)}) "
        text += f"{words.short_count(sum(g.num_ops for g in groups))} ops {words.size(num_bytes)}"
        said.append((-num_bytes, text))
    return [text for _, text in sorted(said)]


def _drawing(
    view: TrafficView, ranks: Sequence[int], cells: int, rows: int, look: TrafficPageState
) -> list[Line]:
    """Draw ring, star or matrix, whichever the traffic is and fits; nothing if none does."""
    if len(ranks) < 2:
        return []
    edges = {(edge.src, edge.dst): edge for edge in view.edges}
    moves = view.ring.moves if view.ring is not None else ()
    links = Links(edges, {(move.src, move.dst): move.chunk for move in moves})
    main = _main(view.edges)
    drawn: list[Line] = []
    if not look.matrix and exchanged(view, ranks):
        drawn = exchange(view, ranks, cells)
    elif not look.matrix and _is_ring(ranks, main):
        drawn = ring(ranks, links, cells)
    elif not look.matrix and (hub := hub_of(ranks, {(e.src, e.dst): e for e in main})) is not None:
        drawn = star(hub, ranks, links, cells)
    elif not look.matrix and all(edge.source == "modelled" for edge in view.edges):
        drawn = exchange(view, ranks, cells)
    if drawn and rows >= len(drawn) + 10:
        return [*drawn, *_where(view.ring, cells)]
    if rows >= len(ranks) + 9 or look.matrix:
        return [*matrix(ranks, edges, cells, max(4, rows - 9)), *_where(view.ring, cells)]
    return _where(view.ring, cells)


def _main(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges that make the shape: observed ones if there are any, without those that
    moved little (the broadcast of parameters before a thousand steps on a ring)."""
    seen = [edge for edge in edges if edge.source == "observed"] or list(edges)
    most = max((edge.bytes for edge in seen), default=0)
    return [edge for edge in seen if edge.bytes * _LITTLE >= most]


def _is_ring(ranks: Sequence[int], edges: Sequence[Edge]) -> bool:
    """Return whether neighbours on the circle talk to each other, and nobody else."""
    place = {rank: at for at, rank in enumerate(ranks)}
    apart = ((place[edge.dst] - place[edge.src]) % len(ranks) for edge in edges)
    return len(ranks) <= MOST and all(step in (1, len(ranks) - 1) for step in apart)


def _where(step: RingStep | None, cells: int) -> list[Line]:
    """Draw ``step 2/6 reduce-scatter chunk 0▶1 c3 1▶2 c0``, and the slowest link."""
    if step is None:
        return []
    parts = [
        Segment("  step ", "dim"), Segment(f"{step.part}/{step.parts} ", "strong"),
        Segment(clean(step.phase), "strong"), Segment("   chunk ", "dim"),
    ]  # fmt: skip
    for move in step.moves:
        parts += [Segment(f" {move.src}▶{move.dst} ", "dim"), Segment(f"c{move.chunk} ")]
    lines = [fit(line(*parts), cells)]
    if step.slowest is not None:
        sizes = sorted({move.bytes for move in step.moves}, reverse=True)
        src, dst = step.slowest
        lines.append(fit(line(
            Segment("  a chunk is ", "dim"), Segment(words.size(sizes[0])),
            Segment("   slowest link ", "dim"), Segment(f"{src}▶{dst} "),
            Segment(f"{words.rate(step.slowest_bps)} while it sends", "dim"),
        ), cells))  # fmt: skip
    return lines


def matrix(ranks: Sequence[int], edges: Mapping[tuple[int, int], Edge], cells: int, rows: int
           ) -> list[Line]:  # fmt: skip
    """Draw senders down, receivers across; the taller the block, the higher the rate."""
    top = max((edge.rate_bps for edge in edges.values()), default=0.0) or 1.0
    each = 3 if len(ranks) * 3 + 14 <= cells else 1
    shown = list(ranks)[: max(1, (cells - 14) // each)]
    header = "".join(
        f"{rank:>{each}}" if each == 3 else (str(rank // 10 % 10) if rank % 10 == 0 else "·")
        for rank in shown
    )
    said = f" up to {words.rate(top)}   · nothing   ╲ itself"
    if 23 + each * len(shown) + len(said) > cells:
        said = said.partition("   ")[0]
    steps = [(HEAT[level], f"heat.{(level + 1) // 2}") for level in (1, 3, 5, 7, 8)]
    key = line("  ", *(Segment(char, style) for char, style in steps), Segment(said, "faint"))
    lines = [spread(line(Segment("   from │ to  ", "faint"), Segment(header, "dim")), key,
                    min(cells, 16 + each * len(shown) + line_width(key)))]  # fmt: skip
    for src in list(ranks)[: rows - 2]:
        runs: list[Segment | str | Line] = [Segment(f"  {src:>5} │     ", "dim")]
        for dst in shown:
            runs.append(_heat(edges.get((src, dst)), src == dst, top, each))
        lines.append(line(*runs))
    hidden = len(ranks) - (rows - 2)
    if hidden > 0:
        lines.append(line(Segment(f"  … {hidden} more senders: the list below has all", "faint")))
    return lines


def _heat(edge: Edge | None, own: bool, top: float, each: int) -> Segment:
    if own:
        return Segment("╲".rjust(each), "faint")
    if edge is None:
        return Segment("·".rjust(each), "faint")
    level = max(1, min(8, round(edge.rate_bps / top * 8)))
    return Segment(HEAT[level].rjust(each), f"heat.{(level + 1) // 2}")


def _columns(cells: int, top: float) -> list[Column[Edge]]:
    return [
        Column("edge", 11, draws=_edge),
        Column("rate", 11, lambda e: (words.rate(e.rate_bps), ""), align="right"),
        Column("what", max(8, min(24, cells - 96)), lambda e: (clean(e.label), ""), rank=5),
        Column("", max(8, min(40, cells - 134)), rank=4, draws=lambda e, size: (
            Segment(thin(e.rate_bps / top if top else 0.0, size),
                    "observed" if e.source == "observed" else "modelled"),)),
        Column("last 2 s", BINS if cells >= 100 else BINS // 2, rank=3, draws=lambda e, size: (
            Segment(spark(resample(e.course, size), size, low=0.0) if any(e.course) else "",
                    e.source),)),
        Column("bytes", 9, lambda e: (words.size(e.bytes), "dim"), rank=2, align="right"),
        Column("ops", 7, lambda e: (words.short_count(e.num_ops), "dim"), rank=3, align="right"),
        Column("source", 9, lambda e: (e.source, "dim"), rank=1),
        Column("now", 9, lambda e: ("● moving" if e.active else "", "active"), rank=5),
    ]  # fmt: skip


def _edge(edge: Edge, _cells: int) -> Line:
    char, style = dash(edge)
    return line(Segment(f"{edge.src:>3} ", "strong"), Segment(f"{char}{char}▶", style),
                Segment(f"{edge.dst:>3}", "strong"))  # fmt: skip


def _nccl(view: TrafficView, cells: int, limit: int) -> tuple[Line, ...]:
    """Draw what NCCL says of rings, channels, transports and algorithms."""
    if view.nccl is None or limit < 3:
        return ()
    lines = [Segment(clean(text), "dim") for text in nccl_lines(view.nccl)][: limit - 2]
    head = line(" ", rule("NCCL", cells - 2, f"version {clean(view.nccl.version)}".rstrip()))
    return ((), head, *(fit(line("  ", text), cells) for text in lines))


def _ops(view: TrafficView, cells: int, limit: int) -> tuple[Line, ...]:
    if limit < 3 or not view.ops:
        return ()
    lines: list[Line] = [(), line(" ", rule("operations", cells - 2, "median busbw"))]
    top = max(num_bytes for *_, num_bytes, _ in view.ops) or 1
    for group, op, number, num_bytes, busbw in view.ops[: limit - 2]:
        lines.append(
            line(
                "  ",
                Segment(f"{clean(group)[:12]:<12} ", "dim"),
                Segment(f"{clean(op)[:16]:<16} ", "strong"),
                Segment(f"{words.short_count(number):>7}  "),
                Segment(f"{words.size(num_bytes):>8}  "),
                Segment(thin(num_bytes / top, max(4, min(30, cells - 72))), "spark"),
                Segment(f"  {words.busbw(busbw):>10}", "dim"),
            )
        )
    return tuple(lines)
