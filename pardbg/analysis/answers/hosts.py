"""Hosts of a run at the cursor: resources that its ranks use, and readings of its devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import device
from pardbg.analysis.findings.reported import readings
from pardbg.analysis.hangs.standstill import host_load
from pardbg.events import fields
from pardbg.events.device_facts import DeviceNews


@dataclass(frozen=True, slots=True)
class HostNow:
    """A host of the run; a value of None is not known."""

    host: str
    ranks: tuple[int, ...]
    cpus: int | None
    """Number of cores that the host's ranks may run on."""
    cores: float | None
    """Number of cores that the host's ranks use."""
    load: float | None
    """Threads per core that run or are ready, of all programs on the host."""
    memory_bytes: int | None
    """Sum of the memory of the host's ranks, in bytes."""
    device: str
    """Type of device that the host's ranks compute on; empty: the host itself."""
    devices: tuple[DeviceNews, ...] = ()
    """Newest reading of each device that has ranks."""


def hosts_now(view: View, rows: Sequence[RankNow]) -> tuple[HostNow, ...]:
    """Return the hosts, in the order of their lowest ranks."""
    by_host: dict[str, list[RankNow]] = defaultdict(list)
    for row in rows:
        by_host[row.host].append(row)
    news = [one for _, (_, one) in sorted(readings(view).items()) if one.ranks]
    return tuple(
        HostNow(
            host,
            tuple(row.rank for row in on),
            max(fields.integer(view.ranks[r.rank].facts, "cpus", 0) for r in on) or None,
            _sum([row.cores for row in on]),
            host_load(view, [row.rank for row in on]) or None,
            round(_sum([row.memory_bytes for row in on]) or 0) or None,
            next((kind for row in on if (kind := device(view.ranks[row.rank]))), ""),
            tuple(one for one in news if one.host == host),
        )
        for host, on in by_host.items()
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
