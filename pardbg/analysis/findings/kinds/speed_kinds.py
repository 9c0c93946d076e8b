"""Kinds of findings about speed: stragglers, slow steps, pipelines, communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Note, Severity
from pardbg.analysis.findings.kinds.absence import blocking_advice, blocking_text
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import word
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg.analysis.pipeline.values import Cause
from pardbg.sentences import filled
from pardbg.words import (
    agreed,
    duration,
    percent,
    percent_rest,
    rank_set,
    ranks_text,
    rate,
    size,
    waits_text,
)

NOTE_NS: Final = 10_000_000
NOTE_SHARE: Final = 0.1
"""Share of a step; savings below either NOTE_NS or this make a note."""
SHORT_NS: Final = 1_000_000
"""Time that Python and a message may take between two actions of a pipeline, in ns."""


@dataclass(frozen=True, slots=True)
class HostOverloaded(Note):
    """Ranks share too few cores, so times are the machine's."""

    host: str
    num_ranks: int
    cores: int
    load: float
    """Threads per core that run or are ready to; 0: not known."""
    share: float
    """Share of the time for which the host's ranks wait, runnable, for a core."""
    times_are_devices: bool = False

    def text(self, about: Candidate) -> str:
        ranks = f"{self.num_ranks} rank{'s share' if self.num_ranks > 1 else ' has'}"
        cores = f"{self.cores or 'too few'} core{'' if self.cores == 1 else 's'}"
        load = f", load {self.load * (self.cores or 1):.0f}" if self.load else ""
        ready = f"; ranks wait {percent(self.share, 0)} of the time for one" if self.share else ""
        whose = "launches and hosts' waits" if self.times_are_devices else "times"
        return f"{ranks} {cores} of host {self.host}{load}{ready}: {whose} are the machine's."


Lateness = Literal[
    "data", "compute", "idle", "launch", "communication", "core", "host", "blocked", "thread",
    "unknown",
]  # fmt: skip
MEASURED: Final[tuple[Lateness, ...]] = ("data", "compute", "idle", "launch", "blocked")
"""Causes that belong to a rank even on an overloaded host. So do ``host`` and ``thread`` if waits
for a core are known, as they are subtracted. ``communication`` does not: the backend's threads wait
for cores, too."""


_MOST_THREADS: Final = 4
_UNITS: Final = {
    "step": ("steps", "a step"),
    "round": ("rounds of backward (no steps are known)", "a round"),
    "op": ("collectives (no steps are known)", "each"),
}


@dataclass(frozen=True, slots=True)
class Straggler(Facts):
    """The same ranks (one, several, a whole host) come last to a group's collectives."""

    label: Label
    num_late: int
    num_steps: int
    by_ns: float
    cause: Lateness
    cause_ns: float
    phases: tuple[str, ...]
    """Names of the compute phases that take longer; of cause ``thread``, of threads with ops."""
    own_ns: float
    """Part of the cost of a step that is not due to waits for a core, in ns."""
    step_ns: float
    timed: bool
    """Whether waits for a core are known, and do not account for the lateness."""
    recurring: bool
    """Whether the ranks are late in most steps; else only in the mean."""
    whole_host: str
    """Host whose ranks are all culprits, if there are other hosts; else empty."""
    late: tuple[int, ...]
    blocking: Blocking | None = None
    """System call in which the rank spends its extra time; the candidate has its place."""
    pid: int = 0
    rank: int = -1
    in_turn: tuple[int, ...] = ()
    """Ranks that wait for ranks that wait."""
    unit: str = "step"
    """Unit of ``num_steps``: ``step``, ``round`` or ``op`` (findings.speed.windows)."""
    call: str = ""
    """Call, or span of the program, in which the rank spends at least half of its extra time."""
    contended: bool = False
    """Whether its compute takes longer in wall time but hardly in CPU time."""

    def severity(self) -> Severity:
        loud = self.own_ns >= max(NOTE_NS, NOTE_SHARE * self.step_ns)
        return "warning" if loud and self.cause != "unknown" else "info"

    def text(self, about: Candidate) -> str:
        host = f" (all of host {self.whole_host})" if self.whole_host else ""
        waiting = about.ranks[: len(about.ranks) - len(self.in_turn)]
        why = self._cause(about.where)
        text = (
            f"{ranks_text(self.late)}{host} came last to {self.label}'s collectives in "
            f"{self.num_late} of the last {self.num_steps} {_UNITS[self.unit][0]}, by "
            f"{duration(self.by_ns)}. "
            f"{why[0].upper()}{why[1:]}. {ranks_text(waiting).capitalize()} {waits_text(waiting)}."
        )
        if self.in_turn:
            text += f" {ranks_text(self.in_turn).capitalize()} {waits_text(self.in_turn)} in turn."
        return text

    def _cause(self, where: str | None) -> str:
        by, one = duration(self.cause_ns), len(self.late) == 1
        call = "" if self.blocking is None else f"{blocking_text(self.blocking)} at {where}"
        it, its = ("it", "its") if one else ("they", "their")
        late = f"{its} host launches late: {its} device has nothing queued for {by} more than the"
        if call:
            return {
                "data": f"{its} data loading takes {by} longer: {call}",
                "launch": f"{late} others', while {call}",
            }.get(self.cause, f"about {by} of {_UNITS[self.unit][1]} {call}")
        waits, spends = ("waits", "spends") if one else ("wait", "spend")
        inside = f", in {self.call}" if self.call else ""
        return {
            "data": f"{its} data loading takes {by} longer",
            "compute": f"{its} compute takes {by} longer ({', '.join(self.phases)})",
            "idle": f"{its} {' and '.join(self.phases)} {'takes' if one else 'take'} {by} longer, "
            f"mostly without computing: {it} {'sleeps' if one else 'sleep'} or {waits} there",
            "launch": f"{late} others' ({', '.join(self.phases)})",
            "communication": f"{it} {waits} {by} longer in other ops before",
            "core": f"{it} {waits} {by} longer for a CPU core (runnable, not scheduled)",
            "host": f"{it} {spends} {by} more outside of forward and backward{inside}",
            "blocked": f"{it} {spends} {by} more in system calls",
            "thread": f"{it} {'issues' if one else 'issue'} them on another than the main thread "
            f"({', '.join(self.phases[:_MOST_THREADS])}), which no phase shows",
            "unknown": "no single phase accounts for it",
        }[self.cause]

    def advice(self) -> str:
        if self.blocking is not None:
            return blocking_advice(self.blocking, self)
        return filled(self.tries("call" if self.call else self.cause), self)

    def beyond_load(self) -> bool:
        measured = self.cause in MEASURED or (self.cause in ("host", "thread") and self.timed)
        return measured and self.recurring and not self.contended


