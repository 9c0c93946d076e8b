"""Kinds of findings about devices: memory that ran out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Severity
from pardbg.analysis.findings.kinds.kind import Kind, kind
from pardbg.words import binary_size, ranks_text

Cause = Literal[
    "request", "fragmentation", "others", "growth", "imbalance",
    "parameters", "gradients", "optimizer", "activations",
]  # fmt: skip
"""Why the request failed. ``imbalance``: this rank has more than the others; the last four: the
largest part of what is allocated, where nothing else explains it."""
_SHARD: Final = "Shard it over more ranks (ZeRO, fully_shard), or use a smaller model or optimizer."
_ADVICE: Final[dict[Cause, str]] = {
    "request": "Look at the shapes in that line: one tensor is larger than the device.",
    "fragmentation": (
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or keep the sizes of batches equal."
    ),
    "others": "`nvidia-smi` lists the processes on the device: end them, or use another device.",
    "growth": (
        "Look for lists that keep tensors over steps: losses without .item(), outputs kept for "
        "logging, graphs held by a tensor that needs grad."
    ),
    "imbalance": "Move layers, the embedding or longer sequences off this rank.",
    "activations": (
        "Smaller microbatches, activation checkpointing, or a schedule with fewer microbatches in "
        "flight."
    ),
}


@dataclass(frozen=True, slots=True)
class OutOfMemory(Facts):
    """A device's allocator could not serve a request: what was asked, what held the memory, and
    why it was too much. An error if the rank ended with it, a note if the program caught it."""

    needs = (
        "an allocator with statistics; requests of CUDA's are seen where they are made, those of "
        "other devices if the error is not caught"
    )
    hint = "Follows from the cause, which the finding names."
    screen = "memory"
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
        unused, limit = binary_size(self.unused_bytes), binary_size(self.limit_bytes)
        if self.cause == "request":
            return f"The request alone is larger than the device's {limit}."
        if self.cause == "fragmentation":
            return f"{unused} are reserved and free, but in no block that is large enough."
        if self.cause == "others":
            return f"Other processes hold {binary_size(self.others_bytes)} of the device."
        if self.cause == "growth":
            return f"Its memory grew by {binary_size(self.per_step_bytes)} a step, steadily."
        if self.cause == "imbalance":
            more = f"; {self.more} differ most" if self.more else ""
            return f"The other ranks peak at {binary_size(self.usual_bytes)}{more}."
        most = "activations and other" if self.cause == "activations" else self.cause
        return f"The largest part is {most}."

    def advice(self) -> str:
        return _ADVICE.get(self.cause, _SHARD)


KINDS: Final[tuple[Kind, ...]] = (kind("out-of-memory", OutOfMemory),)
