"""`watch diverge`: replicas' gradients before each optimizer step, and their parameters after it,
compared by the sums of their bits on the board (``pardbg_agent.control.posts``).

Replicas are the parameters that DistributedDataParallel keeps equal, and DTensors replicated along
a mesh axis. Gradients are compared first, so the first difference is named. Each rank posts its
sums and goes on; the last rank to arrive compares, and is held: at the optimizer for gradients, at
the step's end for parameters. A majority decides which ranks differ, once per watch, as a
difference stays. All bits are read in every step; on a device the sums run there and are fetched
together, which waits for the device twice per step.

The key of a sum has the optimizer's nth step() within the training step, so ranks that begin to
watch at different times still compare equal moments."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.control import agreement, posts
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.context import LOCAL
from pardbg_agent.hooks.patching import spend
from pardbg_agent.hooks.tensors import bits_sum, counts_ops, parameters_of, replicated
from pardbg_agent.hooks.watch import mismatch, probes
from pardbg_agent.hooks.watch.mismatch import Comparing
from pardbg_agent.words import ranks_text

_MASK: Final = (1 << 64) - 1
_NOTHING: Final = -(1 << 62)
"""Stands for a sum: no gradient, or one that is not compared (sparse)."""
_MOST_IN_STEP: Final = 1 << 12
_HOOK: Final = "watch diverge"


@dataclass(slots=True, eq=False)
class Replica:
    """Parameters of one optimizer that ranks of one group must have equal."""

    name: str
    ranks: tuple[int, ...]
    parameters: tuple[tuple[Any, str], ...]
    """Weak references to the parameters, with their names, in the model's order."""
    axis: int = -1
    """Mesh axis along which DTensors are replicated; -1 for other parameters."""
    told: int = -1
    """Number of the watch that has reported a difference."""
    first: int = -1
    """First step that was compared for that watch."""
    watch: int = -1


class Known:
    """An optimizer's number of step() calls in this training step, and its replicas."""

    __slots__ = ("made_for", "nth", "replicas", "step")

    def __init__(self) -> None:
        self.step, self.nth = -1, 0
        self.made_for: tuple[int, int] = (-1, -1)
        self.replicas: list[Replica] = []


class Optimizers(weakref.WeakKeyDictionary[Any, Known]):
    """Optimizer -> Known."""


def optimizer_begins(optimizer: Any) -> None:
    """Compare gradients before an optimizer's step. Runs before training's hook, which holds at the
    gates that ``stop`` closes."""
    c = _core.CURRENT
    if c is None or not c.level or _HOOK in c.guard.disabled:
        return
    outer = LOCAL.state.nest.optimizer
    if outer is not None and outer[0]() not in (None, optimizer):
        return  # stepped by another one (ZeroRedundancyOptimizer)
    seen = context.of(c).part(Optimizers)
    known = seen.get(optimizer)
    if known is None:
        known = seen[optimizer] = Known()
    known.step, known.nth = c.step, known.nth + 1 if known.step == c.step else 0
    if c.watches.diverge is not None:
        _look(c, optimizer, known, "gradient", c.watches.diverge)


def optimizer_ended(optimizer: Any) -> None:
    """Compare parameters after an optimizer's step."""
    c = _core.CURRENT
    if c is None or c.watches.diverge is None or not c.level or _HOOK in c.guard.disabled:
        return
    known, outer = context.of(c).part(Optimizers).get(optimizer), LOCAL.state.nest.optimizer
    if known is None or outer is None or outer[0]() is not optimizer:
        return
    _look(c, optimizer, known, "parameter", c.watches.diverge)


def _look(c: _core.Core, optimizer: Any, known: Known, kind: str, watch: Watch) -> None:
    begun = now_ns()
    with torch.no_grad():
        c.guard.call(_HOOK, _compare_all, c, optimizer, known, kind, watch)
    spend(c, begun)


def _compare_all(c: _core.Core, optimizer: Any, known: Known, kind: str, watch: Watch) -> None:
    if not mismatch.comparable(c) or counts_ops():
        return
    x = mismatch.of(c)
    x.tell()
    made_for = (len(optimizer.param_groups), len(probes.replicas(c)))
    if known.made_for != made_for:
        known.made_for, known.replicas = made_for, list(_replicas_of(c, optimizer))
    which = known.step * _MOST_IN_STEP + min(known.nth, _MOST_IN_STEP - 1)
    for replica in known.replicas:
        if replica.watch != watch.number:
            replica.watch, replica.first = watch.number, known.step
        values = _sums(replica, kind == "gradient")
        if values is not None:
            _compare(c, x, replica, kind, which, values, watch)


