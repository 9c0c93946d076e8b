"""NCCL's own report on its communicators: rings, channels, transports, algorithms, measured ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.nccl.debug_lines import Choice
from pardbg.nccl.named_ranks import ranks_of
from pardbg.nccl.topology import Topology

MAX_INSPECTED: Final = 64


@dataclass(frozen=True, slots=True)
class Communicator:
    """An NCCL communicator, with the job's ranks if all its processes are known, else its own."""

    comm_id: str
    ranks: tuple[int, ...]
    global_ranks: bool
    rings: tuple[tuple[int, ...], ...]
    """Ranks of each channel's ring, in the order in which data goes round."""
    num_trees: int
    channels: int
    """Number of channels for collectives; 0: not printed."""
    transports: tuple[tuple[str, int], ...]
    """(``P2P``, ``SHM``, ``NET/IB`` …, number of connections), most frequent first."""
    complete: bool
    """Whether all ranks printed all of their lines."""


@dataclass(frozen=True, slots=True)
class InspectedOp:
    """Ops of one kind as measured by NCCL's Inspector, which misses some."""

    communicator: str
    op: str
    bytes: int
    on_device: bool
    num_ops: int
    duration_ns: int
    busbw_gbps: float


@dataclass(frozen=True, slots=True)
class NcclView:
    """All reports of NCCL; empty if it printed nothing."""

    version: str
    communicators: tuple[Communicator, ...]
    choices: tuple[tuple[Choice, int], ...]
    """(choice, number of ops), largest number of bytes first."""
    inspected: tuple[InspectedOp, ...]

    def __bool__(self) -> bool:
        return bool(self.communicators or self.choices or self.inspected)


@per_view
def nccl_view(view: View) -> NcclView:
    """Return NCCL's reports; its lines are about communicators made at the start."""
    reader = view.store.nccl
    choices = sorted(reader.choices.items(), key=lambda item: -item[0].bytes * item[1])
    return NcclView(
        reader.version,
        tuple(_communicator(view, one) for one in _topologies(view)),
        tuple(choices),
        tuple(_inspected(view.store.notes.get("nccl_inspector"))),
    )


def ring_order(view: View, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the ranks of a group in the order of its first ring; None: not known."""
    members = frozenset(ranks)
    return _rings(view).get(members)


@per_view
def _rings(view: View) -> Mapping[frozenset[int], tuple[int, ...]]:
    return {
        frozenset(one.ranks): one.rings[0]
        for one in nccl_view(view).communicators if one.rings and one.global_ranks
    }  # fmt: skip


def _topologies(view: View) -> list[Topology]:
    """Return the topologies; they are rebuilt only after new lines."""
    reader, memo = view.store.nccl, view.store.memo
    revision, found = memo.get("nccl", (-1, []))
    if revision != reader.revision:
        found = reader.topologies()
        memo["nccl"] = reader.revision, found
    return list(found)


@per_view
def processes(view: View) -> tuple[tuple[int, str, int], ...]:
    """Return (rank, host, pid) of each rank."""
    return tuple((rank, process.host, process.pid) for rank, process in view.ranks.items())


def _communicator(view: View, told: Topology) -> Communicator:
    ranks = ranks_of(told.processes.values(), processes(view))
    known = {rank: ranks[at] for rank, at in told.processes.items() if at in ranks}
    whole = len(known) == told.num_ranks
    name = known if whole else {rank: rank for rank in range(told.num_ranks)}
    kinds = Counter(told.transports.values())
    return Communicator(
        told.comm_id, tuple(sorted(name.values())), whole,
        tuple(tuple(name[rank] for rank in ring) for ring in told.rings), told.num_trees,
        told.channels, tuple(kinds.most_common(4)), told.complete,
    )  # fmt: skip


def _inspected(rows: Any) -> Iterator[InspectedOp]:
    for row in rows[:MAX_INSPECTED] if isinstance(rows, list) else ():
        match row:
            case [str(comm), str(op), int(size), bool(device), int(num), int(ns), float(gbps)]:
                yield InspectedOp(comm, op, size, device, num, ns, gbps)
