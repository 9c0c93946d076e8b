"""Rings, trees and transports of communicators, from ``NCCL_DEBUG=INFO`` lines.

``NCCL_DEBUG_SUBSYS=INIT,GRAPH`` prints them once for each communicator, between "Init START" and
"Init COMPLETE" of the same thread (nccl's src/init.cc, transport/*.cc). Ranks are the
communicator's. In old logs ``Ring 00 : 1[23000] -> 8[1e000] [send] via NET/…`` is a connection, as
``Channel`` is since 2.8, and no ring.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

MAX_RANKS: Final = 1 << 20
MAX_CHANNELS: Final = 256


@dataclass(frozen=True, slots=True)
class Topology:
    """Topology of one communicator. ``rings``: for each channel the ranks in the order of data;
    rings with an unreported rank are left out. ``num_trees``: channels with a tree. ``transports``:
    (source, destination) to ``P2P``, ``SHM``, ``NET/IB``, ``NET/Socket``."""

    comm_id: str
    """``0x…``, equal on all ranks; empty if NCCL did not print it (splits before 2.30)."""
    num_ranks: int
    rings: tuple[tuple[int, ...], ...]
    num_trees: int
    transports: dict[tuple[int, int], str]
    complete: bool
    """Whether all ranks printed all of their lines."""
    processes: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Rank to (host, pid)."""
    channels: int = 0
    """Number of channels for collectives, as printed; 0: not printed."""


_INFO: Final = re.compile(r"(?P<thread>\S+:\d+:\d+) \[-?\d+\] NCCL INFO (?P<text>.*)")
_INIT: Final = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<n>\d+) .*?"
    r"(?:commId (?P<id>0x[0-9a-f]+))?\s*-\s*Init (?P<state>START|COMPLETE)"
)
_RING: Final = re.compile(r"Ring (\d+) : (\d+) -> (\d+) -> (\d+)$")
_TREES: Final = re.compile(r"Trees((?: \[\d+\] -?\d+/-?\d+/-?\d+->\d+->-?\d+)+)")
_TREE: Final = re.compile(r"\[(\d+)\]")
_CONNECTION: Final = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\]"
    r"(?: \[(?:send|receive)\])? via (NET/\w+|\w+)"
)


_CHANNELS: Final = re.compile(r"(\d{1,4}) coll channels, ")


@dataclass(slots=True)
class _Comm:
    """Topology of a communicator as reported by one rank."""

    rank: int
    comm_id: str
    next_of: dict[int, int] = field(default_factory=dict)
    """Channel -> the next rank of the ring."""
    trees: set[int] = field(default_factory=set)
    """Channels with a tree."""
    transports: dict[tuple[int, int], str] = field(default_factory=dict)
    process: tuple[str, int] = ("", 0)
    channels: int = 0


class TopologyReader:
    """Reader of lines, in any order of ranks; lines of one thread must be in order."""

    def __init__(self) -> None:
        self._open: dict[str, _Comm] = {}
        """Thread -> the communicator that is being reported."""
        self._comms: dict[tuple[str, int], dict[int, _Comm]] = defaultdict(dict)
        """(communicator's id, size) -> rank -> its report."""

    def add(self, line: str) -> bool:
        """Take a line; return whether it is about topology."""
        info = _INFO.search(line)
        return info is not None and self._add(info["thread"], info["text"].rstrip())

    def _add(self, thread: str, text: str) -> bool:
        if found := _INIT.search(text):
            self._begin_or_end(thread, found)
            return True
        comm = self._open.get(thread)
        if comm is None:
            return False
        if found := _RING.match(text):
            channel, _, rank, after = map(int, found.groups())
            if rank == comm.rank and channel < MAX_CHANNELS:
                comm.next_of[channel] = after
        elif found := _TREES.match(text):
            comm.trees |= set(map(int, _TREE.findall(found[1])))
        elif found := _CONNECTION.match(text):
            comm.transports[int(found[1]), int(found[2])] = found[3]
        elif found := _CHANNELS.match(text):
            comm.channels = int(found[1])
        else:
            return False
        return True

    def _begin_or_end(self, thread: str, found: re.Match[str]) -> None:
        rank, size = int(found["rank"]), int(found["n"])
        if found["state"] == "START" and rank < size <= MAX_RANKS:
            host, pid, _ = thread.rsplit(":", 2)
            comm = _Comm(rank, found["id"] or "", process=(host, int(pid)))
            self._open[thread] = comm
            self._comms[comm.comm_id, size][rank] = comm
        else:
            self._open.pop(thread, None)

    def topologies(self) -> list[Topology]:
        """Return the topologies of communicators with reported rings or trees."""
        made = [_joined(comm_id, size, ranks) for (comm_id, size), ranks in self._comms.items()]
        return [one for one in made if one.rings or one.num_trees or one.transports]


def _joined(comm_id: str, size: int, ranks: dict[int, _Comm]) -> Topology:
    channels = sorted({channel for comm in ranks.values() for channel in comm.next_of})
    rings = [_ring(size, {r: c.next_of[n] for r, c in ranks.items() if n in c.next_of})
             for n in channels]  # fmt: skip
    trees = {channel for comm in ranks.values() for channel in comm.trees}
    transports: dict[tuple[int, int], str] = {}
    for comm in ranks.values():
        transports |= comm.transports
    whole = [ring for ring in rings if ring is not None]
    complete = len(ranks) == size and len(whole) == len(rings) > 0
    return Topology(
        comm_id, size, tuple(whole), len(trees), transports, complete,
        {rank: comm.process for rank, comm in sorted(ranks.items())},
        max(comm.channels for comm in ranks.values()),
    )  # fmt: skip


def _ring(size: int, next_of: dict[int, int]) -> tuple[int, ...] | None:
    """Return all ranks in the ring's order, from 0; None if the ring does not close over all."""
    order, rank = [0], next_of.get(0)
    while rank is not None and rank != 0 and len(order) <= size:
        order.append(rank)
        rank = next_of.get(rank)
    return tuple(order) if rank == 0 and len(order) == size else None
