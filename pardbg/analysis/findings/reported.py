"""Finds conditions that NCCL, devices and logs report: warnings, RAS's answers, clocks, errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.nccl_view import processes
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.device_kinds import (
    DeviceError,
    DeviceShared,
    DeviceThrottled,
    NcclWarned,
    RasReport,
)
from pardbg.analysis.findings.kinds.end_kinds import LOGGED, LogSaid
from pardbg.events import fields
from pardbg.events.device_facts import DeviceNews, Ras
from pardbg.events.log_facts import LogSays
from pardbg.nccl.debug_lines import Warned
from pardbg.nccl.named_ranks import ranks_of

MAX_WARNINGS: Final = 4
"""Largest number of kinds of NCCL's warnings that become findings."""
EVENTS: Final = 4096


def nccl_warnings(view: View) -> Iterator[Candidate]:
    """Find NCCL's warnings; warnings that differ only in numbers are one candidate."""
    kinds: dict[str, list[Warned]] = defaultdict(list)
    for warned in view.store.nccl.warnings:
        if warned.t_ns <= view.t_ns:
            kinds[warned.kind].append(warned)
    for same in list(kinds.values())[:MAX_WARNINGS]:
        by = ranks_of(((warned.host, warned.pid) for warned in same), processes(view))
        ranks = tuple(sorted({*by.values()}))
        yield Candidate(
            kind="nccl-warning", ranks=ranks, t_ns=same[-1].t_ns, first_ns=same[0].t_ns,
            facts=NcclWarned(same[0].text, len(same)),
        )  # fmt: skip


def ras_status(view: View) -> Iterator[Candidate]:
    """Find ranks named in the last answer of NCCL's RAS."""
    told = [(t, e.fact) for t, e in view.store.controls.last(view.t_ns, EVENTS)
            if isinstance(e.fact, Ras)]  # fmt: skip
    for t_ns, fact in told[-1:]:
        if fact.rows:
            rows = tuple((row.comm, row.what, row.ranks, row.global_ranks) for row in fact.rows)
            ranks = {rank for row in fact.rows if row.global_ranks for rank in row.ranks}
            yield Candidate(
                kind="nccl-status", ranks=tuple(sorted(ranks)), t_ns=t_ns, facts=RasReport(rows)
            )


def logged(view: View) -> Iterator[Candidate]:
    """Find conclusions that `pardbg explain` drew from the job's log."""
    for t_ns, event in view.store.controls.last(view.t_ns, EVENTS):
        if isinstance(said := event.fact, LogSays) and said.kind in LOGGED:
            yield Candidate(
                kind=f"log-{said.kind}", facts=LogSaid(said), t_ns=t_ns, ranks=said.ranks,
                culprits=said.culprits, group=said.group or None, seq=said.seq,
                where=said.where or None,
            )  # fmt: skip


@per_view
def readings(view: View) -> dict[tuple[str, int], tuple[int, DeviceNews]]:
    """Return (host, index) -> (t_ns, newest reading) of each device; readings with ranks are
    preferred."""
    newest: dict[tuple[str, int], tuple[int, DeviceNews]] = {}
    for t_ns, event in view.store.controls.last(view.t_ns, EVENTS):
        if isinstance(news := event.fact, DeviceNews):
            known = newest.get((news.host, news.index))
            if news.ranks or known is None or not known[1].ranks:
                newest[news.host, news.index] = t_ns, news
    return newest


def shared_devices(view: View) -> Iterator[Candidate]:
    """Find devices that several ranks compute on."""
    by_device: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        if device_id := fields.text(process.facts, "device_id"):
            by_device[process.host, device_id].append(rank)
    for (host, _), ranks in by_device.items():
        if len(ranks) > 1:
            facts = DeviceShared(host)
            yield Candidate(kind="device-shared", ranks=tuple(ranks), t_ns=view.t_ns, facts=facts)


def devices(view: View) -> Iterator[Candidate]:
    """Find devices that are throttled at the cursor, and those that had errors. Where some have
    ranks on them, the others of that host are other jobs'."""
    known = readings(view)
    told = {host for (host, _), (_, news) in known.items() if news.ranks}
    for (host, index), (t_ns, news) in known.items():
        if not news.ranks and host in told:
            continue
        if news.reasons:
            yield Candidate(
                kind="device-throttled", ranks=news.ranks, culprits=news.ranks, t_ns=t_ns,
                facts=DeviceThrottled(
                    host, index, news.reasons, news.clock_mhz, news.max_clock_mhz, news.celsius
                ),
            )  # fmt: skip
        if news.ecc_errors or news.xid:
            yield Candidate(
                kind="device-error", ranks=news.ranks, culprits=news.ranks, t_ns=t_ns,
                facts=DeviceError(host, index, news.ecc_errors, news.xid),
            )  # fmt: skip
