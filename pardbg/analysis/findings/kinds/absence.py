"""Activity of a rank that other ranks wait for, as facts and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Label, Severity
from pardbg.analysis.findings.wording import killed_text, word
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg.sentences import filled
from pardbg.words import duration, ranks_text

Doing = Literal[
    "unknown", "left", "killed", "lost", "ended", "stopped", "traced", "pdb", "prompt", "cut off",
    "gil", "kernel", "device", "compiling", "importing", "checkpoint", "loading",
    "torch.distributed", "action", "forward", "backward", "optimizer", "pipeline", "start-up",
    "code", "runs", "destroyed",
]  # fmt: skip
Verb = Literal["be", "have", "load", "import", "was", "run"]
_VERBS: Final[dict[Verb, tuple[str, str, str, str]]] = {
    "be": ("is", "are", "was", "were"),
    "have": ("has", "have", "had", "had"),
    "load": ("loads", "load", "loaded", "loaded"),
    "import": ("imports", "import", "imported", "imported"),
    "was": ("was", "were", "was", "were"),
    "run": ("runs", "run", "ran", "ran"),
}
"""verb -> (form for one rank, form for several, the same two in the past)"""
_KERNEL: Final = "blocked in the kernel (a disk, a network, a driver)"
_WORDS: Final[dict[Doing, tuple[Verb, str]]] = {
    "unknown": ("have", "not come"), "left": ("have", "exited"), "lost": ("be", "lost"),
    "stopped": ("be", "stopped (SIGSTOP)"), "traced": ("be", "stopped by a native debugger"),
    "pdb": ("be", "in pdb"), "prompt": ("be", "in an interactive prompt"),
    "kernel": ("be", _KERNEL), "compiling": ("be", "compiling"), "importing": ("import", "modules"),
    "checkpoint": ("be", "at a checkpoint"), "loading": ("load", "data"), "code": ("be", ""),
    "torch.distributed": ("be", "in torch.distributed"), "forward": ("be", "in forward"),
    "backward": ("be", "in backward"), "optimizer": ("be", "in the optimizer's step"),
    "pipeline": ("be", "in the pipeline's step"), "start-up": ("be", "in its start-up"),
    "runs": ("run", "on"),
}  # fmt: skip
_KINDS: Final[dict[Doing, str]] = {
    "stopped": "rank-stopped", "traced": "rank-stopped", "pdb": "in-debugger",
    "prompt": "in-debugger", "cut off": "node-lost", "gil": "gil-held",
}  # fmt: skip
GONE: Final[tuple[Doing, ...]] = ("left", "killed", "lost", "ended", "destroyed")
FAULTS: Final[tuple[Doing, ...]] = (*GONE, *_KINDS)
"""States in which a rank is at fault, whatever others wait for; in others it takes time."""
_OWN_ADVICE: Final[tuple[Doing, ...]] = (*FAULTS, "kernel", "device")
WHOLE: Final[tuple[Doing, ...]] = (*GONE, "cut off", "unknown", "gil", "kernel", "device", *_KINDS)
"""States reported without the threads and callers of the place."""


NO_OP: Final = Label("")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Collectives issued by a rank that ended more steps than the others, but issued fewer."""

    group: Label
    issued: int
    others: int


