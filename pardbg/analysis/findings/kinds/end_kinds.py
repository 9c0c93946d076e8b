"""Kinds of findings about how ranks and the job ended."""

from __future__ import annotations

import signal
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Note, Severity
from pardbg.analysis.findings.kinds.absence import NO_OP, LeftOut, last_op_text
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import killed_text, signal_name
from pardbg.analysis.hangs.stacks import thread_text
from pardbg.events.log_facts import LogSays
from pardbg.store.definitions import Cause
from pardbg.words import agreed, duration, ranks_text, waits_text

THREAD_STEPS: Final = 16
"""Steps after which the work of a lost thread is no longer awaited: its queue is empty."""
_FAULTS: Final = (-signal.SIGSEGV, -signal.SIGILL, -signal.SIGFPE)
_IDLE_NS: Final = 10_000_000_000
"""Idle time, in ns, after which a rank that lost a thread is taken to wait for it."""
_TELLING: Final = {
    "EADDRINUSE": "port taken", "PytorchStreamWriter failed": "disk", "unexpected pos ": "disk",
    "No space left on device": "disk", "Disk quota exceeded": "disk",
}  # fmt: skip
"""Part of an exception's text -> case of the advice"""


class _Failure(Facts):
    """Base class of facts about the first failure of a run."""

    __slots__ = ()

    def severity(self) -> Severity:
        return "error"


def _waiting_text(waiting: tuple[int, ...], ranks: tuple[int, ...]) -> str:
    """Return a sentence on ranks that wait for ``ranks``, such as `` Ranks 1,2 wait for it.``"""
    if not waiting:
        return ""
    return f" {ranks_text(waiting).capitalize()} {waits_text(waiting)} for {agreed('it', ranks)}."


def _beside_text(beside: tuple[int, ...]) -> str:
    """Return a sentence on ranks that failed at about the same time."""
    also = f" {ranks_text(beside).capitalize()} failed within a second of this"
    return f"{also}: which was first is not known." if beside else ""


def _seen_last(ranks: tuple[int, ...], last: Label, at: str) -> str:
    """Return a sentence on the last op of a rank, if there is only one: its stack is gone."""
    return last_op_text(last, at) if len(ranks) == 1 else ""


@dataclass(frozen=True, slots=True)
class Held:
    """A further exception that a failure holds, beside its cause."""

    error: str
    where: str
    ranks: tuple[int, ...]
    """Ranks that raised the exception, as a checkpoint's error names them."""


def cause_text(cause: Cause | None) -> str:
    """Return ``, caused by ValueError: no labels``, to follow an exception; else empty."""
    if cause is None:
        return ""
    how = "while handling" if cause.implicit else "caused by"
    return f", {how} {cause.text}{_on(cause.ranks)}"


def _also_text(also: tuple[Held, ...]) -> str:
    held = ((of, f" (at {of.where})" if of.where else "") for of in also)
    return "".join(f", also by {of.error}{_on(of.ranks)}{at}" for of, at in held)


def _on(ranks: tuple[int, ...]) -> str:
    return f" on {ranks_text(ranks)}" if ranks else ""


@dataclass(frozen=True, slots=True)
class Raised(_Failure):
    """An uncaught exception ended a rank; the same one on several ranks is one finding."""

    error: str
    step: int
    first: int
    """Rank that raised the exception first."""
    made_up_input: bool
    """Whether the program raised it in a rehearsal, whose received tensors are placeholders."""
    waiting: tuple[int, ...]
    called_at: str = ""
    """Place where these ranks called, by RPC, the worker that raised the exception."""
    beside: tuple[int, ...] = ()
    """Ranks that failed in another way so soon before or after that the order is not known."""
    cause: Cause | None = None
    also: tuple[Held, ...] = ()
    everywhere: bool = False
    """Whether all ranks raised it."""

    def text(self, about: Candidate) -> str:
        text = f"{ranks_text(about.ranks)} raised {self.error}{cause_text(self.cause)}"
        if about.where:
            step = f", step {self.step}" if self.step >= 0 else ""
            text += f" (at {about.where}{step})"
        if self.called_at:
            text += f" (in a call by RPC at {self.called_at})"
        text += _also_text(self.also)
        if len(about.ranks) > 1 and not (self.everywhere or (self.cause and self.cause.ranks)):
            text += f"; rank {self.first} was first"
        if self.made_up_input:
            text += (
                ". Rehearsal fills received tensors with placeholder data; if this line checks "
                "such values, a real job may not fail here"
            )
        return f"{text}.{_beside_text(self.beside)}{_waiting_text(self.waiting, about.ranks)}"

    def advice(self) -> str:
        case = "beside" if self.beside else "everywhere" if self.everywhere else ""
        return self.tries(next((_TELLING[part] for part in _TELLING if part in self.error), case))


