"""Ranks of the processes that NCCL names by host and process id."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

Named = tuple[str, int]
"""(host, pid)"""


def ranks_of(told: Iterable[Named], processes: Iterable[tuple[int, str, int]]) -> dict[Named, int]:
    """Return the ranks of the processes that NCCL names, as far as they are known: on two hosts,
    and in two containers, there may be equal pids. ``processes``: (rank, host, pid)."""
    pids: defaultdict[str, set[int]] = defaultdict(set)
    for host, pid in told:
        pids[host].add(pid)
    ranks, same = dict[Named, int](), Counter[Named]()
    for rank, host, pid in processes:
        ranks[host, pid] = rank
        same[host, pid] += 1
    at = {host: _host(host, numbers, ranks) for host, numbers in pids.items()}
    meant = Counter(at.values())
    return {
        (host, pid): ranks[of, pid]
        for host, of in at.items() if of is not None and meant[of] == 1
        for pid in pids[host] if same[of, pid] == 1
    }  # fmt: skip


def _host(host: str, pids: set[int], ranks: Mapping[Named, int]) -> str | None:
    """Return the host's name as ranks use it: its short name. An address (RAS's), or another name
    (PARDBG_HOST) if there is one host, is the host on which all of these pids are ranks."""
    own, short = {at for at, _ in ranks}, host.split(".")[0]
    if short in own:
        return short
    address = ":" in host or host.replace(".", "").isdecimal()
    fits = [at for at in own if all((at, pid) in ranks for pid in pids)]
    return fits[0] if len(fits) == 1 and (address or len(own) == 1) else None
