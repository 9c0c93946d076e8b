"""Messages that the hub keeps: definitions per process, the newest state, and recent history."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from pardbg.errors import NONSENSE
from pardbg.events.decode import Malformed, decode_map
from pardbg.events.fields import MAX_GROUPS, integer, of_nobody, within
from pardbg.session.reader import StoredChunk
from pardbg_agent.wire import NOTE_LEAVING, DefKind, Key

RECENT_BYTES: Final = 64 << 20
DEFINITION_BYTES: Final = 64 << 20
"""Limit in bytes: definitions beyond it are recorded and forwarded, but late viewers do not get
them. Those of ended processes are dropped first."""
OVERHEAD: Final = 120
"""Overhead of a kept message, in bytes."""

Wire = tuple[bytes, bytes]
"""Message as sent: [key, payload]."""


@dataclass(slots=True)
class ProcessFacts:
    """Facts from a process's definitions that the hub itself needs."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the process's PROCESS definition."""
    names: dict[int, str] = field(default_factory=dict)
    """Interned strings and ops, by id."""
    groups: dict[int, str] = field(default_factory=dict)
    """Group id -> name of the group."""
    stages: set[int] = field(default_factory=set)
    leaving: bool = False
    """Whether the process's main thread has ended."""
    launches: bool = False
    """Whether the process is a launcher, not a rank: no definitions of its own, started a rank."""

    left: bool = False
    """Whether other ranks met again without it: one of them has its number."""

    @property
    def is_bare(self) -> bool:
        """Return whether the process has no definitions of a rank."""
        return not self.groups and all(map(of_nobody, self.names.values()))

    @property
    def rank(self) -> int:
        if self.launches or self.left:
            return -1
        rank = self.fields.get("rank", -1)
        return rank if isinstance(rank, int) else -1


@dataclass(slots=True)
class Definitions:
    """All definitions, each once, in the order of their first arrival."""

    processes: dict[str, ProcessFacts] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Group key -> global ranks."""
    axes: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    """Mesh axis -> group key -> global ranks."""
    timeouts: dict[str, int] = field(default_factory=dict)
    """Group key -> timeout of its ops, in ns."""
    pipelines: dict[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: int = 0
    """Number of definitions that late viewers do not get."""
    malformed: int = 0
    _kept: dict[tuple[bytes, Any, Any], Wire] = field(default_factory=dict)
    _bytes: int = 0
    _met_again: bool = False
    _ended: dict[str, None] = field(default_factory=dict)
    """Ended processes, in the order of their ends."""

    def add(self, key: bytes, payload: bytes) -> dict[str, Any] | None:
        """Keep one definition; return its decoded map, or None if it is malformed."""
        try:
            fields = decode_map(payload)
            kind = str(fields.get("k"))
            if self._keep(key, kind, fields, payload) or kind not in _NAMES:
                self._learn(key[1:].decode("ascii"), kind, fields)
        except NONSENSE:
            self.malformed += 1
            return None
        return fields

    def messages(self) -> list[Wire]:
        """Return the definitions for a late viewer."""
        return list(self._kept.values())

    def missing(self, proc: str, payloads: Iterable[bytes]) -> list[bytes]:
        """Return the definitions of a process that did not arrive, in order. Not those that a newer
        one replaced: sent again they would undo that one."""
        newest: dict[tuple[str, Any], bytes] = {}
        for payload in payloads:
            with contextlib.suppress(Malformed, ValueError, TypeError, KeyError):
                fields = decode_map(payload)
                kind = str(fields.get("k"))
                if kind == DefKind.VALUES:
                    continue  # not kept
                newest[kind, _which(kind, fields, payload)] = payload
        own = proc.encode("ascii")
        have = {payload for key, payload in self._kept.values() if key[1:] == own}
        return [payload for payload in newest.values() if payload not in have]

    def process(self, proc: str) -> ProcessFacts:
        """Return the facts of a process, made on first use."""
        return self.processes.setdefault(proc, ProcessFacts())

    def innermost(self, procs: Iterable[str], living: Mapping[str, int]) -> list[str]:
        """Return the processes without a living child of the same rank (``living``: process ->
        rank): a rank that forked another life of itself, which it waits for."""
        known = ((proc, rank) for proc, rank in living.items() if proc in self.processes)
        above = {(one, r) for proc, r in known for one in within(self.processes[proc].fields)}
        return [proc for proc in procs if (proc, living.get(proc, -1)) not in above]

    def ended(self, proc: str) -> None:
        """Keep of an ended process only what late viewers get, as long as there is room."""
        known = self.processes.get(proc)
        if known is not None:
            known.names, known.groups, known.stages = {}, {}, set()
        self._ended[proc] = None

    def forget(self, procs: Collection[str]) -> None:
        """Forget everything about ended processes."""
        gone = set(procs)
        self._kept = {
            kept: wire for kept, wire in self._kept.items()
            if kept[0][1:].decode("ascii") not in gone and kept[2] not in gone
        }  # fmt: skip
        self._bytes = sum(len(payload) + OVERHEAD for _, payload in self._kept.values())
        for proc in gone:
            self.processes.pop(proc, None)
            self._ended.pop(proc, None)

    def _keep(self, key: bytes, kind: str, fields: dict[str, Any], payload: bytes) -> bool:
        if kind == DefKind.VALUES:  # large, and of a recording's use
            return False
        which = _which(kind, fields, payload)
        old = self._kept.get((key, kind, which))
        size = len(payload) - (len(old[1]) if old else -OVERHEAD)
        while self._bytes + size > DEFINITION_BYTES:
            if not self._ended:
                self.left_out += 1
                return False
            self.forget(older_half(self._ended))
            size = len(payload) + OVERHEAD  # at most: the replaced definition may be gone, too
        self._bytes += size
        self._kept[(key, kind, which)] = (key, payload)
        return True

    def _learn(self, proc: str, kind: str, fields: dict[str, Any]) -> None:
        if not proc:
            return
        known = self.process(proc)
        if kind == DefKind.NAME:
            known.names[int(fields["id"])] = str(fields["s"])
            known.launches &= of_nobody(str(fields["s"]))
        elif kind == DefKind.OP:
            known.names[int(fields["id"])] = str(fields["op"])
            known.launches = False
        elif kind == DefKind.PROCESS:
            known.fields, met = fields, "since" in fields
            self._met_again |= met
            others = list(self.processes.values()) if self._met_again else []
            known.left = any(_took(other.fields, fields) for other in others)
            for other in others if met else ():
                other.left |= _took(fields, other.fields)
            for above in within(fields):
                other = self.process(above)
                other.launches |= other.is_bare and above not in self._ended
        elif kind == DefKind.STAGE:
            known.stages.add(int(fields["stage"]))
        elif kind == DefKind.GROUP:
            self._learn_group(known, fields)
        elif kind == DefKind.NOTE and fields.get("key") == NOTE_LEAVING:
            known.leaving = True
        elif kind == DefKind.PLAN:
            self.pipelines[str(fields["group"])] = tuple(int(r) for r in fields["ranks"])

    def _learn_group(self, known: ProcessFacts, fields: dict[str, Any]) -> None:
        key, ranks = str(fields["key"]), tuple(int(r) for r in fields["ranks"])
        known.launches = False
        known.groups[int(fields["id"])] = str(fields.get("name") or key)
        if len(known.groups) > MAX_GROUPS:
            del known.groups[next(iter(known.groups))]
        while len(self.groups) >= MAX_GROUPS and key not in self.groups:
            self._forget_group(next(iter(self.groups)))
        if "place" not in fields:  # else its members are the ranks that use it
            self.groups[key] = ranks
        if isinstance(fields.get("timeout_ns"), int):
            self.timeouts[key] = fields["timeout_ns"]
        axis = fields.get("axis")
        if axis:
            self.axes.setdefault(str(axis), {})[key] = ranks

    def _forget_group(self, key: str) -> None:
        for table in (self.groups, self.timeouts, self.pipelines, *self.axes.values()):
            table.pop(key, None)  # type: ignore[attr-defined]


def _took(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether a process that met others again has since had another one's number."""
    if now.get("rank") != before.get("rank") or now.get("job") != before.get("job"):
        return False
    return integer(before, "epoch", 0) < integer(now, "epoch", 0)


