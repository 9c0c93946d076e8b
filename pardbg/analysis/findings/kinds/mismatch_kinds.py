"""Kinds of findings about ranks that disagree: on an op, on a message, on the order of ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Severity
from pardbg.analysis.findings.kinds.kind import Kind, kind
from pardbg.words import agreed, ranks_text, sizes

_MAX_PLACES: Final = 4
Place = tuple[int, str]
"""(rank, where it stands or issued the op)"""


def places_text(places: tuple[Place, ...]) -> str:
    """Return ``rank 0 at a.py:3 in f, rank 1 at …``, of a few ranks."""
    return ", ".join(f"rank {rank} at {where}" for rank, where in places[:_MAX_PLACES])


class _Disagreement(Facts):
    """Ranks that will not get past an op."""

    __slots__ = ()
    screen = "collectives"

    def severity(self) -> Severity:
        return "error"


Verdict = Literal["op mismatch", "size mismatch", "dtype mismatch", "root mismatch"]
_OP_ADVICE: Final[dict[Verdict, str]] = {
    "op mismatch": "All ranks of a group must call the same ops in the same order.",
    "size mismatch": "All ranks must bring tensors of the same size to this op: look at uneven "
    "last batches and at parameters that differ.",
    "dtype mismatch": "All ranks must bring the same dtype; the backend adds the bytes up as they "
    "are and says nothing.",
    "root mismatch": "All ranks must name the same src or dst: a global rank, also in subgroups.",
}
CALL_ADVICE: Final = (
    "All ranks must call init_process_group with one address, port and world size, and new_group, "
    "split_group and init_device_mesh in the same order with the same arguments."
)


@dataclass(frozen=True, slots=True)
class Mismatch(_Disagreement):
    """Ranks that make different calls, or the same one with other arguments."""

    verdict: Verdict
    label: Label
    detail: str
    """Each side's call."""
    number: int
    """Recent collectives with the same mismatch."""
    call: bool
    """A set-up call; else an op."""
    steps_before: int
    """Earlier steps that the culprits differ from; 0: they are known without these."""
    places: tuple[Place, ...]
    """Where ranks stand: the culprits and one of the others, or some, if no side is known to be
    wrong."""

    @property
    def stops(self) -> bool:
        """Return whether ranks hang over it: of another dtype alone they do not."""
        return self.verdict != "dtype mismatch"

    def text(self, about: Candidate) -> str:
        text = f"{self.verdict} in {self.label} #{about.seq}: {self.detail}."
        of = about.culprits
        if self.steps_before:
            text += f" {ranks_text(of).capitalize()} {agreed('differs', of)} from the "
            text += f"{self.steps_before} steps before."
        elif not of:
            at = f": {places_text(self.places)}" if self.places else ""
            text += f" Which side is wrong cannot be told{at}."
        if of and len(self.places) > 1:
            text += f" {places_text(self.places).capitalize()}."
        if self.number > 1:
            text += f" {self.number} of the recent collectives have the same mismatch."
        return text

    def advice(self) -> str:
        return CALL_ADVICE if self.call else _OP_ADVICE[self.verdict]


Side = tuple[int, str]
"""(bytes, dtype)"""


@dataclass(frozen=True, slots=True)
class MessageMismatch(_Disagreement):
    """A message is sent with a different size or dtype than received; the side that differs from
    earlier messages is named, else both."""

    hint = "Both sides must bring tensors of one size and dtype."
    needs = "both calls to be recorded"
    of: Literal["size", "dtype"]
    src: int
    dst: int
    sent: Side
    received: Side
    differs: bool
    """The culprit alone differs from the messages before."""
    number: int
    """Recent messages with the same mismatch."""
    places: tuple[Place, ...]
    op: str = ""
    """The all_to_all whose part it is; empty: a message."""

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
        return f"{text} Where: {places_text(self.places)}." if self.places else text

    def advice(self) -> str:
        if self.op:
            return (
                "input_split_sizes of one side must be output_split_sizes of the other: exchange "
                "the counts in an all_to_all before, and compare both tables."
            )
        if self.of == "size":
            return (
                "Both sides must bring tensors of one size: look at shapes that are worked out "
                "apart from each other, and at a last batch."
            )
        return (
            "Both sides must bring one dtype: the bytes arrive as they are, and nothing says that "
            "they are read as other numbers."
        )


