"""A conclusion from a job's log, and from dumps of the same job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pardbg.joblog.events import SYMMETRIC, Line

Facts = tuple[tuple[str, str | int], ...]
"""Names and values; ``words`` lists the names of each kind."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A conclusion, with its evidence and the conclusions that it explains."""

    kind: str
    culprits: tuple[int, ...] = ()
    """Ranks to look at first. Empty: no rank is to blame, or the rank is not known."""
    ranks: tuple[int, ...] = ()
    """Ranks that report the failure, or wait."""
    group: str = ""
    seq: int | None = None
    op: str = ""
    facts: Facts = ()
    lines: tuple[Line, ...] = ()
    follows: bool = False
    """Whether another conclusion is the cause of this one."""
    place: tuple[str, int, str] | None = None
    """File, line and function in which one of ``ranks`` issued the op, if the log has them."""

    def fact(self, name: str) -> str | int:
        return dict(self.facts).get(name, "")


Signature = tuple[str, int | None, int | None]
"""An op, and its numbers of elements in and out if they must be equal on all ranks."""
_SYMMETRIC: Final = frozenset(name.replace("_", "") for name in SYMMETRIC)


def signature(op: str, num_in: int | None, num_out: int | None) -> Signature:
    """Return the part of an op on which ranks must agree. ``op``: name from a log or a dump."""
    sized = op.upper().replace("_", "") in _SYMMETRIC
    return (op, num_in, num_out) if sized else (op, None, None)


def odd(signatures: Mapping[int, Signature]) -> tuple[tuple[int, ...], Facts] | None:
    """Return the ranks whose op, or its size, differs from most ranks' (no ranks if both sides are
    equal in number), and facts on both ops. None: all ranks are alike."""
    counts = Counter(signatures.values()).most_common()
    if len(counts) < 2:
        return None
    (most, number), (other, second), *_ = counts
    differ = tuple(sorted(rank for rank, one in signatures.items() if one != most))
    return (() if number == second else differ), (("most", _text(most)), ("other", _text(other)))


def _text(one: Signature) -> str:
    op, num_in, num_out = one
    if num_in is None:
        return op
    return f"{op} of {num_in}" + (f" → {num_out}" if num_out != num_in else "")
