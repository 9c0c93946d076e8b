"""A small mesh as boxes: ranks, and what neighbours on each axis send each other a step."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from pardbg import words
from pardbg.analysis.answers.device_mesh import Mesh
from pardbg.analysis.comm.traffic import StepTraffic
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, fit, line
from pardbg.render.pages.traffic_step import axis_style, owners

_BOX, _LINK, _APART = 5, 15, 4
"""Cells of a rank, of a link beside it, and between two blocks of the first axis."""
_TALL: Final = 5
"""Lines from one rank to the one below."""
Pair = tuple[int, int]


def link_boxes(step: StepTraffic, mesh: Mesh, cells: int) -> list[Line]:
    """Draw the last axis downwards, the one before beside it, the first as blocks; nothing of a
    mesh that is larger, or whose ranks talk to others than their neighbours."""
    axes = mesh.axes
    if len(axes) not in (2, 3):
        return []
    *outer, middle, inner = (axis.size for axis in axes)
    blocks, wide = prod(outer), middle * (_BOX + _LINK) - _LINK
    links = _links(step, mesh)
    if links is None or blocks * (wide + _APART) - _APART > cells or inner > 3:
        return []
    rows = [Row(blocks * (wide + _APART) - _APART) for _ in range((inner - 1) * _TALL + 3)]
    for rank in range(blocks * middle * inner):
        block, (column, line_) = rank // (middle * inner), divmod(rank % (middle * inner), inner)
        x, y = block * (wide + _APART) + column * (_BOX + _LINK), line_ * _TALL
        for at, text in enumerate(("╭───╮", f"│{rank:^3}│", "╰───╯")):
            rows[y + at].put(x, text, "strong" if at == 1 else "dim")
        if column + 1 < middle:
            _beside(rows[y + 1], x + _BOX, links.get((rank, rank + inner)))
        if line_ + 1 < inner:
            last = column + 1 == middle > 1  # what is at its right is the next block's
            _below(rows[y + 3], rows[y + 4], x + 2, links.get((rank, rank + 1)), last)
    lines = [line(" ", row.line()) for row in rows]
    if outer:
        heads = Row(rows[0].size)
        for block in range(blocks):
            text = f"{clean(axes[0].name)} {block}"
            heads.put(block * (wide + _APART), clip(text, wide), "strong")
        lines = [_across(links, mesh, step, cells), line(" ", heads.line()), *lines]
    return [*lines, _key(step, cells)]


Link = tuple[float, str]
"""Bytes a step, and the axis's style."""


def _links(step: StepTraffic, mesh: Mesh) -> dict[Pair, Link] | None:
    """Return what each pair of neighbours sends, lower rank first, the larger of both ways; None
    where others talk, too, or the ranks are not those of the mesh."""
    sizes: dict[Pair, float] = {}
    for src, dst, _, size in step.edges:
        pair = (min(src, dst), max(src, dst))
        sizes[pair] = max(sizes.get(pair, 0.0), size)
    found: dict[Pair, Link] = {}
    for (src, dst), axis in owners(step).items():
        pair = (min(src, dst), max(src, dst))
        here, there = mesh.coordinates(pair[0]), mesh.coordinates(pair[1])
        apart = [b - a for a, b in zip(here, there, strict=True)]
        neighbours = sorted(map(abs, apart)) == [0] * (len(apart) - 1) + [1]
        if not neighbours or pair not in sizes or pair[1] >= prod(one.size for one in mesh.axes):
            return None
        found[pair] = sizes[pair], axis_style(step, axis)
    return found or None


def _beside(row: Row, x: int, link: Link | None) -> None:
    if link is not None:
        text = f" {words.size(link[0])} "
        row.put(x, f"◀{text:─^{_LINK - 2}}▶", link[1])


def _below(upper: Row, lower: Row, x: int, link: Link | None, before: bool) -> None:
    if link is not None:
        text = words.size(link[0])
        upper.put(x - len(text) - 1 if before else x + 2, text, link[1])
        upper.put(x, "▲", link[1])
        lower.put(x, "▼", link[1])


def _across(links: Mapping[Pair, Link], mesh: Mesh, step: StepTraffic, cells: int) -> Line:
    """Draw what goes between the blocks: ``dp 0▸4 1▸5: 533 kB each``."""
    stride = mesh.stride(0)
    pairs = {pair: link for pair, link in links.items() if pair[1] - pair[0] == stride}
    if not pairs:
        return ()
    sizes = sorted(size for size, _ in pairs.values())
    low, high = words.size(sizes[0]), words.size(sizes[-1])
    said = low if low == high else f"{low}–{high}"
    shown = " ".join(f"{a}–{b}" for a, b in list(pairs)[:8])
    name = Segment(f" {clean(mesh.axes[0].name)} ", next(iter(pairs.values()))[1])
    return fit(line(name, Segment(f"{shown}: ", "dim"), Segment(f"{said} each way")), cells)


def _key(step: StepTraffic, cells: int) -> Line:
    sources = {op.axis: op.source for op in step.ops if op.sent > 0}
    parts = [part for axis, source in sources.items() for part in (
        Segment("━ ", axis_style(step, axis)), Segment(f"{clean(axis)}, {source}   ", "dim"),
    )]  # fmt: skip
    return fit(line(" ", *parts), cells)
