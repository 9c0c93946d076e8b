"""Stalled ranks: the hub's observations of each process, and its stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.ops import UNKNOWN_OP
from pardbg.analysis.hangs.stacks import place, waits_in_op, whole_place
from pardbg.analysis.pipeline.pipelines import running_action, state_at, states
from pardbg.events import fields
from pardbg.events.control_codes import NodeChange
from pardbg.events.control_facts import Node, Stall
from pardbg.store.definitions import MAX_FRAMES, Frame, frames_of
from pardbg.store.process import Process
from pardbg_agent.ctrl.agent_messages import Thread
from pardbg_agent.wire import BEAT_NS

SILENT_NS: Final = 6 * BEAT_NS
"""Silence of an agent, in ns, after which the GIL of its process counts as held."""
_TOGETHER_NS: Final = 2 * BEAT_NS
"""Maximum spread of the last heartbeats of a node's agents when the whole node falls silent, in ns,
even on a busy host."""
STARVED_NS: Final = 2_500_000_000
"""Silence on an overloaded host, which may have no core for the agent, in ns."""
READY_NS: Final = 1_500_000_000
LOST_NS: Final = 10_000_000_000
"""Age, in ns, after which missing records of a rank count as lost."""
IDLE_CORES: Final = 0.1
"""Cores used, below which a rank sleeps or waits."""
_STALLS: Final = 64
"""Number of Stall messages looked at."""
_TABLES: Final = (
    "action", "step", "phase", "issue", "issue_p2p", "done", "done_p2p", "span", "call_begin",
    "call",
)  # fmt: skip
OVERLOADED: Final = 1.5
"""Threads per core that run or are ready to, from which on a host is overloaded and its threads
take turns."""
_MOST_SLOWDOWN: Final = 8.0
_MOST_READY: Final = 0.8


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of one rank at the cursor."""

    rank: int
    os_state: str
    """Process state as the kernel's letter; empty: not known."""
    silent_ns: int
    """Time for which the agent's thread has been silent, in ns; 0: it beats."""
    held: bool
    """Whether the rank is held at a gate."""
    cpu: float | None
    """Cores that the rank used, or waited for, over the last second or so; None: not known."""
    idle: bool
    """Whether the main thread is known to have used no core for the last seconds."""
    ready: float
    """Share of the last seconds for which the main thread was runnable without a core."""
    host_load: float
    """Threads per core of the host that ran or were ready to over the last seconds."""
    phase: str
    action: str
    """Pipeline action that runs on the rank, as text; empty: none."""
    moved_ns: int
    """Time of the rank's newest record or change of status, in ns."""
    frames: tuple[Frame, ...]
    """Stack of the main thread, outermost frame first; empty if none was taken or it moved."""
    inside: str
    """Purpose of the agent's own frames in the stack: wait, op, gate, gil or ``""``."""
    source: str
    """Source of the stack: agent, py-spy, or why there is none; empty: none was taken."""
    lock: str = ""
    """Lock that a thread of the rank waits for, in words: ``waits for self.lock; …``"""
    threads: tuple[Thread, ...] = ()
    """All threads, the one of ``frames`` first; empty: there is only one."""
    handles: str = ""
    """Exception that the main thread is handling at its place; empty: none."""

    @property
    def in_op(self) -> bool:
        """Return whether the stack shows the rank in an op that it issued, or waiting for a thread
        of its own that is in one."""
        return self.in_lock or waits_in_op(self.frames, self.inside, self.idle)

    @property
    def in_lock(self) -> bool:
        """Return whether the rank stands outside of ops while one of its threads waits for a lock
        and another is in an op."""
        if not (self.lock and self.idle) or waits_in_op(self.frames, self.inside, self.idle):
            return False
        return any(waits_in_op(one.frames, "") for one in self.threads[1:])

    @property
    def stopped(self) -> bool:
        return self.os_state in ("T", "t")

    @property
    def overloaded(self) -> bool:
        """Return whether the rank's host has too few cores, or the rank gets too little of one."""
        return self.host_load >= OVERLOADED or self.ready >= 0.5

    @property
    def slowdown(self) -> float:
        """Return by what factor a rank takes longer than with a core of its own; it applies to all
        limits for ranks that work."""
        return max(1.0, 1 / (1 - min(self.ready, _MOST_READY)), slowdown(self.host_load))

    @property
    def gil_held(self) -> bool:
        longest = STARVED_NS * self.slowdown if self.overloaded else 0
        return self.silent_ns > longest and not self.stopped


