"""Kinds of findings about ranks that disagree: on an op, on a message, on the order of ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Severity
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.hangs.partings import Parting
from pardbg.words import agreed, ranks_text, sizes

_MAX_PLACES: Final = 4
Place = tuple[int, str]
"""(rank, place where it stands or issued the op)"""


def places_text(places: tuple[Place, ...]) -> str:
    """Return the places of a few ranks: ``rank 0 at a.py:3 in f, rank 1 at …``"""
    return ", ".join(f"rank {rank} at {where}" for rank, where in places[:_MAX_PLACES])


def places_sentence(places: tuple[Place, ...], least: int = 2) -> str:
    """Return a sentence `` Rank 0 at a.py:3 in f, rank 1 at ….``; empty if fewer than ``least``
    places are known, as the finding has the place of one rank itself."""
    return f" R{places_text(places)[1:]}." if len(places) >= least else ""


def first_text(places: tuple[Place, ...]) -> str:
    """Return a sentence per rank: `` Rank 0 issued its first such op at a.py:3 in f.``"""
    return "".join(f" Rank {rank} issued its first such op at {at}." for rank, at in places)


def _parted_text(parted: Parting | None) -> str:
    """Return a sentence on the earlier phase of this step in which ranks parted; else empty."""
    if parted is None:
        return ""
    (one, other), (few, many) = parted.ranks, parted.ops
    lacks = "; ".join(f"rank {rank} did not gather {', '.join(of)}" for rank, of in parted.units)
    text = f" They part earlier: in the {parted.phase} of this step rank {one} issued {few} "
    return f"{text}op{'s'[: few != 1]}, rank {other} {many}{f': {lacks}' if lacks else ''}."


class _Disagreement(Facts):
    """Base class of facts about ranks that will not get past an op."""

    __slots__ = ()

    def severity(self) -> Severity:
        return "error"


Verdict = Literal[
    "op mismatch", "size mismatch", "dtype mismatch", "root mismatch", "address mismatch"
]


@dataclass(frozen=True, slots=True)
class Mismatch(_Disagreement):
    """Ranks that make different calls, or the same one with other arguments."""

    verdict: Verdict
    label: Label
    detail: str
    """Call of each side, in words."""
    number: int
    """Number of recent collectives with the same mismatch."""
    call: bool
    """Whether the mismatch is in a set-up call; else it is in an op."""
    steps_before: int
    """Earlier steps that the culprits differ from; 0: the culprits are known without them."""
    places: tuple[Place, ...]
    """Places where ranks stand: of the culprits and one other rank; of some ranks, if neither side
    is known to be wrong."""
    first_places: tuple[Place, ...] = ()
    """Places where further ranks first issued an op with the same signature; this op may be from
    another line."""
    parted: Parting | None = None
    """Earlier point at which the ranks' ops parted; None: none is known."""
    by_order: bool = False
    """Whether the culprits are known from what followed the same ops before."""

    @property
    def stops(self) -> bool:
        """Return whether the ranks hang over the mismatch; over a dtype alone they do not."""
        return self.verdict != "dtype mismatch"

    def text(self, about: Candidate) -> str:
        text = f"{self.verdict} in {self.label} #{about.seq}: {self.detail}."
        of = about.culprits
        if self.steps_before or self.by_order:
            before = f"the {self.steps_before} steps before"
            before = "what followed the same ops before" if self.by_order else before
            text += f" {ranks_text(of).capitalize()} {agreed('differs', of)} from {before}."
        elif not of:
            at = f": {places_text(self.places)}" if self.places else ""
            text += f" Which side is wrong cannot be told{at}."
        if of:
            text += places_sentence(self.places, 2 if about.where and not self.first_places else 1)
        text += first_text(self.first_places) + _parted_text(self.parted)
        if self.number > 1:
            text += f" {self.number} of the recent collectives have the same mismatch."
        return text

    def advice(self) -> str:
        lines = {where for _, where in (*self.places, *self.first_places)}
        if self.verdict in ("op mismatch", "size mismatch") and len(lines) > 1 and not self.call:
            return self.tries("two calls")
        address = self.verdict == "address mismatch"
        return self.tries("call" if self.call and not address else self.verdict)


