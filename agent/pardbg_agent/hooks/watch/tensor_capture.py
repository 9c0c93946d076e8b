"""Tensors of the steps that ``PARDBG_TENSORS`` names ("0-1"), told as sketches for ``pardbg same``:
parameters before the first of them, gradients as the optimizer takes them, parameters after its
step, and hashes of the rows of what the outermost module gets. Without the variable nothing is
hooked; after the last of these steps nothing is hooked any more. In these steps it waits for the
device.

Names are of the outermost module that has a parameter, without the names of wrappers. A part's
place is a DTensor's placements; any other tensor counts as a whole, whose replicas are known on the
ranks of the DistributedDataParallel that has it.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pardbg_agent import core as _core
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.tensors import local_part, parameters_of
from pardbg_agent.hooks.watch.tensor_sketch import samples, sketch
from pardbg_agent.settings import not_understood
from pardbg_agent.wire import ENV_TENSORS, MAX_ROWS, DefKind

HOOK: Final = "tensors"
MAX_TENSORS: Final = 8192
"""Of a process: 16 MiB."""
_WRAPPERS: Final = {
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
}  # fmt: skip
_DRAWS: Final = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout
_STEPS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def steps() -> range:
    """Return the steps to capture; none if the variable is unset or (which is said) no range."""
    text = os.environ.get(ENV_TENSORS, "").strip()
    found = _STEPS.fullmatch(text)
    if text and not found:
        not_understood(ENV_TENSORS, "write a range of steps, as in 0-1; no tensors are captured")
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)


def install(patches: Patches, late: Any) -> tuple[Any, ...]:
    """Hook optimizers and modules until the last step is captured."""
    wanted = steps()
    return Capture(wanted).handles if wanted else ()


class Capture:
    """One process's."""

    def __init__(self, wanted: range) -> None:
        self._wanted, self._told = wanted, 0
        self._outermost: Any = None
        self._step = -1
        """The one that the outermost module and the number of rows are of."""
        self._rows = 0
        self._begun: set[int] = set()
        """Optimizers whose parameters are told as they were."""
        self._steps: dict[int, int] = {}
        """Of the optimizers that step now: which step it is."""
        called = register_module_forward_pre_hook(self._called)
        before = register_optimizer_step_pre_hook(self._before)
        self._called_hook, after = called, register_optimizer_step_post_hook(self._after)
        self.handles = called, before, after

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        c = _core.CURRENT
        if c is not None and c.run is not None and c.step in self._wanted and not _must_not():
            self._steps[id(optimizer)] = c.step
            c.guard.call(HOOK, self._tell_before, c, optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        c, step = _core.CURRENT, self._steps.pop(id(optimizer), None)
        if c is None or step is None:
            return
        c.guard.call(HOOK, self._tell, c, step, "param", _names(parameters_of(optimizer)))
        if step + 1 == self._wanted.stop:
            self._called_hook.remove()

    def _tell_before(self, c: _core.Core, optimizer: Any) -> None:
        names = _names(parameters_of(optimizer))
        if id(optimizer) not in self._begun:
            self._begun.add(id(optimizer))
            self._tell(c, c.step, "init", names)
        grads = ((at, name, p.grad, over) for at, name, p, over in names if p.grad is not None)
        self._tell(c, c.step, "grad", grads)

    def _tell(self, c: _core.Core, step: int, what: str, tensors: Iterable[Named]) -> None:
        for order, name, tensor, over in tensors:
            part = local_part(tensor)
            shape, offset = _place(tensor, part)
            if not _plain(part) or self._told >= MAX_TENSORS:
                continue
            self._told += 1
            c.defs.put(
                DefKind.TENSOR, step=step, what=what, name=name, order=order,
                dtype=str(part.dtype).removeprefix("torch."), shape=shape, offset=offset,
                size=list(part.shape), over=over or [c.identity.rank],
                **sketch(part, shape, offset),
            )  # fmt: skip

    # -- inputs

    def _called(self, module: Any, args: Any) -> None:
        c = _core.CURRENT
        if c is None or c.run is None or c.step not in self._wanted:
            return
        if c.step != self._step:
            self._step, self._outermost, self._rows = c.step, id(module), 0
            c.guard.call(HOOK, _tell_random, c, module)
        if id(module) == self._outermost and not _must_not():
            c.guard.call(HOOK, self._tell_rows, c, args)

    def _tell_rows(self, c: _core.Core, args: Any) -> None:
        for at, value in enumerate(args):
            batch = local_part(value) if isinstance(value, torch.Tensor) else None
            if batch is None or not batch.dim() or not _plain(batch) or self._rows >= MAX_ROWS:
                continue
            self._rows += len(batch)
            c.defs.put(
                DefKind.TENSOR, step=c.step, what="input", name=str(at), order=0,
                dtype=str(batch.dtype).removeprefix("torch."), shape=list(batch.shape),
                samples=samples(batch[:MAX_ROWS]),
            )  # fmt: skip


def _tell_random(c: _core.Core, module: nn.Module) -> None:
    """Tell of the first layer that draws numbers of its own, if there is one."""
    for name, layer in module.named_modules():
        if isinstance(layer, _DRAWS) and layer.training and layer.p > 0:
            c.defs.put(DefKind.TENSOR, step=c.step, what="random", name=_canonical(name), order=0)
            return


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex()


def _must_not() -> bool:
    """Return whether an op of ours would be in a graph that is captured, or one that the program
    counts."""
    captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return captured or bool(torch._C._len_torch_dispatch_stack())


Named = tuple[int, str, Any, list[int]]
"""(order, name, tensor, ranks of its replicas)"""


def _names(parameters: list[Any]) -> list[Named]:
    """Return the parameters that a module has, by the outermost module with most of them."""
    wanted = {id(p) for p in parameters}
    modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]
    inner = {id(child) for m in modules for child in m._modules.values()}
    found: dict[int, Named] = {}
    held = []
    for root in modules:
        if id(root) not in inner:
            own = [(name, p) for name, p in root.named_parameters() if id(p) in wanted]
            held.append((len(own), root, own))
    for _, root, own in sorted(held, key=lambda item: -item[0]):
        over = _replicas(root)
        for order, (name, p) in enumerate(own):
            found.setdefault(id(p), (order, _canonical(name), p, over.get(id(p), [])))
    return [found[id(p)] for p in parameters if id(p) in found]


def _replicas(root: nn.Module) -> dict[int, list[int]]:
    """Return the ranks that keep a parameter equal, by its id."""
    found: dict[int, list[int]] = {}
    for module in root.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = dist.get_process_group_ranks(module.process_group)
            found |= {id(p): ranks for p in module.parameters()}
    for p in root.parameters():
        mesh = getattr(p, "device_mesh", None)
        if mesh is not None:
            found[id(p)] = mesh.mesh.flatten().tolist()
    return found


def _canonical(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _place(tensor: Any, part: Any) -> tuple[list[int], list[int]]:
    """Return (shape of the whole, offset of the rank's part); an offset of another length than the
    shape's: it is not known."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return list(tensor.shape), [0] * tensor.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, placements
    )
    known = tuple(size) == tuple(part.shape) and not any(p.is_partial() for p in placements)
    return list(tensor.shape), list(offset) if known else [0] * (tensor.dim() + 1)
