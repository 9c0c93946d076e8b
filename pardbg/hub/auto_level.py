"""Full detail around findings for runs of level summary.

A viewer without a screen, in the process that started the run: the hub itself decodes nothing.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.findings import findings
from pardbg.analysis.pipeline.pipelines import states
from pardbg.events import fields
from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl, LiveSource
from pardbg.store import Limits, Store
from pardbg.words import duration

RAISE_S: Final = 20.0
"""Time with full detail after a finding, in s."""
AGAIN_NS: Final = 600_000_000_000
"""Time before the same reason raises the level again, in ns."""
POLL_S: Final = 0.25
PERIOD_S: Final = 1.0
SHARE: Final = 100
"""Inverse of the maximum share of a core that the analysis may take: 1/SHARE."""
SLOW: Final = 3.0
"""Multiple of the median of earlier steps at which a step counts as slow."""
OPEN_NS: Final = 2_000_000_000
"""Minimum time of an open op, in ns; it must also exceed SLOW steps."""
STEPS: Final = 32
_LIMITS: Final = Limits(4096, 1 << 62, 1000, 1000, 1000)


class AutoLevel:
    """Decision when to record full detail, from a store of sums and states."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], int] = {}

    def check(self, view: View) -> str | None:
        """Return the reason for full detail now; None: no new problem."""
        loud = (found for found in findings(view) if found.severity != "info")
        reasons: list[tuple[tuple[object, ...], str]] = [
            *(((one.kind, one.culprits or one.ranks), one.text) for one in loud),
            *self._slow_steps(view), *self._open_ops(view),
        ]  # fmt: skip
        fresh = [
            (key, text) for key, text in reasons
            if view.t_ns - self._seen.get(key, -AGAIN_NS) >= AGAIN_NS
        ]  # fmt: skip
        self._seen.update((key, view.t_ns) for key, _ in fresh)
        return fresh[0][1] if fresh else None

    def _slow_steps(self, view: View) -> list[tuple[tuple[object, ...], str]]:
        made: list[tuple[tuple[object, ...], str]] = []
        for rank, process in view.ranks.items():
            rows = last_step_rows(view, process, STEPS + 1)
            if len(rows) < 5:
                continue
            *before, (step, t0, t1) = rows
            usual = median(end - begin for _, begin, end in before)
            if t1 - t0 > SLOW * usual:
                took = f"{duration(t1 - t0)}, usually {duration(usual)}"
                text = f"step {step} of rank {rank} took {took}"
                made.append((("slow step",), text))
        return made

    def _open_ops(self, view: View) -> list[tuple[tuple[object, ...], str]]:
        made: list[tuple[tuple[object, ...], str]] = []
        said = states(view)
        for rank, process in view.ranks.items():
            state = said.get(process.proc, {})
            since = fields.integer_or_none(state, "open_since_ns")
            if since is None or not fields.text(state, "open_op") or state.get("held"):
                continue
            rows = last_step_rows(view, process, STEPS)
            usual = median(t1 - t0 for _, t0, t1 in rows) if rows else 0
            if view.t_ns - since > max(OPEN_NS, SLOW * usual):
                text = f"rank {rank} waits in {fields.text(state, 'open_op')}"
                made.append((("open op", rank), text))
        return made


class Watcher:
    """Thread that raises the level around findings, until stopped or until the run ends."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pardbg-level", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        source, control = LiveSource(self._run_dir), HubControl(self._run_dir, script=True)
        store, auto_level, due = Store(_LIMITS, live=True), AutoLevel(), 0.0
        try:
            while not self._ended.wait(POLL_S) and not source.finished:
                while messages := source.poll(0):
                    store.apply_all(messages)
                if time.monotonic() < due:
                    continue
                spent = time.thread_time()
                why = auto_level.check(View(store, None))
                if why is not None:
                    control.command(Verb.LEVEL, None, 5.0, level="full", for_s=RAISE_S, reason=why)
                due = time.monotonic() + max(PERIOD_S, (time.thread_time() - spent) * SHARE)
        finally:
            control.close()
            source.close()
