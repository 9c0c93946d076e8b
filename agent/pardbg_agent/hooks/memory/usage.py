"""Memory of a rank by purpose: exact bytes of parameters, gradients and optimizer state."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent import identity
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.context import Context, local, of
from pardbg_agent.hooks.memory import device_memory, memory_limit, wrappers
from pardbg_agent.hooks.tensors import bits_sum, bytes_of, counts_ops, parameters_of
from pardbg_agent.hooks.watch.probes import window
from pardbg_agent.wire import DefKind, Kind
from pardbg_agent.words import binary_size

EVERY: Final = 50
"""Steps between counts of parameters, gradients and optimizer state."""
MAX_START: Final = 256
"""Maximum number of parameters read before the first step."""
_PLAIN: Final = (torch.nn.Parameter, torch.Tensor)
TOTAL_EVERY_NS: Final = 500_000_000
"""Minimum time between readings of the process's (or device's) total: a reading after a step that
has emptied the caches takes 0.1 ms of CPU."""
FIRST_STEPS: Final = 3
"""Number of first steps in each of which everything is counted."""
COUNT_EVERY: Final = 10
"""Steps between checks whether the number of parameters or optimizer states changed."""


@dataclass(slots=True)
class Usage:
    """Latest memory measurements of a rank."""

    total_ns: int = 0
    """Time when the total was read."""
    peak: int = 0
    """Peak of the resident set, in bytes."""
    counted: tuple[int, int] = (0, 0)
    """(number of parameters, number of optimizer states) at the last count."""
    optimizers: int = 0
    """Number of optimizers at the last count."""
    parts: dict[str, int] = field(default_factory=dict)
    """Bytes by purpose."""
    chunks: dict[int, int] = field(default_factory=dict)
    """Stage -> bytes of activations of one microbatch."""
    above: tuple[int, bool] = (-1, False)
    """(number of the watch, whether its limit was passed)."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of the MODEL definition as last sent."""
    start: int | None = None
    """Checksum of the parameters before the first step; None: not read."""
    graded: bool = False
    """Whether a parameter that an optimizer stepped ever had a gradient."""


def _of(c: _core.Core) -> Usage:
    return of(c).part(Usage)


def sample(c: _core.Core, x: Context, t: int) -> None:
    """Record totals at the end of a step, and the exact bytes if they are due."""
    known = x.part(Usage)
    if t - known.total_ns >= TOTAL_EVERY_NS:
        known.total_ns = t
        _total(c, known, t)
        memory_limit.sample(c, t)
    first, others = c.step < FIRST_STEPS, len(x.optimizers) != known.optimizers
    if first or others or c.step % COUNT_EVERY == 0:
        counts, known.optimizers = _counts(x), len(x.optimizers)
        if first or c.step % EVERY == 0 or counts != known.counted:
            known.counted = counts
            _exact(c, x, t)
    if c.watches.memory is not None:
        watch(c)


def activations(c: _core.Core, num_bytes: int, t: int, recomputed_bytes: int = 0) -> None:
    """Record the bytes that a whole forward saved; a region's recomputation adds its own bytes."""
    c.mark(Kind.MEMORY, "activations", t, num_bytes, num_bytes + recomputed_bytes)
    _of(c).parts["activations"] = num_bytes + recomputed_bytes


def counted(c: _core.Core, stage: int, num_bytes: int) -> None:
    """Note the bytes that one microbatch's forward of a pipeline stage saved."""
    _of(c).chunks[stage] = num_bytes


def schedule_begins(c: _core.Core) -> None:
    """Reset the activations: no microbatch is in flight."""
    known = _of(c)
    if known.chunks:
        known.parts["activations"] = 0


def chunk(c: _core.Core, stage: int, verb: str) -> None:
    """Update the watched activations after a pipeline action: a forward's saved bytes are kept
    until its backward."""
    known = _of(c)
    one, parts = known.chunks.get(stage, 0), known.parts
    more = one if verb == "F" else -one if verb in ("B", "I") else 0
    parts["activations"] = max(0, parts.get("activations", 0) + more)
    if more > 0:
        watch(c)