@dataclass(frozen=True, slots=True)
class Exited(_Failure):
    """A process exited with a code other than 0 and no exception."""

    code: int | None
    waiting: tuple[int, ...]
    abrupt: bool
    """Whether the process ended without the agent's notice that the interpreter exits."""
    last: Label = NO_OP
    """Last op that the rank issued; ``last_at``: place where it issued its first such op."""
    last_at: str = ""

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} left with exit code {self.code}, without an exception."
            f"{_waiting_text(self.waiting, about.ranks)}"
            f"{_seen_last(about.ranks, self.last, self.last_at)}"
        )

    def apart(self) -> Hashable:
        return self.code

    def advice(self) -> str:
        return self.tries("abrupt" if self.abrupt else "")


@dataclass(frozen=True, slots=True)
class Lost(_Failure):
    """A process was ended by a signal (named if the hub saw it in time), or is silent."""

    killed: bool
    code: int | None
    waiting: tuple[int, ...]
    last: Label = NO_OP
    last_at: str = ""
    printed: str = ""
    """Text that the process printed as it aborted."""
    crashed: bool = False
    """Whether the place is that of the crash itself: the thread that crashed ran Python code."""
    beside: tuple[int, ...] = ()
    """Ranks that failed in another way so soon before or after that the order is not known."""

    def text(self, about: Candidate) -> str:
        end = killed_text(self.code) if self.killed else "ended without an error"
        if self.code is None and about.where:
            end = "crashed"
        end, its = agreed(end, about.ranks), agreed("its", about.ranks)
        printed = f' It printed: "{self.printed}".' if self.printed else ""
        at = f"{'' if self.crashed else f' while {its} main thread was'} at {about.where}"
        at, last_at = (at, "") if about.where else ("", self.last_at)
        return (
            f"{ranks_text(about.ranks)} {end}{at}; {its} last records are kept.{printed}"
            f"{_beside_text(self.beside)}{_waiting_text(self.waiting, about.ranks)}"
            f"{_seen_last(about.ranks, self.last, last_at)}"
        )

    def apart(self) -> Hashable:
        return self.code

    def advice(self) -> str:
        crashed = "crashed" if self.crashed and self.code in (None, *_FAULTS) else self.code
        return self.tries("printed" if self.printed else crashed)


@dataclass(frozen=True, slots=True)
class Harmless(Note):
    """A bad end of a rank in a job that ended well."""

    raised: bool
    killed: bool
    code: int | None

    def text(self, about: Candidate) -> str:
        end = killed_text(self.code) if self.killed else "ended without an error"
        what = "raised" if self.raised else end
        return f"rank {about.ranks[0]} {what}; the job ended with exit code 0."


@dataclass(frozen=True, slots=True)
class Followed(Note):
    """Ends of ranks that follow from others' ends."""

    after: tuple[int, ...]
    waited_for: tuple[int, ...]
    """Ranks that all of these ranks waited for; empty: not all of them waited."""
    code: int | None = None
    """Signal (as -number) that ended the ranks, if no launcher sent it."""
    error: str = ""
    """Exception that ended the ranks, if it does not tell of a lost connection."""

    def text(self, about: Candidate) -> str:
        ranks = ranks_text(about.ranks)
        ranks += f" ended by {signal_name(self.code)}" if self.code else " ended"
        if self.waited_for and not self.error:
            return f"{ranks} while waiting for {ranks_text(self.waited_for)}."
        if self.code or self.error:
            error = f": {self.error}" if self.error else ""
            return f"{ranks} after {ranks_text(self.after)}{error}."
        return f"{ranks} after {ranks_text(self.after)}: told to end, or lost a connection."


