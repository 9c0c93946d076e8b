"""Runs rows of the table as one job, watched live: ``python -m tests.diagnosis.waits.table
[--way WAY] [--trios N] [NAME …]`` prints it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.registry import standstills
from pardbg.analysis.hangs.standstill import seen
from pardbg.hub.client import LiveSource
from pardbg.hub.run.start import RunHandle, start_run
from pardbg.store.store import Store
from tests.forked import forked
from tests.hook_ways import NATIVE
from tests.processes import end_tree

LOOK_S, CELL_S, START_S = 0.2, 25.0, 60.0
TRIOS = 10


@dataclass
class Cell:
    """What came of one row, seen one way."""

    name: str
    sleeper: int = -1
    """Global rank; -1: none sleeps there yet."""
    since_s: float = 0.0
    after_ns: int = 0
    """When the row before was over: findings of earlier are its own."""
    found: Finding | None = None
    seconds: float = 0.0
    """From its sleep on; the others may have come to their op a little later."""
    waits_in_row: bool = False
    """The one that waits stands in the row, not in what follows; or its stack is not known."""
    false: set[str] = field(default_factory=set)
    """Others of its trio that were named."""
    ended: bool = False
    lacks: str = ""
    """Why this torch cannot run it."""

    @property
    def trio(self) -> range:
        first = self.sleeper // 3 * 3
        return range(first, first + 3)

    @property
    def wrong(self) -> str:
        """What is not as it should be; empty: nothing."""
        if self.sleeper < 0 or self.found is None:
            said = ["never came to it" if self.sleeper < 0 else "not found"]
        elif " in planted" not in (self.found.where or ""):
            said = [f"place: {self.found.where}"]
        else:
            said = [] if self.waits_in_row else ["nobody waits in this row"]
        return "; ".join([*said, *sorted(self.false)])

    def look(self, view: View, found: Sequence[Finding]) -> None:
        """Take what is said of its trio now."""
        own = set(self.trio)
        for finding in found:
            if finding.t_ns < self.after_ns or not own & {*finding.culprits, *finding.ranks}:
                continue
            if finding.culprits != (self.sleeper,):
                self.false.add(f"{finding.kind} {finding.culprits}")
            elif finding.where:
                if self.found is None:
                    self.found, self.seconds = finding, time.monotonic() - self.since_s
                waiter = self.trio[(self.sleeper + 1) % 3]
                frames = seen(view, waiter).frames
                self.waits_in_row |= not frames or any(
                    file.endswith("/waits/cells.py") for file, _, _ in frames
                )


def run(names: Sequence[str], way: str, trios: int = TRIOS) -> list[Cell]:
    """Run these rows, each with one rank asleep, their ops seen this way."""
    cells = [Cell(name) for name in names]
    with tempfile.TemporaryDirectory(prefix="pardbg-waits-") as work:
        folder = Path(work) / "rows"
        folder.mkdir()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PARDBG_HOOKS": way,
               "PARDBG_NATIVE": NATIVE if way == "native" else "off"}  # fmt: skip
        argv = _argv(folder, names, trios)
        handle = start_run(argv, name="waits", session=Path(work) / "s.mcap", env=env)
        source, store = LiveSource(handle.run_dir), Store(live=True)
        try:
            _watch(cells, folder, source, store)
        finally:
            source.close()
            _end(handle)
    return cells


def lacking(names: Sequence[str]) -> set[str]:
    """Return which of these rows raise without pardbg, too, nobody asleep."""
    with tempfile.TemporaryDirectory(prefix="pardbg-waits-") as work:
        folder = Path(work)
        for name in (*names, "end"):
            (folder / name).touch()
        env = {name: v for name, v in os.environ.items() if not name.startswith("PARDBG_")}
        subprocess.run(_argv(folder, names, TRIOS), env={**env, "OMP_NUM_THREADS": "1"},
                       timeout=START_S, check=True)  # fmt: skip
        return {path.name.removeprefix("lacks.") for path in folder.glob("lacks.*")}


def _argv(folder: Path, names: Sequence[str], trios: int) -> list[str]:
    ranks = str(3 * min(trios, len(names)))
    words = ["torchrun", "--nproc-per-node", ranks, "-m", "tests.diagnosis.waits.program"]
    return forked([*words, str(folder), *names])


def _end(handle: RunHandle) -> None:
    launcher = handle._launcher
    assert launcher is not None
    if handle.launcher_alive():
        handle.kill()
        try:
            handle.wait(15)
        except TimeoutError:
            end_tree(launcher.pid)
    launcher.wait(40)


def _watch(cells: list[Cell], folder: Path, source: LiveSource, store: Store) -> None:
    until, looked = time.monotonic() + START_S, 0.0
    over: dict[int, int] = {}
    while time.monotonic() < until and not source.finished:
        store.apply_all(source.poll(50))
        now = time.monotonic()
        if now - looked < LOOK_S:
            continue
        looked = now
        if _lacking(cells, folder):
            until = now + START_S
        if _asleep(cells, folder, over):
            until = now + START_S
        view = View(store, None)
        found = [finding for finding in standstills(view) if finding.severity != "info"]
        for cell in [cell for cell in cells if cell.sleeper >= 0 and not cell.ended]:
            cell.look(view, found)
            if cell.waits_in_row or now > cell.since_s + CELL_S:
                cell.ended, over[cell.trio[0]] = True, time.monotonic_ns()
                (folder / cell.name).touch()
        if all(cell.ended for cell in cells):
            (folder / "end").touch()


def _lacking(cells: list[Cell], folder: Path) -> bool:
    """Note which rows this torch cannot run; return whether there is another one."""
    some = False
    for cell in [cell for cell in cells if not cell.lacks]:
        path = folder / f"lacks.{cell.name}"
        if path.exists() and (why := path.read_text()):
            cell.lacks, cell.ended, some = why, True, True
    return some


def _asleep(cells: list[Cell], folder: Path, over: dict[int, int]) -> bool:
    """Note who has fallen asleep; return whether somebody has. ``over``: when a trio's row before
    was, by the trio's first rank."""
    some = False
    for cell in [cell for cell in cells if cell.sleeper < 0]:
        for path in folder.glob(f"{cell.name}.*"):
            cell.sleeper, cell.since_s, some = int(path.suffix[1:]), time.monotonic(), True
            cell.after_ns = over.get(cell.trio[0], 0)
    return some


def main() -> int:
    from tests.diagnosis.waits.cells import ROWS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows; none: all")
    parser.add_argument("--way", default="native")
    parser.add_argument("--trios", type=int, default=TRIOS)
    given = parser.parse_args()
    begun = time.monotonic()
    cells = run(given.names or list(ROWS), given.way, given.trios)
    for cell in cells:
        came = f"not in this torch: {cell.lacks}" if cell.lacks else cell.wrong or "ok"
        print(f"{cell.name:28} {cell.seconds:5.1f} s  {came}")
    bad = sum(bool(cell.wrong) for cell in cells if not cell.lacks)
    took = time.monotonic() - begun
    there = sum(not cell.lacks for cell in cells)
    print(f"{given.way}: {there - bad} of {there}, in {took:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
