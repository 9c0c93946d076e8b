"""What a frame costs: drawing a page, and turning it into what the terminal gets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from rich.segment import Segment

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.implied import schedule_detail
from pardbg.render.draw.cells import Picture, fit
from pardbg.render.pages.overview.page import overview
from pardbg.render.pages.pipeline.page import pipeline
from pardbg.render.pages.timeline import Window, timeline
from pardbg.ui.palette import style
from tests.bench.figures import Figure
from tests.ui import sample

BLOCKS = 30
CELLS, ROWS = 200, 60


def main() -> list[Figure]:
    """A 60 x 200 timeline within 20 ms; the pages beside it."""
    snapshot = sample.snapshot_1f1b(p=12)
    t1 = snapshot.t_ns
    window = Window(t1 - sample.S, t1)
    # 12 ranks of 4 lanes fill 60 rows; 180 boxes a lane is one per column.
    lanes = sample.lanes(window.t0_ns, window.t1_ns, 12, 180)
    many = sample.snapshot_1f1b(p=64)
    return [
        _figure("timeline frame 60x200", 20.0,
                lambda: timeline(snapshot, lanes, window, CELLS, ROWS)),
        _figure("pipeline frame 60x200, 12 ranks", None, lambda: _pipeline(snapshot)),
        _figure("pipeline frame 60x200, 64 ranks", None, lambda: _pipeline(many)),
        _figure("overview frame 60x200, 64 ranks", None, lambda: overview(many, CELLS, ROWS)),
    ]  # fmt: skip


def _pipeline(snapshot: Snapshot) -> Picture:
    return pipeline(snapshot, CELLS, ROWS, detail=schedule_detail(snapshot.pipeline))


def _figure(name: str, budget: float | None, draw: Callable[[], Picture]) -> Figure:
    """Milliseconds for a whole frame: the picture and its styled segments."""
    _frame(draw)
    took = []
    for _ in range(BLOCKS):
        begun = time.perf_counter_ns()
        _frame(draw)
        took.append((time.perf_counter_ns() - begun) / 1e6)
    note = f"{BLOCKS} frames, {min(took):.1f}..{max(took):.1f}"
    return Figure(name, statistics.median(took), "ms", budget, note=note)


def _frame(draw: Callable[[], Picture]) -> int:
    picture = draw()
    lines = (*picture.head, *picture.body, *picture.foot)[:ROWS]
    return sum(
        len([Segment(run.text, style("dark", run.style)) for run in fit(row, CELLS)])
        for row in lines
    )