@dataclass(frozen=True, slots=True)
class LeftEarly(_Failure):
    """Ranks that exited, with no sign of an error, while others were connected to them."""

    abrupt: bool = False
    """Whether the ranks skipped Python's own exit (os._exit)."""
    last: Label = NO_OP
    last_at: str = ""
    normal: bool = False
    """Whether the ranks' exit code is known to be 0."""
    destroyed: bool = False
    """Whether the ranks destroyed the group they shared with the others, and still run."""
    left_out: LeftOut | None = None
    unsent: tuple[int, int] | None = None
    """Rank that was in a receive from it, and number of messages that it had sent there."""

    def text(self, about: Candidate) -> str:
        left = about.culprits
        normally = " normally" if self.normal else ""
        how = "ended by os._exit" if self.abrupt else f"{agreed('has', left)} exited{normally}"
        if self.destroyed:
            how = f"destroyed {agreed('its', left)} process group"
        text = f"{ranks_text(left)} {how}; {ranks_text(about.ranks)} then lost the connection."
        if self.left_out is not None:
            of = self.left_out
            text += f" It ended more steps, and issued {of.issued} collectives of {of.group}, not "
            return f"{text}{of.others} as they did: in some step it left out one."
        if self.unsent is not None:
            receiver, sent = self.unsent
            return (
                f"{text} Rank {receiver} waited for message {sent + 1} of it, and it sent {sent}."
            )
        return text + _seen_last(left, self.last, self.last_at)

    def advice(self) -> str:
        if self.left_out is not None:
            return self.tries("left out")
        if self.unsent is not None:
            return self.tries("unsent")
        return self.tries("destroyed" if self.destroyed else "abrupt" if self.abrupt else "")


@dataclass(frozen=True, slots=True)
class CutOff(Facts):
    """Ranks lost connections or were told to end, and no first failure is known."""

    error: str
    sure: bool
    """Whether the job is over, so that no first failure can become known."""
    stale: bool = False
    """Whether a restarted life could not connect to a stale address from its store."""

    def severity(self) -> Severity:
        return "error" if self.sure else "warning"

    def text(self, about: Candidate) -> str:
        if self.stale:
            return (
                f"{ranks_text(about.ranks)} could not connect after a restart: {self.error}. "
                "The address is most likely of the life before: torchrun's store keeps those."
            )
        error = f": {self.error}" if self.error else ""
        return f"{ranks_text(about.ranks)} ended: lost a connection, or told to end{error}."

    def advice(self) -> str:
        return self.tries("stale" if self.stale else "")


@dataclass(frozen=True, slots=True)
class ExitCode(_Failure):
    """The job's exit code was not 0. An error only if no other finding explains it."""

    code: int | None
    outlived: tuple[int, ...] = ()
    """Ranks that still ran when the job's first process ended."""

    def text(self, about: Candidate) -> str:
        signal = f" (128 + {signal_name(128 - (self.code or 0))})" if (self.code or 0) > 128 else ""
        ran = f" {ranks_text(self.outlived).capitalize()} still ran then." if self.outlived else ""
        return f"the job ended with exit code {self.code}{signal}.{ran}"

    def advice(self) -> str:
        return self.tries("outlived" if self.outlived else "")


@dataclass(frozen=True, slots=True)
class HiddenEnd(Note):
    """Every rank ended badly, and the job's exit code is 0."""


@dataclass(frozen=True, slots=True)
class Interrupted(Note):
    """Somebody ended the job on purpose."""

    by: str
    """Origin of the request: ``Ctrl-C (SIGINT)``, ``SIGTERM``, ``ada on pts/3 (kill)``"""

    def text(self, about: Candidate) -> str:
        ranks = about.ranks
        ended = f"; {ranks_text(ranks)} ended with it" if ranks else ""
        return f"the run was ended by {self.by}{ended}."


