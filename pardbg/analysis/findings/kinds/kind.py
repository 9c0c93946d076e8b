"""Rows of the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getdoc

from pardbg.analysis.findings.finding import STEP, Facts
from pardbg.analysis.findings.wording import word, wording


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table: kinds with the same facts, and their text in docs/findings.md."""

    names: tuple[str, ...]
    """Stable identifiers of the kinds."""
    facts: tuple[type[Facts], ...]
    """Classes of facts, which have the severity, sentences and advice."""
    means: str
    needs: str
    attempt: str


def kinds(rows: Mapping[str, type[Facts] | tuple[type[Facts], ...]]) -> tuple[Kind, ...]:
    """Return the rows for identifiers (separated by spaces) and their facts. A text missing in a
    row's section is that of its (first) facts."""
    return tuple(_kind(names, of if isinstance(of, tuple) else (of,)) for names, of in rows.items())


def _kind(names: str, facts: tuple[type[Facts], ...]) -> Kind:
    own, first = wording().get(names, {}), facts[0]
    doc = word(first, "means") or " ".join((getdoc(first) or "").split())
    means = own.get("means") or doc.removesuffix(".")
    attempt = own.get("try") or word(first, "try").removesuffix(".") or "–"
    attempt = attempt.replace(STEP, " ")
    needs = own.get("needs") or word(first, "needs") or "–"
    return Kind(
        tuple(names.split()), facts, means[0].upper() + means[1:], needs,
        attempt[0].upper() + attempt[1:],
    )  # fmt: skip
