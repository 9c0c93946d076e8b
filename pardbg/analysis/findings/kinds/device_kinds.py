"""Kinds of findings about devices: memory that ran out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Severity
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import word
from pardbg.sentences import filled
from pardbg.words import binary_size, ranks_text

Cause = Literal[
    "request", "fragmentation", "others", "growth", "imbalance",
    "parameters", "gradients", "optimizer", "activations",
]  # fmt: skip
"""Why the request failed. ``imbalance``: this rank has more than the others; the last four: the
largest part of what is allocated, where nothing else explains it."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Facts):
    """A device's allocator could not serve a request."""

    cause: Cause
    fatal: bool
    asked_bytes: int | None
    limit_bytes: int
    allocated_bytes: int
    unused_bytes: int
    """Reserved by this process and not allocated."""
    others_bytes: int | None
    """Bytes of the device that other processes and the driver have; None: not known."""
    parts: tuple[tuple[str, int], ...]
    """(parameters, gradients, optimizer or activations, bytes); activations: all the rest."""
    doing: str
    """``forward``, ``2F5``, ``optimizer``; empty: not known."""
    step: int
    usual_bytes: float | None
    """Median of the other ranks' peaks; None: there are none."""
    more: str
    """Part that this rank has more of than the others, if that is the cause."""
    per_step_bytes: float | None
    """Steady growth."""

    def severity(self) -> Severity:
        return "error" if self.fatal else "info"

    def text(self, about: Candidate) -> str:
        asked = (
            "a request"
            if self.asked_bytes is None
            else f"a request of {binary_size(self.asked_bytes)}"
        )
        doing = f" in {self.doing}" if self.doing else ""
        at = f" (at {about.where}, step {self.step})" if about.where else f" (step {self.step})"
        parts = ", ".join(
            f"{'activations and other' if name == 'activations' else name} {binary_size(size)}"
            for name, size in self.parts if size
        )  # fmt: skip
        ended = "" if self.fatal else "; the program caught the error"
        return (
            f"{ranks_text(about.ranks)} ran out of device memory: {asked}{doing}{at} with "
            f"{binary_size(self.allocated_bytes)} of {binary_size(self.limit_bytes)} allocated "
            f"({parts}){ended}. {self._why()}"
        )

    def _why(self) -> str:
        if self.cause == "imbalance":
            more = f"; {self.more} differ most" if self.more else ""
            return f"The other ranks peak at {binary_size(self.usual_bytes)}{more}."
        return filled(word(OutOfMemory, f"why {self.cause}"), self)

    def advice(self) -> str:
        return self.tries(self.cause)


KINDS: Final = kinds({"out-of-memory": OutOfMemory})
