"""Kinds of findings about the run's recording: gaps in the data, limits, clocks, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from pardbg.analysis.findings.finding import MANY, Candidate, Facts, Note, Severity
from pardbg.analysis.findings.kinds.exit_codes import killed_text
from pardbg.analysis.findings.kinds.kind import Kind, kind
from pardbg.words import (
    agreed,
    binary_size,
    count,
    duration,
    plural,
    ranks_text,
    silent_nodes,
)

# -- gaps


@dataclass(frozen=True, slots=True)
class RecordsDropped(Facts):
    """Records that were lost on their way, or beyond what is kept."""

    number: int

    def text(self, about: Candidate) -> str:
        records = plural(self.number, "record")
        if not about.ranks:
            return f"{records} beyond what is kept in memory were left out."
        return (
            f"{records} of rank {about.ranks[0]} were lost, so its figures have gaps. The hub was "
            f"away or too slow; training was not delayed."
        )


@dataclass(frozen=True, slots=True)
class RecordsMissing(Note):
    """Ranks whose first records are not here."""

    most: int

    def text(self, about: Candidate) -> str:
        return (
            f"the first {plural(self.most, 'record')} of {ranks_text(about.ranks)} are missing: "
            f"what came before, and sums over the whole run, are unknown."
        )


@dataclass(frozen=True, slots=True)
class LimitReached(Facts):
    """Messages that a store had no room for any more."""

    refused: tuple[tuple[str, int], ...]
    """(what, number)"""

    def text(self, about: Candidate) -> str:
        refused = ", ".join(f"{number:,} of {what}" for what, number in self.refused)
        return f"messages that are not shown, because a limit was reached: {refused}."


@dataclass(frozen=True, slots=True)
class LivesForgotten(Note):
    """Lives of a job of which only the ends are kept."""

    number: int

    def text(self, about: Candidate) -> str:
        return (
            f"of the first {count(self.number)} lives only their ends are kept: the job was "
            f"restarted more often than a viewer keeps in full."
        )


@dataclass(frozen=True, slots=True)
class RankUnrecorded(Facts):
    """Ranks that groups name and of which no record came, though ops with them are over."""

    def text(self, about: Candidate) -> str:
        return (
            f"nothing was recorded of {ranks_text(about.ranks)}: what they did is unknown, and "
            f"figures over ranks leave {agreed('it', about.ranks)} out."
        )

    def advice(self) -> str:
        return (
            "The agent is not in those processes, or their part of the recording is missing: see "
            "`pardbg doctor` there."
        )


@dataclass(frozen=True, slots=True)
class UnknownGroup(Facts):
    """Ops on groups whose definition never came."""

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} issued ops on groups whose definitions are missing: those "
            f"ops cannot be matched, and whom others wait for there is not known."
        )


@dataclass(frozen=True, slots=True)
class HookError(Facts):
    """A hook of the agent that failed and is off."""

    hook: str
    error: str

    def text(self, about: Candidate) -> str:
        return (
            f"pardbg's hook {self.hook} failed on rank {about.ranks[0]} and is off: {self.error}. "
            f"Training goes on; what this hook shows is missing."
        )


@dataclass(frozen=True, slots=True)
class UnknownData(Note):
    """Data of another version."""

    number: int

    def text(self, about: Candidate) -> str:
        return (
            f"{plural(self.number, 'record')} or messages could not be read by this version; they "
            f"are counted, not shown."
        )


@dataclass(frozen=True, slots=True)
class Truncated(Note):
    """A session file that ends early."""

    def text(self, about: Candidate) -> str:
        return "the session file ends early: what was recorded up to its last whole chunk is here."


# -- pardbg's own processes


@dataclass(frozen=True, slots=True)
class RecorderLost(Note):
    """Processes of pardbg that were killed while the job ran."""

    lost: tuple[tuple[str, int], ...]
    """(which one, how often)"""

    def text(self, about: Candidate) -> str:
        lost = ", ".join(
            name if times == 1 else f"{name} {times} times" for name, times in self.lost
        )
        return (
            f"killed while the job ran: {lost}. The recording continues, and missing records are "
            f"counted (records-missing)."
        )


@dataclass(frozen=True, slots=True)
class RecorderLimit(Facts):
    """Messages that the hub left out because there was too much at a time."""

    of: Literal["processes", "definitions"]
    limit: int
    number: int

    def severity(self) -> Severity:
        return "warning" if self.of == "processes" else "info"

    def text(self, about: Candidate) -> str:
        if self.of == "processes":
            return (
                f"The hub reached its limit of {self.limit:,} processes at a time: "
                f"{plural(self.number, 'message')} of further processes were not recorded."
            )
        return (
            f"The hub reached its limit of {binary_size(self.limit)} of definitions for viewers: "
            f"viewers that join later lack {plural(self.number, 'definition')}. The recording has "
            f"them."
        )


# -- the job


@dataclass(frozen=True, slots=True)
class LifeEnd:
    """The end of one life of a job that was restarted."""

    number: int
    """From 1."""
    rank: int | None
    raised: str
    """Exception; empty: killed."""
    where: str | None
    exit_code: int | None

    @property
    def text(self) -> str:
        """Return the end as a sentence."""
        if self.rank is None:
            return f"Life {self.number} ended in its start-up."
        if not self.raised:
            return f"Life {self.number}: rank {self.rank} {killed_text(self.exit_code)}."
        at = f" (at {self.where})" if self.where else ""
        return f"Life {self.number}: rank {self.rank} raised {self.raised}{at}."


@dataclass(frozen=True, slots=True)
class Restarted(Facts):
    """A job whose workers were started anew."""

    screen: ClassVar[str] = "output"
    times: int
    lives: tuple[LifeEnd, ...]

    def text(self, about: Candidate) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        text = f"the workers were restarted {times}: what is shown is since then."
        return " ".join((text, *(life.text for life in self.lives)))

    def advice(self) -> str:
        return "What ended the earlier attempts is in the job's output; `[` `]` and --part show it."


NODE_ADVICE: Final = (
    "Ask the node itself: does it answer, do its ranks run? Its own `pardbg run` says whether it "
    "finds the hub."
)


@dataclass(frozen=True, slots=True)
class NodeLost(Facts):
    """Nodes that the hub hears nothing of."""

    screen: ClassVar[str] = "overview"
    nodes: tuple[int, ...]

    def severity(self) -> Severity:
        return "error"

    def text(self, about: Candidate) -> str:
        return silent_nodes(self.nodes, about.ranks)

    def advice(self) -> str:
        return NODE_ADVICE

    def subject(self, about: Candidate) -> str:
        return "silent"

    def joined(self, same: Sequence[Candidate]) -> Sequence[Candidate]:
        if len(same) < MANY:
            return same
        ranks = tuple(sorted({rank for one in same for rank in one.ranks}))
        facts = (one.facts for one in same if isinstance(one.facts, NodeLost))
        nodes = tuple(sorted({node for of in facts for node in of.nodes}))
        newest = max(same, key=lambda one: one.t_ns)
        return [replace(newest, ranks=ranks, culprits=ranks, facts=NodeLost(nodes))]


@dataclass(frozen=True, slots=True)
class SeveralJobs(Facts):
    """Rank numbers that are more than one process at a time."""

    jobs: tuple[str, ...]

    def text(self, about: Candidate) -> str:
        which = f" ({', '.join(self.jobs[:4])})" if len(self.jobs) > 1 else ""
        return (
            f"{ranks_text(about.ranks)} {agreed('is', about.ranks)} more than one process at a "
            f"time: the command runs several jobs{which}, and what is shown is one of them."
        )

    def advice(self) -> str:
        return "`[` `]` and --part show the others."


@dataclass(frozen=True, slots=True)
class RemoteCalls(Note):
    """torch.distributed.rpc, whose calls pass no hook."""

    def text(self, about: Candidate) -> str:
        return (
            "torch.distributed.rpc is in use: its calls are spans of the timeline; what they "
            "carry, who serves them and waits inside them are not covered."
        )

    def advice(self) -> str:
        return "`where` and Debug show the stacks of workers that wait."


_UNSEEN_ADVICE: Final = {
    "no space": "Shared memory or the disk is full: make room in /dev/shm, or set PARDBG_RING.",
    "raised": "A process raised before it was a rank: the output has it.",
    "": "It starts through the environment: not in `python -S`, not where the environment is "
    "emptied (`env -i`, sudo, a container), nor in `-I` and `-E` where pardbg-agent is not "
    "installed in that Python; see `pardbg doctor`.",
}


@dataclass(frozen=True, slots=True)
class NoRanks(Facts):
    """A run that ended without a rank."""

    output: Literal["no space", "raised", ""]
    """Cause that the job's output names."""

    def text(self, about: Candidate) -> str:
        return (
            "no rank was seen: no process of the job formed a torch.distributed group with the "
            "agent in it."
        )

    def advice(self) -> str:
        return _UNSEEN_ADVICE[self.output]


