"""Rings of this host's processes: each rank's status, and records that dead ranks had not sent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np

from pardbg.events.crash_text import crashed_at
from pardbg.events.decode import RECORD_DTYPE
from pardbg.hub.backlog import Definitions
from pardbg.hub.ranks.processes import exit_code, runnable, schedule, start_time, stat_fields
from pardbg.hub.removal import RING, remove_ring, remove_rings
from pardbg.words import message
from pardbg_agent import wire
from pardbg_agent.defs import read_file
from pardbg_agent.life.crash_file import SUFFIX
from pardbg_agent.ring import RingError, RingReader, stable_fields

DEFS = ".defs"
FRESH_NS: Final = 3_000_000_000
"""Heartbeat age, in ns, below which a process of another pid namespace counts as alive."""
BATCH: Final = 4096
_MAX_CRASH_BYTES: Final = 1 << 18
LOAD_SHARE: Final = 0.1
"""Weight of one measurement in the running mean of the host's load."""
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Mapped:
    """Ring file of a process, mapped."""

    proc: str
    path: Path
    reader: RingReader
    pid: int
    started: str = ""
    """The process's start time as /proc gives it: a pid alone may be another's by now."""
    seen_alive: bool = False
    dead_ns: int = 0
    """Time at which the process was found dead; 0: it lives."""
    os_state: str = ""
    """State in the kernel: R running, S asleep, D blocked, T stopped, t traced."""
    cpu: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """(time in ns, CPU ticks used) of the last measurements."""
    scheduled: list[int] = field(default_factory=list)
    """``processes.schedule`` at the last measurement."""
    code: int | None = None
    """Exit code as subprocess gives it (-9: SIGKILL); None: not known."""
    head: int = 0
    """Number of records written so far, as last seen."""
    exit_fd: int = -1
    """File descriptor that becomes readable when the process ends."""

    def busy(self) -> float | None:
        """Return the number of cores used over the last measurements; None: not known."""
        if len(self.cpu) < 2 or self.cpu[-1][0] - self.cpu[0][0] < 400_000_000:
            return None
        (t0, used0), (t1, used1) = self.cpu[0], self.cpu[-1]
        return (used1 - used0) / TICKS_PER_S / ((t1 - t0) / 1e9)

    @property
    def buffer(self) -> Any:
        return self.reader.buffer


@dataclass(slots=True)
class Rescued:
    """Definitions and records from a dead process's files."""

    definitions: list[bytes] = field(default_factory=list)
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """(index of the first, raw records) of each batch."""
    last_index: int = -1
    dropped: int = 0


