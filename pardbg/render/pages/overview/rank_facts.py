"""Facts of one rank, for the detail panel."""

from __future__ import annotations

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.bars import (
    facts,
)
from pardbg.render.draw.cells import (
    Picture,
    Segment,
    clean,
    line,
)
from pardbg.render.draw.plots import by_step
from pardbg.render.frame.activity import activity_text, now_title
from pardbg.render.pages.pipeline.schedule import CAUSE_WORD


def rank(snapshot: Snapshot, number: int, cells: int, rows: int) -> Picture:
    """Draw all facts of rank ``number`` at the cursor."""
    now = next((row for row in snapshot.ranks if row.rank == number), None)
    if now is None:
        return Picture(body=(line(Segment(f"  rank {number} is not in this run", "dim")),))
    shown: list[tuple[str, str]] = [
        (now_title(snapshot.run.times), f"{activity_text(now.now)} ({now.state})"),
        ("process", f"pid {now.pid} on {clean(now.host)}"
                    f"{'' if now.node is None else f' · node {now.node}'}"),
        ("stages", ",".join(map(str, now.stages)) or "no pipeline"),
        ("step", "–" if now.step is None else str(now.step)),
        ("last step", words.duration(now.step_ns[-1] if now.step_ns else None)),
        ("memory", words.binary_size(now.memory_bytes)),
        ("newest record", f"{words.duration(now.lag_ns)} old" if now.lag_ns != 0 else "now"),
        ("records lost", str(now.dropped_records)),
        ("agent's share", words.percent(now.agent_overhead, 2)),
        ("clock", _clock_words(now.clock_error_ns)),
        *((clean(name)[:17], words.number(value)) for name, value in now.metrics[:8]),
        *_pipeline(snapshot, number), *_memory(snapshot, number),
    ]  # fmt: skip
    body = facts(shown, 18)
    height = min(8, rows - len(body) - 3)
    if height >= 3 and len(now.step_ns) > 1:
        last = now.step if now.step is not None else 0
        times = [(last - at, ns) for at, ns in enumerate(reversed(now.step_ns))][::-1]
        body += [(), line(Segment("  step time", "dim"))]
        body += by_step(times, max(8, cells - 4), height, "spark", words.duration)
    return Picture(body=tuple(body))


def _clock_words(error_ns: int | None) -> str:
    if error_ns is None:
        return "not aligned yet: order against other ranks is not known"
    if error_ns == 0:
        return "the hub's own"
    return f"aligned to ±{words.duration(error_ns)}"


def _pipeline(snapshot: Snapshot, number: int) -> list[tuple[str, str]]:
    view = snapshot.pipeline
    step = (view.last_complete or view.step) if view else None
    row = next((r for r in step.ranks if r.rank == number), None) if step else None
    if row is None or step is None or not row.idle_ns:
        return []
    window = max(1, row.busy_ns + sum(row.idle_ns.values()))
    idle = ", ".join(
        f"{CAUSE_WORD[cause]} {words.percent(ns / window)}"
        for cause, ns in row.idle_ns.items()
        if ns
    )
    return [
        ("busy", f"{words.percent(row.busy_ns / window)} of step {step.step}"),
        ("idle", idle or "none"),
        ("in flight", f"{row.in_flight} now, {row.max_in_flight} at most"),
    ]


def _memory(snapshot: Snapshot, number: int) -> list[tuple[str, str]]:
    row = next((r for r in snapshot.memory if r.rank == number), None)
    if row is None:
        return []
    parts = (
        ("parameters", row.parameters_bytes), ("gradients", row.gradients_bytes),
        ("optimizer", row.optimizer_bytes), ("activations", row.activations_bytes),
    )  # fmt: skip
    return [(name, words.binary_size(value)) for name, value in parts if value is not None]
