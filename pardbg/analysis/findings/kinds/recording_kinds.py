"""Kinds of findings about the run's recording: gaps in the data, limits, clocks, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pardbg.analysis.findings.finding import MANY, Candidate, Facts, Note, Severity
from pardbg.analysis.findings.kinds.end_kinds import cause_text
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import killed_text
from pardbg.store.definitions import Cause
from pardbg.words import agreed, binary_size, duration, plural, ranks_text, silent_nodes

# -- gaps


@dataclass(frozen=True, slots=True)
class RecordsDropped(Facts):
    """Records were lost, so figures have gaps."""

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
    """Note: a rank's first records are missing: a viewer that joined late, a truncated file."""

    most: int


@dataclass(frozen=True, slots=True)
class LimitReached(Facts):
    """A store has no room for more processes, groups, plans or definitions."""

    refused: tuple[tuple[str, int], ...]
    """(kind of data, number refused)"""

    def text(self, about: Candidate) -> str:
        refused = ", ".join(f"{number:,} of {what}" for what, number in self.refused)
        return f"messages that are not shown, because a limit was reached: {refused}."


@dataclass(frozen=True, slots=True)
class LivesForgotten(Note):
    """Note: of a job that was restarted very often, only the ends of its first lives are kept."""

    number: int


@dataclass(frozen=True, slots=True)
class RankUnrecorded(Facts):
    """Ranks that groups name and of which no record came, though ops with them are over."""


@dataclass(frozen=True, slots=True)
class UnknownGroup(Facts):
    """Ops on a group whose definition was lost."""


@dataclass(frozen=True, slots=True)
class HookError(Facts):
    """One of the agent's hooks failed and was switched off."""

    hook: str
    error: str


@dataclass(frozen=True, slots=True)
class UnknownData(Note):
    """The file is from a newer version."""

    number: int


@dataclass(frozen=True, slots=True)
class Truncated(Note):
    """The file is cut off or damaged."""


# -- pardbg's own processes


@dataclass(frozen=True, slots=True)
class RecorderLost(Note):
    """Hub, launcher, guardian, keeper or `pardbg run` was killed while the job ran: which one."""

    lost: tuple[tuple[str, int], ...]
    """(process of pardbg, number of times it was killed)"""

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
    """The hub had more processes or definitions than it keeps at a time, and left out the rest."""

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
    """Number of the life, from 1."""
    rank: int | None
    raised: str
    """Exception; empty: the process was killed or exited."""
    where: str | None
    exit_code: int | None
    cause: Cause | None = None
    """Cause of the exception."""
    beside: tuple[int, ...] = ()
    """Ranks that failed by themselves so soon before or after that the order is not known."""

    @property
    def text(self) -> str:
        """Return the end of the life as a sentence."""
        if self.rank is None:
            return f"Life {self.number} ended in its start-up."
        if not self.raised:
            left = f"left with exit code {self.exit_code}"
            end = left if (self.exit_code or 0) > 0 else killed_text(self.exit_code)
        else:
            end = f"raised {self.raised}{cause_text(self.cause)}"
            end += f" (at {self.where})" if self.where else ""
        also = f", {ranks_text(self.beside)} failed within a second of it" if self.beside else ""
        return f"Life {self.number}: rank {self.rank} {end}{also}."


@dataclass(frozen=True, slots=True)
class Restarted(Facts):
    """The workers were restarted: by torchelastic, or under other numbers in the same processes."""

    times: int
    lives: tuple[LifeEnd, ...]

    def text(self, about: Candidate) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        text = f"the workers were restarted {times}: what is shown is since then."
        return " ".join((text, *(life.text for life in self.lives)))


@dataclass(frozen=True, slots=True)
class NodeLost(Facts):
    """Nodes that the hub hears nothing of."""

    nodes: tuple[int, ...]

    def severity(self) -> Severity:
        return "error"

    def text(self, about: Candidate) -> str:
        return silent_nodes(self.nodes, about.ranks)

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
    """One rank number in two processes at once: each job is a part."""

    jobs: tuple[str, ...]

    def text(self, about: Candidate) -> str:
        which = f" ({', '.join(self.jobs[:4])})" if len(self.jobs) > 1 else ""
        return (
            f"{ranks_text(about.ranks)} {agreed('is', about.ranks)} more than one process at a "
            f"time: the command runs several jobs{which}, and what is shown is one of them."
        )


@dataclass(frozen=True, slots=True)
class RemoteCalls(Note):
    """RPC of torch.distributed is in use: its calls are spans, their contents are not seen."""


@dataclass(frozen=True, slots=True)
class NoRanks(Facts):
    """No process with the agent formed a group."""

    output: Literal["no space", "raised", ""]
    """Cause that the job's output names."""

    def advice(self) -> str:
        return self.tries(self.output or "unseen")


# -- clocks


@dataclass(frozen=True, slots=True)
class ClockUnaligned(Facts):
    """A host's clock is not aligned, or only to 1 ms or worse; or it jumped."""


@dataclass(frozen=True, slots=True)
class ClockImprecise(Note):
    """Clocks that are known with an uncertainty only."""

    error_ns: int


@dataclass(frozen=True, slots=True)
class ClockJump(Facts):
    """A clock that went ahead or back by itself."""

    by_ns: int
    within_ns: int
    before: int
    """Number of earlier jumps of this clock."""

    def text(self, about: Candidate) -> str:
        way = "ahead" if self.by_ns > 0 else "back"
        before = f" It had jumped {self.before} times before." if self.before else ""
        return (
            f"the clock of rank {about.ranks[0]} jumped {way} by {duration(abs(self.by_ns))}, "
            f"within the {duration(self.within_ns)} before. Where its records of that time belong "
            f"is not known.{before}"
        )


KINDS: Final = kinds(
    {
        "restarted": Restarted,
        "recorder-lost": RecorderLost,
        "recorder-limit": RecorderLimit,
        "several-jobs": SeveralJobs,
        "rpc": RemoteCalls,
        "no-ranks": NoRanks,
        "clock-uncertain": (ClockUnaligned, ClockImprecise, ClockJump),
        "records-dropped": RecordsDropped,
        "records-missing": RecordsMissing,
        "limit-reached": LimitReached,
        "lives-forgotten": LivesForgotten,
        "unknown-group": UnknownGroup,
        "hook-error": HookError,
        "unknown-data": UnknownData,
        "truncated": Truncated,
    }
)
