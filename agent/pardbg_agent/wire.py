"""Protocol between agent and hub: record layout, status block, message kinds.

Standard library only. Every layout here is little-endian, fixed size and versioned; a reader skips
unknown kinds and counts them. ``docs/wire-protocol.md`` describes the same in prose. Times are
CLOCK_MONOTONIC nanoseconds of the rank's own host unless a name says otherwise."""

from __future__ import annotations

import enum
import os
import struct
from typing import Final

PROTOCOL_VERSION: Final = 1
"""Version, bumped when a layout or a field's meaning changes; new kinds alone do not bump it."""

ENV_RUN: Final = "PARDBG"
"""Variable with the run directory. The agent does nothing at all unless it is set."""
ENV_LINES: Final = "PARDBG_LINES"
"""Variable set where pardbg passes on the job's output: Python then writes it by lines, instead of
full blocks."""
ENV_LEVEL: Final = "PARDBG_LEVEL"
"""Variable with the level: ``off``, ``summary`` or ``full`` (default)."""
ENV_TENSORS: Final = "PARDBG_TENSORS"
"""Variable with the steps whose tensors are sent as sketches, as in ``0-1``; unset: none."""
ENV_FULL: Final = "PARDBG_FULL"
"""Variable with tensors whose elements are sent too, as in ``grad:blocks.*,head``; unset: none."""
ENV_INIT_TO: Final = "PARDBG_INIT_TO"
"""Variable with the folder that initial parameters are written to; unset: not written."""
ENV_INIT_FROM: Final = "PARDBG_INIT_FROM"
"""Variable with the folder that initial parameters are read from; unset: not read."""
ENV_INIT_NOISE: Final = "PARDBG_INIT_NOISE"
"""Variable with a dtype by whose rounding these move; ``own``: each one's; unset: not moved."""
LAYOUT: Final = "_pardbg_layout"
"""Attribute of a tensor: (shape of the whole, offset of this part), as the program declares."""
SKETCH: Final = 256
"""Length of a tensor's sketch, in numbers."""
MAX_ROWS: Final = 4096
"""Maximum rows of a step's inputs that a rank reports."""
LEVELS: Final = ("off", "summary", "full")
"""Names of sampling levels by number: how much a rank records."""
REDUCE: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""Names of reductions, by the value of torch's RedOpType."""
RUN_FILE: Final = "run.json"
"""File in the run directory: {"v", "run", "data", "ctrl", "pub", "ring_dir", "keys", ...}."""

# --------------------------------------------------------------------------- records

RECORD: Final = struct.Struct("<BBHIqqIIHhhhqqQ")
"""kind, lane, flags, name_id, t0_ns, t1_ns, step, seq, group_id, stage, microbatch, peer, a, b,
index. The last field, index + 1, is the commit mark: 0 means the slot was never written."""
RECORD_F: Final = struct.Struct("<BBHIqqIIHhhhdqQ")
"""Layout of a record with ``a`` as a float64; such a record has Flag.FLOAT set."""
RECORD_BYTES: Final = 64
assert RECORD.size == RECORD_F.size == RECORD_BYTES

RECORD_FIELDS: Final = (
    ("kind", "u1"),
    ("lane", "u1"),
    ("flags", "<u2"),
    ("name_id", "<u4"),
    ("t0_ns", "<i8"),
    ("t1_ns", "<i8"),
    ("step", "<u4"),
    ("seq", "<u4"),
    ("group_id", "<u2"),
    ("stage", "<i2"),
    ("microbatch", "<i2"),
    ("peer", "<i2"),
    ("a", "<i8"),
    ("b", "<i8"),
    ("mark", "<u8"),
)
"""numpy dtype description of RECORD (``mark`` = index + 1)."""

NONE: Final = -1
"""Value for no stage, microbatch or peer. 0 is a rank, a stage and a microbatch."""
NO_GROUP: Final = 0xFFFF


