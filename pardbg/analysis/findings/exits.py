"""How processes ended, and requests that the job end: Ctrl-C, a viewer, a scheduler, a signal to
the launcher."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pardbg.analysis.base.abort_text import crash
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import lines
from pardbg.analysis.findings.wording import signal_name
from pardbg.analysis.hangs.newest import newest_collectives
from pardbg.analysis.hangs.stacks import waits_in_op, whole_place
from pardbg.analysis.hangs.waitgraph import PendingOp
from pardbg.events.control_facts import Killed
from pardbg.store.definitions import Failure
from pardbg.store.process import Process
from pardbg.words import viewer, whole

TOGETHER_NS: Final = 60_000_000
"""Time within which a signal reaches all ranks, in ns; the order of their ends is chance."""
ENDED_NS: Final = 1_000_000_000
"""Time after a process's end within which its exit code, and so the cause, still comes, in ns."""
GIVES_UP_NS: Final = 5_000_000_000
"""Shortest timeout of any backend, in ns: an earlier abort is the program's own."""
SEEN_LATE_NS: Final = 1_000_000_000
"""Time by which peers may see closed sockets before the hub sees the process's end, in ns."""
FIRM_NS: Final = 5_000_000_000
"""Minimum time that launchers wait between SIGTERM and SIGKILL."""
_FAULTS: Final = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
_SIGNALLED: Final = (-signal.SIGINT, 128 + signal.SIGINT)
_ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_EVENTS: Final = 64
_OUTPUT_LINES: Final = 400
_READ_LATE_NS: Final = 250_000_000
"""Delay between writing and reading the launcher's output, in ns."""
_DEATH: Final = re.compile(r"Received (\S+) death signal|Process \d+ got signal: (\d+)")
_FAILED: Final = re.compile(r"\bexitcode *: (-?\d{1,3})(?:\) local_rank: \d+)? \(pid: (\d{1,10})\)")
_TRANSPORT: Final = re.compile(
    r"onnection (closed|reset|refused|was)|Broken pipe|[Tt]imed out|Socket (closed|Timeout)|"
    r"remote process|Application timeout|[Mm]onitored[Bb]arrier|wait timeout|"
    r"NCCL (error|communicator)|DistBackendError|ran for more than set timeout"
)
_TIMEOUT: Final = re.compile(
    r"(?<!onnection )[Tt]imed out|Socket Timeout|wait timeout|timeout: Work|before timing out|"
    r"failed to pass monitoredBarrier|ran for more than set timeout"
)
"""Errors of an op that exceeded the job's timeout."""


class BadEnd(NamedTuple):
    """End of one rank by a kill, a loss, an exception or an exit code other than 0."""

    rank: int
    t_ns: int
    how: Literal["killed", "lost", "exception", "code"]


@per_view
def bad_ends(view: View) -> list[BadEnd]:
    """Return the bad ends of ranks, first to last: uncaught exceptions, kills, exit codes."""
    over = [(rank, one) for rank, one in view.ranks.items() if one.failures or one.ends]
    ends = [end for rank, one in over if (end := _bad_end(view, rank, one)) is not None]
    return sorted(
        (end for end in ends if not _of_life_before(view, end)),
        key=lambda end: (end.t_ns, end.rank),
    )


def _of_life_before(view: View, end: BadEnd) -> bool:
    """Return whether the rank ended before the newest life began, so that it is yet to come."""
    if view.ranks[end.rank].epoch == view.epoch:
        return False
    newest = (one.started_ns or 0 for one in view.ranks.values() if one.epoch == view.epoch)
    return end.t_ns < min(newest)


def _bad_end(view: View, rank: int, process: Process) -> BadEnd | None:
    fatal = view.fatal(process)
    if fatal:
        return BadEnd(rank, fatal[0].t_ns, "exception")
    end = view.proc_end(process)
    if end is None:
        return None
    if end[1] == "killed" or end[1] == "lost":
        return BadEnd(rank, end[0], "killed" if end[1] == "killed" else "lost")
    return BadEnd(rank, end[0], "code") if exit_code(view, rank) else None


def exit_code(view: View, rank: int) -> int | None:
    """Return a rank's exit code, from torchrun's output where the hub came too late to see it;
    None: not known."""
    process = view.ranks[rank]
    if process.exit_code is None and view.proc_end(process) is not None:
        return _told_codes(view).get(process.pid)
    return process.exit_code


@per_view
def _told_codes(view: View) -> dict[int, int]:
    """Return pid -> exit code as printed by torchrun, for pids that only one rank has."""
    pids = Counter(process.pid for process in view.ranks.values())
    told = (_FAILED.search(line.text) for line in lines(view.store, view.t_ns, _OUTPUT_LINES))
    codes = {int(found[2]): int(found[1]) for found in told if found is not None}
    return {pid: code for pid, code in codes.items() if pids[pid] == 1}


def failure(view: View, rank: int) -> Failure:
    """Return the exception that ended a rank."""
    return next(f for f in view.ranks[rank].failures if f.thread == "MainThread")


