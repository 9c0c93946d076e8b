"""Traffic of a small mesh: boxes with the bytes between neighbours on each axis, the groups by
axis, senders by receivers, and the traffic that would cross between two hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from pardbg import words
from pardbg.analysis.answers.device_mesh import Mesh
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.traffic import StepTraffic
from pardbg.render.draw.bars import GAP, abreast, rule
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, fit, line
from pardbg.render.pages.traffic_step import across, axes, axis_style, owners, who_sends

_BOX, _LINK, _APART = 5, 30, 2
"""Cells of a rank's box, of a link beside it, and between two blocks of the first axis."""
_LINK_LEAST: Final = 12
_EDGE: Final = 2
"""Cells of each side edge of a block."""
_TALL: Final = 5
"""Lines from one rank's box to the next below."""
Pair = tuple[int, int]


def link_boxes(step: StepTraffic, mesh: Mesh, cells: int) -> list[Line]:
    """Draw the last axis downwards, the one before across, the first as blocks; empty for a larger
    mesh, or if ranks communicate with others than neighbours."""
    axes = mesh.axes
    if len(axes) not in (2, 3):
        return []
    *outer, middle, inner = (axis.size for axis in axes)
    blocks, links, edge = prod(outer), _links(step, mesh), _EDGE if outer else 0
    room = (cells - 1 - _APART * (blocks - 1)) // blocks - 2 * edge
    size = min(_LINK, (room - middle * _BOX) // (middle - 1)) if middle > 1 else 0
    wide = middle * _BOX + (middle - 1) * size
    if links is None or wide > room or (middle > 1 and size < _LINK_LEAST) or inner > 3:
        return []
    each, top = wide + 2 * edge + _APART, 1 if outer else 0
    rows = [Row(blocks * each - _APART) for _ in range((inner - 1) * _TALL + 3 + 2 * top)]
    for block in range(blocks if outer else 0):
        names = [f"{clean(axes[-2].name)} {at}" for at in range(middle)]
        _frame(rows, block * each, each - _APART, f"{clean(axes[0].name)} {block}", names, size)
    for rank in range(blocks * middle * inner):
        block, (column, line_) = rank // (middle * inner), divmod(rank % (middle * inner), inner)
        x, y = block * each + edge + column * (_BOX + size), top + line_ * _TALL
        for at, text in enumerate(("╭───╮", f"│{rank:^3}│", "╰───╯")):
            rows[y + at].put(x, text, "strong" if at == 1 else "dim")
        if column + 1 < middle:
            _beside(rows[y + 1], x + _BOX, links.get((rank, rank + inner)), size)
        if line_ + 1 < inner:
            last = column + 1 == middle > 1  # what is at its right is the next block's
            _below(rows[y + 3], rows[y + 4], x + 2, links.get((rank, rank + 1)), last)
    lines = [line(" ", row.line()) for row in rows]
    if outer:
        lines = [_across(links, mesh, step, cells), *lines]
    return [*lines, _key(step, cells)]


def _frame(rows: list[Row], x: int, cells: int, name: str, below: list[str], link: int) -> None:
    """Draw the border of a block of the first axis, with coordinates of the next axis below."""
    rows[0].put(x, "╭" + "─" * (cells - 2) + "╮", "rule")
    rows[0].put(x + 2, f" {clip(name, cells - 6)} ", "strong")
    rows[-1].put(x, "╰" + "─" * (cells - 2) + "╯", "rule")
    for at, text in enumerate(below):
        rows[-1].put(x + _EDGE + at * (_BOX + link), f" {clip(text, _BOX - 1)} ", "dim")
    for row in rows[1:-1]:
        for side in (x, x + cells - 1):
            row.put(side, "│", "rule")


Link = tuple[float, str]
"""(bytes per step, style of the axis)"""


def _links(step: StepTraffic, mesh: Mesh) -> dict[Pair, Link] | None:
    """Return the bytes between each pair of neighbours, lower rank first, the larger of both ways;
    None if other pairs communicate, too, or the ranks are not those of the mesh."""
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


def _beside(row: Row, x: int, link: Link | None, cells: int) -> None:
    if link is not None:
        text = f" {words.size(link[0])} "
        row.put(x, f"◀{text:─^{cells - 2}}▶", link[1])


def _below(upper: Row, lower: Row, x: int, link: Link | None, before: bool) -> None:
    if link is not None:
        text = words.size(link[0])
        upper.put(x - len(text) - 1 if before else x + 2, text, link[1])
        upper.put(x, "▲", link[1])
        lower.put(x, "▼", link[1])


def _across(links: Mapping[Pair, Link], mesh: Mesh, step: StepTraffic, cells: int) -> Line:
    """Draw the traffic between the blocks: ``dp 0▸4 1▸5: 533 kB each``."""
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


_LEAST: Final = 56
"""Minimum cells of the panel of groups."""


def link_panels(snapshot: Snapshot, ranks: Sequence[int], cells: int, rows: int) -> list[Line]:
    """Draw the four panels in at most ``rows`` lines; empty if they do not fit, or the traffic is
    not between a mesh's neighbours."""
    step = snapshot.traffic.step
    wide = max(_LEAST, (cells - 2 - GAP) // 2)
    left = cells - 2 - GAP - wide
    boxes = link_boxes(step, snapshot.mesh, left - 1) if step is not None else []
    if step is None or not boxes:
        return []
    name = " × ".join(f"{clean(axis.name)} {axis.size}" for axis in snapshot.mesh.axes)
    groups = [rule("groups by axis", wide, "a rank's bytes a step, largest first"),
              *axes(snapshot.traffic, wide - 2)]  # fmt: skip
    upper = [([rule(f"mesh {name}", left, "bytes of a step"), *boxes], left), (groups, wide)]
    grid = who_sends(step, ranks, left - 2, len(ranks) + 1)
    lower = [([rule("who sends to whom", left, "rows send"), *grid], left)]
    cut = across(step, wide - 2) if snapshot.run.num_hosts == 1 else []
    if cut:
        title = f"if the {len(ranks)} ranks were on 2 hosts"
        lower.append(([rule(title, wide, "bytes a step"), (), *cut], wide))
    made = [(), *abreast(upper), (), *abreast(lower), ()]
    return [fit(row, cells) for row in made] if grid and len(made) <= rows else []
