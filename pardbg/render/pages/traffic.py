"""The traffic page: bytes and rates between ranks, observed or modelled.

Ranks that communicate with neighbours only are drawn as a ring, ranks that all communicate with one
as a star, and everything else as a matrix. ``━━`` was observed (p2p), ``┄┄`` is modelled: the
traffic of a ring algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.p2p import RingStep
from pardbg.analysis.comm.traffic import BINS, Edge, GroupView, TrafficView
from pardbg.render.draw.bars import Column, choose, dots, headings, rule, table_row, thin
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
from pardbg.render.draw.plots import Scale, Series, plot, stairs
from pardbg.render.frame.nccl_text import nccl_lines
from pardbg.render.frame.panels import empty
from pardbg.render.pages.exchange import exchange, exchanged, loads
from pardbg.render.pages.mesh.link_boxes import link_panels
from pardbg.render.pages.traffic_step import (
    across,
    axes,
    axes_of,
    film,
    formula,
    matched,
    verdict,
    who_sends,
)

_PANELS: Final = 112
"""Cells from which on the formula or the axes are beside the drawing."""
_TWO: Final = 20
"""Rows from which on the verdict has a second line."""
_ROOMY: Final = 30
"""Rows from which on the axes have formulas."""
_LEAST_EDGES: Final = 5
MOST = 16
"""Maximum number of ranks on a ring."""
_LITTLE = 10
"""Inverse share of the busiest edge's bytes below which an edge does not decide the shape."""
HEAT = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class TrafficPageState:
    at: int = 0
    """Index of the selected edge, by rate."""
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
    said = verdict(snapshot, cells, 2 if rows >= _TWO else 1)
    top = _panels(snapshot, ranks, cells, rows - len(said), look)
    if not top and view.step is not None and len(axes_of(view.step)) > 1 and not look.matrix:
        top = [(), *axes(view, cells - 2, formulas=rows >= _ROOMY)][: max(0, rows - 8)]
    if not top:
        top = [_title(view, cells), (), *_drawing(view, ranks, cells, rows - len(said), look)]
    if exchanged(view, ranks):
        top += loads(snapshot.ranks, cells, min(5, rows - len(top) - 6))
    links = line(" ", rule("links", cells - 2, "the busiest first"))
    head = (*said, *top, *([links] if len(top) > 2 else []))
    ops = _ops(view, cells, max(0, min(6, rows - len(head) - 8)))
    columns = choose(_columns(cells, _per_step(view), edges), cells - 3)
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


