"""A row of the table of kinds."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.findings.finding import Facts


@dataclass(frozen=True, slots=True)
class Kind:
    """Kinds with the same facts, and what docs/findings.md says about them."""

    names: tuple[str, ...]
    """Stable identifiers."""
    facts: tuple[type[Facts], ...]
    """Severity, sentences and advice."""
    means: str
    needs: str = "–"
    attempt: str = "–"
    """What to try, in short."""


def kind(
    names: str, facts: type[Facts] | tuple[type[Facts], ...], means: str, needs: str = "–",
    attempt: str = "–",
) -> Kind:  # fmt: skip
    """Return a row; ``names`` are separated by spaces."""
    return Kind(
        tuple(names.split()), facts if isinstance(facts, tuple) else (facts,), means, needs, attempt
    )
