"""Everything that the commands and the first frame of a replay compute of a session file."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.base.run import lines
from pardbg.analysis.pipeline.implied import schedule_detail
from pardbg.analysis.pipeline.ticks.cell import TicksWant, ticks_shown
from pardbg.plain_text import plain_lines
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.panels import starting
from pardbg.render.pages.collectives import CollectivesPageState, collectives
from pardbg.render.pages.debug import debug
from pardbg.render.pages.findings import findings
from pardbg.render.pages.memory import memory
from pardbg.render.pages.mesh.page import mesh
from pardbg.render.pages.output import output
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.pipeline.page import pipeline
from pardbg.render.pages.pipeline.tick_page import tick_page
from pardbg.render.pages.timeline import Window, timeline
from pardbg.render.pages.traffic import TrafficPageState, traffic
from pardbg.render.reports.html import page
from pardbg.render.reports.text import text
from pardbg.session.export import tables, trace
from pardbg.session.navigation.travel import active_bounds, opening
from pardbg.session.reader import load
from pardbg.session.repair import repair
from pardbg.store import Store

CELLS, ROWS = 120, 36


def look(path: Path) -> float:
    """Replay's first frame, `report`, both `export`s; what the slowest took in all, in seconds
    of processor time."""
    begun = time.process_time()
    store = load(path)
    loading_s = time.process_time() - begun
    return loading_s + max(_took(partial(command, store)) for command in COMMANDS)


def _took(command: Callable[[], object]) -> float:
    begun = time.process_time()
    command()
    return time.process_time() - begun


def _opened(store: Store) -> None:
    draw(store, opening(store, 1))
    snapshot(store, (store.begin_ns + store.end_ns) // 2)


def _told(store: Store) -> None:
    said = report(store)
    shown = plain_lines(text(said)) + page(said, "s.mcap")
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown), (
        "a control character is shown"
    )
    json.dumps(as_json(said))


def mend(path: Path) -> float:
    """Repair it, and load what that made; what the longer of both took, as ``look``."""
    made = path.with_suffix(".out")
    try:
        return max(_took(partial(repair, path, made)), _took(partial(load, made)))
    finally:
        made.unlink(missing_ok=True)


def draw(store: Store, t_ns: int | None) -> list[Picture]:
    """Every page of the app at a moment."""
    active_bounds(store)
    shown = snapshot(store, t_ns)
    end = shown.t_ns
    window = Window(max(0, end - 300_000_000), max(end, 1))
    boxes = lanes(store, window.t0_ns, window.t1_ns, CELLS)
    printed = lines(store, t_ns, 200)
    made = [
        overview(shown, CELLS, ROWS),
        *([mesh(shown, CELLS, ROWS, OverviewPageState())] if shown.mesh.axes else ()),
        starting(shown, CELLS, ROWS, ""),
        pipeline(shown, CELLS, ROWS, None, schedule_detail(shown.pipeline)),
        timeline(shown, boxes, window, CELLS, ROWS),
        collectives(shown, CELLS, ROWS),
        collectives(shown, CELLS, ROWS, CollectivesPageState(p2p=True)),
        traffic(shown, CELLS, ROWS),
        traffic(shown, CELLS, ROWS, TrafficPageState(matrix=True)),
        memory(shown, CELLS, ROWS),
        debug(shown, CELLS, ROWS),
        findings(shown, CELLS, ROWS),
        output(shown, printed, "", CELLS, ROWS),
    ]
    return made + _ticks(store, t_ns, shown)


def _ticks(store: Store, t_ns: int | None, shown: Snapshot) -> list[Picture]:
    found = ticks_shown(store, t_ns, TicksWant(next(iter(store.rank_procs(t_ns)), 0), always=True))
    return [tick_page(shown, found, CELLS, ROWS)] if found is not None and found.grids else []


def export(store: Store) -> None:
    """As CSV and as a trace, in memory where there is such a file system."""
    _sheets(store)
    _traced(store)


def _sheets(store: Store) -> None:
    with _folder() as made:
        tables.write_csv(tables.sheets(store), made)


def _traced(store: Store) -> None:
    with _folder() as made:
        trace.write_trace(store, made / "trace.json.gz")


@contextmanager
def _folder() -> Iterator[Path]:
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=root) as made:
        yield Path(made)


COMMANDS: Final = (_opened, _told, _sheets, _traced)
