"""Rings of any number of ranks, and stars."""

from __future__ import annotations

from collections import Counter

import pytest

from pardbg.analysis.comm.traffic import Edge
from pardbg.render.draw.cells import plain, width
from pardbg.render.draw.circle import Links, hub_of, ring, star


def edge(src: int, dst: int, label: str = "") -> Edge:
    return Edge(src, dst, 1000, 1e6 * (1 + src), "observed", 1, False, label)


def one_way(num: int) -> dict[tuple[int, int], Edge]:
    return {(r, (r + 1) % num): edge(r, (r + 1) % num) for r in range(num)}


def both_ways(num: int) -> dict[tuple[int, int], Edge]:
    back = {(b, a): edge(b, a) for a, b in one_way(num)}
    return one_way(num) | back


def drawn(num: int, edges: dict[tuple[int, int], Edge], cells: int) -> list[str]:
    chunks = dict.fromkeys(edges, 0) | {pair: pair[0] for pair in one_way(num)}
    return [plain(row) for row in ring(range(num), Links(edges, chunks), cells)]


@pytest.mark.parametrize(("num", "cells"), [(2, 80), (3, 80), (4, 80), (5, 80), (6, 80), (7, 80),
                                            (8, 80), (8, 120), (9, 120), (12, 120)])  # fmt: skip
@pytest.mark.parametrize("both", [False, True])
def test_every_rank_and_every_link_is_there(num: int, cells: int, both: bool) -> None:
    edges = both_ways(num) if both else one_way(num)
    rows = drawn(num, edges, cells)
    text = "\n".join(rows)
    assert rows and all(width(row) == cells for row in rows)
    for rank in range(num):
        assert f"│{rank:^3}│" in text
    # Above left to right, below right to left; the sides are a head each, and a sign at the label.
    signs = Counter(char for char in text if char in "▶◀▲▼")
    assert signs["▶"] + signs["◀"] + signs["▲"] + signs["▼"] >= len(edges)
    assert "▲" in text or num == 2
    for rank in range(num):  # the rate of each link of the ring: 1 MB/s more for each rank
        assert f"c{rank}" in text


def test_three_ranks_are_a_triangle() -> None:
    """A person sees: 0 to 1 above, 1 bends down to 2, 2 bends up to 0."""
    assert [row.rstrip() for row in drawn(3, one_way(3), 80)] == [
        "        ╭───╮ ━━━ c0 1 MB/s ━━━▶ ╭───╮",
        "        │ 0 │                    │ 1 │",
        "        ╰───╯                    ╰───╯",
        "          ▲   ▲ c2 3 MB/s          ┃   ▼ c1 2 MB/s",
        "          ┃                        ┃",
        "          ┃         ╭───╮          ┃",
        "          ┗━━━━━━━━ │ 2 │ ◀━━━━━━━━┛",
        "                    ╰───╯",
    ]


def test_no_room_no_ring() -> None:
    assert drawn(16, one_way(16), 80) == []
    assert drawn(1, {}, 80) == []


def test_a_star_has_its_middle() -> None:
    spokes = {(0, r): edge(0, r, "pull") for r in (1, 2, 3)}
    spokes |= {(r, 0): edge(r, 0, "push") for r in (1, 2, 3)}
    assert hub_of(range(4), spokes) == 0
    assert hub_of(range(4), one_way(4)) is None
    assert hub_of(range(2), both_ways(2)) is None
    rows = [plain(row) for row in star(0, range(4), Links(spokes, {}), 80)]
    assert len(rows) == 6  # a line there and a line back for each of three
    for at, leaf in enumerate((1, 2, 3)):
        assert " pull " in rows[2 * at] and "▶" in rows[2 * at] and f"│ {leaf} │" in rows[2 * at]
        assert " push " in rows[2 * at + 1] and "◀" in rows[2 * at + 1]