def is_transport(error: str) -> bool:
    """Return whether an exception is about a lost rank or connection, hence not the first cause."""
    return _TRANSPORT.search(error) is not None


def lost_peer(failed: Failure) -> bool:
    """Return whether an exception, or the failed op that caused it, is about a lost peer."""
    lost = [is_transport(of.text) and waits_in_op(of.frames, "") for of in failed.causes]
    if len(lost) > 1 and not all(lost):
        return False  # an exception group: other members are the program's own
    return is_transport(failed.text) or (bool(lost) and lost[0])


def aborted_after(process: Process, since_ns: int) -> bool:
    """Return whether a rank that waited since ``since_ns`` was aborted, as by NCCL's watchdog."""
    long = bool(process.ends) and process.ends[-1][0] - since_ns >= GIVES_UP_NS
    return long and process.exit_code == -signal.SIGABRT


def timed_out(process: Process, since_ns: int, until_ns: int) -> bool:
    """Return whether a rank waiting since ``since_ns`` timed out before ``until_ns``."""
    if aborted_after(process, since_ns) and process.ends[-1][0] < until_ns:
        return True
    failures = (f for f in process.failures if since_ns < f.t_ns < until_ns)
    return any(_TIMEOUT.search(failure.text) for failure in failures)


def any_timed_out(view: View, ops: Iterable[PendingOp], over: int) -> bool:
    """Return whether a rank's timeout ended the waits; a host's load prolongs none of these."""
    return any(timed_out(view.ranks[op.rank], op.since_ns, over + ENDED_NS) for op in ops)


def gave_up(view: View, rank: int) -> bool:
    """Return whether a rank was aborted over an op that a rank still alive had not issued."""
    end = view.proc_end(view.ranks[rank])
    if end is None:
        return False
    waited = [
        arrival for row in newest_collectives(view) if row.verdict == "missing rank"
        and not any(_ended_before(view, other, end[0]) for other in row.missing)
        for arrival in row.arrivals if arrival.rank == rank
    ]  # fmt: skip
    process = view.ranks[rank]
    return any(a.issued_ns is not None and aborted_after(process, a.issued_ns) for a in waited)


def _ended_before(view: View, rank: int, t_ns: int) -> bool:
    end = view.proc_end(view.ranks[rank]) if rank in view.ranks else None
    return end is not None and end[0] < t_ns


def left_waiting(view: View) -> dict[int, tuple[int, ...]]:
    """Return rank -> ended ranks it waits for, for ranks that end next: those do not all wait for
    each other, but in the end for one that waits for none."""
    waits: dict[int, tuple[int, ...]] = {}
    for row in newest_collectives(view):
        gone = tuple(r for r in row.missing if ended(view, r))
        if row.verdict == "missing rank" and gone:
            waits.update(dict.fromkeys(row.issued, gone))
    found: dict[int, tuple[int, ...]] = {}
    while more := {
        rank: gone for rank, gone in waits.items()
        if rank not in found and any(one in found or one not in waits for one in gone)
    }:  # fmt: skip
        found |= more
    return found


def left_ns(view: View, rank: int) -> int | None:
    """Return when the rank's program or process ended (the earlier), in ns; None: neither."""
    process = view.ranks[rank]
    end = view.proc_end(process)
    times = [end[0]] if end is not None else []
    if process.leaving_ns is not None and process.leaving_ns <= view.t_ns:
        times.append(process.leaving_ns)
    return min(times, default=None)


def ended(view: View, rank: int) -> bool:
    """Return whether the rank's process is gone."""
    return rank in view.ranks and view.proc_end(view.ranks[rank]) is not None


# -- whose doing an end was


def sent_away(view: View, end: BadEnd) -> bool:
    """Return whether the rank ended by a signal that launchers send (SIGTERM, SIGKILL)."""
    return end.how != "exception" and exit_code(view, end.rank) in (
        -signal.SIGTERM,
        -signal.SIGKILL,
    )


def by_itself(view: View, end: BadEnd, first: BadEnd) -> bool:
    """Return whether a signal ended the rank that no launcher sends, or not so soon after the first
    end."""
    code = exit_code(view, end.rank)
    sent = code == -signal.SIGKILL and end.t_ns - first.t_ns > FIRM_NS
    return end.how == "killed" and code in (*_FAULTS, -signal.SIGABRT, -signal.SIGKILL) and not sent


def crashed(view: View, end: BadEnd) -> bool:
    """Return whether the rank crashed by itself, not on its way out. The hub sees a crash late: the
    kernel first frees the process's memory, and may write a core."""
    fault = end.how == "killed" and exit_code(view, end.rank) in _FAULTS
    return fault and (left_ns(view, end.rank) or end.t_ns) >= end.t_ns


