"""Which tables an export has, and what their columns say. docs/export.md is checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg_agent.wire import Flag

Type = Literal["int", "float", "bool", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: where it comes from, and what it says."""

    name: str
    type: Type
    source: str
    """A record field (``t0_ns``, ``a`` …), ``name``, ``op.dtype``, ``group.axis``, ``flag.16``,
    ``done`` or ``process.rank``."""
    doc: str
    absent: int | None = None
    """The record's value for *not known*; such a cell is null (empty in CSV)."""


def _flag(name: str, flag: Flag, doc: str) -> Column:
    return Column(name, "bool", f"flag.{int(flag)}", doc)


_WHO: Final = (
    Column("epoch", "int", "process.epoch", "round of the workers: 0, or more after a restart"),
    Column("rank", "int", "process.rank", "global rank; null where the process said none"),
    Column("host", "text", "process.host", "host name"),
    Column("pid", "int", "process.pid", "process id"),
)
_STEP: Final = Column("step", "int", "step", "training step, from 0")
_BEGIN: Final = Column("t0_ns", "int", "t0_ns", "begin, hub clock")
_END: Final = Column("t1_ns", "int", "t1_ns", "end, hub clock")
_SPAN: Final = (*_WHO, _STEP, _BEGIN, _END)
_AT: Final = (*_WHO, _STEP, Column("t_ns", "int", "t1_ns", "when, hub clock"))
_STAGE: Final = Column("stage", "int", "stage", "pipeline stage", absent=-1)
_MICROBATCH: Final = Column("microbatch", "int", "microbatch", "microbatch", absent=-1)
_GROUP: Final = (
    Column("group", "text", "group.key", "process group: equal on all members"),
    Column("group_name", "text", "group.name", "its name, or its mesh axis"),
    Column("seq", "int", "seq", "number of the op in its group; p2p ops count apart, per rank"),
    _flag("p2p", Flag.P2P, "a send or receive"),
)
_OP: Final = (
    Column("op", "text", "op.op", "all_reduce, send …"),
    Column("dtype", "text", "op.dtype", "element type"),
    Column("reduce", "text", "op.reduce", "reduce op; of a labelled p2p op the pipeline action"),
    Column("tag", "int", "op.tag", "p2p tag"),
    *_GROUP,
    _flag("send", Flag.SEND, "a p2p op that sends"),
    Column("peer", "int", "peer", "peer of a p2p op, root of a rooted one: global", absent=-1),
    Column("bytes_in", "int", "a", "bytes in"),
    Column("bytes_out", "int", "b", "bytes out"),
    _STAGE,
    _MICROBATCH,
    _flag("async", Flag.ASYNC, "issued without waiting in the call"),
    _flag("other_thread", Flag.OTHER_THREAD, "issued by a thread that is not the main one"),
    _flag("failed", Flag.FAILED, "ended with an error"),
)
_OF_LAUNCH: Final = (
    Column("name", "text", "name", "op, action or phase"),
    Column("lane", "int", "peer", "wire.Lane: 0 a step, 1 a phase, 2 an action, 3 an op"),
    _STAGE, _MICROBATCH, *_GROUP,
)  # fmt: skip
"""A launch on a device."""