@dataclass(frozen=True, slots=True)
class ThreadRaised(Facts):
    """An exception ended a thread of the program, not the rank. An error where the rank then stands
    and others wait for it. Or a future keeps why an asynchronous checkpoint was not written."""

    thread: str
    error: str
    steps_since: int = 0
    """Training steps that the rank has ended since the thread failed."""
    idle_ns: int = 0
    """Time for which the rank has done nothing and been in no op, in ns."""
    waiting: tuple[int, ...] = ()
    """Ranks that have waited for this one since."""
    stands: str = ""
    """Place where the rank's main thread stands, if others wait for the rank."""
    kept: bool = False
    """Whether a future holds the exception, of a pool's thread that goes on. Then the facts only
    explain other candidates: ranks that wait or disagree."""
    cause: Cause | None = None
    also: tuple[Held, ...] = ()
    unwritten: int | None = None
    """Step in which a checkpoint became known to be unwritten; None: the thread wrote no
    checkpoint. If set, the facts are a finding by themselves, one for all ranks."""
    task_of: str = ""
    """Library of the task that failed, instead of a thread; empty: a thread."""

    def severity(self) -> Severity:
        return "error" if self.waiting or self.idle_ns >= _IDLE_NS else "warning"

    def explaining(self, about: Candidate, effect: Candidate) -> Facts:
        waiting = sorted({*self.waiting, *effect.ranks}.difference(about.culprits))
        stands = effect.where if effect.culprits == about.culprits else None
        return replace(self, waiting=tuple(waiting), stands=stands or self.stands)

    def text(self, about: Candidate) -> str:
        rank, at = ranks_text(about.ranks), f" (at {about.where})" if about.where else ""
        if self.unwritten is not None:
            step = f"in step {self.unwritten} " if self.unwritten >= 0 else ""
            raised = self.error if self.cause is None or self.cause.implicit else self.cause.text
            by = ranks_text(self.cause.ranks if self.also and self.cause else about.culprits)
            more = "".join(
                f", {ranks_text(of.ranks)} {of.error}{f' (at {of.where})' if of.where else ''}"
                for of in self.also
            )
            return (
                f"{step}a checkpoint failed and was not written: {by} "
                f"raised {raised}{at}{more}. A future keeps that: {rank} went on."
            )
        end = "" if self.kept else " and ended"
        text = f"{rank}'s {thread_text(self.thread, self.task_of)} raised "
        text += f"{self.error}{cause_text(self.cause)}{at}"
        text += f"{_also_text(self.also)}{end}"
        if self.kept:
            keeps = "The task" if self.task_of else "A future"
            text += f". {keeps} keeps that: {rank} went on"
        if not self.waiting and self.idle_ns:
            idle = duration(self.idle_ns)
            return f"{text}. Since then {rank} recorded nothing and used no CPU for {idle}."
        if not self.waiting:
            return f"{text}; its process went on without it."
        stands = f" {rank.capitalize()} stands at {self.stands}." if self.stands else ""
        return f"{text}.{stands}{_waiting_text(self.waiting, about.ranks)}"

    def subject(self, about: Candidate) -> Hashable:
        return None if self.unwritten is None else (self.thread, self.error)

    def joined(self, same: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return one candidate for a checkpoint that failed on several ranks."""
        ranks = tuple(sorted({rank for one in same for rank in one.ranks}))
        culprits = tuple(sorted({rank for one in same for rank in one.culprits}))
        return [replace(min(same, key=lambda one: one.t_ns), ranks=ranks, culprits=culprits)]

    def advice(self) -> str:
        if self.unwritten is not None:
            return self.tries("unwritten")
        if self.kept:
            return self.tries("task" if self.task_of else "kept")
        return self.tries("waiting" if self.waiting or self.idle_ns else "")


@dataclass(frozen=True, slots=True)
class LogSaid(Facts):
    """The job's log says so, by `pardbg explain`. A note where it follows from something else."""

    said: LogSays

    def severity(self) -> Severity:
        return "error" if self.said.error else "info"

    def text(self, about: Candidate) -> str:
        return f"The log: {self.said.text}"

    def advice(self) -> str:
        return self.said.advice


LOGGED: Final = (
    "missing-rank", "mismatch", "absent-ranks", "different-ops", "stuck-op", "exception",
    "out-of-memory", "device-fault", "process-ended", "ranks-not-joined", "store-unreachable",
    "init-not-complete", "told-to-end", "peers-lost", "nccl-warning", "watchdog-stuck",
    "exception-logged",
    "host-ahead", "dump-unfit", "dump-disagrees", "program-fault", "rank-twice", "device-twice",
    "host-memory",
)  # fmt: skip
"""Kinds of conclusions from a log; as findings they are named ``log-…``."""
KINDS: Final = kinds(
    {
        "exception": (Raised, Harmless),
        "thread-exception": ThreadRaised,
        "rank-lost": (Lost, Followed, Harmless),
        "rank-exited": Exited,
        "cut-off": CutOff,
        "exit-code": (ExitCode, HiddenEnd),
        "interrupted": Interrupted,
        " ".join(f"log-{kind}" for kind in LOGGED): LogSaid,
    }
)