class Rings:
    """Rings of a run on this host, by process."""

    def __init__(self, ring_dir: Path, definitions: Definitions, run: str = "") -> None:
        self.mapped: dict[str, Mapped] = {}
        self.unreadable: dict[str, str] = {}
        """Reasons for unreadable ring files, by process."""
        self._dir, self._definitions = ring_dir, definitions
        self._run, self._load = run, 0.0
        """Run id: files may be removed in a directory with its mark."""

    def scan(self) -> list[str]:
        """Map new rings; return their processes."""
        new = []
        try:
            names = [e.name for e in os.scandir(self._dir) if e.name.endswith(RING)]
        except OSError:
            return []
        for name in names:
            proc = name[: -len(RING)]
            if proc in self.mapped:
                continue
            try:
                reader = RingReader.open(str(self._dir / name))
            except (RingError, OSError, ValueError) as error:
                self.unreadable[proc] = str(error)  # perhaps only half made: looked at again
                continue
            self.unreadable.pop(proc, None)
            ring = Mapped(proc, self._dir / name, reader, reader.header.pid)
            ring.started = start_time(ring.pid)
            ring.seen_alive = bool(ring.started)
            if ring.seen_alive:
                ring.exit_fd = _watch_exit(ring.pid)
            self.mapped[proc] = ring
            new.append(proc)
        return new

    def died(self, now: int) -> list[str]:
        """Check each process; return those found dead since the last call."""
        found = []
        self._load += LOAD_SHARE * (runnable() - self._load)
        for ring in self.mapped.values():
            if not ring.dead_ns and not self._lives(ring, now):
                ring.dead_ns, ring.code = now, exit_code(ring.pid, ring.started)
                found.append(ring.proc)
        return found

    def left(self, now: int) -> list[str]:
        """Return processes that have just ended, by one system call: fast enough to tell the first
        failure from processes that a launcher ended afterwards."""
        by_fd = {r.exit_fd: r for r in self.mapped.values() if r.exit_fd >= 0 and not r.dead_ns}
        if not by_fd:
            return []
        gone = [by_fd[fd] for fd in _over(by_fd)]
        for ring in gone:
            ring.dead_ns, ring.code = now, exit_code(ring.pid, ring.started)
        return [ring.proc for ring in gone]

    def rows(self, now: int) -> dict[str, dict[str, Any]]:
        """Return STATE's ``ranks``: a row per process from its status block."""
        return {proc: self.row(ring) for proc, ring in self.mapped.items()}

    def computing(self) -> dict[str, int]:
        """Return the begin of running pipeline actions, by process (the rank's clock)."""
        out = {}
        for proc, ring in self.mapped.items():
            now = stable_fields(ring.buffer, wire.STATUS_NOW, wire.STATUS_NOW_OFFSET)
            if now[2]:
                out[proc] = now[6]
        return out

    def rescue(self, proc: str, start: int) -> Rescued:
        """Return a dead process's definitions, and its records from index ``start`` on."""
        ring = self.mapped[proc]
        reader = ring.reader
        reader.next, reader.lost = start, 0
        head = reader.head()
        if start > head:  # not this ring's history: take all of it
            reader.next = max(0, head - reader.header.capacity)
        out = Rescued(last_index=head - 1)
        while (batch := reader.read(BATCH, final=True)) is not None:
            out.batches.append(batch)
        if issues := _unrecorded(ring, head):
            out.batches.append((head, b"".join(issues)))
            out.last_index += len(issues)
        health = stable_fields(ring.buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)
        out.dropped = health[2] + reader.lost
        with contextlib.suppress(OSError):
            out.definitions = read_file(str(ring.path.with_suffix(DEFS)))
        out.definitions += crash_of(ring.path)
        return out

    def abort(self, procs: Iterable[str]) -> list[int]:
        """Send SIGABRT to ranks that live on this host, stopped ones too; return their numbers."""
        done = []
        for ring in [self.mapped[proc] for proc in procs if proc in self.mapped]:
            rank = self._definitions.process(ring.proc).rank
            if rank >= 0 and ring.started and start_time(ring.pid) == ring.started:
                with contextlib.suppress(OSError):
                    os.kill(ring.pid, signal.SIGABRT)
                    os.kill(ring.pid, signal.SIGCONT)
                    done.append(rank)
        return sorted(done)

    def forget(self, proc: str) -> None:
        """Unmap and remove a dead process's files."""
        ring = self.mapped.pop(proc)
        _close(ring)
        remove_ring(self._dir, self._run, proc)

    def close(self, *, remove: bool) -> None:
        """Unmap all rings; with ``remove`` the run is over and its files are removed."""
        for proc in list(self.mapped):
            if remove:
                self.forget(proc)
            else:
                _close(self.mapped.pop(proc))
        if remove:
            remove_rings(self._dir, self._run)

    def _lives(self, ring: Mapped, now: int) -> bool:
        fields = stat_fields(ring.pid)
        started = fields[19] if fields else ""
        if started:
            ring.os_state = fields[0]
            ring.cpu.append((now, int(fields[11]) + int(fields[12])))
            ring.scheduled = schedule(ring.pid)
            if not ring.seen_alive:
                ring.seen_alive, ring.started = True, started
            return started == ring.started
        if ring.seen_alive:  # /proc cannot be read, or the main thread alone has ended
            return ring.exit_fd >= 0 and not _over({ring.exit_fd})
        health = stable_fields(ring.buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)
        return bool(now - health[0] < FRESH_NS)

    def row(self, ring: Mapped) -> dict[str, Any]:
        """Return STATE's row of a process, from its status block."""
        buffer, facts = ring.buffer, self._definitions.process(ring.proc)
        names = facts.names
        step, phase, action, stage, mb, _, since = stable_fields(
            buffer, wire.STATUS_NOW, wire.STATUS_NOW_OFFSET
        )
        op_id, seq, group, peer, flags, op_since, num_open, *_ = stable_fields(
            buffer, wire.STATUS_OP, wire.STATUS_OP_OFFSET
        )
        held, next_id, held_since = stable_fields(buffer, wire.STATUS_GATE, wire.STATUS_GATE_OFFSET)
        heartbeat, sent, dropped, errors, level, hook_ns = stable_fields(
            buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET
        )
        seen_ns = time.monotonic_ns()
        ring.head = ring.reader.head_from(ring.head)
        phase_name = names.get(phase, "")
        what = f"{stage}{names.get(action, '?')}{mb}" if action and stage >= 0 else ""
        lead, reached, *_ = stable_fields(buffer, wire.STATUS_DEVICE, wire.STATUS_DEVICE_OFFSET)
        open_op = _op_words(names.get(op_id, "op"), facts.groups.get(group, ""), seq, peer, flags)
        return {
            "rank": facts.rank if facts.fields else ring.reader.header.rank,
            "alive": not ring.dead_ns, "step": step, "phase": phase_name,
            "action": names.get(action, "") if action else "", "stage": stage, "mb": mb,
            "what": what or names.get(action, "") or phase_name, "since_ns": since,
            "open": num_open, "open_op": open_op if num_open else None,
            "open_since_ns": op_since if num_open else 0,
            "held": held, "held_since_ns": held_since if held else 0,
            "next": names.get(next_id, "") if held else "",
            "heartbeat_ns": heartbeat, "sent": sent, "dropped": dropped, "errors": errors,
            "lead_ns": lead, "reached_ns": reached,
            "level": level, "hook_ns": hook_ns, "os": ring.os_state, "cpu": ring.busy(),
            "head": ring.head, "seen_ns": seen_ns, "scheduled": ring.scheduled,
            "load": round(100 * self._load),
        }  # fmt: skip


