"""Events of a log: the content of single lines, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from pardbg.joblog.origins import Origin


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its file, its number from 1 (0: not counted), its origin."""

    file: str
    number: int
    origin: Origin
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """Content of a line. ``rank``: global rank; None if the line does not contain it."""

    line: Line
    rank: int | None


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class OpTimeout(Event):
    """NCCL's watchdog, or gloo, gave up on an op after a timeout."""

    op: str
    seq: int | None
    numel_in: int | None
    numel_out: int | None


@dataclass(frozen=True, slots=True)
class IssuedAt(Event):
    """Place that issued the op on which the watchdog gave up: file, line and function of the
    innermost frame outside of libraries."""

    place: tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """Counts of a rank's ops on a group. ``seq``: number of the failed op, if an op failed."""

    group: str
    seq: int | None
    enqueued: int
    started: int | None
    completed: int


@dataclass(frozen=True, slots=True)
class NotJoined(Event):
    """torch's desync report: these ranks finished an op and did not join the next."""

    ranks: tuple[int, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class Disagree(Event):
    """Two ranks issued different ops (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    seq: int | None
    ranks: tuple[int, int]
    ops: tuple[str, str]
    shapes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SizesDiffer(Event):
    """gloo received another number of bytes than this rank expects."""

    sent_bytes: int | None
    expected_bytes: int | None


@dataclass(frozen=True, slots=True)
class BarrierMissed(Event):
    """These ranks did not come in time: to monitored_barrier, or to ``op``."""

    ranks: tuple[int, ...]
    op: str = ""


@dataclass(frozen=True, slots=True)
class NotAllJoined(Event):
    """The store timed out waiting for its clients."""

    joined: int
    expected: int


@dataclass(frozen=True, slots=True)
class Unreachable(Event):
    """A process could not connect to the store. ``address``: empty if the line has none."""

    address: str


@dataclass(frozen=True, slots=True)
class InitStart(Event):
    """NCCL began to set up a communicator. ``complete``: the set-up has ended. ``comm`` is a
    process's own name for it, ``comm_id`` all ranks' name (empty: not printed)."""

    comm: str
    comm_id: str
    comm_rank: int
    num_ranks: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Failure(Event):
    """An exception that ended a thread, or a native abort. ``place``: file, line and function of
    the innermost frame outside of libraries."""

    type: str
    text: str
    place: tuple[str, int, str] | None
    native: bool = False
    """Whether C++ code raised it, so that the process aborts."""


@dataclass(frozen=True, slots=True)
class RankTwice(Event):
    """Two processes joined NCCL's set-up with the same rank."""

    comm_rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class SharedDevice(Event):
    """Two ranks of one communicator use the same GPU, which NCCL refuses."""

    ranks: tuple[int, ...]
    device: str


@dataclass(frozen=True, slots=True)
class OutOfMemory(Event):
    """The allocator of a device, or the kernel (``device`` empty), had no memory left."""

    device: str
    requested: str
    pid: int | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFault(Event):
    """An Xid line of the NVIDIA driver."""

    device: str
    xid: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """A process ended: ``code`` as from waitpid, below 0 for a signal."""

    code: int
    local_rank: int | None
    pid: int | None
    host: str
    first: bool
    """Whether torchrun reports this process as the root cause."""


@dataclass(frozen=True, slots=True)
class Ordered(Event):
    """A scheduler, a launcher or a user ended the job."""

    by: str


@dataclass(frozen=True, slots=True)
class PeerLost(Event):
    """A connection to a peer broke, a consequence of the peer's end."""

    text: str


@dataclass(frozen=True, slots=True)
class NcclWarning(Event):
    """A warning of NCCL that no other pattern matches."""

    text: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class WatchdogStuck(Event):
    """The watchdog's own thread made no progress."""

    seconds: int | None


@dataclass(frozen=True, slots=True)
class Signalled(Event):
    """A rank received a request, from another rank or itself, to dump its flight recorder."""


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """A line of c10d's watchdog that no pattern matches."""


SYMMETRIC: Final = frozenset(
    {"ALLREDUCE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "ALLGATHER", "_ALLGATHER_BASE",
     "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED", "BARRIER"}
)  # fmt: skip
"""Ops with equal numbers of elements on all ranks."""
