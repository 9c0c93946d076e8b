"""Ranks and the links between them, as a ring or a star.

``━━`` was observed (p2p), ``┄┄`` is modelled: the traffic of a ring algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pardbg import words
from pardbg.analysis.comm.traffic import Edge
from pardbg.render.draw.cells import Line, Row, clean, clip

NODE = 5
NARROW, WIDE = 14, 20
"""Cells between two neighbours, at least and at most."""
_LABEL = 17
"""Room for a label beside the picture."""
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Links:
    """Traffic and chunks on the links between ranks."""

    edges: Mapping[Pair, Edge]
    chunks: Mapping[Pair, int]
    """Rank pair -> the chunk on its way, or the last one."""
    steps: Mapping[Pair, float] = field(default_factory=dict)
    """Rank pair -> bytes of a step, if known."""

    def get(self, src: int, dst: int) -> Edge | None:
        return self.edges.get((src, dst))

    def text(self, edge: Edge, cells: int) -> str:
        """Return chunk and bytes of a step, or rate, as far as they fit; for an idle edge its
        total."""
        chunk = self.chunks.get((edge.src, edge.dst))
        label = "" if chunk is None else f"c{chunk}"
        rate = words.rate(edge.rate_bps) if edge.rate_bps > 0 else words.size(edge.bytes)
        if self.steps:
            rate = words.size(self.steps.get((edge.src, edge.dst), 0.0))
        for text in (f"{label} {rate}".strip(), label or rate):
            if len(text) <= cells:
                return text
        return ""


def dash(edge: Edge) -> tuple[str, str]:
    """Return the character of an edge's line, and its style."""
    char, style = ("━", "observed") if edge.source == "observed" else ("┄", "modelled")
    return char, "active" if edge.active else style


# ------------------------------------------------------------------------------------- ring


