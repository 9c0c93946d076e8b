"""Rows of matched ops: a collective over its group, a send with its receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Verdict = Literal[
    "matched", "op mismatch", "size mismatch", "dtype mismatch", "root mismatch",
    "address mismatch", "missing rank", "incomplete",
]  # fmt: skip


class Arrival(NamedTuple):  # a thousand ranks have many: a dataclass takes three times as long
    """Part of one rank in a collective."""

    rank: int
    issued_ns: int | None
    """Time of issue in ns; None: the rank has not issued it."""
    completed_ns: int | None
    source: str
    """Source of the completion time: completed, waited, polled, device or ``""``."""
    held_ns: int = 0
    held_in_ns: int = 0
    """Time, in ns, that the debugger had stopped the rank between its own arrival and completion
    (or now); ``held_ns``: between the first arrival and its own."""

    @property
    def came_ns(self) -> int | None:
        """Return the arrival time without holds, in ns; None: the rank has not issued it."""
        return None if self.issued_ns is None else self.issued_ns - self.held_ns

    @property
    def left_ns(self) -> int | None:
        """Return the completion time without holds, in ns; None: not complete."""
        if self.completed_ns is None:
            return None
        return self.completed_ns - self.held_ns - self.held_in_ns


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective matched over its group's ranks, with key (epoch, group, seq)."""

    group: str
    axis: str | None
    seq: int
    op: str
    dtype: str
    bytes: int
    step: int | None
    arrivals: tuple[Arrival, ...]
    skew_ns: int | None
    """Time between first and last arrival; like all times of the op without holds."""
    last_rank: int | None
    wait_ns: int | None
    """Sum over ranks of (last arrival - own arrival), in ns."""
    transfer_ns: int | None
    """Last completion - last arrival, in ns."""
    busbw_gbps: float | None
    verdict: Verdict
    missing: tuple[int, ...]
    detail: str
    """Description in one line."""
    culprits: tuple[int, ...] = ()
    """Ranks that disagree with most others, or that are missing."""
    reduce: str = ""
    """Reduction: sum, avg, max …; empty for ops that reduce nothing."""
    key: tuple[int, str] = (0, "")
    label: str = ""
    """Group's name, with its ranks if another is called so: ``tp[2,3]``; ``key``: (epoch, key)."""
    transfer_most_ns: int | None = None
    """Upper bound of ``transfer_ns``, which is None, if only a poll saw the completion."""

    @property
    def issued(self) -> dict[int, int]:
        """Return rank -> time of issue in ns, for ranks that have issued it."""
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
    """``F mb4`` if a pipeline labelled it; else the sender's span, ``all-gather 5/6 c1``."""
    send_ns: int | None
    recv_ns: int | None
    done_ns: int | None
    verdict: Verdict
    sides: tuple[tuple[int, str], tuple[int, str]] | None = None  # (bytes, dtype) of send, receive
    waited_ns: int | None = None
    """Time that the receive was posted before the send, in ns; without holds."""
    moving_ns: int | None = None
    """Time from both sides being posted to completion (or now), in ns; without holds."""
    phase: str = ""
    """Name of the sender's span, ``all-gather``; its part of parts (0: none), chunk (-1: none)."""
    part: int = 0
    parts: int = 0
    chunk: int = -1
    key: tuple[int, str] = (0, "")  # (epoch, key) of the group
    polled: bool = False
    """Whether a poll saw the completion, so that ``moving_ns`` is an upper bound."""

    @property
    def transfer_ns(self) -> int | None:
        """Return the time from both sides being posted to completion, in ns; None while unknown, or
        if only a bound is known."""
        known = self.recv_ns is not None and self.done_ns is not None and not self.polled
        return self.moving_ns if known else None
