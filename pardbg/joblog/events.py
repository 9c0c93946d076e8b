"""Events of a log: what single lines state, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from pardbg.joblog.origins import Origin


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its file, its number from 1 (0: not counted), where it comes from."""

    file: str
    number: int
    origin: Origin
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """What a line states. ``rank``: global rank; None where the line does not tell it."""

    line: Line
    rank: int | None


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class OpTimeout(Event):
    """NCCL's watchdog, or gloo, gave up on an op."""

    op: str
    seq: int | None
    numel_in: int | None
    numel_out: int | None


@dataclass(frozen=True, slots=True)
class IssuedAt(Event):
    """Where the op was issued that the watchdog gave up on: file, line and function of the
    innermost frame outside of libraries."""

    place: tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """Counts of a rank's ops on a group. ``seq``: of the op that failed, if one did."""

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
    """monitored_barrier: these ranks did not come in time."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotAllJoined(Event):
    """The store waited for its clients in vain."""

    joined: int
    expected: int


@dataclass(frozen=True, slots=True)
class Unreachable(Event):
    """A process could not connect to the store. ``address``: empty where it does not say which."""

    address: str


@dataclass(frozen=True, slots=True)
class InitStart(Event):
    """NCCL began to make a communicator. ``complete``: and was done with it. ``comm`` is a
    process's own name for it, ``comm_id`` all ranks' (empty: not printed)."""

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
    """Of C++: the process aborts."""


@dataclass(frozen=True, slots=True)
class RankTwice(Event):
    """Two processes came to NCCL's set-up as one rank of it."""

    comm_rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class SharedDevice(Event):
    """Two ranks of one communicator use one GPU, which NCCL refuses."""

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
    """A process ended: ``code`` as waitpid tells it, less than 0 for a signal."""

    code: int
    local_rank: int | None
    pid: int | None
    host: str
    first: bool
    """torchrun's root cause."""


@dataclass(frozen=True, slots=True)
class Ordered(Event):
    """Somebody ended the job: a scheduler, a launcher, a user."""

    by: str


@dataclass(frozen=True, slots=True)
class PeerLost(Event):
    """A connection to a peer broke. A consequence of the peer's end."""

    text: str


@dataclass(frozen=True, slots=True)
class NcclWarning(Event):
    """A warning of NCCL's that no other pattern knows."""

    text: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class WatchdogStuck(Event):
    """The watchdog's own thread made no progress."""

    seconds: int | None


@dataclass(frozen=True, slots=True)
class Signalled(Event):
    """A rank was asked, by another or by itself, to dump what it knows."""


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """A line of c10d's watchdog in words that no pattern knows."""


SYMMETRIC: Final = frozenset(
    {"ALLREDUCE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "ALLGATHER", "_ALLGATHER_BASE",
     "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED", "BARRIER"}
)  # fmt: skip
"""Ops for which all ranks state equal numbers of elements."""