# -- clocks


@dataclass(frozen=True, slots=True)
class ClockUnaligned(Facts):
    """Clocks that were not aligned with those of other hosts."""

    def text(self, about: Candidate) -> str:
        return (
            f"the clock of {ranks_text(about.ranks)} has not been aligned: the order of "
            f"{agreed('its', about.ranks)} records against other hosts' is not known."
        )


@dataclass(frozen=True, slots=True)
class ClockImprecise(Note):
    """Clocks that are known with an uncertainty only."""

    error_ns: int

    def text(self, about: Candidate) -> str:
        return (
            f"the clock of {ranks_text(about.ranks)} is known to ±{duration(self.error_ns)} only: "
            f"skews and waits below that say nothing."
        )


@dataclass(frozen=True, slots=True)
class ClockJump(Facts):
    """A clock that went ahead or back by itself."""

    screen: ClassVar[str] = "timeline"
    by_ns: int
    within_ns: int
    before: int
    """Number of earlier jumps."""

    def text(self, about: Candidate) -> str:
        way = "ahead" if self.by_ns > 0 else "back"
        before = f"; it had jumped {self.before} times before" if self.before else ""
        return (
            f"the clock of rank {about.ranks[0]} jumped {way} by {duration(abs(self.by_ns))}, "
            f"within the {duration(self.within_ns)} before{before}: where its records of that time "
            f"belong is not known."
        )

    def advice(self) -> str:
        return "A machine that was suspended, or a container that was restored."


