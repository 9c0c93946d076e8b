"""Findings and their candidates: facts as detectors report them, before the arbiter decides and
before they are put into words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.wording import word
from pardbg.sentences import filled

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""Severities, the worst first."""
STEP: Final = " // "
"""Mark between the steps in a text of advice."""
MANY: Final = 4
"""Number of findings of one rank each, with like facts, that become one."""
GroupKey = tuple[int, str]
"""(epoch, key) of a process group."""


class Label(str):
    """Name of a group or of an op on one, for people; facts that differ only in their labels count
    as alike, as those that differ only in figures do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Place to look at: a moment, a rank and a screen."""

    t_ns: int
    rank: int | None
    screen: str
    """Name of a screen: ``timeline``, ``collectives``, ``pipeline`` …"""
    lane: str = ""
    """Lane of the timeline; empty: no particular one."""
    op: str = ""
    """Op in words; empty: no particular one."""


class Facts:
    """Facts that a finding rests on: fields of a frozen dataclass for each kind or family of kinds,
    in ``kinds``. Severity, sentence and advice are functions of them; their words, and those of the
    row of docs/findings.md, are in ``kinds/kinds.txt``."""

    __slots__ = ()

    @property
    def screen(self) -> str:
        """Return the screen with the evidence, where the candidate names none; empty: none."""
        return word(type(self), "screen")

    def lasts_until(self, now_ns: int) -> int | None:
        """Return when a wait that is the fault ends, in ns; None: it is no wait."""
        return None

    def severity(self) -> Severity:
        """Return the severity that these facts have by themselves."""
        return "warning"

    def text(self, about: Candidate) -> str:
        """Return the facts as a sentence or a few."""
        return filled(word(type(self), "text"), self, about)

    def advice(self) -> str:
        """Return advice for the user, from the finding's facts: its steps, with STEP between."""
        return self.tries("")

    def tries(self, case: object) -> str:
        """Return the advice for one case of the facts; else the kind's general advice."""
        return word(type(self), f"try {case}") or word(type(self), "try")

    def explaining(self, about: Candidate, effect: Candidate) -> Facts:
        """Return these facts with the effect that they explain, for a rule that ``tells``."""
        return self

    def beyond_load(self) -> bool:
        """Return whether these facts (about speed) hold even if the host is overloaded."""
        return False

    def subject(self, about: Candidate) -> Hashable:
        """Return a key that is equal for candidates of one kind that make one finding; None: each
        candidate is a finding of its own."""
        return None

    def apart(self) -> Hashable:
        """Return a number that is no figure, such as a signal: like facts have the same."""
        return None

    def joined(self, same: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates of one subject, joined; these facts are the first one's."""
        return same


class Note(Facts):
    """Base class of facts with severity ``info``."""

    __slots__ = ()

    def severity(self) -> Severity:
        return "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A possible finding that a detector reports; the arbiter may silence it."""

    kind: str
    """Identifier of its kind, such as ``missing-rank``."""
    facts: Facts
    t_ns: int
    ranks: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    where: str | None = None
    cost_ns_per_step: int | None = None
    evidence: Evidence | None = None
    """Place to look at; None: the time, the first culprit and the screen of the facts."""
    first_ns: int | None = None
    scope: frozenset[GroupKey] = frozenset()
    """Groups whose ops the candidate is about."""
    joined: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """(ranks, culprits) of all candidates with like facts that this one stands for."""
    last_resort: bool = False
    """Whether the candidate holds only if nothing else explains how its ranks ended."""
    settled: bool = True
    """Whether the candidate is certain enough to be shown; an unsettled one explains others."""
    handled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(exception, culprits that are just handling it)"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in the run. ``text`` says what is wrong; ``steps``: what to try."""

    kind: str
    """Stable identifier, such as ``missing-rank``; listed in docs/findings.md."""
    severity: Severity
    t_ns: int
    text: str
    steps: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """Affected ranks, direct waiters first."""
    culprits: tuple[int, ...] = ()
    """Ranks that caused the fault, never ranks that only wait."""
    group: str | None = None
    seq: int | None = None
    where: str | None = None  # ``train.py:88 in forward``
    cost_ns_per_step: int | None = None
    """Time of a step that would be saved without the fault, in ns; None: not known."""
    evidence: Evidence | None = None
    first_ns: int | None = None
    """Time at which the fault began (``t_ns`` is when it was last seen); None: ``t_ns``."""
    facts: Facts | None = None
    """Facts that ``text`` is made of."""
    handled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(exception, culprits that are just handling it), as in ``Candidate.handled``."""

    @property
    def advice(self) -> str:
        """Return the steps as one text."""
        return " ".join(self.steps)

    @property
    def order(self) -> tuple[int, bool, int]:
        """Return the sort key of a list of findings: worst severity first, then those that name a
        culprit, then newest."""
        return SEVERITIES.index(self.severity), not self.culprits, -self.t_ns

    def lasts_until(self, now_ns: int) -> int:
        """Return when the activity ends that shows the fault, in ns: of a hang, where the wait,
        which is the fault, ends."""
        until_ns = None if self.facts is None else self.facts.lasts_until(now_ns)
        return self.t_ns if until_ns is None else max(self.t_ns, until_ns)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a key equal for one fault at two moments; it may show at ever newer ops."""
        seq = self.seq if self.first_ns is None else None
        return self.kind, self.culprits or self.ranks, self.group, seq


def first(row: CollectiveRow) -> int:
    """Return when the first rank issued the collective, in ns; 0 if none did."""
    return min(row.issued.values(), default=0)


def at_row(row: CollectiveRow, rank: int | None) -> Evidence:
    """Return evidence that points to the collective, on the collectives screen."""
    return Evidence(first(row), rank, "collectives", op=f"{row.op} {row.label} #{row.seq}")


def kind_of_facts(value: Any) -> Any:
    """Return facts without their figures: ranks whose facts differ in numbers only are alike."""
    if is_dataclass(value):
        return type(value), *(kind_of_facts(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return frozenset(kind_of_facts(part) for part in value)
    figure = isinstance(value, (int, float, Label)) and not isinstance(value, bool)
    return type(value) if figure else value


def facts_json(value: Any) -> Any:
    """Return facts as values that JSON can hold."""
    if is_dataclass(value):
        return {field.name: facts_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [facts_json(part) for part in value]
    return value
