"""Sections of the text report: the critical path, stage times, communication by rank and size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from math import isfinite
from textwrap import wrap
from typing import Final, TypeVar

from pardbg.analysis.answers.report import RankTotals, Report
from pardbg.analysis.answers.report_pipeline import Bandwidth, Messages, RankOverlap, StageTime
from pardbg.analysis.base.losses import NotFinite
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.peaks import MicrobatchWait, Peak
from pardbg.words import busbw, count, duration, number, percent, plural, ranks_text, size

WIDTH: Final = 80
MAX_ROWS: Final = 32
MAX_WAITS: Final = 3
MAX_PEAKS: Final = 4
Row = TypeVar("Row")

_LOSS_SOURCES: Final = {
    "backward": "what backward began from, mean over ranks", "logged": "logged by the program",
    "schedule": "reported by the schedule", "printed": "printed by the program",
}  # fmt: skip


def nothing(report: Report) -> str:
    """Return what a report without findings says."""
    limit = "; speed is not judged by host times" if report.run.times == "host" else ""
    return f"nothing wrong was seen{limit}"


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (), cells: int = 1000) -> list[str]:
    """Return columns as wide as needed; those not at the ``left`` stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()[:cells]
        for row in rows
    ]


def shown_rows(
    report: Report, rows: Sequence[Row], rank_of: Callable[[Row], int], most: int
) -> Sequence[Row]:
    """Return ``most`` rows: the first ones, and those of culprits wherever they stand."""
    if len(rows) <= most:
        return rows
    culprits = {rank for finding in report.findings for rank in finding.culprits}
    bad = [row for row in rows if rank_of(row) in culprits][: most // 2]
    known = {rank_of(row) for row in bad}
    others = [row for row in rows if rank_of(row) not in known][: most - len(bad)]
    return sorted((*others, *bad), key=rank_of)


def phase_shares(steps: Sequence[StepRow]) -> list[tuple[str, float]]:
    """Return each phase's share of the steps' time, mean over ranks, the largest first."""
    sums: Counter[str] = Counter()
    for step in steps:
        sums.update(step.phases)
    whole = max(1, sum(step.duration_ns for step in steps))
    return [(phase, ns / whole) for phase, ns in sums.most_common()]


def rank_rows(ranks: Sequence[RankTotals]) -> list[tuple[str, ...]]:
    """Rank, host, pid, state, steps, records lost, the agent's share."""
    return [
        (
            str(r.now.rank), r.now.host, str(r.now.pid),
            r.now.now if r.now.state == "ended" else r.now.state, count(r.num_steps),
            count(r.now.dropped_records), percent(r.agent_overhead_fraction, 2),
        )
        for r in ranks
    ]  # fmt: skip


def op_rows(ops: Sequence[Messages]) -> list[tuple[str, ...]]:
    """Group, op, number, bytes, skew, wait, transfer, busbw (medians)."""
    return [
        (
            *one.name, count(one.number), size(one.bytes), duration(one.skew_ns),
            duration(one.wait_ns), duration(one.transfer_ns), busbw(one.busbw_gbps),
        )
        for one in ops
    ]  # fmt: skip


def edge_rows(edges: Sequence[Messages]) -> list[tuple[str, ...]]:
    """Edge, number, bytes, in all, transfer (medians)."""
    return [
        (
            " → ".join(one.name), count(one.number), size(one.bytes), size(one.total_bytes),
            duration(one.transfer_ns),
        )
        for one in edges
    ]  # fmt: skip


def path_lines(path: CriticalPath | None) -> list[str]:
    """Return ``critical path of step 7: compute 96 % (rank 1 44 %, …), …``"""
    if path is None:
        return []
    whole = path.window_ns
    if whole <= 0:
        return []
    ranks = sorted(sorted(path.by_rank().items()), key=lambda row: -row[1])
    most = ", ".join(f"rank {rank} {percent(ns / whole, 0)}" for rank, ns in ranks[:4])
    return [
        f"critical path of step {path.step} ({duration(whole)}): compute "
        f"{percent(path.compute_ns / whole, 0)} ({most}),",
        f"  tensors on their way {percent(path.tensor_ns / whole, 0)} in {path.hops} hops, "
        f"host {percent(path.host_ns / whole, 0)}",
    ]


def stage_lines(stages: Sequence[StageTime]) -> list[str]:
    """Return a row per stage: median of each kind, and nine tenths of them."""
    by_stage: dict[tuple[int, int], dict[str, StageTime]] = defaultdict(dict)
    for one in stages:
        by_stage[one.stage, one.rank][one.kind] = one
    kinds = [kind for kind in "FBIW" if any(kind in row for row in by_stage.values())]
    if not by_stage or not kinds:
        return []
    lines = ["stage rank" + "".join(f"{kind:>10}{'(10–90%)':>17}" for kind in kinds)]
    for (stage, rank), row in sorted(by_stage.items())[:MAX_ROWS]:
        cells = "".join(_cell(row.get(kind)) for kind in kinds)
        lines.append(f"{stage:>5}{rank:>5}{cells}")
    return lines


def _cell(row: StageTime | None) -> str:
    if row is None:
        return f"{'–':>10}{'':>17}"
    spread = f"{duration(row.low_ns)}–{duration(row.high_ns)}"
    return f"{duration(row.median_ns):>10}{spread:>17}"


def wait_lines(waits: Sequence[MicrobatchWait]) -> list[str]:
    """Return ``longest waits: rank 0's 0B0 78 ms for 1B0 on rank 1; …``"""
    said = [
        f"rank {w.rank}'s {w.action} {duration(w.wait_ns)} for {w.producer} on rank "
        f"{w.producer_rank}"
        for w in waits[:MAX_WAITS]
    ]
    if not said:
        return []
    return [f"longest waits of a step: {said[0]}", *(f"  {one}" for one in said[1:])]


def peak_lines(peaks: Mapping[int, Peak]) -> list[str]:
    """Return lines on where each rank had the most microbatches in flight."""
    shown = list(peaks.items())[:MAX_PEAKS]
    said = [f"rank {rank} after {peak.action} ({peak.number})" for rank, peak in shown]
    more = ", …" if len(peaks) > MAX_PEAKS else ""
    if not said:
        return []
    text = f"most in flight (step {shown[0][1].step}): {', '.join(said)}{more}"
    return wrap(text, WIDTH, subsequent_indent="  ")


def overlap_lines(rows: Sequence[RankOverlap]) -> list[str]:
    """Per rank and step: exposed, hidden, waited, and what others waited for it; of many ranks
    those most waited for."""
    told = [row for row in rows if any(astuple(row)[1:])]
    if not told:
        return []
    lines = ["rank   exposed    hidden   waited for others   others waited for it"]
    most = sorted(told, key=lambda row: -row.waited_for_ns)[:MAX_ROWS]
    for row in sorted(most, key=lambda row: row.rank):
        lines.append(
            f"{row.rank:>4}{duration(row.exposed_ns):>10}{duration(row.hidden_ns):>10}"
            f"{duration(row.waiting_ns):>20}{duration(row.waited_for_ns):>23}"
        )
    left = len(told) - len(most)
    return [*lines, f"… and {plural(left, 'more rank')}, less waited for"] if left else lines


def bandwidth_lines(rows: Sequence[Bandwidth]) -> list[str]:
    """Return a row per group, op and size class."""
    if not rows:
        return []
    shown = sorted(rows, key=lambda r: -r.number * r.up_to_bytes)[:MAX_ROWS]
    wide = max(14, *(len(row.group) + 1 for row in shown))
    lines = [f"{'group':<{wide}}{'op':<16}{'up to':>9}{'number':>8}{'transfer':>11}{'busbw':>12}"]
    for row in shown:
        lines.append(
            f"{row.group:<{wide}}{row.op[:15]:<16}{size(row.up_to_bytes):>9}"
            f"{row.number:>8}{duration(row.transfer_ns):>11}{busbw(row.busbw_gbps):>12}"
        )
    return lines


def finite_losses(report: Report) -> list[float]:
    """Return the losses of the steps that have one that is a number."""
    return [s.loss for s in report.steps if s.loss is not None and isfinite(s.loss)]


def not_finite_text(broken: NotFinite | None) -> str:
    """Return ``NaN since step 5 (rank 2)``; empty while the newest loss is finite."""
    if broken is None:
        return ""
    whose = f" ({ranks_text(broken.ranks)})" if broken.ranks else ""
    return f"{broken.value} since step {broken.since_step}{whose}"


def loss_text(report: Report) -> str:
    """Return ``5.7461 → 4.6558 (printed by Megatron)``, and since when it is not finite; ``none
    known`` where steps have none, empty without steps."""
    losses, source = finite_losses(report), report.loss_source
    source = _LOSS_SOURCES.get(source, source)
    parts = [f"{number(losses[0])} → {number(losses[-1])} ({source})"] if losses else []
    parts += filter(None, [not_finite_text(report.not_finite)])
    return ", ".join(parts) or ("none known" if report.steps else "")
