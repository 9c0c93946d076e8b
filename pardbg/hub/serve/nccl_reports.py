"""Reports of NCCL beside the job's output: the files of NCCL_DEBUG_FILE, the Inspector's dumps, and
RAS. Nothing is reported where the job has none of them."""

from __future__ import annotations

import glob
import os
import queue
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from pardbg.events.device_facts import Ras, RasRow
from pardbg.hub.ranks.processes import environ, maps
from pardbg.hub.serve.job_output import Line, Tail
from pardbg.nccl import inspector, ras
from pardbg.nccl.named_ranks import Named, ranks_of

DEBUG, INSPECTOR = "nccl", "inspector"
LOOK_NS: Final = 2_000_000_000
"""Interval, in ns, between searches for new files."""
TELL_NS: Final = 20_000_000_000
MAX_FILES: Final = 1024
MAX_KEPT: Final = 4096
"""Maximum number of durations kept of one kind of op."""
MAX_KINDS: Final = 64
AGAIN_NS: Final = 30_000_000_000
"""Time between two queries of RAS."""
TIMEOUT_S: Final = 3.0
_READ: Final = 1 << 16
Rank = tuple[int, str, int]
"""(rank, host, pid)"""


class NcclFiles:
    """New lines of NCCL's files, from the beginning of the run on."""

    def __init__(self, environ: Mapping[str, str], since_wall_ns: int, restarted: bool) -> None:
        self._patterns = dict(_patterns(environ))
        self._since_s, self._at_end = since_wall_ns / 1e9 - 1, restarted
        self._tails: dict[str, Tail] = {}
        self._looked_ns = 0
        self._ops = InspectedOps()

    def lines(self, now: int, *, final: bool = False) -> list[Line]:
        """Return the new debug lines; the Inspector's are summed up."""
        if self._patterns and (final or now - self._looked_ns >= LOOK_NS):
            self._looked_ns = now
            self._look()
        found = [line for tail in self._tails.values() for line in tail.read(now, final=final)]
        self._ops.add([line.text for line in found if line.stream == INSPECTOR])
        return [line for line in found if line.stream == DEBUG]

    def inspected(self, now: int) -> list[list[Any]] | None:
        """Return the table of inspected ops if it has changed, at intervals."""
        return self._ops.changed(now)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _look(self) -> None:
        for stream, pattern in self._patterns.items():
            for path in glob.iglob(pattern):
                if path not in self._tails and len(self._tails) < MAX_FILES:
                    self._follow(stream, path)
        self._at_end = False

    def _follow(self, stream: str, path: str) -> None:
        try:
            status = os.stat(path)
        except OSError:
            return
        if status.st_mtime >= self._since_s:  # else of a run before
            self._tails[path] = Tail(Path(path), stream, status.st_size if self._at_end else 0)


def _patterns(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if name := environ.get("NCCL_DEBUG_FILE"):
        yield DEBUG, glob.escape(name).replace("%h", "*").replace("%p", "*")
    if folder := environ.get("NCCL_INSPECTOR_DUMP_DIR"):
        yield INSPECTOR, os.path.join(glob.escape(folder), "*.log")


class InspectedOps:
    """Ops that the Inspector measured, by communicator, op, size and clock. There are gaps between
    them, so they are counted and never matched over ranks."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, int, bool], list[tuple[int, float]]] = defaultdict(list)
        self._seen: dict[tuple[str, str, int, bool], int] = defaultdict(int)
        self._told = self._num = self._told_ns = 0

    def add(self, lines: Sequence[str]) -> None:
        for op in inspector.read(lines):
            kind = op.comm, op.op, op.size_bytes, op.on_device
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                continue
            self._num += 1
            self._seen[kind] += 1
            if len(self._kinds[kind]) < MAX_KEPT:
                self._kinds[kind].append((op.duration_ns, op.busbw_gbps))

    def changed(self, now: int) -> list[list[Any]] | None:
        """Return [communicator, op, bytes, on the device, number, median ns, median busbw] rows;
        None: they are unchanged, or were reported just now."""
        if self._num == self._told or now - self._told_ns < TELL_NS:
            return None
        self._told, self._told_ns = self._num, now
        return [
            [*kind, self._seen[kind], round(median(ns for ns, _ in values)),
             median(busbw for _, busbw in values)]
            for kind, values in self._kinds.items()
        ]  # fmt: skip


class RasQuery:
    """Query of NCCL's RAS once per standstill, in a thread, if a rank of this host uses NCCL;
    ``took`` returns the answer. RAS reports on all hosts."""

    def __init__(self) -> None:
        self._found: queue.SimpleQueue[Ras] = queue.SimpleQueue()
        self._asked_ns = 0

    def ask(self, ranks: Sequence[Rank], here: Collection[int], now: int) -> None:
        """Query RAS, at intervals. ``ranks``: of the whole job; ``here``: pids on this host."""
        if here and (not self._asked_ns or now - self._asked_ns >= AGAIN_NS):
            self._asked_ns = now
            threading.Thread(target=self._ask, args=(ranks, sorted(here)), daemon=True).start()

    def took(self) -> list[Ras]:
        """Return the answers since the last call."""
        return [self._found.get() for _ in range(self._found.qsize())]

    def _ask(self, ranks: Sequence[Rank], here: Sequence[int]) -> None:
        status = status_of(here)
        if status is not None:
            self._found.put(fact_of(status, ranks))


def status_of(pids: Sequence[int]) -> ras.RasStatus | None:
    """Return RAS's report on processes of this host; None: none uses NCCL, RAS does not listen or
    has another version, or the listener belongs to another job."""
    pid = next((pid for pid in pids if maps(pid, "libnccl")), None)
    of = {} if pid is None else environ(pid)
    if pid is None or of.get("NCCL_RAS_ENABLE") == "0":
        return None
    try:
        status = ras.parse(answer(of.get("NCCL_RAS_ADDR", "")))
    except (OSError, ValueError):
        return None
    told = {one.pid for comm in status.comms for one in comm.members()}
    return None if told.isdisjoint(pids) else status


def answer(address: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return the report of RAS at ``host:port``. Raises OSError, ValueError."""
    host, _, port = (address or f"localhost:{ras.PORT}").rpartition(":")
    until, parts, size = time.monotonic() + 2 * timeout_s, [], 0
    with socket.create_connection((host or "localhost", int(port)), timeout_s) as one:
        one.sendall(ras.QUERY)
        while (data := one.recv(_READ)) and size < ras.MAX_BYTES and time.monotonic() < until:
            parts.append(data)
            size += len(data)
    return b"".join(parts).decode("utf-8", "replace")


def fact_of(status: ras.RasStatus, ranks: Iterable[Rank]) -> Ras:
    """Return the fact: ranks of the job if all of them are known, else the communicator's."""
    at: dict[tuple[str, int], Named] = {}
    for comm in status.comms:
        for one in comm.members():
            at[comm.comm_id, one.rank] = one.host, one.pid
    by_process = ranks_of(at.values(), ranks)
    rows = []
    for comm_id, what, members in ras.summary(status)[:MAX_KINDS]:
        known = [by_process.get(at[comm_id, member], -1) for member in members]
        own = min(known, default=-1) >= 0
        rows.append(RasRow(comm_id, what, tuple(sorted(known)) if own else members, own))
    return Ras(status.nccl_version, len(status.comms), tuple(rows))
