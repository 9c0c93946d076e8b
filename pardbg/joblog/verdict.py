"""Conclusions from the events of a log.

A failure in one place is reported from many: a rank that raises makes its peers time out, and a
launcher ends the rest. So each conclusion names the others that it explains, and a conclusion that
only follows from another is no cause. Facts that a log cannot tell are listed, too.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pardbg.events.rank_dumps import RankDump
from pardbg.joblog import events, joined
from pardbg.joblog.conclusion import Conclusion, Facts, odd, signature
from pardbg.joblog.disagreement import disagreement
from pardbg.joblog.events import Event, Line
from pardbg.joblog.origins import Clock
from pardbg.joblog.scan import Log

CONSEQUENCE: Final = re.compile(
    r"ChildFailedError|SignalException|ProcessExitedException|ProcessRaisedException"
    r"|CalledProcessError|KeyboardInterrupt|DistNetworkError|BrokenPipeError|ConnectionResetError"
    r"|SystemExit|RayActorError|RayTaskError|RendezvousConnectionError"
)
"""Exceptions of processes that only notice the end of a peer, a child or the network."""
CONSEQUENT_TEXT: Final = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out|[Tt]imeout|ncclRemoteError"
    r"|remote process exited|NCCL communicator was aborted|Socket Timeout|recvValue failed"
    r"|monitoredBarrier|preamble\.length|collective mismatch|connectFullMesh"
    r"|terminated with (?:exit code|signal)"
)
FAILED: Final = re.compile(r"(?i)failed|error|invalid|mismatch|timed out|duplicate")
"""NCCL's warnings about a failure, not only about a machine's settings."""
OF_PROGRAMS: Final = frozenset({13, 31, 43, 45})
"""Xids that are mostly caused by a program's own kernels (NVIDIA's Xid catalogue)."""
ASKED: Final = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
NO_LEAD: Final = 1
"""Number of ops by which a host is ahead of its device when it waits for the current op."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All conclusions, causes first, with open questions."""

    conclusions: tuple[Conclusion, ...]
    untold: tuple[str, ...] = ()
    """Ids of facts that this log cannot tell: see ``words.UNTOLD``."""
    ranks: tuple[int, ...] = ()
    """Ranks with a relevant line."""
    world_size: int | None = None
    unknown: tuple[Line, ...] = ()
    """Watchdog lines that no pattern matches."""


MAX_LINES: Final = 4
LATER_LINES: Final = 50
"""Behind an exception that ended its process come fewer: other ranks', a launcher's."""


@dataclass(slots=True)
class _Group:
    timeouts: dict[int, events.OpTimeout] = field(default_factory=dict)
    places: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    progress: dict[int, events.Progress] = field(default_factory=dict)


def judge(log: Log, dumps: Sequence[RankDump] = ()) -> Verdict:
    """Draw all conclusions. ``dumps``: Flight Recorder dumps of the same job."""
    world = _world_size(log)
    waits, untold = _of_groups(log, world)
    fit, unfit = joined.usable(log.events, dumps)
    exact = [made for one in waits for made in joined.joined(one, fit)]
    waits = [one for one in exact if one.kind in joined.WAITS or one.kind == "host-ahead"]
    notes = [*unfit, *(one for one in exact if one not in waits)]
    if fit and any(one.culprits for one in waits):
        untold = []
    checks = [*_inits(log.events), *_store(log.events), *_reported(log.events, log.ranks)]
    stopped = bool(waits) or any(one.kind == "mismatch" for one in checks)
    failures = _failures(log.events, aborts_follow=stopped)
    named = [*failures, *(one for one in checks if one.kind == "missing-rank")]
    waits = [replace(one, follows=one.follows or _explained(one, named)) for one in waits]
    found = [*failures, *waits, *checks]
    orders = _of(log.events, events.Ordered)
    if orders and not found:
        by: Facts = (("by", orders[0].by),)
        found.append(Conclusion("told-to-end", facts=by, lines=(orders[0].line,)))
    lost = _of(log.events, events.PeerLost)
    if lost and all(one.kind == "nccl-warning" for one in found):
        untold.append("cause")
        links = [one for one in lost if one.text.startswith("NET/")]
        absent = _absent("default", log.ranks, world)
        facts: Facts = (("text", links[0].text if links else ""),)
        found.append(
            Conclusion("peers-lost", absent, _ranks(lost), facts=facts, lines=_lines(lost))
        )
    if not found and (raised := _of(log.events, events.Failure)) and not orders:
        found = [_failure([raised[0]], follows=False)]
    if _went_on(log, found):
        found = [replace(one, kind="exception-logged") for one in found]
    if all(one.follows for one in found):  # there is nothing that it would follow from
        found = [replace(one, follows=one.kind == "nccl-warning") for one in found]
    unknown = tuple(one.line for one in _of(log.events, events.Unknown))
    arranged = tuple(sorted([*found, *notes], key=lambda one: one.follows))
    doubts = tuple(dict.fromkeys(untold)) if not (arranged and failures) else ()
    return Verdict(arranged, doubts, tuple(sorted(log.ranks)), world, unknown)


