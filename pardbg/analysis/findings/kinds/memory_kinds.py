"""Kinds of findings about what ranks keep in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pardbg.analysis.findings.finding import Candidate, Facts
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.words import binary_size, duration, percent, ranks_text


@dataclass(frozen=True, slots=True)
class MemoryCreep(Facts):
    """A rank's memory grows steadily, step by step."""

    per_step_bytes: float
    since_step: int
    step: int
    """Last step of the window."""
    bytes: int
    """Memory at the end of that step, in bytes."""
    total: str
    """Kind of total: ``allocated`` or ``rss``."""
    known_bytes: int
    """Bytes of parameters, gradients and optimizer state."""
    step_ns: float

    def text(self, about: Candidate) -> str:
        gib_ns = (1 << 30) / self.per_step_bytes * self.step_ns
        return (
            f"rank {about.culprits[0]}'s memory grows by {binary_size(self.per_step_bytes)} a "
            f"step, steadily since step {self.since_step}: another GiB every {duration(gib_ns)}. "
            f"After step {self.step} it has {binary_size(self.bytes)} ({self.total}), of which "
            f"parameters, gradients and optimizer are {binary_size(self.known_bytes)}."
        )


@dataclass(frozen=True, slots=True)
class MemoryImbalance(Facts):
    """A rank uses a quarter and 64 MiB more than the others."""

    rank: int
    bytes: int
    usual_bytes: float
    total: str
    part: str
    """Larger part: parameters, gradients, optimizer or activations; empty: none of them."""
    more_bytes: float

    def text(self, about: Candidate) -> str:
        more = "its parameters, gradients, optimizer state and activations are as the others' are"
        if self.part:
            state = " state" if self.part == "optimizer" else ""
            more = f"{binary_size(self.more_bytes)} more {self.part}{state} than the median"
        return (
            f"rank {self.rank} uses {binary_size(self.bytes)} ({self.total}), "
            f"{percent(self.bytes / self.usual_bytes - 1, 0)} above the median of the others "
            f"({binary_size(self.usual_bytes)}); {more}."
        )


@dataclass(frozen=True, slots=True)
class MemoryNearLimit(Facts):
    """More than 92% of a known limit is used."""

    used_bytes: int
    limit_bytes: int
    cgroup_of: str
    """Host whose cgroup is nearly full; empty: a device is."""
    fullest: int
    fullest_bytes: int

    def text(self, about: Candidate) -> str:
        used, limit = binary_size(self.used_bytes), binary_size(self.limit_bytes)
        share = percent(self.used_bytes / self.limit_bytes, 0)
        if not self.cgroup_of:
            return (
                f"rank {about.ranks[0]} uses {used} of {limit} ({share}): one more allocation may "
                f"fail."
            )
        return (
            f"the processes of {ranks_text(about.ranks)} on host {self.cgroup_of} use {used} of "
            f"the {limit} that their cgroup may have ({share}): at its limit the kernel kills one. "
            f"Rank {self.fullest} has the most: {binary_size(self.fullest_bytes)}."
        )


KINDS: Final = kinds(
    {
        "memory-creep": MemoryCreep,
        "memory-imbalance": MemoryImbalance,
        "memory-near-limit": MemoryNearLimit,
    }
)
