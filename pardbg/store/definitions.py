"""Definitions as values: ops, groups, plans, models; made from decoded maps, never raising."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pardbg.events import fields
from pardbg.words import ranks_text, whole
from pardbg_agent.tables.code_files import is_program
from pardbg_agent.wire import DefKind

MAX_PLAN_RANKS: Final = 1024
MAX_PLAN_ACTIONS: Final = 1 << 18
MAX_NUMBERED: Final = (1 << 15) - 1
"""Maximum number of stages, and of microbatches, of one pipeline."""


@dataclass(frozen=True, slots=True)
class OpDef:
    """Signature of a collective or point-to-point op."""

    op: str
    dtype: str
    reduce: str
    root: int | None
    tag: int
    at: tuple[Frame, ...] = field(default=(), compare=False)
    """Frames of the program that issued the op first; empty: not known."""
    meets: str = ""
    """``HOST:PORT`` of the rendezvous, for an init_process_group."""

    @property
    def length(self) -> int:
        """Return the number of characters in the signature's texts."""
        places = sum(len(file) + len(function) for file, _, function in self.at)
        return sum(map(len, (self.op, self.dtype, self.reduce, self.meets))) + places


@dataclass(frozen=True, slots=True)
class GroupDef:
    """A process group; ``key`` is equal on all members."""

    key: str
    name: str
    axis: str | None
    ranks: tuple[int, ...]
    backend: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PlanDef:
    """A pipeline schedule as planned, compute and communication actions per global rank."""

    schedule: str
    group: str
    ranks: tuple[int, ...]
    num_stages: int
    num_microbatches: int
    num_virtual: int
    order: Mapping[int, tuple[str, ...]]
    source: str
    paced: bool

    @property
    def fits(self) -> bool:
        """Return whether records (15 bits for stages and microbatches) can express the plan."""
        return (
            len(self.ranks) <= MAX_PLAN_RANKS
            and max(self.num_stages, self.num_microbatches, self.num_virtual) <= MAX_NUMBERED
            and sum(map(len, self.order.values())) <= MAX_PLAN_ACTIONS
        )


@dataclass(frozen=True, slots=True)
class ModelDef:
    """Facts about a rank's model from which its expected memory is computed."""

    zero: int | None
    shards: int
    parameters_bytes: int
    optimizer: str
    parameters_sharded: bool = False
    """Whether a rank keeps only its parameter shard between steps, whatever the level says."""
    start: int | None = None
    """Whether parameters were equal before the first step (see the agent); None: not checked."""
    master_bytes: int = 0
    """Bytes of the optimizer's own copy of all parameters, if it keeps one."""
    rpc: bool = False
    """Whether torch.distributed.rpc moves data, too, which pardbg does not observe."""
    dtype: str = ""
    """Data type of all parameters; empty: several types, or not reported."""
    idle: bool = False
    """Whether the optimizer's parameters never had a gradient, and the optimizer keeps no state."""


_NUMBERED: Final = re.compile(r"\d+|[0-9a-f]{40}|undefined")
"""Names that torch gives to unnamed groups: a number, or a hash of their ranks."""
Frame = tuple[str, int, str]
"""(file, line, function)"""
MAX_FRAMES = 128
_MAX_ALSO: Final = 16
_MAX_TYPES: Final = 32