def _went_on(log: Log, found: Sequence[Conclusion]) -> bool:
    """Return whether the log has exceptions alone, and goes on behind each for long: a program that
    catches one may print it."""
    return all(one.kind == "exception" for one in found) and all(
        isinstance(one, events.Failure)
        and not (one.native or CONSEQUENCE.search(one.type))
        and log.lines.get(one.line.file, 0) > one.line.number + LATER_LINES
        for one in log.events
    )


def _explained(wait: Conclusion, failures: Sequence[Conclusion]) -> bool:
    """Return whether a failed rank explains the wait: a missing one, or any if none is named."""
    failed = {rank for one in failures for rank in one.culprits}
    named = set(wait.culprits)
    return bool(failures) and wait.kind != "mismatch" and (not named or named <= failed)


def _of(found: Iterable[Event], kind: type[events.E]) -> list[events.E]:
    return [one for one in found if isinstance(one, kind)]


def _ranks(found: Iterable[Event]) -> tuple[int, ...]:
    return tuple(sorted({one.rank for one in found if one.rank is not None}))


def _lines(found: Sequence[Event]) -> tuple[Line, ...]:
    return tuple(one.line for one in found[:MAX_LINES])


def _world_size(log: Log) -> int | None:
    told = [one.num_ranks for one in _of(log.events, events.InitStart)]
    told += [one.expected for one in _of(log.events, events.NotAllJoined)]
    for one in _of(log.events, events.OpTimeout):
        if one.op == "_ALLGATHER_BASE" and one.numel_in and one.numel_out:
            told.append(one.numel_out // one.numel_in)
    return max(told) if told else None


# -- ops that did not end


def group_name(text: str) -> str:
    """Return a group's name from the prefix of c10d's lines: ``0 PG GUID 0(default_pg)``."""
    described = re.search(r"\(([^)]*)\)", text)
    name = described[1] if described and described[1] else text.partition(" ")[0]
    return "default" if name in ("default_pg", "") else name


def _groups(log: Log) -> dict[str, _Group]:
    """Return the groups by name; a timeout's is in another line of its rank, with op counts."""
    groups: dict[str, _Group] = defaultdict(_Group)
    progress = _of(log.events, events.Progress)
    of_seq: dict[tuple[int | None, int | None], str] = {}
    for one in progress:
        name = group_name(one.group)
        of_seq.setdefault((one.rank, one.seq), name)
        if one.rank is not None:
            before = groups[name].progress.get(one.rank)
            if before is None or before.seq is None:
                groups[name].progress[one.rank] = one
    unnamed = []
    for late in _of(log.events, events.OpTimeout):
        if late.rank is not None and (late.rank, late.seq) in of_seq:
            groups[of_seq[late.rank, late.seq]].timeouts.setdefault(late.rank, late)
        elif late.rank is not None:
            unnamed.append((late.rank, late))
    alike = _alike(of_seq, groups)
    for rank, late in unnamed:
        names = alike[late.seq, late.op]
        name = min(names) if len(names) == 1 else "" if of_seq else "default"
        groups[name].timeouts.setdefault(rank, late)
    for at in _of(log.events, events.IssuedAt):
        for group in groups.values():
            if at.rank in group.timeouts or at.rank in group.progress:
                group.places.setdefault(at.rank, at.place)
    return groups


def _alike(
    of_seq: Mapping[tuple[int | None, int | None], str], groups: Mapping[str, _Group]
) -> defaultdict[tuple[int | None, str], set[str]]:
    """Return (number, op) -> the groups in which ranks wait for such an op of that number."""
    ops = {name: {one.op for one in group.timeouts.values()} for name, group in groups.items()}
    alike: defaultdict[tuple[int | None, str], set[str]] = defaultdict(set)
    for (_, seq), name in of_seq.items():
        for op in ops.get(name, ()):
            alike[seq, op].add(name)
    return alike


def _of_groups(log: Log, world: int | None) -> tuple[list[Conclusion], list[str]]:
    found: list[Conclusion] = []
    untold: list[str] = []
    for name, group in sorted(_groups(log).items()):
        if group.timeouts or any(one.seq is not None for one in group.progress.values()):
            one, doubt = _of_group(name, group, world, log)
            places = [group.places[rank] for rank in one.ranks if rank in group.places]
            found.append(replace(one, place=places[0] if places else None))
            untold += doubt
            found += _lead(name, group)
    return found, untold


def _of_group(
    name: str, group: _Group, world: int | None, log: Log
) -> tuple[Conclusion, list[str]]:
    seqs = {rank: one.seq for rank, one in group.timeouts.items() if one.seq is not None}
    seqs |= {r: one.seq for r, one in group.progress.items() if one.seq is not None}
    seq = min(seqs.values(), default=None)
    at = {rank: one for rank, one in group.timeouts.items() if seqs.get(rank) == seq}
    op = next((one.op for one in at.values()), "")
    lines = _lines(list(group.timeouts.values()) or list(group.progress.values()))
    waiting = tuple(sorted({*group.timeouts, *(r for r in seqs if seqs[r] == seq)}))
    differ = _odd(at) if seq is not None else None
    if differ is not None:
        culprits, facts = differ
        doubt = [] if culprits else ["which-side"]
        return Conclusion("mismatch", culprits, waiting, name, seq, op, facts, lines), doubt
    behind = {r: one for r, one in group.progress.items() if seq is not None and one.enqueued < seq}
    if behind:
        culprits = tuple(sorted(behind))
        lines = (*_lines(list(behind.values())), *lines)[:MAX_LINES]
        waiting = tuple(rank for rank in waiting if rank not in behind)
        facts = (("last", max(one.enqueued for one in behind.values())),)
        return Conclusion("missing-rank", culprits, waiting, name, seq, op, facts, lines), []
    ahead = tuple(sorted(rank for rank, other in seqs.items() if other != seq))
    if ahead:
        facts = (("ahead", ", ".join(map(str, ahead))),)
        waiting = tuple(rank for rank in waiting if rank not in ahead)
        return Conclusion("different-ops", (), waiting, name, seq, op, facts, lines), ["which-side"]
    known = (*group.timeouts, *group.progress)
    absent = _absent(name, known, world, log.ranks if seq is not None else ())
    doubt = ["world-size"] if world is None and name == "default" else []
    if absent:
        return Conclusion("absent-ranks", absent, waiting, name, seq, op, (), lines), doubt
    return Conclusion("stuck-op", (), waiting, name, seq, op, (), lines), doubt


def _absent(
    name: str, known: Collection[int], world: int | None, seen: Collection[int] = ()
) -> tuple[int, ...]:
    """Return ranks of the default group that are neither known to wait nor, for ops with numbers,
    seen at all. If no line has the number of ranks, the highest rank gives a lower bound."""
    size = world if world is not None else max((*known, *seen), default=-1) + 1
    left = {*range(size)} - {*known} - {*seen}
    return tuple(sorted(left)) if name == "default" else ()


def _odd(at: dict[int, events.OpTimeout]) -> tuple[tuple[int, ...], Facts] | None:
    return odd({rank: signature(one.op, one.numel_in, one.numel_out) for rank, one in at.items()})


def _lead(name: str, group: _Group) -> list[Conclusion]:
    """Return how far hosts were ahead of devices, which makes their Python stacks less useful."""
    leads = {rank: one.enqueued - one.completed for rank, one in group.progress.items()}
    most = max(leads.values(), default=0)
    if most <= NO_LEAD + 1:
        return []
    rank = max(leads, key=lambda one: leads[one])
    line = group.progress[rank].line
    return [Conclusion("host-ahead", (), (rank,), name, None, "", (("ops", most),), (line,), True)]


# -- processes that ended, exceptions


def _failures(found: Sequence[Event], aborts_follow: bool) -> list[Conclusion]:
    """Return the failures, the first one first; the others follow from it. ``aborts_follow``: ops
    timed out, so processes that abort were ended by their watchdogs."""
    causes = [
        one for one in _causes(found)
        if not (aborts_follow and _aborted(one))
    ]  # fmt: skip
    clock = _clock(causes)
    order = {id(event): number for number, event in enumerate(found)}
    causes.sort(key=lambda one: (not _of_machine(one), _time(one, clock), order[id(one)]))
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in causes:
        groups.setdefault(_same(event), []).append(event)
    return [_failure(same, follows=number > 0) for number, same in enumerate(groups.values())]


def _of_machine(one: Event) -> bool:
    """Return whether the kernel or driver reports it: processes' reports follow from that."""
    if isinstance(one, events.DeviceFault):
        return one.xid not in OF_PROGRAMS  # those follow from what a program does, or from its end
    return isinstance(one, events.OutOfMemory) and not one.device


def _aborted(one: Event) -> bool:
    if isinstance(one, events.Failure):
        return one.native
    return isinstance(one, events.Ended) and one.code == -signal.SIGABRT


def _clock(causes: Sequence[Event]) -> Clock | None:
    """Return a clock that all these lines have; None: only their order in the log counts."""
    clocks: tuple[Clock, ...] = ("job", "runtime")
    return next(
        (c for c in clocks if all(one.line.origin.time_s(c) is not None for one in causes)), None
    )


def _time(event: Event, clock: Clock | None) -> float:
    return 0.0 if clock is None else event.line.origin.time_s(clock) or 0.0


def _causes(found: Sequence[Event]) -> list[Event]:
    """Return possible causes, one per process: its first exception, else its end."""
    first: dict[object, Event] = {}
    memory = _of(found, events.OutOfMemory)
    for one in [*memory, *_of(found, events.DeviceFault)]:
        first.setdefault((type(one), one.line.origin.process, one.rank), one)
    own = {id(one.line) for one in (*memory, *_of(found, events.Disagree))}
    raised = [one for one in _of(found, events.Failure) if not one.native]
    for failure in raised:
        if id(failure.line) not in own and not consequent(failure):
            first.setdefault(("raised", failure.line.file, failure.line.origin.process), failure)
    first |= _ends(found, raised)
    aborts = [one for one in _of(found, events.Failure) if one.native and not consequent(one)]
    if not first and aborts:
        first["abort"] = aborts[0]
    return list(first.values())


def _ends(found: Sequence[Event], raised: Sequence[events.Failure]) -> dict[object, Event]:
    """Return ends of processes that no exception, launcher's signal or lack of memory explains."""
    told = {one.rank for one in raised} | {one.rank for one in _of(found, events.OutOfMemory)}
    unranked = sum(one.rank is None and consequent(one) for one in raised)
    ends: dict[object, events.Ended] = {}
    for one in _of(found, events.Ended):
        key = one.pid if one.pid is not None else (one.rank, one.host, one.local_rank)
        before = ends.get(key)
        if before is None or before.rank is None:
            ends[key] = one
    left: dict[object, Event] = {
        ("ended", key): one for key, one in ends.items()
        if one.code != 0 and one.code not in ASKED
        and not (one.code > 0 and (one.rank in told or (one.rank is None and raised)))
    }  # fmt: skip
    if len(left) < unranked and all(one.code == 1 for one in _of(left.values(), events.Ended)):
        return {}  # each of them by one of those exceptions; one more is the launcher's
    return left


def consequent(one: events.Failure) -> bool:
    """Return whether the exception only tells of another process's failure."""
    if "EADDRINUSE" in one.text:
        return False
    return bool(CONSEQUENCE.search(one.type) or CONSEQUENT_TEXT.search(one.text))


def _same(event: Event) -> tuple[object, ...]:
    if isinstance(event, events.Failure):
        return ("raised", event.type, re.sub(r"\d+", "0", event.text), event.place)
    if isinstance(event, events.OutOfMemory):
        return ("memory", event.device)
    if isinstance(event, events.Ended):
        return ("ended", event.code, event.first)
    return (type(event), id(event))


def _failure(same: list[Event], follows: bool) -> Conclusion:
    event, lines, ranks = same[0], _lines(same), _ranks(same)
    if isinstance(event, events.Failure):
        file, number, name = event.place or ("", 0, "")
        facts: Facts = (
            ("type", event.type), ("text", event.text), ("file", file), ("line", number),
            ("function", name), ("times", len(same)),
        )  # fmt: skip
        return Conclusion("exception", ranks, ranks, facts=facts, lines=lines, follows=follows)
    if isinstance(event, events.OutOfMemory):
        hosts = [one.host for one in same if isinstance(one, events.OutOfMemory)]
        facts = (("device", event.device), ("requested", event.requested), ("pid", event.pid or 0),
                 ("host", max(hosts)))  # fmt: skip
        kind = "out-of-memory" if event.device else "host-memory"
        return Conclusion(kind, ranks, ranks, facts=facts, lines=lines, follows=follows)
    if isinstance(event, events.DeviceFault):
        facts = (("device", event.device), ("xid", event.xid), ("text", event.text),
                 ("host", event.line.origin.host))  # fmt: skip
        kind = "program-fault" if event.xid in OF_PROGRAMS else "device-fault"
        return Conclusion(kind, ranks, ranks, facts=facts, lines=lines, follows=follows)
    assert isinstance(event, events.Ended)
    local_rank = -1 if event.local_rank is None else event.local_rank
    facts = (("code", event.code), ("host", event.host), ("local_rank", local_rank),
             ("pid", event.pid or 0))  # fmt: skip
    return Conclusion("process-ended", ranks, ranks, facts=facts, lines=lines, follows=follows)


# -- start-up, and what torch itself found


def _inits(found: Sequence[Event]) -> list[Conclusion]:
    begun: dict[tuple[str, int], dict[int, events.InitStart]] = defaultdict(dict)
    done: dict[tuple[str, int], set[int]] = defaultdict(set)
    ids = {one.comm: one.comm_id for one in _of(found, events.InitStart) if one.comm_id}
    for one in _of(found, events.InitStart):
        key = ids.get(one.comm, ""), one.num_ranks
        if one.complete:
            done[key].add(one.comm_rank)
        else:
            begun[key][one.comm_rank] = one
    conclusions = []
    for key, starts in begun.items():
        waiting = tuple(sorted(starts.keys() - done[key]))
        if not waiting:
            continue
        missing = tuple(rank for rank in range(key[1]) if rank not in starts)
        lines = _lines([starts[rank] for rank in waiting])
        conclusions.append(
            Conclusion(
                "init-not-complete", missing, waiting, facts=(("ranks", key[1]),), lines=lines
            )
        )
    return conclusions


def _store(found: Sequence[Event]) -> list[Conclusion]:
    conclusions = []
    if late := _of(found, events.NotAllJoined):
        most = max(late, key=lambda one: one.joined)
        joined: Facts = (("joined", most.joined), ("expected", most.expected))
        conclusions.append(Conclusion("ranks-not-joined", facts=joined, lines=_lines(late)))
    if lost := _of(found, events.Unreachable):
        facts: Facts = (("address", max(one.address for one in lost)),)
        ranks = _ranks(lost)
        conclusions.append(
            Conclusion("store-unreachable", (), ranks, facts=facts, lines=_lines(lost))
        )
    return conclusions


def _reported(found: Sequence[Event], seen: Collection[int]) -> list[Conclusion]:
    conclusions: list[Conclusion] = []
    if reports := _of(found, events.Disagree):
        conclusions.append(disagreement(reports, _of(found, events.Failure), seen))
    if differ := _of(found, events.SizesDiffer):
        sent, expected = differ[0].sent_bytes, differ[0].expected_bytes
        sizes: Facts = (("most", f"{expected} bytes"), ("other", f"{sent} bytes")) if sent else ()
        conclusions.append(
            Conclusion("mismatch", (), _ranks(differ), facts=sizes, lines=_lines(differ))
        )
    if missed := _of(found, events.BarrierMissed):
        culprits = tuple(sorted({rank for one in missed for rank in one.ranks}))
        conclusions.append(
            Conclusion("missing-rank", culprits, _ranks(missed),
                       op=missed[0].op or "monitored_barrier", lines=_lines(missed))
        )  # fmt: skip
    for left in _of(found, events.NotJoined)[:1]:
        conclusions.append(Conclusion("missing-rank", left.ranks, seq=left.seq, lines=(left.line,)))
    if every := _of(found, events.NcclWarning):
        warned = next((one for one in every if FAILED.search(one.text)), every[0])
        told: Facts = (("text", warned.text), ("host", warned.host), ("num", len(every)))
        conclusions.append(
            Conclusion("nccl-warning", (), _ranks(every), facts=told, lines=_lines(every[:4]),
                       follows=True)
        )  # fmt: skip
    if stuck := _of(found, events.WatchdogStuck):
        seconds: Facts = (("seconds", max(one.seconds or 0 for one in stuck)),)
        conclusions.append(
            Conclusion("watchdog-stuck", (), _ranks(stuck), facts=seconds, lines=_lines(stuck),
                       follows=True)
        )  # fmt: skip
    for twice in _of(found, events.RankTwice)[:1]:
        same: Facts = (("rank", twice.comm_rank), ("ranks", twice.num_ranks))
        conclusions.append(Conclusion("rank-twice", facts=same, lines=(twice.line,)))
    for shared in _of(found, events.SharedDevice)[:1]:
        device: Facts = (("device", shared.device),)
        conclusions.append(
            Conclusion("device-twice", tuple(sorted(shared.ranks)), facts=device,
                       lines=(shared.line,))
        )  # fmt: skip
    return conclusions