class Kind(enum.IntEnum):
    """Kind of a record. Numbers are frozen: never reuse one."""

    ACTION = 1
    """A pipeline compute action ran, t0..t1. name = F, B, I, W, UNSHARD, RESHARD or REDUCE_GRAD;
    stage, microbatch; a = bytes of activations saved (0 where not sampled)."""
    OP_ISSUE = 2
    """A collective or p2p op was issued: t0 = reached the backend (arrival), t1 = call returned.
    name = op definition; group, seq; peer (global rank) for p2p, root for rooted collectives;
    a = bytes in, b = bytes out; stage, microbatch where a pipeline labelled it."""
    OP_DONE = 3
    """The op of the same (group, seq, P2P flag) completed: t0 = issue, t1 = completion. The source
    of t1 is in the flags (DONE_*). a, b, peer as in OP_ISSUE; a receive from any source has its
    peer here only."""
    WAIT = 4
    """The host waited for an op, t0..t1 (Work.wait, wait_tensor). group, seq, P2P flag."""
    STEP = 5
    """A training step ended: t0..t1, step. a = agent's hook time in it (ns), b = hook calls."""
    PHASE = 6
    """Phase: name = data, forward, backward, optimizer or pipeline (a schedule's step()); t0..t1.
    With Flag.RECOMPUTE, inside a backward: name = recompute, a checkpointed region run again."""
    SPAN = 7
    """A user's span (pardbg_agent.span), t0..t1, name. a = part, b = parts (from 1; 0: not given),
    microbatch = chunk, if the program gives them: step 2 of 6 of a ring, with its chunk."""
    METRIC = 8
    """A number at t1: name (loss, lr, ...), a as float64 (Flag.FLOAT)."""
    MEMORY = 9
    """Bytes at t1: name = parameters, gradients, optimizer, activations, allocated, reserved or
    rss, or limit; a = bytes, b = peak bytes of the step (allocated, reserved: of the process).
    stage, if they belong to one."""
    HELD = 10
    """The rank was held at a gate, t0..t1. name = next event; a = gate class (Gate)."""
    LOST = 11
    """Overwritten before they were sent: a records (made by the reader, never in the ring)."""
    FSDP = 12
    """A sharded unit's unshard, wait unshard, reshard or reduce: t0..t1, name = unit and verb,
    a = bytes of the unit's parameters, b = bytes of all parameters that are whole here at t1."""
    PROBE = 13
    """Numbers that went wrong (pardbg_agent.hooks.watch.probes). name = ``nan``: the input of the
    op (group, seq, P2P) has a values that are not finite, the first at place b; ``nan grad NAME``:
    the last of seq parameters whose gradient is not finite, in a values; ``nan parameter NAME``:
    the first of seq that were so before the first such loss; ``checksum NAME …``: a = the bits of
    these replicated parameters added up, b = a byte for each, group = the replicas;
    ``gradients``: the bits of those that an optimizer took in one sum a, of b parameters;
    ``settings``: an optimizer's learning rate in a (float64), all of its numbers in b;
    ``blocked``, kind of system call, file, place, in lines: the main thread stood there, or was
    seen a times more where the record before had seen it; ``busy`` … likewise: it ran there, or
    waited for the interpreter, in no phase, in a looks."""
    SPAN_BEGIN = 14
    """The SPAN of the same name and t0 began: t0 = t1. Shows a rank's span before its end. a, b and
    microbatch as in SPAN."""
    PART = 15
    """Of an all_to_all (group, seq, name as in its OP_ISSUE), a bytes go to peer, and b bytes are
    expected from it. For groups of MAX_PARTS ranks at most; a rank's own part, and parts of no
    bytes either way, have no record."""
    OP_SUM = 16
    """Sum at level summary: the ops of one kind that completed in a step, t0..t1. name = op
    definition; group; P2P and SEND flags; seq = number, a = bytes (the larger of in and out each),
    b = ns from issue (on a device from its arrival) to completion, added up."""

    CALL_BEGIN = 17
    """A call that may block outside of collectives began, t0 = t1: init_process_group, new_group,
    Store.get … name = op definition (``reduce``: what it was called with); group (its backend is
    CALLS), seq: calls on one group are made by all its members, in order."""
    CALL = 18
    """The call of a CALL_BEGIN ended, t0..t1."""
    DEVICE = 19
    """Work that the host issued ran on the device, t0..t1 on the host's clock. The lane tells its
    kind: COMM an op (t0: its arrival), or without a group an FSDP; COMPUTE an action, PHASE, STEP,
    USER a SPAN; name, flags, group, seq, stage, microbatch and peer as in that record. WAIT: the
    computing stream stood in a wait for an asynchronous op until its end, t1 (t0 = t1: not at all).
    a = the host's lead: t0 less its issue; b = error of t0 and t1."""
    DEVICE_BEGIN = 20
    """The op of a later DEVICE record has arrived, t0 = t1; only if it does not end soon."""