def slowdown(load: float) -> float:
    """Return the factor by which a host's load prolongs times; 1 if it is not overloaded."""
    return min(load, _MOST_SLOWDOWN) if load >= OVERLOADED else 1.0


@per_view
def seen(view: View, rank: int) -> Seen:
    """Return the observations of a rank at the cursor; computed once per view."""
    process = view.ranks[rank]
    said = states(view).get(process.proc, {})
    action = running_action(view, rank)
    newest = max(process.started_ns or 0, view.newest_ns(process, _TABLES))
    moved = max(newest, min(fields.integer(said, "since_ns", 0), view.t_ns))
    stack, cpu = stall_stacks(view).get(rank), said.get("cpu")
    ran, ready = _scheduled(view, process, said)
    frames: tuple[Frame, ...] = ()
    threads: tuple[Thread, ...] = ()
    inside = source = lock = handles = ""
    if stack is not None and stack[0] >= moved:
        _, frames, inside, source, threads, lock, handles = stack
    return Seen(
        rank=rank,
        os_state=fields.text(said, "os"),
        silent_ns=_silent(said, state_at(view)[0]),
        held=bool(said.get("held")),
        cpu=cpu + ready if isinstance(cpu, float) else None,
        idle=ran is not None and ran < IDLE_CORES,
        ready=ready,
        host_load=fields.integer(said, "load", 0) / 100,
        phase=fields.text(said, "phase"),
        action=action[1].text if action is not None else "",
        moved_ns=moved,
        frames=frames,
        inside=inside,
        source=source,
        threads=threads,
        lock=lock,
        handles=handles,
    )


def _scheduled(view: View, process: Process, said: Mapping[str, Any]) -> tuple[float | None, float]:
    """Return (shares of recent time that the main thread ran, or None; lacked a core)."""
    t_ns = state_at(view)[0] or view.t_ns
    before_ns, earlier = _earlier(view)
    now = fields.integers(said, "scheduled")
    before = fields.integers(earlier.get(process.proc, {}), "scheduled")
    if before_ns is None or t_ns <= before_ns or len(now) != 2 or len(before) != 2:
        return None, 0.0
    ran, stood = (max(0, b - a) / (t_ns - before_ns) for a, b in zip(before, now, strict=True))
    return ran, stood


@per_view
def _earlier(view: View) -> tuple[int | None, dict[str, Mapping[str, Any]]]:
    """Return (time, states of all ranks) as of READY_NS before the newest ones."""
    return view.store.states.ranks((state_at(view)[0] or view.t_ns) - READY_NS)


@per_view
def on_their_way(view: View) -> frozenset[int]:
    """Return ranks of a live run whose records of READY_NS ago are still to arrive, so that ops
    they have not issued are not known. After LOST_NS their records count as lost; a rank that has
    ended, or whose agent is silent, sends no more."""
    if not (view.live and view.store.live):
        return frozenset()
    t_ns, before = state_at(view)[0] or view.t_ns, _earlier(view)[1]
    return frozenset(
        rank for rank, process in view.ranks.items()
        if fields.integer(before.get(process.proc, {}), "head", 0) > process.next_index
        and t_ns - (process.newest_ns or 0) < LOST_NS and view.proc_end(process) is None
        and (said := states(view).get(process.proc, {})).get("alive") is not False
        and not _silent(said, t_ns)
    )  # fmt: skip


def _silent(said: Mapping[str, Any], state_ns: int | None) -> int:
    heartbeat = fields.integer(said, "heartbeat_ns", 0)
    if not heartbeat or state_ns is None or said.get("alive") is False:
        return 0
    silent = state_ns - heartbeat
    return silent if silent >= SILENT_NS else 0


def lost_nodes(view: View) -> list[tuple[int, Node]]:
    """Return (time of the loss, node) of each node that the hub no longer hears from."""
    silent: dict[int, tuple[int, Node]] = {}
    for t_ns, event in view.store.controls.last(view.now_ns, len(view.store.controls)):
        if isinstance(event.fact, Node):
            silent.pop(event.fact.node, None)
            if event.fact.change is NodeChange.LOST:
                silent[event.fact.node] = (t_ns, event.fact)
    return list(silent.values())


