"""Outputs of modules, and their gradients, in the steps that ``--tensors`` names: sketches by
sample (row_sketch), summed over a step's microbatches, sent before the optimizer steps.

A forward that recomputation repeats inside the backward, one without gradients, and compiled
modules are left out. Only numbers are kept, no tensor of the program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from pardbg_agent import clock
from pardbg_agent import core as _core
from pardbg_agent.hooks.tensors import first_floating, is_pending, local_part
from pardbg_agent.hooks.watch.framework_places import layer_names
from pardbg_agent.hooks.watch.kept_values import Kept
from pardbg_agent.hooks.watch.row_sketch import (
    WHOLE,
    Cut,
    Samples,
    by_sample,
    row_sketches,
    samples_at,
)  # fmt: skip
from pardbg_agent.hooks.watch.tensor_names import Models, axes, canonical, is_compiled
from pardbg_agent.hooks.watch.tensor_sketch import Maps, seen_in

MAX_MODULES: Final = 400
"""Maximum number of modules of an outermost module, the outer ones first."""
MAX_CALLS: Final = 64
"""Maximum number of calls of a module per step whose times are sent."""
PATIENCE_S: Final = 0.2
"""Maximum wait in each step for results of collectives that are still under way."""
_LOOK_S: Final = 0.0005


Of = tuple[int, str]
"""(number of the model, name of the module in it)"""


@dataclass(slots=True, eq=False)
class Outermost:
    """Module that the program itself calls: a whole model or a stage of one."""

    axes: list[tuple[int, int]]
    """(parts, index) of the cuts that the rank's activations may have."""
    samples: Samples | None = None
    """Samples of the current call; None outside of a call."""
    num_rows: int = 0
    """Rows of the step before the current call."""


@dataclass(slots=True, eq=False)
class Sum:
    """Sum over a step of one module's outputs, or of their gradients."""

    order: int
    dtype: str
    shape: list[int]
    """Shape of a sample's row."""
    most: Any = 0.0
    bad: Any = 0
    """Largest magnitude and non-finite count: device tensors, read at the step's end."""
    rows: int = 0
    times: list[int] = field(default_factory=list)
    """Arrival times of gradients, in ns of the host's clock."""
    sketches: dict[Cut, torch.Tensor] = field(default_factory=dict)
    kept: list[tuple[bytes, range, list[int]]] = field(default_factory=list)
    """For each call with wanted elements: (elements, places of its rows, hashes of its samples)."""

    def see(self, most: Any, bad: Any) -> None:
        """Add the statistics of a call's rows, without waiting for a device."""
        tensor = isinstance(most, torch.Tensor)
        self.most = most.clamp(min=self.most) if tensor else max(self.most, most)
        self.bad = self.bad + bad


@dataclass(slots=True, eq=False)
class Module:
    kind: str
    place: str
    """Source location of the module's forward."""
    times: list[int] = field(default_factory=list)
    """Begin and end of each forward, in ns of the host's clock."""