Side = tuple[int, str]
"""(bytes, dtype)"""


@dataclass(frozen=True, slots=True)
class MessageMismatch(_Disagreement):
    """A message is sent with a different size or dtype than received."""

    of: Literal["size", "dtype"]
    src: int
    dst: int
    sent: Side
    received: Side
    differs: bool
    """Whether only the culprit differs from the messages before."""
    number: int
    """Number of recent messages with the same mismatch."""
    places: tuple[Place, ...]
    op: str = ""
    """All_to_all that the message is a part of; empty: a point-to-point message."""
    first_places: tuple[Place, ...] = ()

    def text(self, about: Candidate) -> str:
        amounts = sizes((self.sent[0], self.received[0]))
        sent, received = (
            amounts[size] if self.of == "size" else f"{dtype} ({amounts[size]})"
            for size, dtype in (self.sent, self.received)
        )
        where = f" in {self.op}" if self.op else ""
        text = (
            f"{self.of} mismatch between ranks {self.src} and {self.dst}{where}: rank {self.src} "
            f"sends {sent}, rank {self.dst} {'expects' if self.op else 'receives'} {received}."
        )
        if self.differs:
            text += f" Rank {about.culprits[0]} differs from the messages before."
        if self.number > 1 and not self.op:
            text += f" {self.number} of the recent messages have the same mismatch."
        text += first_text(self.first_places)
        return f"{text} Where: {places_text(self.places)}." if self.places else text

    def advice(self) -> str:
        return self.tries("splits" if self.op else self.of)


@dataclass(frozen=True, slots=True)
class ThreadOrder(_Disagreement):
    """Ranks issue ops on one group from two threads, in different order on different ranks."""

    label: Label
    threads: tuple[str, ...]
    """Names of the threads other than MainThread."""
    issued: tuple[tuple[str, bool, tuple[int, ...]], ...]
    """(op, whether a thread other than the main one issued it, ranks)"""
    places: tuple[tuple[str, str], ...]
    """(thread, place where it is)"""

    def text(self, about: Candidate) -> str:
        issued = ", ".join(
            f"{op} by {'another' if other else 'the main'} thread on {ranks_text(ranks)}"
            for op, other, ranks in self.issued
        )
        sites = ", ".join(f"{name} at {where}" for name, where in self.places[:_MAX_PLACES])
        return (
            f"{ranks_text(about.ranks)} issue ops on {self.label} from two threads (MainThread, "
            f"{', '.join(self.threads[:_MAX_PLACES])}), in an order that differs. #{about.seq} is "
            f"{issued}.{f' Call sites: {sites}.' if sites else ''}"
        )


ORDER_KINDS: Final = ("skipped-op", "extra-op", "op-order", "wrong-group", "wrong-peer")


@dataclass(frozen=True, slots=True)
class RehearsedOrder(_Disagreement):
    """Ranks of a rehearsal whose ops are not in the order of the others."""

    kind: str
    op: str
    difference: str
    """Sentence on the first rank's difference, as the rehearsal recorded it."""

    def text(self, about: Candidate) -> str:
        others = about.ranks[1:]
        do = f". So {'do' if others[1:] else 'does'} {ranks_text(others)}" if others else ""
        return f"{self.difference}{do}."

    def advice(self) -> str:
        return self.tries(self.kind if self.kind in ORDER_KINDS else "otherwise")


KINDS: Final = kinds(
    {
        "op-mismatch size-mismatch dtype-mismatch root-mismatch": (Mismatch, RehearsedOrder),
        "p2p-size-mismatch p2p-dtype-mismatch": (MessageMismatch, RehearsedOrder),
        "call-mismatch": Mismatch,
        "thread-order": ThreadOrder,
        "skipped-op extra-op op-order wrong-group wrong-peer": RehearsedOrder,
    }
)