@per_view
def is_cut_off(view: View, host: str) -> bool:
    """Return whether a whole host is silent: agents of several ranks there, but not of all hosts,
    fell silent at one moment, or the hub reports the node as lost."""
    ranks = {rank: process for rank, process in view.ranks.items() if process.host == host}
    if any(ranks.keys() <= {*node.ranks} for _, node in lost_nodes(view)):
        return True
    if len(ranks) < 2 or len(ranks) == len(view.ranks):
        return False
    t_ns, told = view.store.states.ranks(view.now_ns)  # times by the host's own clock
    beats = [fields.integer(told.get(p.proc, {}), "heartbeat_ns", 0) for p in ranks.values()]
    if not all(_silent(states(view).get(p.proc, {}), t_ns) for p in ranks.values()):
        return False
    return max(beats) - min(beats) <= _TOGETHER_NS


Stack = tuple[int, tuple[Frame, ...], str, str, tuple[Thread, ...], str, str]
"""(time in ns, frames, inside, source, threads, lock it waits for, exception that it handles)"""


def _stalls(view: View) -> list[Stall]:
    events = (event for _, event in view.store.controls.last(view.now_ns, _STALLS))
    return [event.fact for event in events if isinstance(event.fact, Stall)]


@per_view
def stall_stacks(view: View) -> dict[int, Stack]:
    """Return rank -> its newest stack, taken by the hub at a standstill."""
    found: dict[int, Stack] = {}
    for stall in _stalls(view):
        t_ns, source = stall.since_ns, stall.source
        found.update({rank: (t_ns, (), "", word, (), "", "") for rank, word in source.items()})
        for part in stall.stacks:
            for rank in part.ranks:
                lock = "; ".join(stall.locks.get(rank, ()))
                found[rank] = (
                    t_ns, part.frames[:MAX_FRAMES], part.inside.get(rank, ""),
                    source.get(rank, ""), part.threads.get(rank, ()), lock,
                    part.handles.get(rank, ""),
                )  # fmt: skip
    return found


def ran(view: View, rank: int, since_ns: int) -> tuple[Frame, ...]:
    """Return the stack taken of a rank since ``since_ns``, even if the rank ran on afterwards."""
    stack = stall_stacks(view).get(rank)
    return stack[1] if stack is not None and stack[0] >= since_ns else ()


@per_view
def issue_places(view: View) -> dict[tuple[int, str, int] | tuple[int, int], str]:
    """Return the places where open asynchronous ops were issued, by (rank, group key, seq) for
    collectives and by (rank, time of issue in ns) for all."""
    found: dict[tuple[int, str, int] | tuple[int, int], str] = {}
    for stall in _stalls(view):
        for rank, rows in stall.issued.items():
            for t_ns, group, seq, *frame in rows:
                at = place(frames_of([frame]))
                if at is not None:
                    found[rank, group, seq] = found[rank, t_ns] = at
    return found


def first_place(view: View, rank: int, issued_ns: int) -> tuple[str | None, bool]:
    """Return (place where a rank first issued an op, or made a call, with the signature of this
    one; whether it was this one), from its definition, which exists even if the backend ended the
    rank in the op. None if ops of that signature differ in size, and this one from the first, as
    their places may differ too."""
    process = view.ranks[rank]
    for name in ("issue", "issue_p2p", "call", "part"):  # parts of an open op are known before it
        table = process.table(name)
        rows = np.flatnonzero(table.col("t0_ns") == issued_ns)
        if len(rows):
            number = int(table.col("name_id")[rows[0]])
            same = np.flatnonzero(table.col("name_id")[: rows[0] + 1] == number)
            sizes, whole = table.col("a")[same], not table.base
            if not (whole and sizes[0] == sizes[-1]) and len(np.unique(sizes[:-1])) > 1:
                return None, False
            at = whole_place(process.ops.get(number, UNKNOWN_OP).at)
            return at, whole and len(same) == 1 and name != "part"  # an op may have no parts
    return None, False


def host_load(view: View, ranks: Iterable[int]) -> float:
    """Return threads per core that run or are ready, on these ranks' fullest host; 0: not known."""
    of = states(view)
    rows = (of.get(view.ranks[rank].proc, {}) for rank in ranks if rank in view.ranks)
    return max((fields.integer(row, "load", 0) for row in rows), default=0) / 100
