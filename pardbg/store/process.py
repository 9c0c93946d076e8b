"""A process of the run: its records in columns, its own ids, its losses and its clock."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events import fields
from pardbg.events.decode import Head
from pardbg.store import definitions as defs
from pardbg.store import intake
from pardbg.store.captured import Kept, TensorDef, TensorKey
from pardbg.store.clocks import Clocks, Reading
from pardbg.store.device_times import DeviceTimes
from pardbg.store.table import STEP_ROWS, Shelf, Table
from pardbg.store.totals import Totals
from pardbg.words import whole
from pardbg_agent import wire
from pardbg_agent.wire import RECORD_BYTES

SUMMED: Final = "op_sum"
PART: Final = "part"
FLUSH_BYTES: Final = 1 << 20
_MAX_GAPS: Final = 4096
_MAX_FACTS: Final = 64
_MAX_TEXT: Final = 4096
_MAX_UNRECORDED: Final = 64
_LOOKS_NS: Final = 2 * wire.BEAT_NS
"""An op that the device came to is recorded at the agent's second look."""


class Process:
    """Records and definitions received from one process (``epoch.host.pid``)."""

    missed_before = 0
    """Number of records before the first received one: a viewer that joined late."""
    _action_ns: int | None = None
    """End of the process's newest action."""
    before: Process | None = None
    """The same process under the number that it had up to its record ``since`` (`again`)."""
    since = 0
    launches = False
    """Whether the process is a launcher, whatever its environment: it started a rank."""
    by_port = False
    """Whether the process's job is identified by its ranks' port (pardbg.store.lives)."""

    _ids: dict[str, list[int]] | None = None

    def __init__(self, proc: str, limit: int | None, keep_ns: int | None = None) -> None:
        self.proc = proc
        self.epoch, self.host, self.pid = _parse(proc)
        self.in_life = False
        """Whether ``epoch`` is the number of the process's life in the run (pardbg.store.lives)."""
        self.rank: int | None = None
        self.world_size: int | None = None
        self.facts: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self._by_heads: dict[tuple[str, ...], dict[int, str]] = {}
        self.ops: dict[int, defs.OpDef] = {}
        self.groups: dict[int, defs.GroupDef] = {}
        self.model: defs.ModelDef | None = None
        self.stages: dict[int, int] = {}
        """stage -> bytes of the stage's parameters."""
        self.unrecorded: tuple[tuple[int, int], ...] = ()
        """(from, to) ns by the process's own clock without recorded ops; to = 0 where it lasts."""
        self.clocks = Clocks()
        self.started_ns: int | None = None
        """Start by the hub's clock: the PROCESS definition's, else the first record's."""
        self.newest_ns: int | None = None
        self.ends: list[tuple[int, str]] = []
        """(t_ns, reason) of the process's ends, as the hub reported them."""
        self.threads: list[str] = []
        """Names of threads other than the main one that issue ops."""
        self.leaving_ns: int | None = None
        """Time at which the main thread ended; later activity is the interpreter's exit."""
        self.exit_code: int | None = None
        """Exit code as subprocess gives it (-9: SIGKILL), if the hub saw the exit."""
        self.errors: list[tuple[int, str, str]] = []
        """(t_ns, hook, text): hooks that failed and were disabled."""
        self.failures: list[defs.Failure] = []
        """Exceptions that no code caught."""
        self.failed_requests, self.crashes = list[defs.FailedRequest](), list[defs.Crash]()
        self.tensors: dict[TensorDef, None] = {}
        self.kept: dict[TensorKey, Kept] = {}
        """Elements of some of the captured tensors."""
        self.definition_bytes = 0
        """Bytes of memory that the process's definitions take."""
        self.unknown = self.malformed = 0
        self.num_records = 0
        self.first_ns: int | None = None
        """Begin of the process's first record."""
        self._groups_used: set[int] = set()
        """Ids of groups on which the process issued ops."""
        self.memory_evicted: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(name, stage) -> (t1, a, b) of the newest MEMORY row that was evicted."""
        self._next: int | None = None
        self._gaps: list[tuple[int, int]] = []
        self._pending: list[bytes] = []
        self._pending_bytes = self._pending_received = 0
        self.device_times = DeviceTimes()
        self._pending_offsets: list[tuple[int, int]] = []
        """(number of pending records before a new offset, the offset that holds for them)"""
        self._limit, self._keep_ns = limit, keep_ns
        self.shelves: defaultdict[str, Shelf] = defaultdict(Shelf)
        self._tables: dict[str, Table] = {}
        """Tables that have had rows: with ten thousand processes most have few."""
        self.put_by = intake.PutBy()
        self._totals: dict[str, Totals] = {}

    def learn(self, values: Mapping[str, Any]) -> Iterator[int]:
        """Take the facts of a PROCESS definition; yield each fact's size before keeping it. A
        process whose environment names another rank than its first group is in no life (yet)."""
        start = fields.integer_or_none(values, "start_ns")
        if start is not None and self.facts.get("start_ns", start) != start:
            self.new_ring()
        for key, value in values.items():
            short = isinstance(value, str) and len(value) < _MAX_TEXT
            room = key in self.facts or len(self.facts) < _MAX_FACTS
            if room and (short or isinstance(value, (int, float))):
                if self.facts.get(key) != value:
                    yield fields.weight(key) + fields.weight(value)
                self.facts[str(key)] = value
        if isinstance(gaps := values.get("unrecorded"), list):
            self.unrecorded = tuple(defs.pairs(gaps, _MAX_UNRECORDED))
        argv = values.get("argv")
        if isinstance(argv, list) and argv and isinstance(argv[0], str):
            self.facts["program"] = argv[0].rpartition("/")[2][:_MAX_TEXT]
        rank = fields.integer(self.facts, "rank", -1)
        if self.launches:
            self.rank, self.in_life = None, False
        elif 0 <= rank < 1 << 20:
            self.in_life = self.in_life and (self.rank == rank or not self.is_bare)
            self.rank = rank
        self.world_size = min(fields.integer(self.facts, "world_size", 0), 1 << 20) or None
        self.host = fields.text(self.facts, "host", self.host)
        self.pid = fields.integer(self.facts, "pid", self.pid)
        if start is not None and self.started_ns is None:
            self.started_ns = start + self.offset_ns
        if self._next is None:  # a viewer that joins late: what was before is of another number
            self.since = fields.integer(values, "since", 0)

    # ------------------------------------------------------------------ reading

    @property
    def is_bare(self) -> bool:
        """Return whether the process has defined nothing that a rank defines."""
        return not (self.groups or self.ops) and all(map(fields.of_nobody, self.names.values()))

    def table(self, name: str) -> Table:
        """Return the columns of one kind; call ``settle`` before reading."""
        if self.put_by.has(name):
            intake.to_columns((self,))
        return self._tables.get(name, _NOTHING[name])

    def has_had(self, name: str) -> bool:
        """Return whether records of one kind have ever come."""
        return self.put_by.has_had(name)

    def totals(self, name: str) -> Totals:
        """Return the sums of a kind of op."""
        self.table(name)
        return self._totals.get(name, _NO_TOTALS[name])

    def keep(self, rows: int) -> None:
        """Limit each kind's table to so many rows from now on."""
        self._limit = rows
        for name, table in self._tables.items():
            table.limit = self._kept(name)

    def _kept(self, name: str) -> int | None:
        return self._limit and max(self._limit, STEP_ROWS.get(name, 0))

    @property
    def last_ns(self) -> int | None:
        """Return the newest known time of the process: of a record, or of a later failure."""
        if not (self.failures or self.failed_requests):
            return self.newest_ns or None
        failures = (one.t_ns for one in self.failures[-1:])
        requests = (one.t_ns for one in self.failed_requests[-1:])
        return max((*failures, *requests, self.newest_ns or 0)) or None

    def name(self, name_id: int) -> str:
        """Return a record's name: of a phase, a unit or an op; empty: it has none, as a step."""
        found = self.names.get(name_id)
        if found is None:
            op = self.ops.get(name_id)
            return op.op if op is not None else f"#{name_id}" if name_id else ""
        return found

    @property
    def next_index(self) -> int:
        """Return the index of the next expected record."""
        return self._next or 0

    def ids(self, name: str) -> list[int]:
        """Return the ids of a name; mostly a single id."""
        if self._ids is None:
            self._ids = {}
            for name_id, known in self.names.items():
                self._ids.setdefault(known, []).append(name_id)
        return self._ids.get(name, [])

    def names_with(self, *heads: str) -> Mapping[int, str]:
        """Return id -> name of the names that begin with one of ``heads``."""
        found = self._by_heads.get(heads)
        if found is None:
            found = {i: name for i, name in self.names.items() if name.startswith(heads)}
            self._by_heads[heads] = found
        return found

    def define_name(self, name_id: int, name: str) -> None:
        self.names[name_id], self._ids = name, None
        self._by_heads.clear()

    def lost(self, t_ns: int | None) -> int:
        """Return the number of records known lost up to ``t_ns``."""
        if not self._gaps:
            return 0
        if t_ns is None:
            return self._gaps[-1][1]
        at = bisect_right(self._gaps, (t_ns, 1 << 62))
        return self._gaps[at - 1][1] if at else 0

    def horizon_ns(self, state: Mapping[str, Any] | None) -> int | None:
        """Return the time up to which its records are complete here (hub's clock); None: not known.

        Either all records that its ring held when the hub looked have come (``state`` names what
        ran then), or they are complete up to its newest record: for a rank that runs actions up to
        its newest action, since the next one may be under way. Work on its device is known up to
        its agent's last look but one, at the heartbeat before: a device that stalls is followed.
        """
        horizon = self._action_ns or self.newest_ns or self.started_ns
        head = fields.integer_or_none(state or {}, "head")
        seen = fields.integer_or_none(state or {}, "seen_ns")
        reached = self.device_times.horizon_ns()
        if head is not None and seen is not None and head <= self.next_index:
            horizon = max(horizon or 0, seen + self.offset_ns)
            beat = fields.integer(state or {}, "heartbeat_ns", 0)
            reached = None if reached is None else max(reached, beat - _LOOKS_NS)
        if horizon is None or reached is None:
            return horizon
        return min(horizon, reached + self.offset_ns)

    def unrecorded_since(self, t_ns: int, now_ns: int) -> bool:
        """Return whether ops of that time span may be missing: lower level, or a failed hook."""
        shift = self.offset_ns
        return any(
            begin + shift <= now_ns and (not end or end + shift >= t_ns)
            for begin, end in self.unrecorded
        )

    @property
    def offset_ns(self) -> int:
        """Return the newest offset: the process's clock plus the offset is the hub's clock."""
        return self.clocks.newest.offset_ns

    @property
    def clock_error_ns(self) -> int | None:
        """Error bound of the offset, ns; None: not known."""
        return self.clocks.newest.error_ns

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return (time at which a gap was noticed, records lost so far) of each gap."""
        return tuple(self._gaps)

    def group_ids(self, key: tuple[int, str]) -> list[int]:
        """Return the ids of the group of this (epoch, key); mostly a single id."""
        return [i for i, one in self.groups.items() if (one.epoch, one.key) == key]

    def on_group(self, numbers: NDArray[Any], key: tuple[int, str]) -> NDArray[np.bool_]:
        """Return which of these group ids are those of the group of this (epoch, key)."""
        ids = self.group_ids(key)
        return numbers == ids[0] if len(ids) == 1 else np.isin(numbers, ids)

    @property
    def undefined_groups(self) -> frozenset[int]:
        """Ids of groups on which the process issued ops and whose definition never came: the ops
        that such a process did not issue cannot be known."""
        return frozenset(self._groups_used - self.groups.keys() - {wire.NO_GROUP})

    # ------------------------------------------------------------------ writing

    def again(self, since: int, t_ns: int) -> Process:
        """Return the process from its record ``since`` on, as another rank number from ``t_ns`` on.
        This process ends there and gets another name."""
        new = Process(self.proc, self._limit, self._keep_ns)
        new.names, new.ops, new.facts = self.names, self.ops, dict(self.facts)
        new.groups = {i: g for i, g in self.groups.items() if g.backend == wire.CALLS}
        new.model, new.stages, new.clocks = self.model, dict(self.stages), self.clocks
        new.started_ns = t_ns
        new.before, new.since, new._next = self, since, since
        self.before = None  # its records have come
        self.proc += f"~{fields.integer(self.facts, 'epoch', 0)}"
        self.ends.append((t_ns, "exit"))
        return new

    def accept(self, head: Head, payload: bytes, received_ns: int) -> bool:
        """Take a batch of records; return False if all of it had come before."""
        if self.before is not None and head.first < self.since:
            count = min(head.count, self.since - head.first)
            part = payload[: wire.FRAME.size + count * RECORD_BYTES]
            self.before.accept(replace(head, count=count), part, received_ns)
        if self._next is None:
            self._next = self.missed_before = max(head.first, self.since)
        if head.first > self._next:
            self._note_lost(received_ns, head.first - self._next)
        skip = max(0, self._next - head.first)
        if head.dropped > self.lost(None):
            self._note_lost(received_ns, head.dropped - self.lost(None))
        if skip >= head.count:
            return False
        self._next = head.first + head.count
        body = payload[wire.FRAME.size + skip * RECORD_BYTES :]
        self._pending.append(body)
        self._pending_bytes += len(body)
        self._pending_received = max(self._pending_received, received_ns)
        if self._pending_bytes >= FLUSH_BYTES:
            self.settle()
        return True

    def settle(self) -> None:
        """Check and keep all records received so far."""
        intake.take((self,))

    def came(self) -> intake.Came | None:
        """Return the data received since the last call."""
        if not self._pending and self.ends:
            ops = self.device_times.give_up()  # launched, and not reached
            if ops is not None:
                self._pending.append(ops.tobytes())
                self._pending_bytes += len(ops) * RECORD_BYTES
        if not self._pending:
            return None
        last = self._pending_bytes // RECORD_BYTES, self.offset_ns
        offsets = (*self._pending_offsets, last)
        found = intake.Came(self._pending, self._pending_received, offsets)
        self._pending, self._pending_bytes, self._pending_received = [], 0, 0
        self._pending_offsets = []
        return found

    def saw(self, came: intake.Came, seen: intake.Seen) -> None:
        """Note the summary of received data."""
        self.malformed += seen.malformed
        self.unknown += seen.unknown
        self.num_records += seen.number
        self._groups_used |= seen.groups
        if not seen.number:
            return
        newest, first = seen.newest_ns, seen.first_ns
        if came.received_ns:  # a clock gone wild must not drag the run's end into the future
            newest = min(newest, came.received_ns + 10_000_000_000)
        self.newest_ns = max(self.newest_ns or 0, newest)
        self._action_ns = max(self._action_ns or 0, seen.action_ns) or None
        if self.first_ns is None or first < self.first_ns:
            self.first_ns = first
        if self.started_ns is None or first < self.started_ns:
            self.started_ns = first

    def set_clock(self, reading: Reading) -> bool:
        """Set the offset for records from now on. The first one also shifts the earlier records:
        then return True, times have moved."""
        if not self.clocks:
            self.settle()
        elif self._pending:  # of many ranks one is told some offset all the time
            self._pending_offsets.append((self._pending_bytes // RECORD_BYTES, self.offset_ns))
        moved = not self.clocks and reading.offset_ns != 0 and self.started_ns is not None
        self.clocks.tell(reading)
        if moved:
            self._shift(reading.offset_ns)
        return moved

    def _shift(self, by_ns: int) -> None:
        """Shift the times of records from before the offset was known to the hub's clock."""
        for name in intake.TABLE_NAMES:
            self.table(name).shift(by_ns)
        for name in ("first_ns", "started_ns", "newest_ns", "_action_ns", "leaving_ns"):
            t_ns = getattr(self, name)
            setattr(self, name, None if t_ns is None else t_ns + by_ns)
        self.failures = [replace(f, t_ns=f.t_ns + by_ns) for f in self.failures]
        self.failed_requests = [replace(f, t_ns=f.t_ns + by_ns) for f in self.failed_requests]
        self.errors = [(t_ns + by_ns, *rest) for t_ns, *rest in self.errors]  # type: ignore[misc]

    def new_ring(self) -> None:
        """Count record indices from 0 again: the process attached again."""
        self.settle()
        self._next, self.before, self.since = None, None, 0

    # ------------------------------------------------------------------ inside

    def _note_lost(self, t_ns: int, count: int) -> None:
        before = self.lost(None)
        t_ns = max(t_ns, self._gaps[-1][0] if self._gaps else 0)
        if len(self._gaps) >= _MAX_GAPS:
            self._gaps.pop()
        self._gaps.append((t_ns, before + count))

    def table_for(self, name: str) -> Table:
        """Return the table that is to take rows; `added` must follow."""
        table = self._tables.get(name)
        if table is None:
            shelf = self.shelves[name]
            table = self._tables[name] = _table(name, self._kept(name), self._keep_ns, shelf)
            if name in _COUNTED:
                self._totals[name] = _sums(name, table)
        return table

    def added(self, name: str) -> None:
        """Update a table's sums for its new rows; the oldest rows may be evicted."""
        table, totals = self._tables[name], self._totals.get(name)
        if totals is not None:
            totals.keep_up()
        excess = 0 if self.put_by.looked_at else table.excess()
        if not excess:
            return
        if totals is not None:
            totals.before_evicting(excess)
        if name == "memory":
            self._remember_memory(table, excess)
        table.evict(excess)

    def _remember_memory(self, table: Table, count: int) -> None:
        keys = table.tuples(slice(count), "name_id", "stage")
        values = table.tuples(slice(count), "t1_ns", "a", "b")
        self.memory_evicted.update(zip(keys, values, strict=True))


def _table(
    name: str, limit: int | None = None, keep_ns: int | None = None, shelf: Shelf | None = None
) -> Table:
    return Table("t0_ns" if name.startswith("issue") else "t1_ns", limit, keep_ns, shelf)


def _sums(name: str, table: Table) -> Totals:
    return Totals(table, sums=name == SUMMED, sent=name == PART)


_NOTHING: Final = {name: _table(name) for name in intake.TABLE_NAMES}
"""Empty tables, for kinds of which a process has no record."""
_COUNTED: Final = (intake.ISSUE_COLLECTIVE, intake.ISSUE_P2P, intake.DONE_P2P, PART, SUMMED)
_NO_TOTALS: Final = {name: _sums(name, _NOTHING[name]) for name in _COUNTED}


def _parse(proc: str) -> tuple[int, str, int]:
    """Parse ``epoch.host.pid``; a host may contain dots."""
    epoch, _, rest = proc.partition(".")
    host, _, pid = rest.rpartition(".")
    return whole(epoch, 10**9 - 1) or 0, host or rest, whole(pid, 10**11 - 1) or 0
