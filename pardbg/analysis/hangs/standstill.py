"""Stalled ranks: what the hub saw of each process, and its stack."""

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
from pardbg_agent.wire import BEAT_NS

SILENT_NS: Final = 6 * BEAT_NS
"""Silence of an agent after which something holds its GIL."""
_TOGETHER_NS: Final = 2 * BEAT_NS
"""A node's rows are read at one moment: there its agents' last beats lie so close, on a busy host
too."""
STARVED_NS: Final = 2_500_000_000
"""... on an overloaded host, which may have no core for it, either."""
READY_NS: Final = 1_500_000_000
LOST_NS: Final = 10_000_000_000
"""Records of a rank that have not come for so long will not."""
IDLE_CORES: Final = 0.1
"""Cores used; below that it sleeps or waits."""
_STALLS: Final = 64
"""Stall messages looked at."""
_TABLES: Final = (
    "action", "step", "phase", "issue", "issue_p2p", "done", "done_p2p", "span", "call_begin",
    "call",
)  # fmt: skip
OVERLOADED: Final = 1.5
"""Threads per core that run or are ready to, from which on a host is overloaded: its threads take
turns."""
_MOST_SLOWDOWN: Final = 8.0
_MOST_READY: Final = 0.8


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank at the cursor."""

    rank: int
    os_state: str
    """The kernel's letter; empty where it is not known."""
    silent_ns: int
    """Time its agent's thread had been silent; 0: it beats."""
    held: bool
    """At a gate that somebody closed."""
    cpu: float | None
    """Cores it used over the last second or so, or stood ready for."""
    idle: bool
    """Its main thread ran on no core over that time, as far as that is known."""
    ready: float
    """Share of that time that its main thread stood ready and got no core."""
    host_load: float
    """Threads of its host that ran or were ready to over the last seconds, per core."""
    phase: str
    action: str
    """The pipeline action that runs there, text form."""
    moved_ns: int
    """Its newest record or change of status."""
    frames: tuple[Frame, ...]
    """Its main thread's stack, if it was taken and still holds; outermost first."""
    inside: str
    """What the agent's own frames were around: wait, op, gate, gil or ``""``."""
    source: str
    """Source of the stack: agent, py-spy, or why there is none; empty: none was taken."""
    lock: str = ""
    """``waits for self.lock; …``, of its thread that does."""
    threads: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """(name, stack) of its threads, the one of ``frames`` first; empty: there is no other one."""
    handles: str = ""
    """Exception that its main thread is handling there."""

    @property
    def in_op(self) -> bool:
        """Return whether its stack says that it stands in an op that it has issued, or waits for a
        thread of its own that does."""
        return self.in_lock or waits_in_op(self.frames, self.inside, self.idle)

    @property
    def in_lock(self) -> bool:
        """Return whether it stands outside of ops, and a thread waits for a lock while another is
        in an op."""
        if not (self.lock and self.idle) or waits_in_op(self.frames, self.inside, self.idle):
            return False
        return any(waits_in_op(frames, "") for _, frames in self.threads[1:])

    @property
    def stopped(self) -> bool:
        return self.os_state in ("T", "t")

    @property
    def overloaded(self) -> bool:
        """Return whether its host has too few cores, or it gets too little of one."""
        return self.host_load >= OVERLOADED or self.ready >= 0.5

    @property
    def slowdown(self) -> float:
        """Return how many times as long as with a core of its own a rank takes: the one factor of
        whatever waits for ranks that work."""
        return max(1.0, 1 / (1 - min(self.ready, _MOST_READY)), slowdown(self.host_load))

    @property
    def gil_held(self) -> bool:
        longest = STARVED_NS * self.slowdown if self.overloaded else 0
        return self.silent_ns > longest and not self.stopped


def slowdown(load: float) -> float:
    """Return the factor that a host's load makes of a time; 1 where it is not overloaded."""
    return min(load, _MOST_SLOWDOWN) if load >= OVERLOADED else 1.0


@per_view
def seen(view: View, rank: int) -> Seen:
    """Rank ``rank`` at the cursor. Once per view."""
    process = view.ranks[rank]
    said = states(view).get(process.proc, {})
    action = running_action(view, rank)
    newest = max(process.started_ns or 0, view.newest_ns(process, _TABLES))
    moved = max(newest, min(fields.integer(said, "since_ns", 0), view.t_ns))
    stack, cpu = stall_stacks(view).get(rank), said.get("cpu")
    ran, ready = _scheduled(view, process, said)
    frames: tuple[Frame, ...] = ()
    threads: Threads = ()
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
    """Shares of the last seconds its main thread ran (None: not known), and lacked a core."""
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
    """Return what all ranks' states were READY_NS before."""
    return view.store.states.ranks((state_at(view)[0] or view.t_ns) - READY_NS)


