"""Whole pages of made-up values, cell by cell: a change of a picture is seen and meant.

``PIN=1 pytest tests/unit/render/test_pinned.py`` writes them anew; look at the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.timeline import Spot, WaitedFor
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.draw.signs import ascii_of
from pardbg.render.pages.memory import memory
from pardbg.render.pages.timeline import Window, timeline
from pardbg.render.pages.traffic import TrafficPageState, traffic
from tests.ui.sample import MS, lanes, snapshot_1f1b

PINNED = Path(__file__).parent / "pinned"
CELLS, ROWS = 80, 21


def _timeline() -> Picture:
    shown = snapshot_1f1b()
    t0, t1 = shown.t_ns - 240 * MS, shown.t_ns
    boxes = lanes(t0, t1, spans=12)
    spot = Spot(0, "wait", boxes[0]["wait"][5].t0_ns)
    about = WaitedFor("all_reduce dp #43", 262_144, 2, t0 + 118 * MS, 16 * MS)
    return timeline(shown, boxes, Window(t0, t1), CELLS, ROWS, 0, spot, about)


def _memory() -> Picture:
    shown = snapshot_1f1b()
    rows = tuple(replace(row, limit_bytes=800 << 20) for row in shown.memory[:1])
    return memory(replace(shown, memory=rows), CELLS, 30, 0)


def _traffic() -> Picture:
    shown = snapshot_1f1b()
    edges = tuple(
        replace(edge, course=tuple(float((at * 5 + edge.src) % 7) for at in range(24)))
        for edge in shown.traffic.edges
    )
    made = replace(shown, traffic=replace(shown.traffic, edges=edges))
    return traffic(made, CELLS, 30, TrafficPageState(1, True))


PAGES: dict[str, Callable[[], Picture]] = {
    "timeline": _timeline, "memory": _memory, "traffic": _traffic,
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_was(name: str) -> None:
    picture = PAGES[name]()
    lines = [plain(row).rstrip() for row in (*picture.head, *picture.body, *picture.foot)]
    file = PINNED / f"{name}.txt"
    if os.environ.get("PIN"):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", PAGES)
def test_without_unicode_a_page_keeps_its_cells(name: str) -> None:
    picture = PAGES[name]()
    for row in (*picture.head, *picture.body, *picture.foot):
        text = ascii_of(plain(row))
        assert text.isascii() and "?" not in text and len(text) == len(plain(row)), text