RECORDS: Final[dict[str, tuple[Column, ...]]] = {
    "action": (
        *_SPAN,
        Column("action", "text", "name", "F, B, I, W, UNSHARD, RESHARD or REDUCE_GRAD"),
        _STAGE, _MICROBATCH,
        Column("activation_bytes", "int", "a", "activations saved; 0 where not sampled"),
        _flag("recompute", Flag.RECOMPUTE, "forward run again for checkpointing"),
        _flag("paced", Flag.PACED, "compute that a recipe paces with sleeps"),
    ),
    "op_issue": (
        *_WHO, _STEP,
        Column("t0_ns", "int", "t0_ns", "the op reached its backend (arrival), hub clock"),
        Column("t1_ns", "int", "t1_ns", "the call returned, hub clock"),
        *_OP,
    ),
    "op_done": (
        *_WHO, _STEP,
        Column("t0_ns", "int", "t0_ns", "issue, hub clock"),
        Column("t1_ns", "int", "t1_ns", "completion as seen by ``source``, hub clock"),
        *_OP,
        Column("source", "text", "done", "completed, device, or an upper bound: waited, polled"),
    ),
    "wait": (*_SPAN, *_GROUP),
    "step": (
        *_SPAN,
        Column("hook_ns", "int", "a", "time in the agent's hooks"),
        Column("hook_calls", "int", "b", "calls of the agent's hooks"),
    ),
    "phase": (
        *_SPAN,
        Column("phase", "text", "name", "data, forward, backward, optimizer or pipeline"),
        _flag("inferred", Flag.INFERRED, "bounds follow from neighbours"),
    ),
    "span": (*_SPAN, Column("name", "text", "name", "as the program named it")),
    "metric": (
        *_AT,
        Column("name", "text", "name", "loss, lr …"),
        Column("value", "float", "number", "the number"),
    ),
    "memory": (
        *_AT,
        Column("name", "text", "name", "parameters, gradients, optimizer, activations, "
               "allocated, reserved or rss"),
        _STAGE,
        Column("bytes", "int", "a", "bytes"),
        Column("peak_bytes", "int", "b", "peak within the step"),
    ),
    "held": (
        *_SPAN,
        Column("next", "text", "name", "what came next"),
        Column("gate", "int", "a", "gate class (wire.Gate)"),
    ),
    "fsdp": (
        *_SPAN,
        Column("name", "text", "name", "sharded unit and verb"),
        Column("bytes", "int", "a", "bytes"),
    ),
    "launch": (
        *_WHO, _STEP,
        Column("t0_ns", "int", "t0_ns", "the host launched it on a device, hub clock"),
        Column("t1_ns", "int", "t1_ns", "the call returned, hub clock"),
        *_OF_LAUNCH,
    ),
    "reached": (
        *_WHO, _STEP,
        Column("t0_ns", "int", "t0_ns", "the device came to it, hub clock"),
        Column("t1_ns", "int", "t1_ns", "it was through with it; of an op t0_ns"),
        *_OF_LAUNCH,
        Column("lead_ns", "int", "a", "launch to begin on the device: how far the host was ahead"),
        Column("end_lead_ns", "int", "b", "the same at its end"),
    ),
}  # fmt: skip
"""Record kind -> its columns, in order."""

OTHER_RECORD: Final = (
    *_SPAN,
    Column("name", "text", "name", "its name"),
    Column("group", "text", "group.key", "process group"),
    Column("seq", "int", "seq", "number in its group"),
    _STAGE, _MICROBATCH,
    Column("peer", "int", "peer", "the other rank", absent=-1),
    Column("a", "int", "a", "first value"),
    Column("b", "int", "b", "second value"),
    Column("flags", "int", "flags", "wire.Flag bits"),
)  # fmt: skip
"""Columns of a record kind that has none of its own above."""

OTHERS: Final[dict[str, tuple[Column, ...]]] = {
    "process": (
        *_WHO,
        Column("proc", "text", "", "epoch.host.pid"),
        Column("num_records", "int", "", "records here"),
        Column("lost_records", "int", "", "records known to be lost"),
        Column("clock_offset_ns", "int", "", "newest offset that was added to its times"),
        Column("clock_error_ns", "int", "", "uncertainty of that; null: not known"),
    ),
    "group": (
        Column("epoch", "int", "", "round of the workers"),
        Column("group", "text", "", "key: equal on all members"),
        Column("name", "text", "", "name"),
        Column("axis", "text", "", "mesh axis, or empty"),
        Column("backend", "text", "", "gloo, nccl …"),
        Column("ranks", "text", "", "global ranks, by group rank, comma-separated"),
    ),
    "output": (
        Column("t_ns", "int", "", "when, hub clock"),
        Column("rank", "int", "", "rank, where the line says it"),
        Column("stream", "text", "", "stdout or stderr"),
        Column("text", "text", "", "the line"),
    ),
    "control": (
        Column("t_ns", "int", "", "when, hub clock"),
        Column("event", "text", "", "what happened: pause, lease, gap …"),
        Column("fields", "text", "", "all of it, as JSON"),
    ),
}  # fmt: skip
"""Tables of what is not records -> their columns, in order."""