def watch(c: _core.Core) -> None:
    """Check ``watch memory>X`` against the rank's allocated bytes. On a device those are what
    torch's allocator gave out; else parameters, gradients, optimizer state and activations as last
    counted. A hit is the passing of the limit: the next hit needs less memory allocated in
    between."""
    known, asked = _of(c), c.watches.memory
    if asked is None:
        return
    held, parts = device_memory.held(c).get("allocated"), dict[str, int]()
    if held is not None:
        now = held[0]
    else:
        parts = dict(known.parts)
        now = sum(parts.values())
    before = known.above == (asked.number, True)
    known.above = asked.number, now > asked.limit
    if now > asked.limit and not before:
        said = ", ".join(f"{name} {binary_size(part)}" for name, part in parts.items())
        said = f" ({said})" if said else ""
        limit = binary_size(asked.limit)
        c.gate.stop(asked.number, f"{binary_size(now)} allocated{said}, more than {limit}")


def _total(c: _core.Core, known: Usage, t: int) -> None:
    held = device_memory.held(c)
    for name, (now, peak) in held.items():
        c.mark(Kind.MEMORY, name, t, now, peak)
    if held:
        return
    rss = identity.resident_bytes()
    known.peak = max(known.peak, rss)
    c.mark(Kind.MEMORY, "rss", t, rss, known.peak)


def _counts(x: Context) -> tuple[int, int]:
    parameters = states = 0
    for optimizer in x.optimizers:
        parameters += sum(len(group["params"]) for group in optimizer.param_groups)
        states += sum(len(each.state) for each in _inner(optimizer))
    return parameters, states


def _inner(optimizer: Any) -> list[Any]:
    """Return the optimizers that hold the state: ZeroRedundancyOptimizer has a local one for this
    rank's share, torchtitan's OptimizersContainer one for each part of the model."""
    parts = getattr(optimizer, "optimizers", None)
    named = getattr(optimizer, "optim", None), *(parts if isinstance(parts, (list, tuple)) else ())
    return [each for each in named if isinstance(each, torch.optim.Optimizer)] or [optimizer]


def _exact(c: _core.Core, x: Context, t: int) -> None:
    seen: set[int] = set()
    held = wrappers.held(x)
    flat = wrappers.Tally()
    parameters = flat.add(p for one in held for p in one.parameters)
    whole = sum(one.whole_bytes for one in held)
    # Where a wrapper has the gradients, its optimizer steps a copy of its own.
    copies = any(one.gradients is not None for one in held)
    known = x.part(wrappers.Wrappers)
    gradients = max(known.gradients_bytes, wrappers.Tally().add(
        g for one in held for g in one.gradients or ()))  # fmt: skip
    known.gradients_bytes = 0
    state = master = 0
    _, shards = _sharding(x, held)
    inside = local().nest.inside or {}  # DeepSpeed shows its optimizer one group at a time
    for optimizer in x.optimizers:
        for p in inside.get(optimizer) or parameters_of(optimizer):
            if id(p) in seen:
                continue
            seen.add(id(p))
            if p.grad is not None and not copies:
                gradients += bytes_of(p.grad)
            if held and (not p.numel() or flat.has(p)):
                continue
            if copies:
                master += bytes_of(p)
                continue
            parameters += bytes_of(p)
            whole += _whole(p, shards)
        state += _state_bytes(optimizer)
    state += master
    for name, part in (("parameters", parameters), ("gradients", gradients), ("optimizer", state)):
        c.mark(Kind.MEMORY, name, t, part, part)
        x.part(Usage).parts[name] = part
    idle = not x.part(Usage).graded and not state and any(
        p.requires_grad and p.numel() for o in x.optimizers for p in parameters_of(o))  # fmt: skip
    _define_model(c, x, held, whole, master, idle)


def parts_now(c: _core.Core) -> dict[str, int]:
    """Return the exact bytes of parameters, gradients and optimizer state at this moment, including
    optimizers that have not stepped yet."""
    x = of(c)
    known = x.part(Usage)
    _exact(c, x, now_ns())
    parts = {name: known.parts[name] for name in ("parameters", "gradients", "optimizer")}
    new = [optimizer for optimizer in x.made if optimizer not in x.optimizers]
    parameters = [p for optimizer in new for p in parameters_of(optimizer)]
    parts["parameters"] += wrappers.Tally().add(parameters)
    parts["gradients"] += wrappers.Tally().add(p.grad for p in parameters)
    parts["optimizer"] += sum(map(_state_bytes, new))
    return parts


