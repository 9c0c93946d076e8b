"""Ranks that the others wait for, from one stack of each: without groups or counts of ops.

A rank waits if its stack ends where torch.distributed issues ops and waits for them, or where the
host waits for its device: NCCL's ops only queue up there, and the wait of the device is not in the
host's stack. If some wait and others do not, the others are waited for. If all wait, those that
wait elsewhere than most do are named; without a majority, none is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.kinds.absence import Absence
from pardbg.analysis.hangs.stacks import (
    activity,
    is_user,
    place,
    program,
    waits_for_device,
    waits_in_op,
)
from pardbg.store.definitions import Frame

Kind = Literal["missing-rank", "behind-devices", "different-ops", "all-wait", "nobody-waits"]
"""Kinds of verdict. ``behind-devices``: hosts wait for devices; an op may wait for culprits'."""
DEVICE_CALL: Final = "its device"
CALL_FILES: Final = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/_functional_coll",
)
AXES: Final = (
    (("/fsdp/", "/_fsdp/", "fully_sharded"), "fsdp"), (("context_parallel",), "cp"),
    (("/distributed/pipelining/", "pipeline_parallel"), "pp"), (("/moe/", "expert_parallel"), "ep"),
    (("/distributed/tensor/", "/distributed/_tensor/", "tensor_parallel"), "tp"),
    (("/nn/parallel/distributed", "/distributed_data_parallel"), "dp"),
)  # fmt: skip
"""Parts of paths of libraries that issue ops on one kind of axis -> its name."""
WRAPPERS: Final = frozenset({"wrapper", "_coalescing_manager", "inner"})


@dataclass(frozen=True, slots=True)
class RankStack:
    """Stack of one rank's main thread, innermost frame last. ``asleep``: it used no CPU meanwhile.
    ``has_device``: its process has loaded a device's driver. ``source``: its innermost line.
    ``stands``: it was in the same call some tenths of a second later: a launch may wait, too."""

    rank: int
    frames: tuple[Frame, ...]
    asleep: bool
    has_device: bool = False
    source: str = ""
    stands: bool = False

    @property
    def on_device(self) -> bool:
        return self.has_device and (self.stands or waits_for_device(self.frames, self.source))

    @property
    def waits(self) -> bool:
        return self.on_device or waits_in_op(self.frames, "", self.asleep)

    @property
    def call(self) -> str:
        """Return the torch.distributed function the rank is in, or DEVICE_CALL; empty: in none."""
        if self.on_device:
            return DEVICE_CALL
        return next(
            (name for file, _, name in self.frames
             if any(part in file for part in CALL_FILES) and name not in WRAPPERS), ""
        )  # fmt: skip

    @property
    def axis(self) -> str:
        """Return the axis whose library the rank waits in; empty: the program's own call, or
        none."""
        for file, _, _ in reversed(program(self.frames)):
            if is_user((file, 0, "")):
                break
            for parts, axis in AXES:
                if any(part in file for part in parts):
                    return axis
        return ""

    @property
    def place(self) -> str:
        """Return the place in the program: ``train.py:88 in step``."""
        return place(self.frames) or "?"

    @property
    def doing(self) -> str:
        """Return the rank's activity there, in a word or two."""
        if self.on_device:
            return f"{'runs or ' * self.stands}waits for {DEVICE_CALL}"
        if self.waits:
            of = f" of {self.axis}" if self.axis else ""
            return f"waits in {self.call or 'torch.distributed'}{of}"
        if doing := activity(self.frames):
            return Absence(doing).text()
        return "is asleep" if self.asleep else "runs"


@dataclass(frozen=True, slots=True)
class StackVerdict:
    """Verdict. ``culprits``: ranks that ``waiting`` ones wait for; empty: unknown."""

    kind: Kind
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    call: str


def judge(
    stacks: Sequence[RankStack], silent: Sequence[int] = (), moves: bool = False
) -> StackVerdict:
    """Return the verdict on who waits for whom. ``silent``: ranks whose stack could not be read.
    ``moves``: the waiting ranks have gone on since."""
    waiting = [one for one in stacks if one.waits]
    others = tuple(sorted(one.rank for one in stacks if not one.waits))
    ranks = tuple(sorted(one.rank for one in waiting))
    calls = Counter(one.call for one in waiting)
    call = calls.most_common(1)[0][0] if calls else ""
    if not waiting or moves:
        return StackVerdict("nobody-waits", (), (), "")
    if others:
        kind: Kind = "behind-devices" if set(calls) == {DEVICE_CALL} else "missing-rank"
        return StackVerdict(kind, others, ranks, call)
    if silent:
        return StackVerdict("missing-rank", tuple(sorted(silent)), ranks, call)
    odd = _odd({one.rank: (one.call, one.place) for one in waiting})
    if odd:
        rest = tuple(rank for rank in ranks if rank not in odd)
        return StackVerdict("different-ops", odd, rest, call)
    return StackVerdict("all-wait", (), ranks, call)


def _odd(places: Mapping[int, tuple[str, str]]) -> tuple[int, ...]:
    """Return ranks that wait elsewhere than most do; empty without a majority."""
    (most, number), *rest = Counter(places.values()).most_common()
    if not rest or 2 * number <= len(places):
        return ()
    return tuple(sorted(rank for rank, where in places.items() if where != most))
