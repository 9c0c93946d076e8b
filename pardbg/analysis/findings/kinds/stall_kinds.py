"""Kinds of findings about ranks that wait and ops that do not end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Note, Severity
from pardbg.analysis.findings.kinds.absence import (
    Absence,
    blocking_advice,
    blocking_text,
    threads_text,
)
from pardbg.analysis.findings.kinds.end_kinds import LeftEarly
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.kinds.mismatch_kinds import Place, RehearsedOrder, places_sentence
from pardbg.analysis.findings.kinds.recording_kinds import NodeLost, RankUnrecorded
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg.words import agreed, duration, ranks_text, waits_text

_MAX_PARTS: Final = 6
_MAX_KEYS: Final = 4
_MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank's wait inside an op."""

    rank: int
    op: Label
    since_ns: int


@dataclass(frozen=True, slots=True)
class Stalled(Facts):
    """Base class of facts about ranks that wait; ``blamed`` are the ranks where their waits end."""

    blamed: tuple[int, ...]
    never_made: bool
    """Whether the blamed rank never made the group of the op that the others are in."""
    over: bool
    """Whether the job has fallen apart since."""

    def lasts_until(self, now_ns: int) -> int | None:
        return min(getattr(self, "until_ns", now_ns), now_ns)

    def verb(self, ranks: Sequence[int]) -> str:
        """Return the verb that follows the names of waiting ranks."""
        return "waited" if self.over else waits_text(ranks)


