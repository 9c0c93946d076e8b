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
from pardbg.analysis.base.leads import Ahead
from pardbg.analysis.base.losses import NotFinite
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.pipeline.critical_path import CriticalPath, MicrobatchWait
from pardbg.analysis.pipeline.in_flight import Peak
from pardbg.render.frame.activity import activity_text
from pardbg.words import UNKNOWN, busbw, count, duration, number, percent, plural, ranks_text, size

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
    """Return the text of a report without findings."""
    limit = "; speed is not judged by host times" if report.run.times == "host" else ""
    far = " so far" if report.live else ""
    return f"nothing wrong was seen{far}{limit}"


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (), cells: int = 1000) -> list[str]:
    """Return rows as aligned columns: those in ``left`` left-aligned, others right-aligned."""
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
    """Return at most ``most`` rows: the first ones, and culprits' rows wherever they are."""
    if len(rows) <= most:
        return rows
    culprits = {rank for finding in report.findings for rank in finding.culprits}
    bad = [row for row in rows if rank_of(row) in culprits][: most // 2]
    known = {rank_of(row) for row in bad}
    others = [row for row in rows if rank_of(row) not in known][: most - len(bad)]
    return sorted((*others, *bad), key=rank_of)


def phase_shares(steps: Sequence[StepRow]) -> list[tuple[str, float]]:
    """Return the seven largest phases' shares of step time, mean over ranks; ``other`` last."""
    sums: Counter[str] = Counter()
    for step in steps:
        sums.update(step.phases)
    whole = max(1, sum(step.duration_ns for step in steps))
    shares = [(phase, ns / whole) for phase, ns in sums.most_common(7)]
    rest = 1 - sum(share for _, share in shares)
    return [*shares, ("other", rest)] if shares and rest >= 0.001 else shares


def rank_rows(ranks: Sequence[RankTotals]) -> list[tuple[str, ...]]:
    """Return headings, then rank, host, pid, state, steps, lost records and the agent's share per
    rank; if devices have times, also the host's lead, and the bound on host-bound time."""
    on_devices = any(r.now.ahead is not None for r in ranks)
    heads = ("rank", "host", "pid", "state", "steps", "dropped", "agent")
    rows = [heads + (("lead", "late") if on_devices else ())]
    for r in ranks:
        state = activity_text(r.now.now) if r.now.state == "ended" else r.now.state
        row = (
            str(r.now.rank), r.now.host, str(r.now.pid), state, count(r.num_steps),
            count(r.now.dropped_records), percent(r.agent_overhead_fraction, 2),
        )  # fmt: skip
        rows.append(row + (ahead_texts(r.now.ahead) if on_devices else ()))
    return rows


def ahead_texts(ahead: Ahead | None) -> tuple[str, str]:
    """Return the texts for a host's lead, and for the bound on its device's host-bound time."""
    if ahead is None:
        return UNKNOWN, UNKNOWN
    return duration(ahead.lead_ns), f"≤{percent(ahead.host_bound, 0)}"


def op_rows(ops: Sequence[Messages]) -> list[tuple[str, ...]]:
    """Return group, op, number, bytes, skew, wait, transfer, busbw (medians) per row."""
    return [
        (
            *row.name, count(row.number), size(row.bytes), duration(row.skew_ns),
            duration(row.wait_ns), duration(row.transfer_ns), busbw(row.busbw_gbps),
        )
        for row in ops
    ]  # fmt: skip


def edge_rows(edges: Sequence[Messages]) -> list[tuple[str, ...]]:
    """Return edge, number, bytes, total bytes, the receiver's wait for the sender, transfer
    (medians) per row."""
    return [
        (
            " → ".join(row.name), count(row.number), size(row.bytes), size(row.total_bytes),
            duration(row.wait_ns), duration(row.transfer_ns),
        )
        for row in edges
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
    """Return a row per stage, with the median and the 10–90% range of each kind of action."""
    by_stage: dict[tuple[int, int], dict[str, StageTime]] = defaultdict(dict)
    for time in stages:
        by_stage[time.stage, time.rank][time.kind] = time
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
    texts = [
        f"rank {w.rank}'s {w.action} {duration(w.wait_ns)} for {w.producer} on rank "
        f"{w.producer_rank}"
        for w in waits[:MAX_WAITS]
    ]
    if not texts:
        return []
    return [f"longest waits of a step: {texts[0]}", *(f"  {text}" for text in texts[1:])]


def peak_lines(peaks: Mapping[int, Peak]) -> list[str]:
    """Return lines on the place at which each rank had the most microbatches in flight."""
    shown = list(peaks.items())[:MAX_PEAKS]
    texts = [f"rank {rank} after {peak.action} ({peak.number})" for rank, peak in shown]
    more = ", …" if len(peaks) > MAX_PEAKS else ""
    if not texts:
        return []
    text = f"most in flight (step {shown[0][1].step}): {', '.join(texts)}{more}"
    return wrap(text, WIDTH, subsequent_indent="  ")


def overlap_lines(rows: Sequence[RankOverlap]) -> list[str]:
    """Return exposed, hidden, waiting and caused waiting time per rank and step; of many ranks
    those that others waited for most."""
    shown = [row for row in rows if any(astuple(row)[1:-2])]
    if not shown:
        return []
    lines = ["rank   exposed    hidden   waited for others   others waited for it"]
    most = sorted(shown, key=lambda row: -row.waited_for_ns)[:MAX_ROWS]
    for row in sorted(most, key=lambda row: row.rank):
        least, atmost = ("≥ ", "≤ ") if row.is_bound else ("", "")
        lines.append(
            f"{row.rank:>4}{least + duration(row.exposed_ns):>10}"
            f"{atmost + duration(row.hidden_ns):>10}"
            f"{duration(row.waiting_ns):>20}"
            f"{('≤ ' if row.is_most else least) + duration(row.waited_for_ns):>23}"
        )
    left = len(shown) - len(most)
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
    """Return the finite losses of the steps."""
    return [s.loss for s in report.steps if s.loss is not None and isfinite(s.loss)]


def not_finite_text(broken: NotFinite | None) -> str:
    """Return ``NaN since step 5 (rank 2)``; empty while the newest loss is finite."""
    if broken is None:
        return ""
    whose = f" ({ranks_text(broken.ranks)})" if broken.ranks else ""
    return f"{broken.value} since step {broken.since_step}{whose}"


def loss_text(report: Report) -> str:
    """Return ``5.7461 → 4.6558 (printed by Megatron)``, and since when the loss is not finite;
    ``none known`` for steps without losses, empty without steps."""
    losses, source = finite_losses(report), report.loss_source
    source = _LOSS_SOURCES.get(source, source)
    parts = [f"{number(losses[0])} → {number(losses[-1])} ({source})"] if losses else []
    parts += filter(None, [not_finite_text(report.not_finite)])
    return ", ".join(parts) or ("none known" if report.steps else "")