@dataclass(frozen=True, slots=True)
class ThreadOrder(_Disagreement):
    """Ranks issue ops on one group from two threads, in different order on different ranks
    (replaces the mismatches that follow; also found where the ops look alike and only the numbers
    are wrong); gives the threads' names, the op, and where they are."""

    needs = "an op that one rank's main thread issued and another rank's other thread"
    hint = (
        "Give each thread a group of its own (new_group), or issue all ops of a group from one "
        "thread."
    )
    label: Label
    threads: tuple[str, ...]
    """Names, without MainThread."""
    issued: tuple[tuple[str, bool, tuple[int, ...]], ...]
    """(op, by another thread than the main one, ranks)"""
    places: tuple[tuple[str, str], ...]
    """(thread, where it is)"""

    def text(self, about: Candidate) -> str:
        issued = ", ".join(
            f"{op} by {'another' if other else 'the main'} thread on {ranks_text(ranks)}"
            for op, other, ranks in self.issued
        )
        sites = ", ".join(f"{name} at {where}" for name, where in self.places[:_MAX_PLACES])
        return (
            f"{ranks_text(about.ranks)} issue ops on {self.label} from two threads (MainThread, "
            f"{', '.join(self.threads[:_MAX_PLACES])}), in an order that differs: #{about.seq} is "
            f"{issued}.{f' Call sites: {sites}.' if sites else ''}"
        )


REHEARSED_ADVICE: Final = {
    "skipped-op": "All ranks of a group must call its ops: look for an `if`, an early `continue` "
    "or an empty batch around this line.",
    "extra-op": "All ranks of a group must call its ops: call it on all of them, or on none.",
    "op-order": "Issue the ops of all groups in one order on all ranks.",
    "wrong-group": "Look at which group this call names.",
    "wrong-peer": "Look at how this rank computes the peer it sends to or receives from.",
}


@dataclass(frozen=True, slots=True)
class RehearsedOrder(_Disagreement):
    """Ranks of a rehearsal whose ops are not in the order of the others."""

    kind: str
    op: str
    difference: str
    """What the first of the ranks does otherwise, as the rehearsal recorded it."""

    def text(self, about: Candidate) -> str:
        others = about.ranks[1:]
        do = f". So {'do' if others[1:] else 'does'} {ranks_text(others)}" if others else ""
        return f"{self.difference}{do}."

    def advice(self) -> str:
        same = "The same call must be made alike on all ranks that it concerns."
        return REHEARSED_ADVICE.get(self.kind, same)


_ORDER_NEEDS: Final = (
    "`pardbg rehearse`: all ops of all ranks, including those past the point where ranks would be "
    "stuck"
)
KINDS: Final[tuple[Kind, ...]] = (
    kind(
        "op-mismatch size-mismatch dtype-mismatch root-mismatch", (Mismatch, RehearsedOrder),
        "ranks of a group disagree on its n-th op; the minority is named; on an even split, "
        "those that differ from what they did there in earlier steps (at least 2); else "
        "nobody, and both places are given",
        needs="both calls to be recorded",
        attempt="the call on the rank that differs",
    ),
    kind("p2p-size-mismatch p2p-dtype-mismatch", (MessageMismatch, RehearsedOrder)),
    kind(
        "call-mismatch", Mismatch,
        "ranks make set-up calls with different arguments or in a different order: "
        "init_process_group (address, port, world size), new_group, split_group, "
        "init_device_mesh",
        needs="the calls to be recorded",
        attempt="the call on the rank that differs",
    ),
    kind("thread-order", ThreadOrder),
    kind(
        "skipped-op extra-op op-order wrong-group wrong-peer", RehearsedOrder,
        "in a rehearsal: one rank skips an op that the rest of its group issues, issues an "
        "extra one, swaps two, issues it on another group, or sends to a different peer than "
        "ranks in the same role; replaces the mismatches and deadlocks that follow",
        needs="`pardbg rehearse`: all ops of all ranks, including those past the point where "
        "ranks would be stuck",
        attempt="the place that the finding gives",
    ),
)  # fmt: skip