def _panels(
    snapshot: Snapshot, ranks: Sequence[int], cells: int, rows: int, look: TrafficPageState
) -> list[Line]:
    """Draw the traffic between ranks beside the formula or the axes, and a ring's chunks below;
    empty without a complete step, or without room for them and some edges."""
    view, step = snapshot.traffic, snapshot.traffic.step
    if step is None or not step.ops or cells < _PANELS or look.matrix:
        return []
    parts = exchanged(view, ranks)
    wide = max(48, cells - 70) if parts else max(56, cells // 2)
    match = matched(snapshot)
    several = len(axes_of(step)) > 1
    strips = film(view.ring, cells - 2) if view.ring is not None else []
    if match is not None and not several:
        title, note = "what it must be", f"Z = {words.size(match.gradients)} of gradients"
        right_lines = formula(snapshot, match, wide - 2)
    else:
        title, note = "groups by axis", "what a rank sends a step, largest first"
        right_lines = axes(view, wide - 2)
    left_lines = who_sends(step, ranks, cells - wide - 2, 18) if several and not parts else (
        _drawing(view, ranks, cells - wide - 3, rows, look, bool(strips), len(right_lines))
    )  # fmt: skip
    if not left_lines:
        return []
    if several and not parts:
        if panels := link_panels(snapshot, ranks, cells, rows - _LEAST_EDGES):
            return panels
        if below := across(step, cells - wide - 4) if snapshot.run.num_hosts == 1 else []:
            said = Segment("were they on two hosts, cut by axis: bytes a step", "dim")
            left_lines = [*left_lines, (), line(" ", said), *below]
    height = min(max(len(left_lines), len(right_lines)), rows - 6)
    name = "who sends to whom" if several else "who talks to whom"
    note_left = "rows send" if several else "bytes of a step"
    heads = line(" ", rule(name, cells - wide - 3, note_left),
                 "  ", rule(title, wide - 1, note))  # fmt: skip
    lines: list[Line] = [(), heads]
    for at in range(height):
        pair = (one[at] if at < len(one) else () for one in (left_lines, right_lines))
        lines.append(line(" ", fit(next(pair), cells - wide - 2), " ", next(pair)))
    if strips and rows - len(lines) - len(strips) - 2 >= _LEAST_EDGES:
        lines += [(), line(" ", rule("how the vector fills up", cells - 2, _chunk(view))), *strips]
        lines += [()] if rows - len(lines) - 2 >= _LEAST_EDGES else []  # of its border
    return lines


def _chunk(view: TrafficView) -> str:
    """Return ``4 chunks of 37.4 kB, step 6 of 6``."""
    step = view.ring
    if step is None or not step.moves:
        return ""
    most = max(move.bytes for move in step.moves)
    return (f"{len(step.moves)} chunks of {words.size(most)}, {clean(step.phase)}, "
            f"part {step.part} of {step.parts}")  # fmt: skip


def _per_step(view: TrafficView) -> dict[tuple[int, int, str], float]:
    """Return (sender, receiver, source) -> bytes per step; empty if they are not known."""
    edges = view.step.edges if view.step is not None else ()
    return {(src, dst, source): size for src, dst, source, size in edges}


def _course(
    chosen: Edge | None, edges: Sequence[Edge], view: TrafficView, cells: int, height: int
) -> list[Line]:
    """Draw the selected edge over the window, with all others' sum behind it."""
    if chosen is None or not chosen.course or height < 9:
        return []
    each = view.window_ns / len(chosen.course)
    others = [
        sum(edge.course[at] for edge in edges if edge.course) for at in range(len(chosen.course))
    ]
    shown = [
        Series(
            tuple(((at + 0.5) * each - view.window_ns, rate)
                  for at, rate in stairs([*enumerate(rates)], cells)),
            style, "braille",
        )
        for rates, style in ((others, "faint"), (chosen.course, chosen.source))
    ]  # fmt: skip
    title = f"bytes per second, {chosen.src} → {chosen.dst}"
    drawn = plot(shown, cells - 4, height - 2, _AGO, _RATE)
    head = line(" ", rule(title, cells - 2, f"{chosen.source}; faint: all edges"))
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
    """Return the traffic on each axis of the mesh, summed over the axis's groups, the largest
    first; axes without an op only if no axis has one."""
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
    view: TrafficView,
    ranks: Sequence[int],
    cells: int,
    rows: int,
    look: TrafficPageState,
    filmed: bool = False,
    beside: int = 0,
) -> list[Line]:
    """Draw ring, star or matrix, as the traffic requires and as it fits; empty if none fits; a ring
    is as tall as the panel ``beside`` it, in lines."""
    if len(ranks) < 2:
        return []
    sizes = _per_step(view)
    main = _main(view.edges, sizes)
    edges = {(edge.src, edge.dst): edge for edge in (main if sizes else view.edges)}
    moves = view.ring.moves if view.ring is not None else ()
    chunks = {(move.src, move.dst): move.chunk for move in moves}
    per = {(e.src, e.dst): sizes.get((e.src, e.dst, e.source), 0.0) for e in edges.values()}
    links = Links(edges, chunks, per if sizes else {})
    drawn: list[Line] = []
    if not look.matrix and exchanged(view, ranks):
        drawn = exchange(view, ranks, cells)
    elif not look.matrix and _is_ring(ranks, main):
        drawn = ring(ranks, links, cells, min(beside, rows // 2) - 10)
    elif not look.matrix and (hub := hub_of(ranks, {(e.src, e.dst): e for e in main})) is not None:
        drawn = star(hub, ranks, links, cells)
    elif not look.matrix and all(edge.source == "modelled" for edge in view.edges):
        drawn = exchange(view, ranks, cells)
    if drawn and rows >= len(drawn) + 10:
        return [*drawn, *_where(view.ring, cells)[1 if filmed else 0 :]]
    if rows >= len(ranks) + 9 or look.matrix:
        edges = {(edge.src, edge.dst): edge for edge in view.edges}
        return [*matrix(ranks, edges, cells, max(4, rows - 9)), *_where(view.ring, cells)]
    return _where(view.ring, cells)


def _main(edges: Sequence[Edge], sizes: Mapping[tuple[int, int, str], float]) -> list[Edge]:
    """Return the edges that decide the shape: observed ones if there are any, without those with
    few bytes per step (the broadcast of parameters before a thousand steps on a ring)."""
    seen = [edge for edge in edges if edge.source == "observed"] or list(edges)

    def moved(edge: Edge) -> float:
        return sizes.get((edge.src, edge.dst, edge.source), 0.0) if sizes else float(edge.bytes)

    most = max(map(moved, seen), default=0.0)
    return [edge for edge in seen if moved(edge) * _LITTLE >= most]


def _is_ring(ranks: Sequence[int], edges: Sequence[Edge]) -> bool:
    """Return whether all edges connect neighbours on the circle."""
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
            Segment(f"{words.rate(step.slowest_bps)} at work", "dim"),
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


def _columns(
    cells: int, sizes: Mapping[tuple[int, int, str], float], edges: Sequence[Edge]
) -> list[Column[Edge]]:
    top = max((edge.rate_bps for edge in edges), default=0.0)

    def per_step(edge: Edge) -> tuple[str, str]:
        return words.size(sizes.get((edge.src, edge.dst, edge.source), 0.0)), "strong"

    step = [Column("a step", 9, per_step, align="right")] if sizes else []
    return [
        Column("edge", 11, draws=_edge),
        *step,
        Column("rate", 11, lambda e: (words.rate(e.rate_bps), ""), align="right"),
        Column("what", max(8, min(24, cells - 96)), lambda e: (clean(e.label), ""), rank=5),
        Column("", max(8, min(40, cells - 134)), rank=4, draws=lambda e, size: (
            Segment(thin(e.rate_bps / top if top else 0.0, size),
                    "observed" if e.source == "observed" else "modelled"),)),
        Column("last 2 s", BINS // 2, rank=3, draws=lambda e, size: (
            Segment(dots(e.course, size, 0.0, max(e.course), True) if any(e.course) else "",
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
    """Draw NCCL's report of rings, channels, transports and algorithms."""
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
