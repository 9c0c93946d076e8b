"""Digest of a recording in a few values, for a list of recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.analysis.answers.snapshot import Viewport, snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.values import PipelineStep
from pardbg.session.reader import load

STEPS: Final = 64
_NOTHING_DRAWN: Final = Viewport(sections=frozenset())


@dataclass(frozen=True, slots=True)
class Digest:
    """Summary of a recording at its end, or of a live run now."""

    name: str
    argv: tuple[str, ...]
    backend: str
    num_ranks: int
    num_hosts: int
    began_ns: int
    """Wall clock at the begin (epoch ns); 0: not known."""
    length_ns: int
    step: int | None
    times: tuple[tuple[int, int], ...]
    """(step, duration in ns) of the newest steps, at most `STEPS`."""
    losses: tuple[tuple[int, float], ...]
    schedule: str
    pipeline: PipelineStep | None
    """The newest step that has ended on all ranks."""
    findings: tuple[Finding, ...]
    """Findings, the worst first."""
    exit_code: int | None
    num_bytes: int


def digest(path: Path, *, growing: bool = False) -> Digest:
    """Read a session file, which may be written to (``growing``). Raises SessionError."""
    made = snapshot(load(path, growing=growing), None, viewport=_NOTHING_DRAWN)
    view = made.pipeline
    last = view.last_complete if view is not None else None
    return Digest(
        name=made.run.name or path.stem,
        argv=made.run.argv,
        backend=made.run.backend,
        num_ranks=len(made.ranks),
        num_hosts=made.run.num_hosts,
        began_ns=made.run.wall_ns,
        length_ns=max(0, made.t_end_ns - made.t_begin_ns),
        step=made.step,
        times=tuple((row.step, row.duration_ns) for row in made.steps[-STEPS:]),
        losses=made.loss_history,
        schedule=view.schedule if view is not None and view.schedule else "",
        pipeline=last,
        findings=tuple(sorted(made.findings, key=lambda finding: finding.order)),
        exit_code=made.run.exit_code,
        num_bytes=path.stat().st_size,
    )
