"""Rank sets in text: ``0``, ``0-3``, ``0,2``, ``stage=2``, ``host=n1``, ``tp=0``, ``held``, …

Terms are joined by commas; the result is their union, sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pardbg.errors import UserError
from pardbg.words import rank_range, rank_set

WORDS = ("all", "held", "waiting")
MAX_TEXT = 1000
MAX_UNSEEN = 1 << 16


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts about one rank that rank sets use."""

    rank: int
    host: str = ""
    stages: tuple[int, ...] = ()
    held: bool = False
    waiting: bool = False
    """Whether the rank is inside an op, or has an incomplete one and is not held."""


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about the run that rank sets use."""

    ranks: Mapping[int, RankFacts]
    axes: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    """Mesh axis -> its groups; ``tp=0`` is the first member of each ``tp`` group."""


def resolve(text: str | None, known: Known) -> tuple[int, ...]:
    """Return ranks in ``text``; None or ``all``: every rank. Raises UserError."""
    text = "all" if text is None or not text.strip() else text.strip()
    if len(text) > MAX_TEXT:
        raise UserError(f"rank set is longer than {MAX_TEXT} characters")
    found: set[int] = set()
    for term in text.split(","):
        found.update(_term(term.strip(), text, known))
    if not found:
        raise UserError(
            f"no rank is in '{text}' now; ranks are {rank_set(known.ranks) or 'not known'}"
        )
    return tuple(sorted(found))


def unseen(text: str | None) -> tuple[int, ...]:
    """Return the ranks in ``text`` before any exists: only numbers are known. Raises UserError."""
    if text is None or text.strip() in ("", "all"):
        return ()
    found: set[int] = set()
    for term in text[:MAX_TEXT].split(","):
        numbers = rank_range(term.strip().removeprefix("rank=").strip())
        if numbers is None or len(numbers) > MAX_UNSEEN:
            raise UserError(f"no rank yet: say numbers, as in 0-3, not '{text[:40]}'")
        found.update(numbers)
    return tuple(sorted(found))


def _term(term: str, text: str, known: Known) -> Iterable[int]:
    if term in WORDS:
        return _word(term, known)
    if "=" in term:
        name, _, value = (part.strip() for part in term.partition("="))
        return _named(name, value, text, known)
    wanted = rank_range(term)
    if wanted is None:
        raise UserError(
            f"unknown rank set '{text}': use 0, 0-3, 0,2, stage=2, host=NAME, held, waiting or all"
        )
    missing = [rank for rank in wanted if rank not in known.ranks]
    if missing:
        raise UserError(f"no rank {missing[0]}; ranks are {rank_set(known.ranks) or 'not known'}")
    return wanted


def _word(word: str, known: Known) -> Iterable[int]:
    if word == "all":
        return known.ranks
    if word == "held":
        return [rank for rank, facts in known.ranks.items() if facts.held]
    return [rank for rank, facts in known.ranks.items() if facts.waiting]


def _named(name: str, value: str, text: str, known: Known) -> Iterable[int]:
    if name == "host":
        hosts = sorted({facts.host for facts in known.ranks.values()})
        if value not in hosts:
            raise UserError(f"no host '{value}'; hosts are {', '.join(hosts) or 'not known'}")
        return [rank for rank, facts in known.ranks.items() if facts.host == value]
    wanted = rank_range(value)
    if wanted is None:
        raise UserError(f"'{name}=' wants a number or a range, not '{value}'")
    if name == "stage":
        return [r for r, facts in known.ranks.items() if set(facts.stages) & set(wanted)]
    if name == "rank":
        return _term(value, text, known)
    groups = known.axes.get(name)
    if groups is None:
        axes = ", ".join(sorted(known.axes)) or "none so far"
        raise UserError(f"unknown axis '{name}' in '{text}'; axes seen: {axes}")
    members = (group[i] for group in groups for i in wanted if i < len(group))
    return [rank for rank in members if rank in known.ranks]