def _compare(
    c: _core.Core, x: Comparing, replica: Replica, kind: str, which: int, values: list[int],
    watch: Watch,
) -> None:  # fmt: skip
    what = x.hash(kind, replica.name)
    x.own.post_sums(what, which, replica.told, values)
    x.others.of(replica.ranks, len(replica.ranks) - 1)
    x.others.refresh()
    found = [
        other for other in x.others.of(replica.ranks, 0) if other.kinds & posts.KINDS["diverge"]
    ]
    last = all(other.sums(what, which) for other in found)
    x.core.hook_ns -= posts.waited(found, lambda other: other.sums(what, which))
    theirs = {other.rank: other.sums(what, which) for other in found}
    sums = {rank: each for rank, each in theirs.items() if each is not None}
    if not sums or len(sums) < len(found) or x.own.rank in sums:
        return  # not the last rank to arrive; or two indistinguishable jobs
    if not last and x.own.rank > min(sums):
        return  # of the ranks that waited for other nodes' sums, one reports
    if replica.told == watch.number or any(each.told == watch.number for each in sums.values()):
        replica.told = watch.number
        return
    whole = {x.own.rank: tuple(values), **{rank: each.values for rank, each in sums.items()}}
    text = _difference(replica, kind, whole, which // _MOST_IN_STEP)
    if text and c.gate.stop(watch.number, text):
        replica.told = watch.number


def _difference(replica: Replica, kind: str, sums: dict[int, tuple[int, ...]], step: int) -> str:
    length = min(map(len, sums.values()))
    apart = [i for i in range(length) if len({values[i] for values in sums.values()}) > 1]
    if not apart:
        return ""
    odd, most = agreement.odd_ones({rank: values[apart[0]] for rank, values in sums.items()})
    who = f"{ranks_text(odd)} from {ranks_text(most)}" if odd else f"between {ranks_text(sums)}"
    size = -(-len(replica.parameters) // length)
    part = replica.parameters[apart[0] * size : (apart[0] + 1) * size]
    what = f"{kind} {probes.part_name([name for _, name in part])} differs"
    when = f"in step {step}" if kind == "gradient" else f"after step {step}"
    first = ", the first one looked at" if step == replica.first else ""
    return f"{what} {when}{first}: {who} ({len(apart)} of {length} differ)"


# -- sums


def _sums(replica: Replica, gradients: bool) -> list[int] | None:
    """Return the sums of parameters, one each, or folded to MAX_SUMS. None: unreadable now."""
    tensors = [_tensor(ref(), replica.axis, gradients) for ref, _ in replica.parameters]
    devices = {t.device for t in tensors if t is not None}
    kinds = {device.type for device in devices}
    if "meta" in kinds or ("cuda" in kinds and torch.cuda.is_current_stream_capturing()):
        return None
    sums = [None if t is None else bits_sum(t) for t in tensors]
    there = [s for s in sums if s is not None]
    if len(devices) == 1 and there:
        numbers = iter(torch.stack(there).tolist())
    else:
        numbers = iter([int(s.item()) for s in there])
    each = [_NOTHING if s is None else next(numbers) for s in sums]
    return each if len(each) <= posts.MAX_SUMS else _folded(each)


def _folded(each: list[int]) -> list[int]:
    size = -(-len(each) // posts.MAX_SUMS)
    parts = []
    for at in range(0, len(each), size):
        whole = sum((2 * i + 1) * n for i, n in enumerate(each[at : at + size])) & _MASK
        parts.append(whole - (1 << 64) if whole >> 63 else whole)
    return parts


def _tensor(p: Any, axis: int, gradients: bool) -> Any:
    if p is not None and gradients:
        p = p.grad
    if p is None:
        return None
    if axis >= 0:
        placements = getattr(p, "placements", None)
        if placements is None or not placements[axis].is_replicate():
            return None  # its ranks' parts are still to be added up
        p = p._local_tensor
    if type(p) not in (torch.Tensor, torch.nn.Parameter):
        return None
    return p if p.layout is torch.strided and not p.is_quantized else None


# -- which


def _replicas_of(c: _core.Core, optimizer: Any) -> Iterator[Replica]:
    mine = parameters_of(optimizer)
    ids = {id(p) for p in mine}
    x = context.of(c)
    for module, number in probes.replicas(c):
        named = [(weakref.ref(p), name) for name, p in replicated(module) if id(p) in ids]
        if named:
            group = groups.group_of(x, module.process_group)
            yield Replica(_name(group.key, number, named), group.ranks, tuple(named))
    yield from _distributed(x, mine)


def _distributed(x: context.Context, mine: list[Any]) -> Iterator[Replica]:
    """Yield DTensors that are replicated along an axis of their mesh."""
    names = {
        id(param.sharded_param): str(param._param_fqn)
        for unit in list(x.fsdp_groups) for param in unit.fsdp_params
    }  # fmt: skip
    found: dict[tuple[int, int], tuple[Any, int, list[tuple[Any, str]]]] = {}
    for at, p in enumerate(mine):
        mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", None)
        if mesh is None or placements is None:
            continue
        for axis, placement in enumerate(placements):
            if placement.is_replicate() and mesh.size(axis) > 1:
                key = (id(mesh), axis)
                _, _, named = found.setdefault(key, (mesh, axis, []))
                named.append((weakref.ref(p), names.get(id(p), f"{at}")))
    for number, (mesh, axis, named) in enumerate(found.values()):
        group = groups.group_of(x, mesh.get_group(axis))
        yield Replica(_name(group.key, number, named), group.ranks, tuple(named), axis)


def _name(group_key: str, number: int, named: list[tuple[Any, str]]) -> str:
    """Return the name of a replica, equal on all ranks with the same parameters."""
    return "\0".join((group_key, str(number), *(name for _, name in named)))