def _unrecorded(ring: Mapped, head: int) -> list[bytes]:
    """Return an OP_ISSUE for the oldest open op and for the one issued last if the ring lacks it.
    An op is recorded after its call, in which the process may end (gloo aborts it when sizes do not
    fit); a device runs behind, and the op at fault is rarely its oldest."""
    level = stable_fields(ring.buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)[4]
    step = stable_fields(ring.buffer, wire.STATUS_NOW, wire.STATUS_NOW_OFFSET)[0]
    capacity = ring.reader.header.capacity
    records = np.frombuffer(ring.buffer, RECORD_DTYPE, capacity, wire.RING_DATA_OFFSET)[:head]
    found: dict[tuple[int, int, int], bytes] = {}
    for offset in (wire.STATUS_OP_OFFSET, wire.STATUS_NEWEST_OFFSET):
        name_id, seq, group_id, peer, flags, t0, num_open, a, b = stable_fields(
            ring.buffer, wire.STATUS_OP, offset
        )
        if not num_open or not (a or b) or level < 2:  # a call, or ops are not recorded
            continue
        same = (records["t0_ns"] == t0) & (records["seq"] == seq)
        if (same & (records["group_id"] == group_id)).any():
            continue
        if head > capacity and t0 < records["t0_ns"].min():
            continue  # older than the ring
        found[t0, seq, group_id] = wire.RECORD.pack(
            wire.Kind.OP_ISSUE, wire.Lane.COMM, flags, name_id, t0, t0, max(step, 0), seq,
            group_id, wire.NONE, wire.NONE, peer, a, b, head + len(found) + 1,
        )  # fmt: skip
    return list(found.values())


def _op_words(op: str, group: str, seq: int, peer: int, flags: int) -> str:
    if flags & wire.Flag.P2P:
        return message(op, bool(flags & wire.Flag.SEND), peer)
    return f"{op} {group} #{seq}".replace("  ", " ")


def _watch_exit(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def _over(fds: Iterable[int]) -> list[int]:
    """Return the pidfds whose process has ended."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(0)]


def _close(ring: Mapped) -> None:
    with contextlib.suppress(BufferError, ValueError):
        ring.reader.close()
    if ring.exit_fd >= 0:
        os.close(ring.exit_fd)
        ring.exit_fd = -1


def crash_of(ring: Path) -> list[bytes]:
    """Return the definition of a process's crash, by the path of its ring, from what Python's
    faulthandler left (``life.crash_file``); empty: none is known."""
    try:
        with ring.with_suffix(SUFFIX).open("rb") as file:
            text = file.read(_MAX_CRASH_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    frames, current = crashed_at(text.splitlines())
    said = {"k": wire.DefKind.CRASH.value, "frames": frames, "main": not current}
    return [msgpack.packb(said)] if frames else []