KINDS: Final[tuple[Kind, ...]] = (
    kind(
        "restarted", Restarted,
        "torchelastic restarted the workers", "–", "what ended them before, in the output",
    ),
    kind(
        "recorder-lost", RecorderLost,
        "hub, launcher, its guardian or `pardbg run` was killed while the job ran: which one",
        "–", "gaps, if any, are `records-missing`",
    ),
    kind(
        "recorder-limit", RecorderLimit,
        "the hub had more processes (32,768) or definitions (64 MiB) than it keeps at a time, and "
        "left out the rest; what has ended does not count",
    ),
    kind(
        "several-jobs", SeveralJobs,
        "one rank number in two processes at once: each job is a part", "–", "`[` `]`, `--part N`",
    ),
    kind(
        "rpc", RemoteCalls,
        "torch.distributed.rpc is in use: its calls are spans, their contents are not seen",
        "–", "Debug's stacks",
    ),
    kind(
        "no-ranks", NoRanks,
        "no process with the agent formed a group", "the run's end", "`pardbg doctor`",
    ),
    kind(
        "clock-uncertain", (ClockUnaligned, ClockImprecise, ClockJump),
        "a host's clock is not aligned, or only to 1 ms or worse; or it jumped", "several hosts",
    ),
    kind(
        "records-dropped", RecordsDropped,
        "records were lost, so figures have gaps", "–", "`--level summary`, a larger ring",
    ),
    kind(
        "records-missing", RecordsMissing,
        "note: a rank's first records are missing: a viewer that joined late, a truncated file",
        "–", "the whole recording",
    ),
    kind(
        "limit-reached", LimitReached,
        "what a store had no room for any more: processes, groups, plans, definitions",
    ),
    kind(
        "lives-forgotten", LivesForgotten,
        "note: of a job that was restarted very often, only the ends of its first lives are kept",
        "–", "`--part N` of a recording shows more of them",
    ),
    kind(
        "unknown-group", UnknownGroup,
        "ops on a group whose definition was lost: they cannot be matched, and no rank counts as "
        "missing from them",
    ),
    kind(
        "hook-error", HookError,
        "one of the agent's hooks failed and was switched off", "–", "report it",
    ),
    kind("unknown-data", UnknownData, "the file is from a newer version", "–", "a newer pardbg"),
    kind("truncated", Truncated, "the file ends early", "–", "`pardbg repair`"),
)  # fmt: skip