CALLS: Final = "calls"
"""Backend of groups that are not process groups: they number the CALLs of their ranks. The key of
each begins with it."""
START_UP: Final = "start-up"
"""Phase of a rank that has not been in a group."""
BLOCKED: Final = "blocked\n"
"""Begin of names that tell the call in which a rank's main thread waits."""
LOADERS: Final = "loader workers"
"""Name of the counts of a data loader's workers."""
BUSY: Final = "busy\n"
"""Begin of names that tell where it ran outside of phases."""
MAX_PARTS: Final = 64


class Lane(enum.IntEnum):
    """Timeline lane on which a record is drawn."""

    STEP = 0
    PHASE = 1
    COMPUTE = 2
    COMM = 3
    WAIT = 4
    USER = 5
    GATE = 6
    COUNTER = 7


class Flag(enum.IntFlag):
    FLOAT = 1
    """``a`` is a float64."""
    P2P = 2
    """seq counts the group's p2p ops of this rank, not its collectives."""
    SEND = 4
    """A p2p op that sends (else it receives)."""
    DONE_COMPLETED = 8
    """t1 is the completion callback's time: true completion."""
    DONE_WAITED = 16
    """t1 is when a host wait returned: an upper bound of completion."""
    DONE_POLLED = 32
    """t1 is when a poll first saw the op complete, or (with DONE_DEVICE) when a stream of the
    device came past a wait for it: an upper bound."""
    DONE_DEVICE = 64
    """t1 is a device event mapped to the host clock."""
    FAILED = 128
    """The op or span ended with an error."""
    ASYNC = 256
    """Issued with async_op: the host did not wait inside the call."""
    RECOMPUTE = 512
    """A forward run again for activation checkpointing."""
    INFERRED = 1024
    """Bounds follow from neighbours (a forward between data and backward), not from a hook. Of a
    METRIC: a hook saw the number, the program did not log it."""
    PACED = 2048
    """Compute that a recipe paces with sleeps."""
    OTHER_THREAD = 4096
    """Issued by a Python thread that is not the main one (its name: NOTE_THREAD)."""
    DEVICE = 8192
    """Times are of the launch on the host: a DEVICE record with the same lane, whose t0 less its
    lead is this t0, says when it ran. Of an OP_DONE without DONE_DEVICE: none will come."""


# --------------------------------------------------------------------------- ring file

MAGIC: Final = b"PARDBGR1"
RING_HEADER: Final = struct.Struct("<8sIIQqqiiII")
"""magic, version, record_bytes, capacity (records, power of two), start_ns (monotonic),
start_wall_ns (epoch), rank, world_size, pid, epoch. At offset 0."""
RING_DATA_OFFSET: Final = 4096