def older_half(ended: Collection[str]) -> list[str]:
    """Return the first half of processes, which are in the order of their ends."""
    return list(ended)[: (len(ended) + 1) // 2]


_NAMES: Final = (DefKind.NAME, DefKind.OP)
_ONE_EACH: Final = (DefKind.PROCESS, DefKind.CLOCK, DefKind.RUN, DefKind.END)
"""Kinds of definitions of which each process, and the run, has one."""


def _which(kind: str, fields: dict[str, Any], payload: bytes) -> Any:
    """Return the key that a definition shares with the one it replaces."""
    if kind in _NAMES or kind == DefKind.GROUP:
        return fields.get("id")
    return fields.get("proc") if kind in _ONE_EACH else payload


@dataclass(slots=True)
class Recent:
    """Latest messages (records, output, control) within a number of bytes, and the last state.

    Kept as the recording's chunks, at a tenth of their size: they are unpacked for late viewers.
    Only messages in no chunk yet are kept as they came."""

    limit_bytes: int = RECENT_BYTES
    """Limit on the messages' size, unpacked."""
    num_bytes: int = 0
    _chunks: deque[tuple[StoredChunk, int]] = field(default_factory=deque)
    """(chunk, bytes of its messages of these kinds), oldest first."""
    _open: deque[Wire] = field(default_factory=deque)
    _open_bytes: int = 0
    _state: Wire | None = None

    def add(self, key: bytes, payload: bytes) -> None:
        """Keep a message, before it is recorded and published."""
        if key[:1] == Key.STATE.value:
            self._state = (key, payload)
            return
        self._open.append((key, payload))
        self._open_bytes += len(payload) + OVERHEAD
        self.num_bytes += len(payload) + OVERHEAD
        while self.num_bytes > self.limit_bytes:
            if self._chunks:
                _, size = self._chunks.popleft()
            else:
                size = len(self._open.popleft()[1]) + OVERHEAD
                self._open_bytes -= size
            self.num_bytes -= size

    def closed(self, chunk: StoredChunk) -> None:
        """Note a closed chunk of the recording: it has the messages since the one before."""
        if self._open:
            self._chunks.append((chunk, self._open_bytes))
            self._open, self._open_bytes = deque(), 0

    def messages(self) -> Iterator[Wire]:
        """Return the kept messages, oldest first, the state last; each unpacked in its turn."""
        rest = [*self._open, *([self._state] if self._state else [])]
        return chain(_unpacked([chunk for chunk, _ in self._chunks]), rest)


def _unpacked(chunks: Iterable[StoredChunk]) -> Iterator[Wire]:
    for chunk in chunks:
        for message in chunk.messages():
            if message.key[:1] not in (Key.DEFINITION.value, Key.STATE.value):
                yield message.key, message.payload
