"""A conclusion from a job's log, and from dumps beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pardbg.joblog.events import SYMMETRIC, Line

Facts = tuple[tuple[str, str | int], ...]
"""Names and values: ``words`` has the names of each kind."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One conclusion, its evidence, and what it explains."""

    kind: str
    culprits: tuple[int, ...] = ()
    """Ranks to look at. Empty: not a rank's, or not known which."""
    ranks: tuple[int, ...] = ()
    """Ranks that report it, or wait."""
    group: str = ""
    seq: int | None = None
    op: str = ""
    facts: Facts = ()
    lines: tuple[Line, ...] = ()
    follows: bool = False
    """Another conclusion is its cause."""
    place: tuple[str, int, str] | None = None
    """File, line and function in which one of ``ranks`` issued the op, where the log has it."""

    def fact(self, name: str) -> str | int:
        return dict(self.facts).get(name, "")


Signature = tuple[str, int | None, int | None]
"""An op, and its elements in and out where all ranks state equal numbers."""
_SYMMETRIC: Final = frozenset(name.replace("_", "") for name in SYMMETRIC)


def signature(op: str, num_in: int | None, num_out: int | None) -> Signature:
    """Return what ranks that agree have in common. ``op``: of a log or of a dump."""
    sized = op.upper().replace("_", "") in _SYMMETRIC
    return (op, num_in, num_out) if sized else (op, None, None)


def odd(signatures: Mapping[int, Signature]) -> tuple[tuple[int, ...], Facts] | None:
    """Return the ranks whose op, or size of it, differs from most ranks'; no ranks where the two
    sides are equal in number. None: all are alike."""
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