STATUS_NOW_OFFSET: Final = 1024
STATUS_NOW: Final = struct.Struct("<qIIhhiq")
"""step, phase name_id (0 none), action name_id (0 none), stage, microbatch, reserved, since_ns."""
STATUS_OP_OFFSET: Final = 1088
STATUS_OP: Final = struct.Struct("<IIHhIqI4xqq")
"""op name_id (0: no op open), seq, group_id, peer, flags, since_ns, number of open ops, bytes in,
bytes out; for the oldest open op."""
STATUS_GATE_OFFSET: Final = 1152
STATUS_GATE: Final = struct.Struct("<IIq")
"""gate class the rank is held at (0: not held), name_id of the next event, since_ns."""
STATUS_HEALTH_OFFSET: Final = 1216
STATUS_HEALTH: Final = struct.Struct("<qQQIIQ")
"""heartbeat_ns of the agent's thread, records sent, records dropped, hook errors, level, hook time
in all (ns). Written by the agent's thread only."""
STATUS_DEVICE_OFFSET: Final = 1280
STATUS_DEVICE: Final = struct.Struct("<qqqQ")
"""Host's lead over the device, in ns, at the issue of the work that the device reached last; when
it reached that (host's clock; 0: never); error of the newest clock anchor (-1: none); number of
spans without times. Written by the agent's thread only."""
STATUS_NEWEST_OFFSET: Final = 1344
"""Offset of a STATUS_OP for the op that was issued last while others were open."""
BEAT_NS: Final = 200_000_000
"""Maximum time between two heartbeats of an agent whose thread gets the GIL."""

# --------------------------------------------------------------------------- DATA frames

FRAME: Final = struct.Struct("<HHIQQq")
"""Head of a records payload: version, flags, count, index of the first, dropped so far, sent_ns.
Then ``count`` records, as in the ring."""
FRAME_SALVAGED: Final = 1
"""FRAME flag: the hub read these records from the ring of a process that had ended."""
FRAME_OLDEST: Final = 2
"""FRAME flag: the ring has no older records that the hub asked for. Set on the first batch of a
process, and on the first after each Welcome of another hub."""


class Key(bytes, enum.Enum):
    """First byte of a message's first frame; the rest of that frame is the process id
    (``epoch.host.pid``) or empty for the hub's own messages."""

    RECORDS = b"R"
    """FRAME + records. From an agent."""
    DEFINITION = b"D"
    """One msgpack map {"k": DefKind, ...}. From an agent (or the hub, for run facts)."""
    OUTPUT = b"O"
    """{"n", "t_ns", "rank"|None, "stream": "stdout"|"stderr", "text"}: the job's output. Hub."""
    CONTROL = b"C"
    """{"n", "t_ns", "event", ...}: control actions, leases, cuts, the audit trail. Hub."""
    STATE = b"S"
    """{"n", "t_ns", "ranks": {proc: RankState}}: state of each rank, a few times a second. Hub."""


