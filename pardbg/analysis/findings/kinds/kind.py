"""A row of the table of kinds."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getdoc

from pardbg.analysis.findings.finding import Facts


@dataclass(frozen=True, slots=True)
class Kind:
    """Kinds with the same facts, and what docs/findings.md says about them."""

    names: tuple[str, ...]
    """Stable identifiers."""
    facts: tuple[type[Facts], ...]
    """Severity, sentences and advice."""
    means: str
    needs: str
    attempt: str


def kind(
    names: str, facts: type[Facts] | tuple[type[Facts], ...], means: str = "", needs: str = "",
    attempt: str = "",
) -> Kind:  # fmt: skip
    """Return a row; ``names`` are separated by spaces. What is left out is as its (first) facts
    have it."""
    of = facts if isinstance(facts, tuple) else (facts,)
    doc = " ".join((getdoc(of[0]) or "").split()).removesuffix(".")
    means, attempt = means or doc, attempt or of[0].hint.removesuffix(".") or "–"
    needs = needs or of[0].needs
    attempt = attempt[0].upper() + attempt[1:]
    return Kind(tuple(names.split()), of, means[0].upper() + means[1:], needs, attempt)
