"""Kinds of findings about the data that ranks train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pardbg.analysis.findings.finding import Candidate, Facts
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import word
from pardbg.sentences import filled


@dataclass(frozen=True, slots=True)
class SameData(Facts):
    """Ranks that average their gradients compute the same loss, bit by bit, in each step."""

    num_steps: int


@dataclass(frozen=True, slots=True)
class SameTargets(SameData):
    """Ranks compare unlike outputs with the same targets: each has noise of its own."""


@dataclass(frozen=True, slots=True)
class UnlikeData(Facts):
    """A rank of a tensor parallel group compares the group's result with targets of its own."""

    step: int
    """First step looked at in which they differ."""
    num_looks: int


@dataclass(frozen=True, slots=True)
class SameParts(Facts):
    """Ranks that average their gradients have samplers that give them the same part."""

    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class SameOrder(Facts):
    """A sampler that shuffles gave the same order in each of the last epochs."""

    epoch: int
    """Epoch number that was set in each of the epochs with the same order."""
    number: int
    """Number of epochs with the same order."""


@dataclass(frozen=True, slots=True)
class SkippedBatch(Facts):
    """A rank took one batch more than the others, without a step for it."""

    step: int
    """Step before which the rank took two batches."""
    num_steps: int
    """Number of steps for which the rank has been a batch ahead."""
    what: str = "data"
    """Action done once more than by the others: ``data``, ``backward`` or ``cleared again``."""

    def text(self, about: Candidate) -> str:
        return filled(word(SkippedBatch, f"text {self.what}"), self, about)


KINDS: Final = kinds(
    {
        "same-data": (SameData, SameTargets, SameParts),
        "same-order": SameOrder,
        "unlike-data": UnlikeData,
        "skipped-batch": SkippedBatch,
    }
)
