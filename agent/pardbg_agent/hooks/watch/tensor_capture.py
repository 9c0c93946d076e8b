"""Tensors of the steps that ``PARDBG_TENSORS`` names ("0-1"), sent as sketches for ``pardbg same``:
parameters before the first of them, gradients as the optimizer uses them, parameters after its
step, in later ones the modules' parts of parameters that this process does not step, hashes of the
rows of the outermost module's inputs, and, in the first of these steps, outputs of modules
(activation_capture) and their buffers after it. Without the variable nothing is hooked; after the
last of these steps nothing is hooked any more. In these steps it waits for the device."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pardbg_agent import core as _core
from pardbg_agent.hooks.context import local
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.tensors import counts_ops, is_pending, local_part, parameters_of
from pardbg_agent.hooks.watch.activation_capture import Activations
from pardbg_agent.hooks.watch.framework_places import Axis
from pardbg_agent.hooks.watch.kept_values import Kept, pieces
from pardbg_agent.hooks.watch.tensor_names import Models, Named, canonical, is_compiled, place
from pardbg_agent.hooks.watch.tensor_sketch import Maps, row_hashes, row_sums, sketch, sliced
from pardbg_agent.settings import not_understood
from pardbg_agent.wire import ENV_TENSORS, MAX_ROWS, DefKind

HOOK: Final = "tensors"
MAX_TENSORS: Final = 8192
"""Maximum number of tensors of a process: 16 MiB."""
_DRAWS: Final = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout
_STEPS: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def steps() -> range:
    """Return the steps to capture; none if the variable is unset or (with a message) wrong."""
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
    """Tensor capture of one process."""

    def __init__(self, wanted: range) -> None:
        self._wanted, self._told = wanted, 0
        self._models = Models()
        self._maps = Maps()
        self._kept = Kept()
        self._activations = Activations(self._models, self._maps, self._kept, _guarded)
        self._outermost: Any = None
        self._step = -1
        """Step that the outermost module and the number of rows belong to."""
        self._rows = 0
        self._begun: set[int] = set()
        """Optimizers, each with its parameters, whose initial parameters are sent: ZeRO 3 steps
        some of them at a time."""
        self._stepped: set[int] = set()
        """Parameters of this process's optimizers, by id."""
        self._trained: set[int] = set()
        """Models that have parameters of this process's optimizers."""
        self._used_step = wanted.start
        """Latest step in which the models' other parameters were sent."""
        self._buffered: set[int] = set()
        """Models whose buffers were sent."""
        self._steps: dict[int, int] = {}
        """Optimizer that steps now -> its training step."""
        self._called_hooks: list[Any] = []
        self._plain: set[int] = set()
        """Modules without compiled ones inside, by id."""
        self._ran: set[int] = set()
        """Modules that the program called, by id."""
        before = register_optimizer_step_pre_hook(self._before)
        self.handles = before, register_optimizer_step_post_hook(self._after), self
        if not wanted.start:
            self._watch_calls()

    def remove(self) -> None:
        """Remove the hooks of modules, and keep nothing."""
        self._maps.clear()
        for hook in self._called_hooks:
            hook.remove()
        self._called_hooks.clear()
        self._activations.clear()

    def _watch_calls(self) -> None:
        """Hook calls of all modules from now on; with compiled modules, of the outermost ones only:
        a hook of all would be compiled with them."""
        roots = self._models.outermost()  # looked for here, and not again in the first of the steps
        compiled = any(is_compiled(m) for root in roots for m in root.modules())
        for root in roots if compiled else ():
            self._watch_calls_of(root)
        if not compiled:
            # The warning of torch.compile is about hooks that the program has.
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
            # In no module, whose copies and pickles would have them.
            ended = register_module_forward_hook(self._any_ended, always_call=True)
            self._called_hooks += register_module_forward_pre_hook(self._any_called), ended

    def _watch_calls_of(self, root: Any) -> None:
        self._ran.update(map(id, root.modules()))
        hook = root.register_forward_pre_hook(self._called, with_kwargs=True)
        self._called_hooks.append(hook)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        c = _core.CURRENT
        if c is not None and c.run is not None and c.step in self._wanted and not _must_not():
            self._steps[id(optimizer)] = c.step
            c.guard.call(HOOK, self._tell_before, c, optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        c, step = _core.CURRENT, self._steps.pop(id(optimizer), None)
        if c is None or c.run is None:
            return
        if step is not None:
            named = self._models.named(parameters_of(optimizer))
            c.guard.call(HOOK, self._tell, c, step, "param", named)
            if step == self._wanted.start:
                c.guard.call(HOOK, self._tell_buffers, c, step, optimizer)
            if step + 1 == self._wanted.stop:
                self.remove()
        elif not self._begun and not self._called_hooks and self._wanted.start <= c.step + 1:
            c.guard.call(HOOK, self._watch_calls)

    def _tell_before(self, c: _core.Core, optimizer: Any) -> None:
        self._activations.tell(c.step, partial(self._put, c))
        names = self._models.named(parameters_of(optimizer))
        self._stepped.update(map(id, parameters_of(optimizer)))
        self._trained.update(one.model for one in names)
        if c.step > self._used_step:
            self._used_step = c.step
            self._tell(
                c, c.step, "used", self._models.used(self._stepped, self._trained, self._ran)
            )
        key = hash((id(optimizer), *map(id, parameters_of(optimizer))))
        if key not in self._begun:
            self._begun.add(key)
            self._tell(c, c.step, "init", names)
        self._tell(c, c.step, "grad", names)

    def _tell_buffers(self, c: _core.Core, step: int, optimizer: Any) -> None:
        """Send the buffers of each model once: several optimizers may have its parameters."""
        found = self._models.buffers(parameters_of(optimizer))
        self._tell(c, step, "buffer", [one for one in found if one.model not in self._buffered])
        self._buffered |= {one.model for one in found}

    def _tell(self, c: _core.Core, step: int, what: str, named: Iterable[Named]) -> None:
        for one in named:
            tensor = one.tensor.grad if what == "grad" else one.tensor
            if tensor is None or is_pending(tensor) or not _plain(part := local_part(tensor)):
                continue
            at = one.placed or place(one.tensor, tensor, part)
            found = sketch(self._maps, part, at.shape, at.offset)
            if at.blocks is not None:
                found["sketch"] = sliced(self._maps, part, *at.blocks)
            self._put(
                c, step=step, what=what, name=one.name, order=one.order, model=one.model,
                dtype=str(part.dtype).removeprefix("torch."), shape=at.shape, offset=at.offset,
                size=list(part.shape), over=one.over or [c.identity.rank], **found,
                cuts=[] if at.stated else list(self._cuts(part, one.axes)), summand=at.summand,
                values=self._kept.of(what, one.name, part) if step == self._wanted.start else b"",
            )  # fmt: skip

    def _cuts(self, part: torch.Tensor, axes: list[Axis]) -> Iterator[dict[str, Any]]:
        """Yield the sketch of a part for each slice of an unstated whole that it may be."""
        for dim in range(min(2, part.dim())):
            for parts, at in axes:
                yield {"cut": [dim, parts, at], "sketch": sliced(self._maps, part, dim, parts, at)}

    def _put(
        self, c: _core.Core, values: bytes, rows: Sequence[int] = (), samples: Sequence[int] = (),
        **fields: Any,
    ) -> None:  # fmt: skip
        if self._told < MAX_TENSORS:
            self._told += 1
            c.defs.put(DefKind.TENSOR, **fields)
            of = {key: fields[key] for key in ("step", "what", "name", "model", "dtype")}
            for at, some in pieces(values):
                c.defs.put(DefKind.VALUES, **of, at=at, values=some, rows=rows, samples=samples)

    # -- inputs

    def _any_called(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # first: later code would be compiled, with guards on its reads
        self._ran.add(id(module))
        if id(module) not in self._plain:
            inside = list(module.modules())
            self._plain.update(map(id, inside))
            if any(map(is_compiled, inside)):
                self.remove()
                self._watch_calls_of(module)
        self._called(module, args, _keywords(sys._getframe(1)))
        self._activations.begins(module)

    def _any_ended(self, module: Any, args: Any, out: Any) -> None:
        if not torch.compiler.is_compiling():
            _guarded(self._activations.ends, module, out)

    def _called(self, module: Any, args: Any, keywords: Any) -> None:
        c = _core.CURRENT
        if c is None or c.run is None or c.step not in self._wanted:
            return
        if c.step != self._step:
            self._step, self._outermost, self._rows = c.step, id(module), 0
            c.guard.call(HOOK, _tell_random, c, module)
        if not _must_not() and not _infers_shapes(c):
            c.guard.call(HOOK, self._take, c, module, [*args, *keywords.values()])

    def _take(self, c: _core.Core, module: Any, given: list[Any]) -> None:
        if id(module) == self._outermost:
            self._tell_rows(c, given)
        if c.step == self._wanted.start:
            self._activations.called(module, lambda: next(map(row_hashes, _batches(given)), None))

    def _tell_rows(self, c: _core.Core, given: list[Any]) -> None:
        for at, batch in enumerate(_batches(given)):
            if self._rows < MAX_ROWS:
                self._rows += len(batch)
                c.defs.put(
                    DefKind.TENSOR, step=c.step, what="input", name=str(at), order=0,
                    dtype=str(batch.dtype).removeprefix("torch."), shape=list(batch.shape),
                    samples=row_hashes(batch[:MAX_ROWS]).tolist(),
                    sums=row_sums(batch[:MAX_ROWS]).tolist(),
                )  # fmt: skip


def _guarded(function: Any, *args: Any) -> None:
    c = _core.CURRENT
    if c is not None and not _must_not():
        c.guard.call(HOOK, function, *args)


def _infers_shapes(c: _core.Core) -> bool:
    """Return whether a torch pipeline stage calls its module before the first step, to learn
    shapes (torch/distributed/pipelining/stage.py)."""
    if not local().nest.pipeline or c.gate.inside or c.gate.inside_native():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if "inference" in code.co_name and code.co_filename.endswith("pipelining/stage.py"):
            return True
        frame = frame.f_back
    return False


def _batches(given: list[Any]) -> Iterator[torch.Tensor]:
    """Yield the rank's parts of tensors that have rows."""
    for value in given:
        whole = isinstance(value, torch.Tensor) and not is_pending(value)
        batch = local_part(value) if whole else None
        if batch is not None and batch.dim() and _plain(batch):
            yield batch


def _keywords(frame: Any) -> dict[str, Any]:
    """Return the keyword arguments of a module's call, which such hooks do not get: those of
    Module._call_impl (torch/nn/modules/module.py)."""
    for _ in range(2):
        found = frame.f_locals.get("kwargs") if frame is not None else None
        if isinstance(found, dict):
            return found
        frame = frame.f_back if frame is not None else None
    return {}


def _tell_random(c: _core.Core, module: nn.Module) -> None:
    """Record the first layer that draws random numbers of its own, if there is one."""
    for name, layer in module.named_modules():
        if isinstance(layer, _DRAWS) and layer.training and layer.p > 0:
            c.defs.put(DefKind.TENSOR, step=c.step, what="random", name=canonical(name), order=0)
            return


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex()


def _must_not() -> bool:
    """Return whether an op of ours would be captured in a graph, or counted by the program."""
    captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return captured or counts_ops()
