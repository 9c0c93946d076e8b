"""Rows of matched ops: collectives over their group, a send with its receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Verdict = Literal[
    "matched", "op mismatch", "size mismatch", "dtype mismatch", "root mismatch",
    "address mismatch", "missing rank", "incomplete",
]  # fmt: skip


class Arrival(NamedTuple):  # a thousand ranks have many: a dataclass takes three times as long
    """One rank's part in a collective."""

    rank: int
    issued_ns: int | None
    """None: has not issued it."""
    completed_ns: int | None
    source: str
    """completed, waited, polled, device or ``""``."""
    held_ns: int = 0
    held_in_ns: int = 0
    """Time the debugger had stopped it from the first arrival to its own, and from its own to
    completion (or now)."""

    @property
    def came_ns(self) -> int | None:
        """Return the arrival time without holds."""
        return None if self.issued_ns is None else self.issued_ns - self.held_ns

    @property
    def left_ns(self) -> int | None:
        """Return the completion time without holds."""
        if self.completed_ns is None:
            return None
        return self.completed_ns - self.held_ns - self.held_in_ns


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective matched over its group's ranks, key (epoch, group, seq)."""

    group: str
    axis: str | None
    seq: int
    op: str
    dtype: str
    bytes: int
    step: int | None
    arrivals: tuple[Arrival, ...]
    skew_ns: int | None
    """Between first and last arrival; this and all other times of the op are without holds."""
    last_rank: int | None
    wait_ns: int | None
    """Sum over ranks of (last arrival - own arrival)."""
    transfer_ns: int | None
    """Last completion - last arrival."""
    busbw_gbps: float | None
    verdict: Verdict
    missing: tuple[int, ...]
    detail: str
    """One line in words."""
    culprits: tuple[int, ...] = ()
    """Ranks that disagree with most others, or that have not come."""
    reduce: str = ""
    """sum, avg, max …; empty for ops that reduce nothing."""
    key: tuple[int, str] = (0, "")
    label: str = ""
    """(epoch, key) of the group; its name, with ranks where another is alike: ``tp[2,3]``."""
    transfer_most_ns: int | None = None
    """Upper bound of ``transfer_ns``, where a poll saw the completion: then that is None."""

    @property
    def issued(self) -> dict[int, int]:
        """Return rank -> issue time in ns, of the ranks that have issued it."""
        return {a.rank: a.issued_ns for a in self.arrivals if a.issued_ns is not None}


@dataclass(frozen=True, slots=True)
class P2PRow:
    """A send and its receive, paired by (src, dst, tag, order)."""

    group: str
    src: int
    dst: int
    order: int
    tag: int
    bytes: int
    label: str
    """``F mb4`` where a pipeline labelled it; else the sender's span, ``all-gather 5/6 c1``."""
    send_ns: int | None
    recv_ns: int | None
    done_ns: int | None
    verdict: Verdict
    sides: tuple[tuple[int, str], tuple[int, str]] | None = None  # (bytes, dtype) of send, receive
    waited_ns: int | None = None
    """Time the receive stood before the send came; without holds."""
    moving_ns: int | None = None
    """From when both sides were there to completion, or to now; without holds."""
    phase: str = ""
    """The sender's span: ``all-gather``; its part of parts (0: not said) and chunk (-1)."""
    part: int = 0
    parts: int = 0
    chunk: int = -1
    key: tuple[int, str] = (0, "")  # (epoch, key) of the group
    polled: bool = False
    """Completion is when a poll saw it: ``moving_ns`` is an upper bound."""

    @property
    def transfer_ns(self) -> int | None:
        """Return the time from when both sides were posted to completion; None while unknown, and
        if only a bound is known."""
        known = self.recv_ns is not None and self.done_ns is not None and not self.polled
        return self.moving_ns if known else None