def told_alone(view: View, end: BadEnd) -> bool:
    """Return whether SIGTERM ended this rank well before any other ended, while another rank of its
    host lived to lose its connection: a launcher would send it to all ranks of a host at once."""
    bad = bad_ends(view)
    if end.t_ns > bad[0].t_ns + TOGETHER_NS:
        return False
    others = (one for rank, one in view.ranks.items() if rank != end.rank)
    gone = (at[0] for one in others if (at := view.proc_end(one)) is not None)
    if any(t_ns <= end.t_ns + TOGETHER_NS for t_ns in gone):
        return False  # mostly the next one: ranks that are ended together are many
    host = view.ranks[end.rank].host
    lost = (e.rank for e in bad if e.how == "exception" and lost_peer(failure(view, e.rank)))
    return any(view.ranks[rank].host == host for rank in lost if rank != end.rank)


def terminated_before(view: View, t_ns: int) -> bool:
    """Return whether another rank ended by SIGTERM more than FIRM_NS before."""
    terminated = (e for e in bad_ends(view) if exit_code(view, e.rank) == -signal.SIGTERM)
    return any(end.t_ns < t_ns - FIRM_NS for end in terminated)


# -- requests to end


def crash_place(view: View, end: BadEnd) -> tuple[str | None, bool]:
    """Return (where the process was as a signal ended it, whether the crash itself was there)."""
    at = crash(view, end.rank, end.t_ns) if end.how == "killed" else None
    return (None, False) if at is None else (whole_place(at.frames), not at.beside)


@dataclass(frozen=True, slots=True)
class TerminationRequest:
    """A request that the whole job end."""

    t_ns: int
    by: str
    """Origin: ``Ctrl-C (SIGINT)``, ``SIGTERM``, ``ada on pts/3 (kill)``"""

    def precedes(self, end: BadEnd) -> bool:
        """Return whether a bad end comes after this request, and so follows from it."""
        return end.t_ns >= self.t_ns - TOGETHER_NS


def termination(view: View, bad: Sequence[BadEnd]) -> TerminationRequest | None:
    """Return the first request that the job end, as seen by the launcher, by the hub or in the
    ranks' ends; None: none was made."""
    found = [*_by_viewers(view), *_passed_on(view), *_by_launcher(view)]
    sigint = [end for end in bad if interrupted(view, end)]
    # A terminal sends SIGINT to all ranks; a single rank got it alone or raised the exception.
    alone = len(sigint) == 1 < len(view.ranks) and not found
    by = f"SIGINT or KeyboardInterrupt in rank {sigint[0].rank}" if alone else "Ctrl-C (SIGINT)"
    found += [TerminationRequest(end.t_ns, by) for end in sigint[:1]]
    if not found and bad and all(_terminated(view, end) for end in bad):
        found.append(TerminationRequest(bad[0].t_ns, "SIGTERM, as a scheduler or `kill` sends it"))
    first = min(found, key=lambda request: request.t_ns, default=None)
    killed = next(_by_viewers(view), None)
    if first is None or killed is None or killed.t_ns > first.t_ns + _READ_LATE_NS:
        return first
    return killed  # the signal is how the hub ends the job


def interrupted(view: View, end: BadEnd) -> bool:
    """Return whether the rank ended by SIGINT or its KeyboardInterrupt."""
    if end.how == "exception":
        return failure(view, end.rank).type == "KeyboardInterrupt"
    return view.ranks[end.rank].exit_code in _SIGNALLED


def _terminated(view: View, end: BadEnd) -> bool:
    return end.how == "killed" and view.ranks[end.rank].exit_code == -signal.SIGTERM


def _by_viewers(view: View) -> Iterator[TerminationRequest]:
    """Yield kills that viewers asked for (``:kill yes``)."""
    for t_ns, event in view.store.controls.last(view.now_ns, _EVENTS):
        if isinstance(event.fact, Killed):
            yield TerminationRequest(t_ns, f"{viewer(event.by) if event.by else 'a viewer'} (kill)")


def _passed_on(view: View) -> Iterator[TerminationRequest]:
    """Yield signals to end that ``pardbg run`` passed on to the job; known once the job has ended.
    Slurm sends SIGCONT before SIGTERM, and what a user chose before a job's time is over."""
    for t_ns, number in view.store.told if view.run_end is not None else ():
        ends = number in _ENDING or (view.run_end or (0, None))[1] in (-number, 128 + number)
        if ends and t_ns <= view.t_ns:
            by = "Ctrl-C (SIGINT)" if number == signal.SIGINT else signal_name(-number)
            yield TerminationRequest(t_ns, by)


def _by_launcher(view: View) -> list[TerminationRequest]:
    """Return the signal that torchrun itself received: it prints it before it ends the ranks."""
    for line in lines(view.store, view.t_ns, _OUTPUT_LINES):
        found = _DEATH.search(line.text)
        if found is not None:
            name = _signal(next(word for word in found.groups() if word is not None))
            return [TerminationRequest(line.t_ns - _READ_LATE_NS, f"{name} to the launcher")]
    return []


def _signal(word: str) -> str:
    """Return ``SIGTERM`` for ``15``, ``SIGTERM`` or ``Signals.SIGTERM``."""
    number = whole(word)
    return word.rpartition(".")[2] if number is None else signal_name(-number)
