"""Kinds of findings about devices and NCCL: memory that ran out, lowered clocks, errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Note, Severity
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import word
from pardbg.sentences import filled
from pardbg.words import agreed, binary_size, plural, ranks_text

Cause = Literal[
    "request", "fragmentation", "others", "growth", "imbalance",
    "parameters", "gradients", "optimizer", "activations",
]  # fmt: skip
"""Cause of the failed request. ``imbalance``: this rank has more than the others; the last four:
the largest part of the allocated memory, where nothing else explains the failure."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Facts):
    """A device's allocator could not serve a request."""

    cause: Cause
    fatal: bool
    asked_bytes: int | None
    limit_bytes: int
    """Size of the device's memory; 0: not known, and neither is ``allocated_bytes``."""
    allocated_bytes: int
    unused_bytes: int
    """Bytes reserved by this process and not allocated."""
    others_bytes: int | None
    """Bytes of the device used by other processes and the driver; None: not known."""
    parts: tuple[tuple[str, int], ...]
    """(parameters, gradients, optimizer or activations, bytes); activations: the remainder."""
    doing: str
    """Phase or pipeline action: ``forward``, ``2F5``, ``optimizer``; empty: not known."""
    step: int
    usual_bytes: float | None
    """Median of the other ranks' peaks, in bytes; None: there are no other ranks."""
    more: str
    """Part that this rank has more of than the others; empty: the cause is no imbalance."""
    per_step_bytes: float | None
    """Steady growth in bytes per step; None: none."""

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
        ended = "" if self.fatal else " The program caught the error."
        of = f" of {binary_size(self.limit_bytes)}" if self.limit_bytes else ""
        held = f"{binary_size(self.allocated_bytes)}{of} were allocated"
        return (
            f"{ranks_text(about.ranks)} ran out of device memory: {asked}{doing}{at}. "
            f"{held if self.allocated_bytes else 'It held'} ({parts}).{ended} {self._why()}"
        )

    def _why(self) -> str:
        if self.cause == "imbalance":
            more = f"; {self.more} differ most" if self.more else ""
            return f"The other ranks peak at {binary_size(self.usual_bytes)}{more}."
        return filled(word(OutOfMemory, f"why {self.cause}"), self)

    def advice(self) -> str:
        return self.tries(self.cause)


class _OfDevice(Facts):
    """Base class of facts about one device; the ranks are those that use it."""

    __slots__ = ()
    host: str
    index: int

    def device(self, about: Candidate) -> str:
        """Return the device and its ranks in words."""
        of = f", of {ranks_text(about.ranks)}," if about.ranks else ""
        return f"device {self.index} on {self.host}{of}"


@dataclass(frozen=True, slots=True)
class DeviceThrottled(_OfDevice):
    """A device runs below its clocks: it is hot, or at its power limit."""

    host: str
    index: int
    reasons: tuple[str, ...]
    clock_mhz: int
    max_clock_mhz: int
    celsius: int

    def text(self, about: Candidate) -> str:
        return f"{self.device(about)} {filled(word(DeviceThrottled, 'text'), self)}"


@dataclass(frozen=True, slots=True)
class DeviceShared(Note):
    """Several ranks compute on one device, so its times are not each rank's own."""

    host: str

    def text(self, about: Candidate) -> str:
        return f"{ranks_text(about.ranks)} {filled(word(DeviceShared, 'text'), self)}"


@dataclass(frozen=True, slots=True)
class DeviceError(_OfDevice):
    """A device counted uncorrected ECC errors, or its driver reported an Xid."""

    host: str
    index: int
    ecc_errors: int
    xid: int

    def severity(self) -> Severity:
        return "error" if self.ecc_errors else "warning"

    def text(self, about: Candidate) -> str:
        errors = [plural(self.ecc_errors, "uncorrected ECC error")] if self.ecc_errors else []
        errors += [f"Xid {self.xid}"] if self.xid else []
        return f"{self.device(about)} reported {' and '.join(errors)}."


@dataclass(frozen=True, slots=True)
class NcclWarned(Facts):
    """NCCL printed a warning. A note where it follows from a rank's end."""

    message: str
    num_times: int

    def text(self, about: Candidate) -> str:
        by = f" on {ranks_text(about.ranks)}" if about.ranks else ""
        times = f", {self.num_times} times" if self.num_times > 1 else ""
        return f"NCCL warned{by}{times}: {self.message}"


@dataclass(frozen=True, slots=True)
class RasReport(Facts):
    """NCCL's RAS, asked when ranks stood still, reports ranks that do not answer, that failed, or
    that launched an op less often than others."""

    rows: tuple[tuple[str, str, tuple[int, ...], bool], ...]
    """(communicator, op or state, ranks, whether these are the job's global ranks)"""

    def severity(self) -> Severity:
        bad = {"dead", "unresponsive", "failed"}
        return "warning" if any(what in bad for _, what, *_ in self.rows) else "info"

    def text(self, about: Candidate) -> str:
        return ras_text(self.rows)


def ras_text(rows: Iterable[tuple[str, str, tuple[int, ...], bool]]) -> str:
    """Return the rows of a RasReport as a sentence."""
    said = [
        f"{ranks_text(ranks)}{'' if own else f' of communicator {comm}'} "
        + (f"{agreed('is', ranks)} {what}" if what in ("dead", "unresponsive", "failed")
           else f"launched {what} less often than others")
        for comm, what, ranks, own in rows
    ]  # fmt: skip
    return f"NCCL's RAS reports: {'; '.join(said)}."


KINDS: Final = kinds({
    "out-of-memory": OutOfMemory, "device-throttled": DeviceThrottled, "device-error": DeviceError,
    "device-shared": DeviceShared, "nccl-warning": NcclWarned, "nccl-status": RasReport,
})  # fmt: skip