class Activations:
    """Captured activations of one process."""

    def __init__(self, models: Models, maps: Maps, kept: Kept, guarded: Callable[..., Any]) -> None:
        self._models, self._maps, self._kept, self._guarded = models, maps, kept, guarded
        """Calls a function of this object with arguments, and lets no exception out."""
        self._known: set[int] = set()
        self._outermost: dict[int, Outermost] = {}
        self._of: dict[int, tuple[Outermost, Of]] = {}
        """Chosen modules inside outermost ones, by id."""
        self._modules: dict[Of, Module] = {}
        self._sums: dict[tuple[str, Of], Sum] = {}
        self._missed: set[tuple[str, Of]] = set()
        """Sums left out of a step, since a part of them was still under way."""
        self._patience_s = PATIENCE_S

    def called(self, module: nn.Module, batch: Callable[[], torch.Tensor | None]) -> None:
        """Take the samples of an outermost module's call; calls of other modules are ignored."""
        if id(module) not in self._known:
            self._enter(module)
        outermost = self._outermost.get(id(module))
        if outermost is None or not torch.is_grad_enabled():
            return
        hashes = batch()
        if hashes is not None:
            outermost.samples = samples_at(hashes, outermost.num_rows)
            outermost.num_rows += len(hashes)

    def begins(self, module: nn.Module) -> None:
        """Note the begin of a chosen module's forward."""
        outermost, of = self._of.get(id(module), (None, None))
        if outermost is None or of is None or outermost.samples is None:
            return
        times = self._modules[of].times
        if not len(times) % 2 and len(times) < 2 * MAX_CALLS:
            times.append(clock.now_ns())

    def ends(self, module: nn.Module, out: Any) -> None:
        """Take the output of a chosen module; the samples end with the outermost module's call."""
        outermost, of = self._of.get(id(module), (None, None))
        if outermost is not None and of is not None:
            times, samples = self._modules[of].times, outermost.samples
            if len(times) % 2:
                times.append(clock.now_ns())
            if samples is not None and torch._C._current_graph_task_id() == -1:
                self._put_out(outermost, of, samples, out)
        root = self._outermost.get(id(module))
        if root is not None:
            root.samples = None

    def tell(self, step: int, put: Callable[..., Any]) -> None:
        """Send the sums of the step with ``put``, and forget them."""
        for (what, of), found in self._sums.items():
            if (what, of) in self._missed:
                continue
            module = self._modules[of]
            put(
                step=step, what=what, model=of[0], name=of[1], order=found.order, dtype=found.dtype,
                shape=found.shape, count=found.rows, most=float(found.most), bad=int(found.bad),
                module=module.kind, place=module.place, times=found.times or module.times,
                cuts=[
                    {"cut": list(cut), "sketch": both[0].cpu().numpy().tobytes(),
                     "by_place": both[1].cpu().numpy().tobytes()}
                    for cut, both in found.sketches.items()
                ],
                values=b"".join(values for values, _, _ in found.kept),
                rows=[row for _, rows, _ in found.kept for row in rows],
                samples=[sample for _, _, samples in found.kept for sample in samples],
            )  # fmt: skip
        self._sums.clear()
        self._missed.clear()
        self._patience_s = PATIENCE_S
        for module in self._modules.values():
            module.times = []
        for outermost in self._outermost.values():
            outermost.num_rows = 0

    def clear(self) -> None:
        """Stop capturing."""
        self._outermost.clear()
        self._of.clear()

    def _enter(self, root: nn.Module) -> None:
        self._known |= {id(m) for m in root.modules()}
        if not any(True for _ in root.parameters()) or any(map(is_compiled, root.modules())):
            return
        model, path = self._models.place(root)
        outermost = self._outermost[id(root)] = Outermost(axes(root))
        for name, module in _chosen(root, path):
            self._modules[model, name] = Module(type(module).__name__, _source(module))
            self._of[id(module)] = outermost, (model, name)

    def _put_out(self, outermost: Outermost, of: Of, samples: Samples, out: Any) -> None:
        tensor = first_floating(out)
        if tensor is not None:
            self._add(outermost, of, samples, "out", tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient, outermost, of, samples))

    def _gradient(self, outermost: Outermost, of: Of, samples: Samples, grad: Any) -> None:
        self._guarded(self._add, outermost, of, samples, "d_out", grad)

    def _add(self, outermost: Outermost, of: Of, samples: Samples, what: str, tensor: Any) -> None:
        begun = clock.now_ns()
        if is_pending(tensor) and not self._settles(tensor):
            self._missed.add((what, of))
            return
        with torch.no_grad():
            part = local_part(tensor).detach()
            rows = by_sample(part, len(samples.by_contents))
            if rows is None or not rows.numel() or not rows.is_floating_point():
                return
            dtype, shape = str(part.dtype).removeprefix("torch."), list(rows.shape[1:])
            sums = self._sums.get((what, of))
            if sums is None:
                sums = self._sums[what, of] = Sum(len(self._sums), dtype, shape)
            elif sums.shape != shape:
                sums.shape = []  # samples of unequal sizes: cuts cannot be told apart
            sums.rows += len(rows)
            if what == "d_out" and len(sums.times) < MAX_CALLS:
                sums.times.append(begun)
            if values := self._kept.of(what, of[1], rows):
                sums.kept.append((values, samples.places(), samples.by_contents.tolist()))
            for cut in (WHOLE, *_cuts(rows.dim() - 1, outermost.axes)):
                both, seen = row_sketches(self._maps, rows, samples, cut)
                if cut is WHOLE:
                    sums.see(*(seen or seen_in(rows)))
                known = sums.sketches.get(cut)
                sums.sketches[cut] = both if known is None else known + both

    def _settles(self, tensor: Any) -> bool:
        """Wait, for a little time in each step, until the rank has no op open: then, on the host,
        no op writes its result any more. Waiting for the op itself would take the wait from the
        program; when a device is done is not known."""
        c = _core.CURRENT
        if c is None or not tensor.is_cpu:
            return False
        begun = time.monotonic()
        while c.ops.num_open and time.monotonic() - begun < self._patience_s:
            time.sleep(_LOOK_S)
        self._patience_s -= time.monotonic() - begun
        return not c.ops.num_open


def _cuts(num_dims: int, axes: list[tuple[int, int]]) -> Iterator[Cut]:
    """Yield the cuts that a rank's rows may have: of features, or of positions."""
    for dim in dict.fromkeys((num_dims - 1, 0)) if num_dims else ():
        yield from (Cut(dim, parts, index) for parts, index in axes)


def _chosen(root: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Return the modules to hook by name, a wrapper having the name of the module that it wraps:
    whole levels from the outermost on, the last level as far as there is room."""
    known_as = layer_names(root)
    named = {canonical(path + known_as(name)): m for name, m in root.named_modules()}
    levels = sorted(named, key=lambda name: name.count(".") + bool(name))
    return [(name, named[name]) for name in levels[:MAX_MODULES]]


def _source(module: nn.Module) -> str:
    """Return the source location of a module's forward, as file:line; empty for torch's own."""
    code: Any = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    own = code is None or type(module).__module__.startswith("torch.")
    return "" if own else f"{code.co_filename}:{code.co_firstlineno}"