def _state_bytes(optimizer: Any) -> int:
    states = (state for each in _inner(optimizer) for state in each.state.values())
    return sum(
        bytes_of(value)
        for state in states if isinstance(state, dict)
        for value in state.values() if isinstance(value, torch.Tensor)
    )  # fmt: skip


def _whole(p: Any, shards: int) -> int:
    """Return the bytes of a parameter once its shards are gathered. Where tensor parallelism has
    cut it before (without shards, or on a mesh of several dimensions), numel() includes what other
    ranks keep for good."""
    if hasattr(p, "_local_tensor") and (shards == 1 or p.device_mesh.ndim > 1):
        return bytes_of(p) * shards
    return int(p.numel() * p.element_size())


def _define_model(
    c: _core.Core, x: Context, held: Sequence[wrappers.Held], parameters_bytes: int, master: int,
    idle: bool,
) -> None:  # fmt: skip
    """Send the MODEL definition if it changed. ``master``: bytes of this rank's copy of the
    parameters that its optimizer steps, if any. ``idle``: it never had a gradient to step by."""
    known = x.part(Usage)
    zero, shards = _sharding(x, held)
    inner = [each for optimizer in x.optimizers for each in _inner(optimizer)]
    names = sorted({type(each).__name__ for each in inner})
    dtypes = {p.dtype for optimizer in x.optimizers for p in parameters_of(optimizer)}
    fields = {
        "zero": zero, "shards": shards, "parameters_bytes": parameters_bytes,
        "optimizer": ", ".join(names),
        "parameters_sharded": bool(x.fsdp_groups) or any(one.parameters_sharded for one in held),
        "master_bytes": master * (shards if zero else 1),
        "start": known.start,
        "rpc": "torch.distributed.rpc.api" in sys.modules
        and bool(torch._C._distributed_rpc._is_current_rpc_agent_set()),
        "idle": idle,
        "dtype": str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else "",
    }  # fmt: skip
    if fields != known.model:
        known.model = fields
        c.defs.put(DefKind.MODEL, **fields)


def look_at_start(c: _core.Core, x: Context, optimizer: Any) -> None:
    """Note before a step whether there are gradients, and before the very first step a checksum of
    the parameters, to tell later whether ranks that share nothing began as replicas. Reads host
    memory only: never waits for a device."""
    known = x.part(Usage)
    if not x.optimizers and (first := next(iter(parameters_of(optimizer)), None)) is not None:
        device_id = c.guard.call("device id", device_memory.id_of, first.device)
        c.computes_on(first.device.type, device_id or "")
        if first.device.type not in ("cpu", "meta"):
            device_memory.watch(c, first.device.type, parts_now)
    if not known.graded:  # mostly the first one has
        known.graded = any(p.grad is not None for p in parameters_of(optimizer))
    if known.start is not None or x.optimizers or c.step or counts_ops():
        return
    parameters = parameters_of(optimizer)[:MAX_START]
    if not parameters or not all(type(p) in _PLAIN and p.is_cpu for p in parameters):
        return
    sums = [(tuple(p.shape), int(bits_sum(window(p, 0)))) for p in parameters if p.numel()]
    known.start = zlib.crc32(repr(sums).encode())


def _sharding(x: Context, held: Sequence[wrappers.Held]) -> tuple[int | None, int]:
    """Return (ZeRO level, shards), as far as the objects tell."""
    for one in held:
        return one.level, one.shards
    for optimizer in x.optimizers:
        if type(optimizer).__name__ in ("ZeroRedundancyOptimizer", "OSS"):
            return 1, int(optimizer.world_size)
    for group in x.fsdp_groups:
        mesh = group.mesh_info
        shards = int(getattr(mesh, "shard_mesh_size", 1))
        # The root is never resharded after forward; any other unit tells level 2 from 3.
        resharded = any(g.post_forward_mesh_info is not None for g in x.fsdp_groups)
        return (3 if resharded else 2), shards
    return 0, 1  # tensor parallelism is no ZeRO level: each rank keeps its part for good