@per_view
def on_their_way(view: View) -> frozenset[int]:
    """Return ranks of a live run whose records of READY_NS ago are still on their way here: what
    these have not issued nobody can say. After LOST_NS they are taken for lost; one whose agent is
    silent, or that has ended, sends no more."""
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
    """Return (when, node) of each node that the hub hears nothing of."""
    silent: dict[int, tuple[int, Node]] = {}
    for t_ns, event in view.store.controls.last(view.now_ns, len(view.store.controls)):
        if isinstance(event.fact, Node):
            silent.pop(event.fact.node, None)
            if event.fact.change is NodeChange.LOST:
                silent[event.fact.node] = (t_ns, event.fact)
    return list(silent.values())


@per_view
def is_cut_off(view: View, host: str) -> bool:
    """Return whether nothing is heard of a whole host, as far as one can tell: of several ranks
    there, and not of all hosts, the agents fell silent at one moment; or the hub says so."""
    ranks = {rank: process for rank, process in view.ranks.items() if process.host == host}
    if any(ranks.keys() <= {*node.ranks} for _, node in lost_nodes(view)):
        return True
    if len(ranks) < 2 or len(ranks) == len(view.ranks):
        return False
    t_ns, told = view.store.states.ranks(view.now_ns)  # by its own clock, one for the host
    beats = [fields.integer(told.get(p.proc, {}), "heartbeat_ns", 0) for p in ranks.values()]
    if not all(_silent(states(view).get(p.proc, {}), t_ns) for p in ranks.values()):
        return False
    return max(beats) - min(beats) <= _TOGETHER_NS


Threads = tuple[tuple[str, tuple[Frame, ...]], ...]
Stack = tuple[int, tuple[Frame, ...], str, str, Threads, str, str]
"""(when, frames, inside, source, threads, lock it waits for, exception that it handles)"""


def _stalls(view: View) -> list[Stall]:
    events = (event for _, event in view.store.controls.last(view.now_ns, _STALLS))
    return [event.fact for event in events if isinstance(event.fact, Stall)]


@per_view
def stall_stacks(view: View) -> dict[int, Stack]:
    """Return rank -> its newest stack that the hub took at a standstill."""
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
    """Return the stack that was taken of a rank since then, even if it ran on afterwards."""
    stack = stall_stacks(view).get(rank)
    return stack[1] if stack is not None and stack[0] >= since_ns else ()


@per_view
def issue_places(view: View) -> dict[tuple[int, str, int] | tuple[int, int], str]:
    """Return where open asynchronous ops were issued, by (rank, group key, seq) of a collective,
    and by (rank, when)."""
    found: dict[tuple[int, str, int] | tuple[int, int], str] = {}
    for stall in _stalls(view):
        for rank, rows in stall.issued.items():
            for t_ns, group, seq, *frame in rows:
                at = place(frames_of([frame]))
                if at is not None:
                    found[rank, group, seq] = found[rank, t_ns] = at
    return found


def first_place(view: View, rank: int, issued_ns: int) -> tuple[str | None, bool]:
    """Return (where a rank first issued an op, or made a call, with the signature of this one,
    whether it was this one): the definition tells. It is there even of a rank that its backend
    ended in the op. None where ops of that signature differ in size, and this one from the first:
    lines may, too."""
    process = view.ranks[rank]
    for name in ("issue", "issue_p2p", "call"):
        table = process.table(name)
        rows = np.flatnonzero(table.col("t0_ns") == issued_ns)
        if len(rows):
            number = int(table.col("name_id")[rows[0]])
            same = np.flatnonzero(table.col("name_id")[: rows[0] + 1] == number)
            sizes, whole = table.col("a")[same], not table.base
            if not (whole and sizes[0] == sizes[-1]) and len(np.unique(sizes[:-1])) > 1:
                return None, False
            at = whole_place(process.ops.get(number, UNKNOWN_OP).at)
            return at, whole and len(same) == 1
    return None, False


def host_load(view: View, ranks: Iterable[int]) -> float:
    """Threads per core that run or are ready, on the fullest of these ranks' hosts; 0: unknown."""
    of = states(view)
    rows = (of.get(view.ranks[rank].proc, {}) for rank in ranks if rank in view.ranks)
    return max((fields.integer(row, "load", 0) for row in rows), default=0) / 100