@dataclass(frozen=True, slots=True)
class Cause:
    """The exception at the end of a failure's chain of causes, or a member of a group."""

    type: str
    text: str
    frames: tuple[Frame, ...]
    """Stack in which the exception was raised, outermost first."""
    implicit: bool = False
    """Whether the cause was only being handled at the raise; the program does not declare it."""
    ranks: tuple[int, ...] = ()
    """Ranks that raised the exception, if a checkpoint names them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that no code caught."""

    t_ns: int
    """Hub clock."""
    type: str
    text: str
    """Last line of the exception's text."""
    thread: str
    frames: tuple[Frame, ...]
    """Outermost first."""
    step: int
    kept: bool = False
    """Whether a pool's thread raised it and goes on: its future may be asked for the exception."""
    task_of: str = ""
    """Library of the task that raised it: ``asyncio``; empty: a thread."""
    cause: Cause | None = None
    also: tuple[Cause, ...] = ()
    """Further causes: other members of an exception group."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Return the causes that the program declared."""
        return () if self.cause is None or self.cause.implicit else (self.cause, *self.also)

    @property
    def types(self) -> str:
        """Return ``RuntimeError from ValueError``; the failure's type alone if it has no cause,
        several unlike causes, or if both names take too much of a line."""
        others = {of.type for of in self.causes} - {self.type}
        both = f"{self.type} from {others.pop()}" if len(others) == 1 else self.type
        return both if len(both) <= _MAX_TYPES else self.type

    @property
    def began_as(self) -> str:
        """Return the type of the declared cause, if there is one; else the failure's own type."""
        return self.type if self.cause is None or self.cause.implicit else self.cause.type

    @property
    def origin(self) -> tuple[Frame, ...]:
        """Return the cause's frames if they contain the program's code; else the failure's own."""
        cause = self.cause
        if cause is None or cause.implicit or not any(is_program(f[0]) for f in cause.frames):
            return self.frames
        return cause.frames


def frames_of(value: Any) -> tuple[Frame, ...]:
    """Parse a stack, [[file, line, function], ...]; malformed frames are left out."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(
        (str(frame[0])[:4096], frame[1] if isinstance(frame[1], int) else 0, str(frame[2])[:256])
        for frame in value[:MAX_FRAMES]
        if isinstance(frame, (list, tuple)) and len(frame) >= 3
    )


def failure(values: Mapping[Any, Any], offset_ns: int) -> Failure:
    """Return an exception's facts; ``offset_ns`` converts its time to the hub's clock."""
    return Failure(
        t_ns=fields.integer(values, "t_ns", 0) + offset_ns,
        type=fields.text(values, "type", "Exception"),
        text=fields.text(values, "text"),
        thread=fields.text(values, "thread", "MainThread"),
        frames=frames_of(values.get("frames")),
        step=fields.integer(values, "step", -1),
        kept=values.get("kept") is True,
        task_of=fields.text(values, "task_of"),
        cause=_cause(fields.mapping(values, "cause")),
        also=_also(values.get("also")),
    )


class Crash(NamedTuple):
    """Where a process was as a signal of C code ended it."""

    frames: tuple[Frame, ...]
    """Outermost first."""
    beside: bool
    """Whether the frames are the main thread's, while a thread without Python code crashed."""


def crash(values: Mapping[Any, Any], _offset_ns: int) -> Crash:
    """Return the facts of a process's crash."""
    return Crash(frames_of(values.get("frames")), values.get("main") is True)


def _cause(values: Mapping[Any, Any]) -> Cause | None:
    if not values:
        return None
    return Cause(
        fields.text(values, "type", "Exception"), fields.text(values, "text"),
        frames_of(values.get("frames")), values.get("implicit") is True,
        fields.integers(values, "ranks"),
    )  # fmt: skip


def _also(values: object) -> tuple[Cause, ...]:
    maps = values[:_MAX_ALSO] if isinstance(values, (list, tuple)) else ()
    found = (_cause(of) for of in maps if isinstance(of, Mapping))
    return tuple(of for of in found if of is not None)


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that the device's allocator could not serve; the error may have been caught."""

    t_ns: int
    """Hub clock."""
    device: str
    asked_bytes: int | None
    limit_bytes: int
    free_bytes: int | None
    """Bytes of the device that no process has."""
    allocated_bytes: int
    reserved_bytes: int
    """Bytes of the device that this process has reserved, allocated bytes included."""
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    step: int
    phase_id: int
    """Name id; 0: in no phase."""
    action_id: int
    stage: int
    microbatch: int
    frames: tuple[Frame, ...]

    @property
    def other_bytes(self) -> int:
        """Return the allocated bytes that are activations, temporaries and buffers."""
        known = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return max(0, self.allocated_bytes - known)


def failed_request(values: Mapping[Any, Any], offset_ns: int) -> FailedRequest:
    """Return a failed request's facts; ``offset_ns`` converts its time to the hub's clock."""

    def number(key: str, of: Mapping[Any, Any] = values) -> int:
        return fields.integer(of, key, 0)

    parts = fields.mapping(values, "parts")
    return FailedRequest(
        number("t_ns") + offset_ns, fields.text(values, "device"),
        fields.integer_or_none(values, "asked"), number("limit"),
        fields.integer_or_none(values, "free"), number("allocated"), number("reserved"),
        number("parameters", parts), number("gradients", parts), number("optimizer", parts),
        number("step"), number("phase"), number("action"), fields.integer(values, "stage", -1),
        fields.integer(values, "mb", -1), frames_of(values.get("frames")),
    )  # fmt: skip


