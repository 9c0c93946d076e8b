"""Kinds of findings about the run's recording: gaps in the data, limits, clocks, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

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
    """Records were lost, so figures have gaps."""

    hint = "Record less (`--level summary`), or in a larger ring (PARDBG_RING)."
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

    hint = "The whole recording has them."
    most: int

    def text(self, about: Candidate) -> str:
        return (
            f"the first {plural(self.most, 'record')} of {ranks_text(about.ranks)} are missing: "
            f"what came before, and sums over the whole run, are unknown."
        )


@dataclass(frozen=True, slots=True)
class LimitReached(Facts):
    """What a store had no room for any more: processes, groups, plans, definitions."""

    refused: tuple[tuple[str, int], ...]
    """(what, number)"""

    def text(self, about: Candidate) -> str:
        refused = ", ".join(f"{number:,} of {what}" for what, number in self.refused)
        return f"messages that are not shown, because a limit was reached: {refused}."


@dataclass(frozen=True, slots=True)
class LivesForgotten(Note):
    """Note: of a job that was restarted very often, only the ends of its first lives are kept."""

    hint = "`--part N` of a recording shows more of them."
    number: int

    def text(self, about: Candidate) -> str:
        return (
            f"of the first {count(self.number)} lives only their ends are kept: the job was "
            f"restarted more often than a viewer keeps in full."
        )


@dataclass(frozen=True, slots=True)
class RankUnrecorded(Facts):
    """Ranks that groups name and of which no record came, though ops with them are over."""

    hint = (
        "The agent is not in those processes, or their part of the recording is missing: see "
        "`pardbg doctor` there."
    )

    def text(self, about: Candidate) -> str:
        return (
            f"nothing was recorded of {ranks_text(about.ranks)}: what they did is unknown, and "
            f"figures over ranks leave {agreed('it', about.ranks)} out."
        )


@dataclass(frozen=True, slots=True)
class UnknownGroup(Facts):
    """Ops on a group whose definition was lost: they cannot be matched, and no rank counts as
    missing from them."""

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} issued ops on groups whose definitions are missing: those "
            f"ops cannot be matched, and whom others wait for there is not known."
        )


@dataclass(frozen=True, slots=True)
class HookError(Facts):
    """One of the agent's hooks failed and was switched off."""

    hint = "Please report it, with `pardbg doctor`."
    hook: str
    error: str

    def text(self, about: Candidate) -> str:
        return (
            f"pardbg's hook {self.hook} failed on rank {about.ranks[0]} and is off: {self.error}. "
            f"Training goes on; what this hook shows is missing."
        )


@dataclass(frozen=True, slots=True)
class UnknownData(Note):
    """The file is from a newer version."""

    hint = "Use a newer pardbg."
    number: int

    def text(self, about: Candidate) -> str:
        return (
            f"{plural(self.number, 'record')} or messages could not be read by this version; they "
            f"are counted, not shown."
        )


@dataclass(frozen=True, slots=True)
class Truncated(Note):
    """The file ends early."""

    hint = "`pardbg repair` makes the file whole."

    def text(self, about: Candidate) -> str:
        return "the session file ends early: what was recorded up to its last whole chunk is here."


# -- pardbg's own processes


@dataclass(frozen=True, slots=True)
class RecorderLost(Note):
    """A process of pardbg was killed while the job ran: hub, launcher, guardian, keeper or `pardbg
    run`."""

    hint = "Gaps, if any, are `records-missing`."
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
    """The hub had more processes (32,768) or definitions (64 MiB) than it keeps at a time, and left
    out the rest; what has ended does not count."""

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
    """The workers were restarted by torchelastic."""

    hint = "What ended the earlier attempts is in the job's output; `[` `]` and --part show it."
    screen = "output"
    times: int
    lives: tuple[LifeEnd, ...]

    def text(self, about: Candidate) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        text = f"the workers were restarted {times}: what is shown is since then."
        return " ".join((text, *(life.text for life in self.lives)))


NODE_ADVICE: Final = (
    "Ask the node itself: does it answer, do its ranks run? Its own `pardbg run` says whether it "
    "finds the hub."
)


@dataclass(frozen=True, slots=True)
class NodeLost(Facts):
    """Nodes that the hub hears nothing of."""

    hint = NODE_ADVICE
    screen = "overview"
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

    hint = "`[` `]` and --part show the others."
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

    hint = "`where` and Debug show the stacks of workers that wait."

    def text(self, about: Candidate) -> str:
        return (
            "torch.distributed.rpc is in use: its calls are spans of the timeline; what they "
            "carry, who serves them and waits inside them are not covered."
        )


_UNSEEN_ADVICE: Final = {
    "no space": "Shared memory or the disk is full: make room in /dev/shm, or set PARDBG_RING.",
    "raised": "A process raised before it was a rank: the output has it.",
    "": "It starts through the environment: not in `python -S`, not where the environment is "
    "emptied (`env -i`, sudo, a container), nor in `-I` and `-E` where pardbg-agent is not "
    "installed in that Python; see `pardbg doctor`.",
}


@dataclass(frozen=True, slots=True)
class NoRanks(Facts):
    """No process with the agent formed a group."""

    hint = "See `pardbg doctor`."
    needs = "the run's end"
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
    """A host's clock is not aligned, or only to 1 ms or worse; or it jumped."""

    needs = "several hosts"

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

    hint = "A machine that was suspended, or a container that was restored."
    screen = "timeline"
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


KINDS: Final[tuple[Kind, ...]] = (
    kind("restarted", Restarted),
    kind("recorder-lost", RecorderLost),
    kind("recorder-limit", RecorderLimit),
    kind("several-jobs", SeveralJobs),
    kind("rpc", RemoteCalls),
    kind("no-ranks", NoRanks),
    kind("clock-uncertain", (ClockUnaligned, ClockImprecise, ClockJump)),
    kind("records-dropped", RecordsDropped),
    kind("records-missing", RecordsMissing),
    kind("limit-reached", LimitReached),
    kind("lives-forgotten", LivesForgotten),
    kind("unknown-group", UnknownGroup),
    kind("hook-error", HookError),
    kind("unknown-data", UnknownData),
    kind("truncated", Truncated),
)  # fmt: skip