def ring(ranks: Sequence[int], links: Links, cells: int, spare: int = 0) -> list[Line]:
    """Return the ranks on two rows, read clockwise, with links between neighbours; empty if there
    is no room. For an odd number the lower row has one rank less, placed between those above; else
    there are ``spare`` additional lines between the rows."""
    above = 2 if len(ranks) == 2 else (len(ranks) + 1) // 2
    room = cells - 4 - above * NODE - (_LABEL if above == 2 and len(ranks) > 2 else 0)
    link = min(WIDE, room // max(above - 1, 1))
    if len(ranks) < 2 or link < NARROW:
        return []
    pitch = NODE + link
    left = max(2, min((cells - above * pitch + link) // 2, 8))
    top, bottom = ranks[:above], list(reversed(ranks[above:]))
    rows = [Row(cells) for _ in range(8 if bottom else 3)]
    _row_of(rows[:3], top, left, link, links)
    if bottom:
        shift = pitch // 2 if len(ranks) % 2 else 0
        _row_of(rows[5:], bottom, left + shift, link, links)
        _sides(rows, top, bottom, left, pitch, shift, links)
        if not shift:
            rows[4:4] = [_longer(rows[3:5], cells)] * max(0, spare)
    return [row.line() for row in rows]


def _longer(rows: Sequence[Row], cells: int) -> Row:
    """Return a row with the vertical links that go through both rows."""
    made = Row(cells)
    for row in rows:
        for x, char in enumerate(row.chars):
            if char in "┃┆":
                made.put(x, char, row.styles[x])
    return made


def _row_of(rows: Sequence[Row], ranks: Sequence[int], left: int, link: int, links: Links) -> None:
    for at, rank in enumerate(ranks):
        x = left + at * (NODE + link)
        for row, text in zip(rows, ("╭───╮", f"│{rank:^3}│", "╰───╯"), strict=True):
            row.put(x, text, "dim")
        rows[1].put(x + 1, f"{rank:^3}", "strong")
        if at + 1 < len(ranks):
            other = ranks[at + 1]
            _across(rows[0], x + NODE + 1, link - 2, links.get(rank, other), True, links)
            _across(rows[2], x + NODE + 1, link - 2, links.get(other, rank), False, links)


def _across(row: Row, x: int, size: int, edge: Edge | None, right: bool, links: Links) -> None:
    if edge is None:
        return
    char, style = dash(edge)
    row.fill(x, x + size, char, style)
    row.put(x + size - 1 if right else x, "▶" if right else "◀", style)
    text = f" {links.text(edge, size - 3)} "
    row.put(x + (size - len(text)) // 2, text, "strong" if edge.active else "")


def _sides(
    rows: list[Row], top: Sequence[int], bottom: Sequence[int], left: int, pitch: int, shift: int,
    links: Links,
) -> None:  # fmt: skip
    """Draw the two links that join the rows, at the right and (for three ranks and more) at the
    left."""
    right = left + (len(top) - 1) * pitch
    outside = len(top) == 2
    near = left + shift + (len(bottom) - 1) * pitch + NODE
    for end, x0, bend, at, to_left in (
        (-1, right, near + 1, right + (NODE + 1 if outside else -_LABEL), outside),
        (0, left, left + shift - 2, left + NODE + 1, True),
    ):
        down, up = links.get(top[end], bottom[end]), links.get(bottom[end], top[end])
        both = down is not None and up is not None
        sides = ((down, x0 + (1 if both else 2), True), (up, x0 + (3 if both else 2), False))
        for line, (edge, x, going_down) in enumerate(sides if end else sides[::-1]):
            turn = None if not shift else (bend, 5 + (2 * line if both else 1))
            _side(rows, x, edge, going_down, turn)
            _label(rows[3 + line], at, edge, going_down, links, to_left)


def _side(
    rows: list[Row], x: int, edge: Edge | None, down: bool, turn: tuple[int, int] | None
) -> None:
    """Draw a vertical link at ``x``; with ``turn`` (column, row) it bends towards a lower node."""
    if edge is None:
        return
    char, style = dash(edge)
    observed = edge.source == "observed"
    for row in rows[3 : 5 if turn is None else turn[1]]:
        row.put(x, "┃" if observed else "┆", style)
    if turn is not None:
        end, at = turn
        inwards = end < x
        rows[at].fill(min(x, end), max(x, end) + 1, char, style)
        corner = ("┛" if observed else "┘") if inwards else ("┗" if observed else "└")
        rows[at].put(x, corner, style)
        if down:
            rows[at].put(end, "◀" if inwards else "▶", style)
    if not down:
        rows[3].put(x, "▲", style)
    elif turn is None:
        rows[4].put(x, "▼", style)


def _label(row: Row, x: int, edge: Edge | None, down: bool, links: Links, to_left: bool) -> None:
    if edge is None:
        return
    text = f"{'▼' if down else '▲'} {links.text(edge, _LABEL - 2)}"
    row.put(x if to_left else x + _LABEL - 1 - len(text), text, "strong" if edge.active else "")


# ------------------------------------------------------------------------------------- star


def hub_of(ranks: Sequence[int], edges: Mapping[Pair, Edge]) -> int | None:
    """Return the single rank that every edge starts or ends at; None if there is none."""
    if len(ranks) < 3 or not edges:
        return None
    common = set.intersection(*({edge.src, edge.dst} for edge in edges.values()))
    return next(iter(common)) if len(common) == 1 else None


def star(hub: int, ranks: Sequence[int], links: Links, cells: int) -> list[Line]:
    """Draw the hub rank at the left, all other ranks at the right, and the traffic between them."""
    leaves = [rank for rank in ranks if rank != hub]
    size = max(20, min(48, cells - 20))
    rows = [Row(cells) for _ in range(2 * len(leaves))]
    for at, row in enumerate(rows):
        edges = "╭───╮" if at == 0 else "╰───╯" if at == len(rows) - 1 else "│   │"
        row.put(2, edges, "dim")
    rows[(len(rows) - 1) // 2].put(3, f"{hub:^3}", "strong")
    for at, leaf in enumerate(leaves):
        for row, edge, right in ((rows[2 * at], links.get(hub, leaf), True),
                                 (rows[2 * at + 1], links.get(leaf, hub), False)):  # fmt: skip
            _across(row, 8, size, edge, right, links)
            if edge is not None and edge.label:
                row.put(10, f" {clip(clean(edge.label), 16)} ", "dim")
        rows[2 * at].put(9 + size, f"│{leaf:^3}│", "dim")
        rows[2 * at + 1].put(9 + size, "│   │", "dim")
        rows[2 * at].put(10 + size, f"{leaf:^3}", "strong")
    return [row.line() for row in rows]