@dataclass(frozen=True, slots=True)
class Absence:
    """Cause of a missing rank: what it does instead."""

    doing: Doing
    place: str | None = None
    """Place in the program where the rank is; None: not known."""
    name: str = ""
    """Name that belongs to ``doing``: the pipeline action, the host that is cut off, what the
    device is stuck at, or the place that destroyed the group."""
    step: int = -1
    """Step of the op or phase that the device is stuck at."""
    code: int | None = None
    """Exit code; None: not known."""
    pid: int = 0
    during: Doing = "unknown"
    """Phase of the program by its newest record, for a rank without a stack."""
    silent_ns: int = 0
    """Time for which the agent's thread has been silent or the device stuck, in ns."""
    asleep: bool = False
    """Whether the rank sleeps or waits for something."""
    progresses: bool = False
    """Whether the rank's records still arrive."""
    thread: str = ""
    """Thread that is at the place; empty: the main one."""
    caller: str = ""
    """Caller of the function at the place: ``step (train.py:88)``."""
    threads: tuple[tuple[str, str], ...] = ()
    """(thread or task in words, place) of others."""
    lock: str = ""
    """Lock that the rank waits for, and the thread that holds it, as the hub found it."""
    blocking: Blocking | None = None
    """System call that the rank's agent saw it in."""
    rank: int = -1
    last: Label = NO_OP
    """Last op that the rank issued, for a rank without a stack."""
    last_at: str = ""
    """Place where the rank issued its first op with that signature."""

    @property
    def kind(self) -> str:
        """Return the kind of finding for ranks that wait for this rank."""
        return _KINDS.get(self.doing, "missing-rank")

    @property
    def fault(self) -> bool:
        """Return whether the rank is at fault whatever the others wait for."""
        return self.doing in FAULTS

    @property
    def idle(self) -> bool:
        """Return whether the rank's host is idle: it sleeps or waits, or its device is stuck."""
        return (self.asleep or self.doing == "device") and not self.fault

    @property
    def waits_within(self) -> bool:
        """Return whether the rank may wait for a thread of its own process: it sleeps, or waits for
        a lock."""
        call = None if self.blocking is None else self.blocking.call
        return self.idle and self.doing != "device" and call in (None, "lock", "sleep", "poll")

    @property
    def in_lock(self) -> bool:
        """Return whether the rank waits for a lock."""
        return self.idle and self.blocking is not None and self.blocking.call == "lock"

    @property
    def holder(self) -> int | None:
        """Return the rank that holds the file lock, or has the other end of the socket, that this
        rank waits for; None: not known."""
        return None if self.blocking is None else self.blocking.holder

    @property
    def severity(self) -> Severity:
        """Return ``error`` if the rank cannot come by itself, ``warning`` if it may."""
        return "error" if self.doing in (*GONE, "stopped", "traced") else "warning"

    def advice(self) -> str:
        """Return the advice for this state of the rank."""
        if self.doing not in _OWN_ADVICE and self.blocking is not None:
            return blocking_advice(self.blocking, self)
        case = "pdb" if self.doing == "prompt" else self.doing
        other = "asleep" if self.asleep else "works" if self.place else "unseen"
        other = "gone" if self.doing in GONE else other
        return filled(word(Absence, f"try {case}") or word(Absence, f"try {other}"), self)

    def text(self, many: bool = False, over: bool = False) -> str:
        """Return ``is in forward at train.py:88 in step``, to follow "rank 2, which"; ``many``: for
        several ranks; ``over``: in the past tense."""
        verb, rest = self._phrase(many, over)
        words = " ".join(filter(None, (_VERBS[verb][many + 2 * over], rest)))
        if self.place and self.doing != "destroyed":
            seen = ", last seen" if self.doing == "runs" else ""
            words += f"{seen} at {self.place}{self._details(many)}"
        return words

    def _phrase(self, many: bool, over: bool) -> tuple[Verb, str]:
        if self.doing == "killed":
            return "was", killed_text(self.code).partition(" ")[2]
        if self.doing == "ended":
            return "have", f"ended with exit code {self.code}" if self.code else "ended"
        if self.doing == "destroyed":
            at = f" at {self.name}" if self.name else ""
            return "have", f"left the group (destroy_process_group{at})"
        if self.doing == "action":
            return "be", f"in {self.name}"
        if self.doing == "cut off":
            return "be", f"on {self.name}, of which nothing is heard"
        if self.doing == "gil":
            silent = f" for {duration(self.silent_ns)}" if self.silent_ns else ""
            idle = ", waiting for something" if self.asleep else ""
            at = "" if self.during == "unknown" or self.place else f", {self._at(many)}"
            held = "held" if over else "holds"
            return "be", f"in C code that {held} Python's lock{silent}{idle}{at}"
        if self.doing == "device":
            silent = duration(self.silent_ns)
            return (
                "have",
                f"not come past {self.name} (step {self.step}) on "
                f"{'their' if many else 'its'} device for {silent}",
            )
        if self.doing == "start-up" and many:
            return "be", "in their start-up"
        return _WORDS[self.doing]

    def _at(self, many: bool) -> str:
        """Return the rank's phase, such as ``in forward``."""
        if self.during == "action":
            return f"in {self.name}"
        if self.during == "loading":
            return "loading data"
        return "in their start-up" if many and self.during == "start-up" else _WORDS[self.during][1]

    def _details(self, many: bool) -> str:
        if self.doing in WHOLE:
            return ""
        thread = f" in {self.thread}" if self.thread else ""
        caller = f", called from {self.caller}" if self.caller else ""
        asleep = " (asleep there)"
        if self.blocking is not None and not many:
            asleep = f" ({blocking_text(self.blocking)})"
        asleep *= (self.asleep and self.doing != "runs") or self.blocking is not None
        return f"{thread}{caller}{asleep}"

    def beside(self, many: bool = False) -> str:
        """Return sentences on the rank's other threads and the lock that it waits for, or on its
        last op; ``many``: for several ranks."""
        if self.last and not many:
            return last_op_text(self.last, self.last_at)
        if self.doing in WHOLE or not self.place:
            return ""
        return threads_text(self.threads) + (f" There {self.lock}." if self.lock else "")


def last_op_text(last: Label, at: str) -> str:
    """Return a sentence on the last op of a rank without a stack; ``at``: place where it issued its
    first such op."""
    first = f"; it issued its first such op at {at}" if at else ""
    return f" The last op that it issued is {last}{first}." if last else ""


def handled_text(handled: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    """Return sentences such as `` Rank 2 came there handling KeyError: 'b'.``"""
    told = ((ranks_text(ranks).capitalize(), what.rstrip(".")) for what, ranks in handled)
    return "".join(f" {ranks} came there handling {what}." for ranks, what in told)


def threads_text(threads: tuple[tuple[str, str], ...]) -> str:
    """Return sentences on other threads, such as `` Its thread writer is at a.py:3 in f.``"""
    return "".join(f" Its {name} is at {at}." for name, at in threads)


def blocking_text(of: Blocking) -> str:
    """Return the blocked call in words, such as ``it sleeps``, to follow a place."""
    case: str = of.call
    if of.call == "socket" and of.holder is not None:
        case += " of rank"
    elif of.call == "file lock" and of.other:
        case += " of process" if of.holder is None else " of rank"
    else:
        does = of.does or ("named" if of.file else "")
        case += f" {does}" if word(Blocking, f"text {case} {does}") else ""
    return filled(word(Blocking, f"text {case}"), of)


def blocking_advice(of: Blocking, about: object) -> str:
    """Return a command to run and the usual causes. ``about`` has the ``rank`` and its ``pid``."""
    case, does = f"try {of.call}", of.does if of.holder is None else "of rank"
    return filled(word(Blocking, f"{case} {does}") or word(Blocking, case), of, about)