@dataclass(frozen=True, slots=True)
class MissingRank(Stalled):
    """Ranks wait in an op that others have not issued."""

    absences: tuple[Absence, ...]
    """State of each culprit, in their order."""
    waits: tuple[Waiting, ...]
    """Waits of the ranks that wait for the culprits directly, the oldest first."""
    victims: tuple[int, ...]
    """All waiting ranks, indirect ones included."""
    until_ns: int
    gave_up: bool
    """Whether a timeout or a lost connection ended one of these ranks."""
    early: bool
    """Whether the rank is late as never before, though not late enough for a warning."""
    at: str = ""
    """Place where the first of ``waits`` stands, if nobody can come any more."""

    def severity(self) -> Severity:
        if self.gave_up or self.absences[0].holder in self.victims:
            return "error"
        return "info" if self.early else self.absences[0].severity

    def waiting(self, culprits: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (ranks that wait for the culprits directly, ranks that wait in turn)."""
        direct = tuple(sorted({wait.rank for wait in self.waits}))
        return direct, tuple(r for r in self.victims if r not in direct and r not in culprits)

    def text(self, about: Candidate) -> str:
        holder = self.absences[0].holder
        of = about.culprits if holder is None else self.blamed
        many, each = len(of) > 1, holder is not None and len(of) > 1
        reasons = {self._reason(absence, many and not each) for absence in self.absences}
        (op, ranks), *others = self._by_op()
        waited = duration(self.until_ns - self.waits[0].since_ns)
        text = f"{ranks_text(ranks)} {self.verb(ranks)} {waited} in {op} for {ranks_text(of)}"
        if len(reasons) == 1:
            text += (
                f"{': each' if each else ', which'} {reasons.pop()}.{self.absences[0].beside(many)}"
            )
        else:
            text += f".{self._each(about.culprits)}"
        if holder in self.victims:
            gets_on = "none gets on" if each else "neither gets on"
            text += f" Rank {holder} waits for {ranks_text(of)}: {gets_on}."
        if self.at:
            rank = self.waits[0].rank
            text += f" Rank {rank} {self.verb((rank,))} at {self.at}."
        for op, ranks in others:
            text += f" {ranks_text(ranks).capitalize()} {self.verb(ranks)} in {op}."
        if indirect := self.waiting(about.culprits)[1]:
            text += f" {ranks_text(indirect).capitalize()} {self.verb(indirect)} in turn."
        return text

    def _each(self, culprits: tuple[int, ...]) -> str:
        """Return a sentence for each state of the culprits, given in the order of ``absences``."""
        by: dict[str, tuple[Absence, list[int]]] = {}
        for rank, absence in zip(culprits, self.absences, strict=False):
            by.setdefault(self._reason(absence, False), (absence, []))[1].append(rank)
        return "".join(
            f" {ranks_text(ranks).capitalize()} {self._reason(absence, len(ranks) > 1)}."
            for absence, ranks in [*by.values()][:_MAX_REASONS]
        )

    def _reason(self, absence: Absence, many: bool) -> str:
        if not self.early or absence.doing == "runs":
            return absence.text(many, self.over)
        on = "get on" if many else "gets on"
        return on if absence.doing == "unknown" else f"{on}: {absence.text(many, self.over)}"

    def _by_op(self) -> list[tuple[str, list[int]]]:
        """Return (op, ranks in it), the oldest op first; beyond three, all but two as one."""
        by_op: dict[str, list[int]] = {}
        known: set[int] = set()
        for wait in self.waits:
            if wait.rank not in known:
                known.add(wait.rank)
                by_op.setdefault(wait.op, []).append(wait.rank)
        found = list(by_op.items())
        rest = [rank for _, ranks in found[2:] for rank in ranks]
        return [*found[:2], ("other ops", rest)] if len(found) > 3 else found

    def advice(self) -> str:
        return self.absences[0].advice()

    def subject(self, about: Candidate) -> Hashable:
        first = self.absences[0]
        return about.kind, first.name if first.doing == "cut off" else self.waits[0].op

    def joined(self, same: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return one candidate for ranks that miss one op, or for ranks of one lost host."""
        parts = [one.facts for one in same if isinstance(one.facts, MissingRank)]
        known = [
            (rank, absence) for one, part in zip(same, parts, strict=False)
            for rank, absence in zip(one.culprits, part.absences, strict=False)
        ]  # fmt: skip
        culprits = tuple(sorted({rank for one in same for rank in one.culprits}))
        absences = tuple(absence for _, absence in sorted(known, key=lambda pair: pair[0]))
        blamed = tuple(sorted({rank for part in parts for rank in part.blamed}))
        facts = replace(self, absences=absences, blamed=blamed)
        if self.absences[0].doing == "cut off":
            waits = sorted((w for part in parts for w in part.waits), key=lambda w: w.since_ns)
            victims = sorted({rank for part in parts for rank in part.victims})
            facts = replace(facts, waits=tuple(waits), victims=tuple(victims))
        direct, indirect = facts.waiting(culprits)
        evidence = same[0].evidence
        return [replace(
            same[0], facts=facts, culprits=culprits, ranks=(*direct, *indirect),
            t_ns=facts.waits[0].since_ns,
            evidence=replace(evidence, rank=culprits[0]) if evidence is not None else None,
        )]  # fmt: skip


Cycle = Literal["deadlock", "p2p-cycle", "p2p-tag-mismatch", "unpaired-send", "unpaired-recv"]


@dataclass(frozen=True, slots=True)
class Deadlock(Stalled):
    """Ranks that wait for each other, each in its op."""

    of: Cycle
    sure: bool
    """Whether the ranks' stacks are in these ops."""
    waits: tuple[Waiting, ...]
    """Waits of the ranks of the cycle."""
    tags: tuple[int, int]
    """Tags of the send and of the receive, where they differ."""
    others: tuple[int, ...]
    """Ranks that wait for the ranks of the cycle."""
    keys: tuple[str, ...]
    """Keys of the store that some ranks of the cycle wait for."""
    calls: bool
    """Whether some ranks of the cycle are in a set-up call."""
    places: tuple[Place, ...]
    named: tuple[int, ...]
    """Culprits by the ops that they are in; for a message its two sides, the waiting one first."""
    odd: tuple[int, ...] = ()
    """Rank whose order of ops differs from its own earlier one or from all other ranks'."""
    locks: tuple[tuple[int, str], ...] = ()
    """(rank, lock in words) of the first rank on which a thread waits for a lock that another
    thread holds inside an op."""

    def severity(self) -> Severity:
        return "error" if self.sure or self.over else "warning"

    def text(self, about: Candidate) -> str:
        text = self._cycle_text()
        if self.keys:
            text += f" Nobody is left to set {', '.join(self.keys[:_MAX_KEYS])}."
        if self.others:
            text += f" {ranks_text(self.others).capitalize()} {self.verb(self.others)} for them."
        if self.odd:
            peer = ", names another rank" if self.of == "p2p-cycle" else ""
            text += (
                f" The order of {ranks_text(self.odd)} differs from before or from all others': "
            )
            text += f"an op is left out, is one too many{peer}, or comes elsewhere."
        text += self._missing_text() or places_sentence(self.places)
        return text + "".join(f" On rank {rank} {lock}." for rank, lock in self.locks)

    def _missing_text(self) -> str:
        """Return `` Rank 1 has not come to it: it is at a.py:3 in f.`` for the only rank of the
        cycle that is not in the op of all others; else empty."""
        ops = {wait.op for wait in self.waits if wait.rank not in self.named}
        if self.of != "deadlock" or self.odd or len(self.named) != 1 or len(ops) != 1:
            return ""
        at = "".join(f": it is at {where}" for _, where in self.places[:1])
        return f" Rank {self.named[0]} has not come to {ops.pop()}{at}."

    def _cycle_text(self) -> str:
        if self.of == "p2p-tag-mismatch":
            (send, take), (sent, taken) = self.named, self.tags
            return (
                f"tag mismatch between ranks {send} and {take}: rank {send} sends with tag {sent}, "
                f"rank {take} receives with tag {taken}, and neither ends."
            )
        ops, is_ = {wait.rank: wait.op for wait in self.waits}, "was" if self.over else "is"
        if self.of in ("unpaired-send", "unpaired-recv"):
            rank, peer = self.named
            verb = "received" if self.of == "unpaired-send" else "sent"
            return (
                f"rank {rank} {self.verb((rank,))} in {ops[rank]}, which {is_} not {verb}: "
                f"rank {peer} {is_} in {ops[peer]}."
            )
        first = list(dict.fromkeys(ops.values()))[:_MAX_PARTS]
        parts = [f"{ranks_text(r for r in ops if ops[r] == op)} in {op}" for op in first]
        waits = f"{ranks_text(self.blamed)} {self.verb(self.blamed)} for each other"
        return f"{waits}: {'; '.join(parts)}."

    def advice(self) -> str:
        if self.of == "deadlock" and (self.keys or self.locks):
            return self.tries("store" if self.keys else "lock")
        if self.of == "p2p-cycle" and self.odd:
            return self.tries("odd peer")
        return self.tries("call" if self.of == "deadlock" and self.calls else self.of)


@dataclass(frozen=True, slots=True)
class Misaddressed(Stalled):
    """A send or receive that names another rank than the one that waits for it."""

    wait: Waiting
    send: bool
    other: int
    """Rank that waits for the rank of ``wait``."""
    places: tuple[Place, ...]

    def severity(self) -> Severity:
        return "error" if self.over else "warning"

    def text(self, about: Candidate) -> str:
        rank = self.wait.rank
        does, waits = ("receive", "receive from") if self.send else ("send", "send to")
        text = (
            f"rank {rank} waits in {self.wait.op}, which has no matching {does}, while rank "
            f"{self.other} waits to {waits} rank {rank}: one of them names the wrong rank."
        )
        return text + places_sentence(self.places)

    def advice(self) -> str:
        return self.tries("unpaired-send" if self.send else "unpaired-recv")


@dataclass(frozen=True, slots=True)
class StuckOp(Stalled):
    """All ranks issued an op and it does not end. An error if one of them is stopped or gone. Or
    nothing says which ranks are in its group."""

    op: Label
    waited_ns: int
    call: bool
    absence: Absence | None
    """State of the first culprit that ended or is stopped; None: all ranks run."""
    known: bool = True
    """Whether all members of the group are known."""
    meets: str = ""
    """Address and port where the ranks of an init_process_group meet."""

    def severity(self) -> Severity:
        return "warning" if self.absence is None else "error"

    def text(self, about: Candidate) -> str:
        of, why = about.culprits, ""
        if not self.known:
            return (
                f"{self.op} does not end on {ranks_text(about.ranks)} for "
                f"{duration(self.waited_ns)}. Nothing says which other ranks are in this group."
            )
        if self.absence is not None:
            why = f" {ranks_text(of).capitalize()} {self.absence.text(len(of) > 1)}."
        return (
            f"{self.op} has been issued by every rank and does not end on "
            f"{ranks_text(about.ranks)} for {duration(self.waited_ns)}.{why}"
            f"{f' They look for each other at {self.meets}.' if self.meets else ''}"
        )

    def advice(self) -> str:
        why = "set-up" if self.call else "transport"
        why = "port zero" if self.meets.endswith(":0") else why
        return self.tries(why if self.known else "members")


AtStore = Literal["unknown", "absent", "came"]


@dataclass(frozen=True, slots=True)
class UnseenRank(Stalled):
    """An op does not end and some rank of its group was never heard from."""

    op: Label
    waited_ns: int
    unseen: tuple[int, ...]
    at_store: AtStore
    """Whether the unseen ranks (if ``absent``: the culprits) have contacted the job's store."""

    def text(self, about: Candidate) -> str:
        text = (
            f"{ranks_text(about.ranks)} {waits_text(about.ranks)} {duration(self.waited_ns)} in "
            f"{self.op}. Nothing is known of {ranks_text(self.unseen)} of that group: no record "
            f"has come."
        )
        of = about.culprits or self.unseen
        if self.at_store == "unknown":
            return text
        been = "not been, either" if self.at_store == "absent" else "been"
        return f"{text} At the job's store {ranks_text(of)} {agreed('has', of)} {been}."

    def advice(self) -> str:
        return self.tries(self.at_store)


@dataclass(frozen=True, slots=True)
class StuckCall(Facts):
    """A call on a single rank does not end and no other rank is missing."""

    call: str
    op: Label
    """Call with its arguments."""
    lasted_ns: int
    idle: bool
    """Whether the rank uses no CPU."""
    at_store: bool
    threads: tuple[tuple[str, str], ...]

    def severity(self) -> Severity:
        return "warning" if self.idle else "info"

    def text(self, about: Candidate) -> str:
        what = f"is in {self.op}"
        if self.call == "exit":
            what = "does not end: it is in its exit"
        at = f" at {about.where}" if about.where else ""
        return (
            f"{ranks_text(about.ranks)} {what} for {duration(self.lasted_ns)}{at}, and "
            f"{'uses no CPU' if self.idle else 'works on'}.{threads_text(self.threads)}"
        )

    def advice(self) -> str:
        whole = self.call in ("exit", "destroy_process_group")
        return self.tries("store" if self.at_store else self.call if whole else "files")


@dataclass(frozen=True, slots=True)
class StuckRemote(Facts):
    """A function that a worker of torch.distributed.rpc runs for another one does not return, and
    no rank does anything."""

    op: Label
    """Call with its function and worker."""
    lasted_ns: int
    caller: int


@dataclass(frozen=True, slots=True)
class StuckLock(Facts):
    """All ranks wait for a lock file that no process of their hosts has open."""

    file: str
    lasted_ns: int

    def advice(self) -> str:
        return blocking_advice(Blocking("lock file", self.file), self)


@dataclass(frozen=True, slots=True)
class StuckBehind(Note):
    """Note: a rank stands in a system call, or computes, since all others have ended; it may be its
    own work."""

    others: tuple[int, ...]
    blocking: Blocking
    lasted_ns: int
    rank: int
    pid: int

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} still runs, {duration(self.lasted_ns)} after "
            f"{ranks_text(self.others)} ended: it is at {about.where} "
            f"({blocking_text(self.blocking)})."
        )

    def advice(self) -> str:
        busy = self.blocking.call == "busy"
        return self.tries("") if busy else blocking_advice(self.blocking, self)


@dataclass(frozen=True, slots=True)
class LateRank(Note):
    """Note: a rank arrived that late; the wait is over."""

    late_ns: int
    op: Label
    absence: Absence

    def text(self, about: Candidate) -> str:
        text = (
            f"rank {about.culprits[0]} came {duration(self.late_ns)} after the first to {self.op}; "
            f"the others waited for it."
        )
        if self.absence.doing == "unknown":
            return text
        return f"{text} Meanwhile it {self.absence.text(over=True)}.{self.absence.beside()}"


KINDS: Final = kinds(
    {
        "missing-rank": (MissingRank, LeftEarly),
        "rank-stopped": MissingRank,
        "gil-held": MissingRank,
        "in-debugger": MissingRank,
        "deadlock": Deadlock,
        "p2p-cycle": Deadlock,
        "unpaired-send unpaired-recv": (Deadlock, Misaddressed),
        "p2p-tag-mismatch": (Deadlock, RehearsedOrder),
        "stuck-call": (StuckCall, StuckRemote, StuckLock, StuckBehind),
        "stuck-op": StuckOp,
        "unseen-rank": (UnseenRank, RankUnrecorded),
        "late-rank": LateRank,
        "node-lost": (NodeLost, MissingRank),
    }
)
