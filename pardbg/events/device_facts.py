"""Facts that NCCL and devices report about themselves during a run, as values."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg_agent.ctrl.codec import Line, Message, Word


@dataclass(frozen=True, slots=True)
class RasRow:
    """Ranks of a communicator about which NCCL's RAS reports the same."""

    comm: Word
    what: Word
    """``dead``, ``unresponsive``, ``failed``, or an op launched less often than by others."""
    ranks: tuple[int, ...]
    global_ranks: bool
    """Ranks of the job; else the communicator's."""


@dataclass(frozen=True, slots=True)
class Ras(Message, tag="ras"):
    """Answer of NCCL's RAS, asked when ranks stood still."""

    version: Word
    num_comms: int
    rows: tuple[RasRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNews(Message, tag="device"):
    """Readings of a device (NVML): at intervals, and when it is throttled or counts an error."""

    host: Word
    index: int
    name: Line
    ranks: tuple[int, ...]
    """Ranks that use the device."""
    reasons: tuple[Word, ...] = ()
    """Reasons for which the device's clocks are lowered; empty: they are not."""
    clock_mhz: int = 0
    max_clock_mhz: int = 0
    celsius: int = 0
    percent: int = 0
    """Share of time in which the device ran a kernel, percent."""
    milliwatts: int = 0
    limit_milliwatts: int = 0
    ecc_errors: int = 0
    """Number of uncorrected ECC errors since the run began."""
    xid: int = 0
    """Newest Xid of the run; 0: none."""