@dataclass(frozen=True, slots=True)
class SlowSteps(Facts):
    """Every k-th step is slow, or steps with a large op are."""

    every: int | None
    """Period in steps; None: no period, the slow steps have a large op."""
    num_slow: int
    num_steps: int
    slow_ns: int
    usual_ns: int
    last: tuple[int, ...]
    by_ns: float
    what: str
    """Phase, or call with its arguments, that takes the extra time."""
    large: bool
    """Whether every slow step has an op that is usually small."""
    of_ranks: bool
    """Whether some ranks, not all alike, make the steps slow."""
    same_ranks: bool
    """Whether the same ranks make each of the slow steps slow."""
    call: Blocking | None = None
    """System call in which the rank was seen most, beyond the others; it gives the place."""

    def severity(self) -> Severity:
        costly = self.cost_ns >= max(NOTE_NS, NOTE_SHARE * self.usual_ns)
        ours = self.of_ranks and self.num_slow > 3  # three pauses may be chance
        return "warning" if costly and (ours or self.large) else "info"

    @property
    def cost_ns(self) -> float:
        """Return the saving in a mean step, in ns."""
        return (self.slow_ns - self.usual_ns) * self.num_slow / self.num_steps

    def beyond_load(self) -> bool:
        return True

    def text(self, about: Candidate) -> str:
        of, ranks = about.culprits, "The ranks spend"
        if of and self.same_ranks:
            ranks = f"{ranks_text(of).capitalize()} {agreed('spends', of)}"
        elif of:
            ranks = f"A different rank each time ({rank_set(of)}) spends"
        often = f"every {self.every} steps, one takes"
        if not self.every:
            often = f"{self.num_slow} of the last {self.num_steps} steps, take"
        return (
            f"{often} {duration(self.slow_ns)} instead of {duration(self.usual_ns)} (last: "
            f"{', '.join(map(str, self.last))}). {ranks} {duration(self.by_ns)} more {self.what}"
            f"{', and the others wait' if of else ''}.{self._call_text(about)}"
        )

    def _call_text(self, about: Candidate) -> str:
        if self.call is None:
            return ""
        return f" Seen there: {blocking_text(self.call)} at {about.where}."