class DefKind(str, enum.Enum):
    RUN = "run"
    """{"run", "argv", "cwd", "t_ns", "wall_ns", "host", "version", "recipe"?}. Hub."""
    PROCESS = "process"
    """{"proc", "rank", "world_size", "local_rank", "host", "pid", "epoch", "boot_id", "start_ns",
    "wall_ns", "python", "torch", "device", "argv", "level", "job", "hooks", "cpus"?, "group_rank"?,
    "device_id"?, "since"?, "since_ns"?}; sent again when the rank is known. ``since``: ranks met
    again in their processes, and it is ``rank`` from that record and time on, with an ``epoch``
    more; before, it was what its last definition said. ``job``: the same on all ranks of one job.
    ``hooks``: how collectives are seen, "native" (in C++) or "dispatcher". ``cpus``: cores that it
    may run on. ``group_rank``: which of torchrun's launchers (nodes) started it. ``device_id``: of
    the device that ``device`` is the type of, or empty."""
    NAME = "name"
    """Interned string: {"id", "s"}. Ids are per process, from 1."""
    OP = "op"
    """{"id", "op", "dtype", "reduce", "root", "tag", "coalesced", "at", "meets"}: one signature;
    ids shared with NAME. ``op``: all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather,
    scatter, all_to_all, barrier, monitored_barrier, send, recv. ``at``: [file, line, function] of
    the program where it was issued first, where known. ``meets``: of init_process_group, where
    ranks look for each other, as HOST:PORT; else empty."""
    GROUP = "group"
    """{"id", "key", "name", "axis"|None, "ranks", "backend", "timeout_ns"|None, "place"?, "size"?,
    "epoch"?}: ``epoch`` as that of PROCESS, where ranks have met again; the key is equal on all
    members. Of a group made by hand ``ranks`` is empty: only how many there are (``size``) is
    known, and which of them (``place``) the process is."""
    PLAN = "plan"
    """{"schedule", "group" (key), "ranks" (global, by pp index), "num_stages",
    "num_microbatches", "num_virtual" (stages per rank), "order": {str(global rank): ["0F0", ...]},
    "source": "schedule"|"corrected", "paced": bool}."""
    STAGE = "stage"
    """{"stage", "rank", "num_stages", "parameters"}"""
    MODEL = "model"
    """{"zero": 0-3|None, "shards": N, "parameters_bytes", "optimizer", "parameters_sharded"?,
    "start"?, "rpc"?, "idle"?, "dtype"?}: for expected memory. ``parameters_sharded``: between
    steps each rank has its part alone. ``start``: a number that is equal where parameters were bit
    by bit before the first step (None: not looked at); ``rpc``: torch.distributed.rpc is in use
    too; ``idle``: what the optimizer steps never had a gradient; ``dtype``: of all it steps."""
    ERROR = "error"
    """{"where", "text", "t_ns"}: a hook that failed and was disabled."""
    EXCEPTION = "exception"
    """{"t_ns", "type", "text", "thread", "frames": [[file, line, function], ...], "step"}: an
    exception that nobody caught, told before the process ends. ``text`` is its last line.
    ``kept``: a thread of a pool raised it and goes on; its future has it. ``cause``: {"type",
    "text", "frames"}, the end of its chain of causes and the stack that this was raised in;
    ``implicit``: it was being handled, and nobody said that it is the cause; ``ranks``: those that
    raised it, where a checkpoint says so. ``also``: a list of further ones, where it is a group.
    ``task_of``: "asyncio", where a task of it raised this; ``thread`` is its coroutine's name."""
    TENSOR = "tensor"
    """{"step", "what", "name", "order", "model", "dtype", "shape", "offset", "size", "over",
    "count", "most", "bad", "bits", "sketch"}: what a rank has of a tensor in a step that is
    captured. ``what``: "init" (before the step), "grad" (as the optimizer takes it), "param" (after
    its step), "used" (what a module computes with, before the step, if this process steps another
    tensor or none), "input" (then ``name`` is of the argument, and ``samples`` a hash of each row,
    instead of what follows "shape"), "random" (the layer ``name`` draws numbers, as dropout does),
    "out" and "d_out" (see below). ``order``: of the parameter in its ``model``, a number. The
    rank's part begins at ``offset`` of a tensor of ``shape`` and is ``size`` large; ``over``: ranks
    whose equal parts are replicas; ``count``: elements; ``most``: largest finite magnitude;
    ``bad``: how many are not finite; ``bits``: sum of the elements' bits; ``sketch``: SKETCH
    float64 (tensor_sketch); "cuts", where nobody states the part's place: [{"cut": [dim, parts,
    at], "sketch"}]: its sketch if it is that slice of a whole; "summand": [which, of how many], or
    None: ranks have summands of what is at this place.
    What the module ``name`` put out in a step's forwards, and its gradient, have of these "shape",
    of a sample's row, "count", of samples, "most" and "bad"; and of the module "module" (its
    class), "place" (file:line) and "times" in ns: [begin, end, …] of its forwards, or when each
    gradient came; and "cuts":
    [{"cut": [dim, parts, at], "sketch", "by_place"}]: sketches by sample (row_sketch) if the rank
    has that slice of each row."""
    VALUES = "values"
    """{"step", "what", "name", "model", "dtype", "at", "values", "rows", "samples"}: elements of a
    TENSOR's part, contiguous, from byte ``at`` of them on; not all if the rank has no room. Of an
    activation, of these ``rows`` (places among those of the rank's step), and a hash of each one's
    sample. Recorded and passed on, but late viewers do not get them."""
    CRASH = "crash"
    """{"frames": [[file, line, function], ...], "main"}: where a process was as a signal of C code
    ended it, outermost first; ``main``: where its main thread was, while a thread without Python
    code crashed. Hub, from the process's crash file."""
    OUT_OF_MEMORY = "out_of_memory"
    """{"t_ns", "device" ("cuda:0"), "asked"|None, "limit", "free"|None, "allocated", "reserved",
    "parts": {"parameters", "gradients", "optimizer"}, "step", "phase", "action" (name ids, or 0),
    "stage", "mb", "frames"}: the device's allocator could not serve a request of ``asked`` bytes.
    ``free``: by the driver, of ``limit``. The program may have caught the error."""
    CLOCK = "clock"
    """{"proc", "offset_ns", "error_ns", "t_ns"}: rank clock + offset = hub clock. Hub."""
    END = "end"
    """{"proc", "t_ns", "reason": "exit"|"lost"|"killed"|"alive" (it outlived the run),
    "last_index", "dropped", "code": int|None (exit code, -9 for SIGKILL; None: not seen)}; for the
    run: {"proc": None, "t_ns", "code"}; the run's own also "told": [[t_ns, signal], ...]. Hub."""
    NOTE = "note"
    """{"key", "value"}: facts a program states of itself (``paced``, ``recipe``)."""


