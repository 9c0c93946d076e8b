"""Lives and roles of a run: the processes that trained together, and the function of each.

A run may start its ranks several times (torchelastic's restarts, one torchrun after another) or
several jobs at a time; a life is one set of ranks that was started together. In one life some ranks
may step an optimizer while others serve (a parameter server, a player and its trainer), or run
programs of their own: those are roles. A viewer can show each part separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pardbg.events import fields
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.words import ranks_text

_STEPS_OF_A_ROLE: Final = 2
"""Steps of other ranks after which a rank without steps counts as another role, not as late."""
_NEVER: Final = -(1 << 63)
MAX_PARTS: Final = 256


@dataclass(frozen=True, slots=True)
class Part:
    """A life of a run; or a role, if ranks of one life do different things."""

    number: int
    """Number of the part, from 1, in order of begin."""
    name: str
    ranks: tuple[int, ...]
    num_steps: int
    """Maximum number of steps that one of the part's ranks made."""
    begin_ns: int
    end_ns: int
    procs: frozenset[str]


class Starts:
    """Counts of how often each rank of each job was started, which number the lives."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], int] = {}
        self._newest = -1
        self._times: Counter[tuple[int | None, str]] = Counter()
        """(rank, job) -> processes."""
        self.by_port = False
        """Whether jobs without a run id are identified by the ports at which their ranks meet."""
        self._last: dict[int | None, str] = {}
        """Rank -> the process that entered a life as this rank last."""

    def parted(self, process: Process, procs: Mapping[str, Process]) -> list[Process]:
        """Return the other processes that must enter a life anew before ``process`` does: another
        world runs beside it, so from here on jobs without a run id are known by their ports."""
        process.by_port = self.by_port
        before = procs.get(self._last.get(process.rank, ""))
        if self.by_port or before is None or not _beside(process, before):
            return []
        process.by_port = self.by_port = True
        known = [other for other in procs.values() if other.in_life and not _job(other)]
        running = {other.epoch for other in known if not other.ends}
        return [other for other in known if other.epoch in running]

    def enter(self, process: Process) -> None:
        """Count a process's start, after its facts have changed."""
        self._times[process.rank, _job(process)] += process.in_life
        if process.in_life:
            self._last[process.rank] = process.proc

    def leave(self, process: Process) -> None:
        """Undo a process's count, before its facts change."""
        self._times[process.rank, _job(process)] -= process.in_life

    def life_of(self, process: Process) -> int:
        """Return the number of the life that the process begins or belongs to.

        torchelastic counts restarts, but only those for failures of the own node, so a rank that
        starts again counts too.
        """
        job = _job(process)
        life = job, max(fields.integer(process.facts, "epoch", 0), self._times[process.rank, job])
        number = max(life[1], self._newest + 1)
        if life[1] not in self._lives.values() and any(
            of == job and later > life[1] for of, later in self._lives
        ):  # a viewer that joins late may hear of them the other way round
            number = life[1]
        number = self._lives.setdefault(life, number)
        self._newest = max(self._newest, number)
        return number


def begin(process: Process, number: int, groups: dict[tuple[int, str], GroupDef]) -> None:
    """Begin a life for a process: its epoch becomes the life's number, and its groups are kept
    apart from those of other lives."""
    process.epoch, process.in_life = number, True
    for at, group in process.groups.items():  # of a rank that only its group said
        process.groups[at] = replace(group, epoch=number)
        groups.setdefault((number, group.key), process.groups[at])