@dataclass(frozen=True, slots=True)
class StageImbalance(Facts):
    """A pipeline rank computes a fifth more than the mean of the ranks."""

    stages: tuple[int, ...]
    more: float
    """Share by which the rank's work exceeds the mean of the ranks."""
    saved_ns: int | None
    """Time of a step that an even split would save, in ns; None: no plan to compute it from."""
    step_ns: float
    on_device: bool = False
    """Whether the work is a device's, which a busy host does not prolong."""
    unlaunched: float = 0.0
    """Share of the work in which the host had yet to launch the rest of an action, at most."""

    @property
    def cause(self) -> Literal["compute", "launch"]:
        """Return the cause of the extra time: the work itself, or the host's launches of it."""
        return "launch" if self.unlaunched >= 0.5 else "compute"

    @property
    def worth(self) -> float | None:
        """Return the share of a step that an even split would save; None: not known."""
        return None if self.saved_ns is None else self.saved_ns / max(self.step_ns, 1)

    def severity(self) -> Severity:
        return "warning" if self.worth is None or self.worth >= 0.05 else "info"

    def text(self, about: Candidate) -> str:
        stages = ", ".join(map(str, self.stages))
        would = ""
        if self.saved_ns is not None:
            saved, step = duration(self.saved_ns), duration(self.step_ns)
            would = f" An even cut would save {saved} of {step} a step."
        if self.cause == "launch":
            return (
                f"{ranks_text(about.culprits)} (stage {stages}) is host-bound: its actions take "
                f"{percent(self.more, 0)} more than the ranks' do on average, and the others wait. "
                f"In up to {percent(self.unlaunched, 0)} of that its host had yet to launch the "
                f"rest."
            )
        return (
            f"{ranks_text(about.culprits)} (stage {stages}) computes {percent(self.more, 0)} more "
            f"than the ranks do on average, and the others wait for it.{would}"
        )

    def advice(self) -> str:
        return filled(self.tries(self.cause), self)

    def beyond_load(self) -> bool:
        return self.on_device or (self.worth or 0.0) >= 0.2