NOTE_LEAVING: Final = "leaving"
"""Key of the NOTE of a process whose main thread has ended. Its end is then not a kill, even
without BYE (forked children leave by os._exit). The value is the process; besides, "t_ns"."""
NOTE_THREAD: Final = "thread"
"""Key of the NOTE of a thread, not the main one, that issues ops. The value is its name."""
WAIT_UNSHARD: Final = "wait unshard"
"""Verb of an FSDP record, the wait for a unit's parameters: its name ends with a space and this."""
NOTE_ATTACHED: Final = "attached"
"""Key of the NOTE of a process that began before the run (``pardbg attach --agent``)."""
NOTE_RPC: Final = "rpc"
"""Key of the NOTE of a process that is a worker of torch.distributed.rpc. The value is its name."""

# --------------------------------------------------------------------------- gates and CTRL


class Gate(enum.IntFlag):
    """Points where a rank can be held, as a mask."""

    SEND = 1
    RECV = 2
    COLLECTIVE = 4
    ACTION = 8
    STEP = 16
    OPTIMIZER = 32
    BREAK = 64
    EXCEPTION = 128
    """A thread is held at its uncaught exception. In no mask: no permit lets it pass, only RUN or
    the lease's end, since its next event is its death. Only where run.json has "on_exception_s"."""
    INSIDE = 256
    """Set beside an op's own gate: the op is part of a pipeline action that has begun. A permit
    without it in ``stop`` lets such ops pass, so an action runs to its end."""


GATE_OPS: Final = Gate.SEND | Gate.RECV | Gate.COLLECTIVE
GATE_ALL: Final = (
    GATE_OPS | Gate.ACTION | Gate.STEP | Gate.OPTIMIZER | Gate.BREAK | Gate.INSIDE
)  # fmt: skip

LEASE_NS: Final = 10_000_000_000
"""Time, in ns, that ranks stay held without a renewal by the holder."""


EXPR_NUMBERS: Final = frozenset(
    ("rank", "local_rank", "step", "stage", "mb", "seq", "bytes", "peer", "loss")
)
EXPR_TEXTS: Final = frozenset(("op", "action", "pg", "axis", "dtype", "host", "name", "module"))
"""Fields of a breakpoint's condition, by type. ``stage``, ``mb`` and ``action`` are a pipeline
action's (of p2p ops too), ``op`` to ``peer`` an op's, ``name`` that of pardbg_agent.breakpoint,
``module`` that of a module whose forward ended (``action`` F) or whose output's gradient came
(B)."""
EXPR_MAX_NODES: Final = 100
EXPR_MAX_DEPTH: Final = 16
MAX_BREAKS: Final = 64
"""Maximum number of breakpoints of one rank, and of watches."""
WATCH_KINDS: Final = ("nan", "mismatch", "slow", "skew", "memory", "diverge")
"""Kinds of watches. Limits: ``slow`` times the median, ``skew`` ns, ``memory`` bytes."""


def address(name: str) -> bytes:
    """Return a DEALER identity that no other process can claim: the name, and a secret."""
    return f"{name}/{os.urandom(16).hex()}".encode("ascii")
