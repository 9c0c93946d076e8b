"""One case, watched live as a viewer would: what was found when, and what was said besides."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.client import LiveSource
from pardbg.store.store import Store
from tests.diagnosis.cases import END, HANG, Case
from tests.distributed.runs import started

LOOK_S = 0.2
"""How often findings are looked at."""
START_S = 120.0
"""How long a job may take, on a busy machine, to its first call of torch.distributed."""
CORES = os.cpu_count() or 1
AFTER_S = 1.5
"""How long the job goes on after the finding: what else is said of it?"""
PLACE_S = 5.0
"""And how long for its place in the code: stacks are taken once ranks have stood for a while."""


@dataclass
class Outcome:
    case: Case
    right: Finding | None = None
    named: Finding | None = None
    """The right kind with other culprits."""
    seconds: float | None = None
    false: dict[tuple[str, tuple[int, ...]], Finding] = field(default_factory=dict)
    """Errors that are not the fault, by kind and culprits."""
    warned: dict[tuple[str, tuple[int, ...]], Finding] = field(default_factory=dict)
    """Warnings that are not the fault. No false alarms: a loaded machine gives reason for some."""
    lasted_s: float = 0.0
    kept: str = ""
    """Where the recording of a false alarm is."""

    @property
    def cause(self) -> str:
        """Return the cause that the right finding names; empty: it names none."""
        facts = self.right.facts if self.right is not None else None
        absent = getattr(facts, "absences", ())
        return str(absent[0].doing if absent else getattr(facts, "cause", ""))

    @property
    def as_it_should_be(self) -> bool:
        of = self.case
        caused = not of.causes or self.cause in of.causes
        return not self.false and (not of.kinds or (self.right is not None and caused))


def watch(case: Case, patience_s: float | None = None) -> Outcome:
    """Run it until the finding comes or the time is over."""
    outcome = Outcome(case)
    folder = tempfile.TemporaryDirectory(prefix="pardbg-diagnosis-")
    env = {**os.environ, "OMP_NUM_THREADS": "1", **dict(case.env)}
    session = Path(folder.name) / "s.mcap"
    with folder:
        with started(list(case.argv), session, env=env) as handle:
            source, store = LiveSource(handle.run_dir), Store(live=True)
            try:
                _follow(outcome, source, store, patience_s or case.timeout_s)
            finally:
                source.close()
        if outcome.false:
            outcome.kept = shutil.copy(session, f"{folder.name}-kept.mcap")
    return outcome


def _follow(outcome: Outcome, source: LiveSource, store: Store, patience_s: float) -> None:
    begun = looked = time.monotonic()
    # Where several jobs share a core, all of it comes as much later.
    slower = max(1.0, os.getloadavg()[0] / (4 * CORES))
    patience_s *= slower if outcome.case.kinds else 1.0
    until, first_seen = begun + START_S * slower + patience_s, None
    started = False
    while time.monotonic() < until:
        store.apply_all(source.poll(50))
        now = time.monotonic()
        if now - looked >= LOOK_S or source.finished:
            looked = now
            view = View(store, None)
            if not started and _has_begun(view):
                started, until = True, min(until, now + patience_s)
            _look(outcome, view)
            if outcome.right is not None and first_seen is None:
                first_seen = now
                until = min(until, now + AFTER_S)
            if first_seen is not None and now < first_seen + PLACE_S and _lacks_place(outcome):
                until = max(until, now + LOOK_S)
        if source.finished:
            break
    outcome.lasted_s = time.monotonic() - begun


def _look(outcome: Outcome, view: View) -> None:
    case = outcome.case
    for finding in findings(view):
        if finding.severity == "info" and not (case.notes and finding.kind in case.kinds):
            continue
        if case.alone and finding.severity != "error":
            continue
        if case.is_right(finding.kind, finding.culprits):
            first, outcome.right = outcome.right is None, finding  # the newest one says most
            if first:
                outcome.seconds = (time.monotonic_ns() - _zero(view, case)) / 1e9
        elif finding.kind in case.kinds and outcome.right is None:
            outcome.named = finding
        elif finding.kind in case.besides:
            continue
        if not case.is_right(finding.kind, finding.culprits):
            others = outcome.false if finding.severity == "error" else outcome.warned
            others.setdefault((finding.kind, finding.culprits), finding)


def _lacks_place(outcome: Outcome) -> bool:
    case, right = outcome.case, outcome.right
    return right is not None and bool(
        (case.place and not right.where) or (case.handles and not right.handled)
    )


def _has_begun(view: View) -> bool:
    """Some rank has come so far as to call torch.distributed."""
    return any(
        view.visible(process, name)
        for process in view.ranks.values() for name in ("issue", "issue_p2p", "call_begin")
    )  # fmt: skip


def _zero(view: View, case: Case) -> int:
    """From when seconds are counted."""
    if case.sort == END:
        ended = [e[0] for p in view.ranks.values() if (e := view.proc_end(p)) is not None]
        failed = [f.t_ns for p in view.ranks.values() for f in p.failures]
        return min([*ended, *failed], default=view.t_ns)
    newest = 0
    for process in view.ranks.values():
        for name in ("issue", "issue_p2p", "step", "phase", "call_begin"):
            table, visible = view.rows(process, name)
            if visible:
                newest = max(newest, int(table.when[visible - 1]))
    return newest if case.sort == HANG else view.begin_ns