@dataclass(slots=True)
class Past:
    """Summary of lives that have ended and whose detail was forgotten."""

    parts: tuple[Part, ...] = ()
    """The newest of them, without processes."""
    num_lives: int = 0
    lost: int = 0
    """Records that the forgotten processes had lost."""
    unknown: int = 0
    """Records of the forgotten processes that could not be read."""

    def take(self, known: Iterable[Part], gone: Sequence[Process]) -> None:
        """Keep a summary of processes that are about to be forgotten; ``known``: all parts."""
        names = {process.proc for process in gone}
        ended = [part for part in known if part.procs and part.procs <= names]
        kept = (*self.parts, *ended)[-MAX_PARTS // 2 :]
        self.parts = tuple(replace(part, number=number, procs=frozenset())
                           for number, part in enumerate(kept, 1))  # fmt: skip
        self.num_lives += 1
        self.lost += sum(process.lost(None) for process in gone)
        self.unknown += sum(process.unknown + process.malformed for process in gone)


def oldest_ended(procs: Mapping[str, Process]) -> list[Process]:
    """Return the processes of the first life whose ranks have all ended, never of the newest; and
    processes without a rank that ended before that life did. Empty if there is no such life."""
    ranked = [process for process in procs.values() if process.rank is not None]
    lives = _by_life(ranked)
    newest = max(lives, default=0)
    ended = [life for number, life in lives.items()
             if number < newest and all(process.ends for process in life)]  # fmt: skip
    if not ended:
        return []
    gone = min(ended, key=_begin)
    until = end_of(gone)
    return gone + [p for p in procs.values() if p.rank is None and p.ends and end_of([p]) <= until]


def met(
    procs: dict[str, Process], process: Process, values: Mapping[Any, Any],
    make: Callable[[str], Process],
) -> Process:  # fmt: skip
    """Return the process that a PROCESS definition is about: a new one if the definition says that
    this process's rank met others again under another number. ``make`` makes room for one more."""
    known, since = fields.integer(process.facts, "epoch", 0), fields.integer(values, "since", 0)
    start = process.facts.get("start_ns")
    if "epoch" not in values or values.get("start_ns", start) != start:
        return process  # it attached again
    if not since or process.is_bare or fields.integer(values, "epoch", known) <= known:
        return with_epoch(procs, process, values)
    proc, t_ns = process.proc, fields.integer(values, "since_ns", 0) + process.offset_ns
    make(f"{proc}~{known}")
    procs[proc] = process.again(since, t_ns)
    procs[process.proc] = process
    return procs[proc]


def with_epoch(procs: Mapping[str, Process], of: Process, values: Mapping[Any, Any]) -> Process:
    """Return the process with the epoch that a definition is about: an agent sends all definitions
    again to a restarted hub."""
    return procs.get(f"{of.proc}~{fields.integer(values, 'epoch', 0)}", of) if of.since else of


def _job(process: Process) -> str:
    """Return torchrun's run id; if that is "none", with the ranks' meeting place, which may change
    at a restart. Empty under other launchers: one job's ranks may call that place by several names
    (``localhost`` on its own node), and a rank that starts twice is of another life anyway; if
    worlds run beside each other, the meeting place's port."""
    job = fields.text(process.facts, "job")
    run_id, _, place = job.partition(":")
    if not run_id and process.by_port:
        return _port(process)
    return job if run_id == "none" else run_id if ":" in place else ""


def _port(process: Process) -> str:
    return fields.text(process.facts, "job").rpartition(":")[2]


def _beside(one: Process, other: Process) -> bool:
    """Return whether two processes of one rank run at one time and meet peers at unlike ports."""
    if _job(one) or _job(other) or other.ends:
        return False
    return "" not in (_port(one), _port(other)) and _port(one) != _port(other)


def shown(procs: Mapping[str, Process], t_ns: int | None) -> list[Process]:
    """Return the ranks' processes of the life to show by default: the newest that has begun. Lives
    that only help a training life (a checkpoint's writers) do not count."""
    ranked = [process for process in procs.values() if process.rank is not None]
    lives = _by_life(ranked)
    if len(lives) < 2:
        return ranked
    begun = [life for life, of in lives.items() if t_ns is None or _begin(of) <= t_ns]
    helpers = _helpers(lives, begun)
    newest = max(set(begun) - helpers, default=min(lives))
    jobs = {_job(process) for process in lives[newest]}
    size = max((process.world_size or 0 for process in lives[newest]), default=0)
    return [
        process
        for process in ranked
        if process.epoch == newest
        or (process.epoch not in helpers and _job(process) in jobs
            and (not size or (process.rank or 0) < size))
    ]  # fmt: skip


def by_rank(processes: Iterable[Process], t_ns: int | None) -> dict[int, Process]:
    """Return rank -> its newest process begun at ``t_ns``; else the first that is to begin."""
    best: dict[int, tuple[tuple[bool, int, int], Process]] = {}
    for process in processes:
        if process.rank is None:
            continue
        started = process.started_ns or 0
        begun = t_ns is None or started <= t_ns
        order = (process.epoch, started)
        score = (begun, *order) if begun else (begun, -order[0], -order[1])
        if process.rank not in best or score > best[process.rank][0]:
            best[process.rank] = (score, process)
    return {rank: best[rank][1] for rank in sorted(best)}


def _helpers(lives: Mapping[int, list[Process]], begun: Iterable[int]) -> set[int]:
    """Return the lives of helper processes that ranks of an earlier life started: they make no
    steps, and began while that life made some, or, without a group, while it had one."""
    found, stepped, grouped = set(), _NEVER, _NEVER
    for number in sorted(begun):
        life = lives[number]
        own = any(process.groups for process in life)
        until = stepped if own else max(stepped, grouped)
        if not _steps(life) and until > _begin(life):
            found.add(number)
        stepped = max(stepped, _last(life)) if _steps(life) else stepped
        grouped = max(grouped, _last(life)) if own else grouped
    return found


def parts(procs: Mapping[str, Process], past: Past) -> tuple[Part, ...]:
    """Return a run's lives and roles by begin; empty if the run is one life of one role."""
    ranked = [process for process in procs.values() if process.rank is not None]
    lives = sorted(_by_life(ranked).values(), key=_begin)
    programs = ({fields.text(process.facts, "program") for process in life} for life in lives)
    names = [", ".join(sorted(of - {""})) for of in programs]
    found: list[tuple[str, list[Process]]] = []
    several, differ = past.num_lives + len(lives) > 1, len(set(names)) > 1
    for at, life in enumerate(lives):
        own = names[at] if differ else ""
        name = f"life {past.num_lives + at + 1}" + (f" ({own})" if own else "")
        if several:
            found.append((name, life))
        for role, members in _roles(life).items():
            found.append((f"{name}, {role}" if several else role, members))
    return *past.parts, *(
        Part(
            number=number,
            name=name,
            ranks=tuple(sorted({process.rank or 0 for process in members})),
            num_steps=_steps(members),
            begin_ns=_begin(members),
            end_ns=end_of(members),
            procs=frozenset(process.proc for process in members),
        )
        for number, (name, members) in enumerate(found[:MAX_PARTS], len(past.parts) + 1)
    )


def _by_life(ranked: Iterable[Process]) -> dict[int, list[Process]]:
    lives: dict[int, list[Process]] = {}
    for process in ranked:
        lives.setdefault(process.epoch, []).append(process)
    return lives


def _roles(life: list[Process]) -> dict[str, list[Process]]:
    """Return role name -> members if a life has several roles: other programs, or no optimizer."""
    found: dict[tuple[str, bool], list[Process]] = {}
    trains = _steps(life) >= _STEPS_OF_A_ROLE
    for process in sorted(life, key=lambda process: process.rank or 0):
        key = fields.text(process.facts, "program"), trains and _steps([process]) > 0
        found.setdefault(key, []).append(process)
    if len(found) < 2:
        return {}
    several = len({program for program, _ in found}) > 1
    names = {}
    for (program, steps), members in found.items():
        what = "optimizer" if steps else "no optimizer"
        who = ranks_text(tuple(process.rank or 0 for process in members))
        names[f"{who}: {program if several else what}"] = members
    return names


def _steps(processes: Iterable[Process]) -> int:
    tables = [process.table("step") for process in processes]
    return max((table.base + len(table) for table in tables), default=0)


def _begin(processes: Iterable[Process]) -> int:
    return min((p.started_ns for p in processes if p.started_ns is not None), default=0)


def end_of(processes: Iterable[Process]) -> int:
    """Return when the last process ended or, if no end is known, was last active (hub ns)."""
    return max((max([_last([p]), *(t_ns for t_ns, _ in p.ends[:1])]) for p in processes), default=0)


def _last(processes: Iterable[Process]) -> int:
    known = [t_ns for p in processes for t_ns in (p.last_ns, p.leaving_ns) if t_ns is not None]
    return max(known, default=0)