@dataclass(frozen=True, slots=True)
class TooFewMicrobatches(Facts):
    """A pipeline has fewer than 2 microbatches per rank: a third of it or more must idle."""

    microbatches: int
    bound: float
    measured: float
    wanted: int
    """Number of microbatches that would suffice."""
    then: float
    """Bound on the bubble's share with ``wanted`` microbatches."""

    def text(self, about: Candidate) -> str:
        return (
            f"{self.microbatches} microbatch{'es are' if self.microbatches > 1 else ' is'} few for "
            f"{len(about.ranks)} ranks: even with equal stages {percent(self.bound, 0)} of the "
            f"pipeline idles (measured {percent(self.measured, 0)}); {self.wanted} would leave "
            f"{percent(self.then, 0)}."
        )

    def beyond_load(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ScheduleExcess(Facts):
    """The pipeline idles more than its plan implies."""

    excess: float
    implied: float
    cause: Cause
    share: float
    """Share of the window that the cause accounts for."""
    rank: int
    """Rank with the largest share of the cause."""
    cost_ns: int
    shared_cores: bool
    """Whether more ranks compute on a host's cores than it has."""
    alone: bool = False
    """Whether one rank is the culprit: only its device lacks launches, or it was seen in a system
    call."""
    blocking: Blocking | None = None
    blocked_ns: float = 0.0
    """Time of a step that the rank spends in the call, in ns."""
    pid: int = 0
    action_ns: float = 0.0
    """Mean time of an action, in ns."""
    gap_ns: float = SHORT_NS
    """Mean time of the cause before an action of the rank, in ns."""

    @property
    def short(self) -> bool:
        """Return whether the gap is Python's and messages' own time around short actions."""
        between = self.cause in ("host", "communication") and self.blocking is None
        return between and max(self.action_ns, self.gap_ns) < SHORT_NS

    def severity(self) -> Severity:
        loud = self.excess >= 0.2 and self.cost_ns >= NOTE_NS and not self.short
        return "warning" if loud and (self.blocking or not self.shared_cores) else "info"

    def text(self, about: Candidate) -> str:
        cause, where = word(ScheduleExcess, f"cause {self.cause}"), about.where
        call = ""
        if self.blocking is not None:
            by = duration(self.blocked_ns)
            call = f" At {where} {blocking_text(self.blocking)}, for about {by} of a step."
        elif self.short:
            call = f" It is {duration(self.gap_ns)} for an action of {duration(self.action_ns)}."
        measured = self.implied + self.excess
        return (
            f"the pipeline idles {percent_rest(measured, self.implied, 0)} more than its schedule "
            f"implies ({percent(measured, 0)}, implied {percent(self.implied, 0)}). "
            f"Mostly it is {cause} ({percent(self.share, 0)} of the window, most on rank "
            f"{self.rank}).{call}"
        )

    def advice(self) -> str:
        if self.blocking is not None:
            return blocking_advice(self.blocking, self)
        return filled(self.tries("short" if self.short else self.cause), self)

    def beyond_load(self) -> bool:
        return self.alone


@dataclass(frozen=True, slots=True)
class ExposedCommunication(Facts):
    """Ranks idle while data moves, for a fifth of a step."""

    exposed_ns: float
    share: float
    could_hide_ns: float
    could_hide_share: float
    op: str
    """Longest op; ``op_bytes`` and ``op_ns`` are its size and time."""
    op_bytes: int
    op_ns: int | None

    @property
    def too_long(self) -> bool:
        """Return whether an op takes too long for so few bytes: its threads wait for cores, or
        packets are lost, and hiding it behind compute would not help."""
        return self.op_bytes < 1024 and (self.op_ns or 0) >= 5_000_000

    def severity(self) -> Severity:
        large = self.share >= 0.4 and self.exposed_ns >= 20_000_000
        hidden = self.could_hide_share >= 0.15 and not self.too_long
        return "warning" if large and hidden else "info"

    def text(self, about: Candidate) -> str:
        took = f", {duration(self.op_ns)}" if self.op_ns is not None else ""
        where = "in ops" if self.too_long else "while data moves"
        win = f"{duration(self.could_hide_ns)} ({percent(self.could_hide_share, 0)})"
        meaning = f"Hidden behind compute, a step would be {win} shorter at best."
        if self.too_long:
            meaning = "So few bytes do not take so long: perhaps threads wait for cores."
        return (
            f"for {duration(self.exposed_ns)} of a step ({percent(self.share, 0)}) ranks stand "
            f"still {where}: communication that no compute hides. The longest is "
            f"{self.op} of {size(self.op_bytes)} in {about.group}{took}. {meaning}"
        )

    def advice(self) -> str:
        return self.tries("too long" if self.too_long else "")


@dataclass(frozen=True, slots=True)
class InputBound(Facts):
    """Ranks wait for their data, for a fifth of a step, whichever rank it is."""

    waits_ns: float
    step_ns: float
    busy: float | None
    """Median over ranks of the share of the time for which loaders' workers are at work; None: not
    known, or the ranks load their data themselves."""

    def severity(self) -> Severity:
        long = self.waits_ns >= max(2 * NOTE_NS, 4 * NOTE_SHARE * self.step_ns)
        return "warning" if long else "info"

    def text(self, about: Candidate) -> str:
        waits = f"{duration(self.waits_ns)} ({percent(self.waits_ns / self.step_ns, 0)})"
        text = f"for {waits} of a step no batch is ready, and training waits for its data."
        if self.busy is None:
            return text
        return f"{text} The loaders' workers are busy {percent(self.busy, 0)} of the time."


@dataclass(frozen=True, slots=True)
class SmallMessages(Facts):
    """8 or more collectives below 64 KiB in a row."""

    op: str
    number: int
    """Number of small collectives per step."""
    bytes: float
    cost_ns: float
    step_ns: float

    def severity(self) -> Severity:
        costly = self.number >= 32 and self.cost_ns >= 0.15 * self.step_ns
        return "warning" if costly else "info"

    def text(self, about: Candidate) -> str:
        return (
            f"{self.number} small {self.op}s one after the other in {about.group} each step, "
            f"{size(self.bytes)} together, {size(self.bytes / self.number)} each. What they cost "
            f"is the number of rounds, {duration(self.cost_ns)} a step, not the bytes."
        )


@dataclass(frozen=True, slots=True)
class SlowGroup(Facts):
    """A group whose collectives take longer than those of its siblings."""

    op: str
    bytes: float
    own_ns: float
    usual_ns: float
    siblings: int

    def text(self, about: Candidate) -> str:
        ranks, two = ranks_text(about.ranks), len(about.ranks) == 2
        name = f"the link between {ranks}" if two else "a link in the group"
        which = "" if two else " Which of its links it is cannot be told from that."
        return (
            f"{name} is slow. Once all are there, {self.op} of {size(self.bytes)} in {about.group} "
            f"({ranks}) takes {duration(self.own_ns)}, {duration(self.usual_ns)} in the "
            f"{self.siblings} groups like it.{which}"
        )


@dataclass(frozen=True, slots=True)
class SlowLink(Facts):
    """Messages of one size take 3 times as long over one link as over the others."""

    src: int
    dst: int
    bytes: float
    own_ns: float
    usual_ns: float

    def text(self, about: Candidate) -> str:
        own, usual = (
            f"{duration(ns)} ({rate(self.bytes / ns * 1e9 if ns > 0 else None)})"
            for ns in (self.own_ns, self.usual_ns)
        )
        return (
            f"the link from rank {self.src} to rank {self.dst} is slow. Once both sides "
            f"are there, messages of {size(self.bytes)} take {own}, {usual} over the other links."
        )


KINDS: Final = kinds(
    {
        "host-overloaded": HostOverloaded,
        "straggler": Straggler,
        "slow-steps": SlowSteps,
        "stage-imbalance": StageImbalance,
        "too-few-microbatches": TooFewMicrobatches,
        "schedule-excess": ScheduleExcess,
        "input-bound": InputBound,
        "exposed-communication": ExposedCommunication,
        "small-messages": SmallMessages,
        "slow-link": (SlowLink, SlowGroup),
    }
)