def pairs(value: Any, most: int) -> list[tuple[int, int]]:
    """Return the pairs of integers of a list, at most ``most``: (t_ns, signal) of signals that the
    launcher forwarded, oldest first; or (begin, end) of times without recording."""
    return [
        (pair[0], pair[1])
        for pair in (value[:most] if isinstance(value, list) else ())
        if isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
    ]


def op_def(values: Mapping[Any, Any]) -> OpDef:
    """Return an op's signature."""
    root = fields.integer(values, "root", -1)
    return OpDef(
        op=fields.text(values, "op", "op"),
        dtype=fields.text(values, "dtype"),
        reduce=fields.text(values, "reduce"),
        root=root if root >= 0 else None,
        tag=fields.integer(values, "tag", 0),
        at=frames_of([values.get("at")]),
        meets=fields.text(values, "meets"),
    )


def group_def(values: Mapping[Any, Any], epoch: int) -> GroupDef:
    """Return a group's definition; a group with torch's number for a name is named by its ranks."""
    key, ranks = fields.text(values, "key"), fields.integers(values, "ranks")
    name = fields.text(values, "name") or key
    return GroupDef(
        key=key,
        name=ranks_text(ranks) if ranks and _NUMBERED.fullmatch(name) else name,
        axis=fields.text_or_none(values, "axis"),
        ranks=ranks,
        backend=fields.text(values, "backend"),
        epoch=epoch,
    )


def plan_def(values: Mapping[Any, Any], older: PlanDef | None) -> PlanDef:
    """Parse a plan; ranks may send a row each, so rows of an equal older plan are kept."""
    rows, ranks = fields.mapping(values, "order"), fields.integers(values, "ranks")
    members = set(ranks[:MAX_PLAN_RANKS])
    order: dict[int, tuple[str, ...]] = {}
    for rank in rows:
        number = whole(str(rank))
        if number is not None and number in members:
            order[number] = fields.texts(rows, rank)
    plan = PlanDef(
        schedule=fields.text(values, "schedule"),
        group=fields.text(values, "group"),
        ranks=ranks,
        num_stages=fields.integer(values, "num_stages", 0),
        num_microbatches=fields.integer(values, "num_microbatches", 0),
        num_virtual=max(1, fields.integer(values, "num_virtual", 1)),
        order=order,
        source=fields.text(values, "source"),
        paced=bool(values.get("paced")),
    )
    if older is not None and _same_shape(plan, older):
        order.update({rank: row for rank, row in older.order.items() if rank not in order})
    return plan


def _same_shape(a: PlanDef, b: PlanDef) -> bool:
    return (a.schedule, a.ranks, a.num_stages, a.num_microbatches) == (
        b.schedule, b.ranks, b.num_stages, b.num_microbatches,
    )  # fmt: skip


def model_def(values: Mapping[Any, Any]) -> ModelDef:
    """Return the facts known about a rank's model."""
    return ModelDef(
        zero=fields.integer_or_none(values, "zero"),
        shards=max(1, fields.integer(values, "shards", 1)),
        parameters_bytes=fields.integer(values, "parameters_bytes", 0),
        optimizer=fields.text(values, "optimizer"),
        parameters_sharded=bool(values.get("parameters_sharded")),
        start=fields.integer_or_none(values, "start"),
        rpc=bool(values.get("rpc")),
        idle=bool(values.get("idle")),
        dtype=fields.text(values, "dtype"),
        master_bytes=fields.integer(values, "master_bytes", 0),
    )


FACTS: Final[Mapping[DefKind, tuple[str, Callable[..., Any]]]] = {
    DefKind.EXCEPTION: ("failures", failure),
    DefKind.OUT_OF_MEMORY: ("failed_requests", failed_request),
    DefKind.CRASH: ("crashes", crash),
}
"""Kind -> (list of a process that keeps such facts, their reader)."""
