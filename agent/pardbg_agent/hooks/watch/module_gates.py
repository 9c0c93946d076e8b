"""Gates at modules: ``break module==blocks.1.mlp`` holds at the end of a module's forward, and at
the arrival of its output's gradient.

Modules are hooked while a breakpoint names one, from the end of the rank's next optimizer step on:
only the training's own thread may change the hooks of its modules. Compiled modules are left alone,
as is a forward that recomputation repeats."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from pardbg_agent import core as _core
from pardbg_agent.hooks.patching import Patches, wait_gate
from pardbg_agent.hooks.tensors import first_floating
from pardbg_agent.hooks.watch.tensor_names import Models, canonical, is_compiled
from pardbg_agent.wire import Gate

HOOK: Final = "break module"
_NEXT: Final = {"F": "return", "B": "backward"}
"""Action -> word for what comes next at the gate."""


def install(patches: Patches, late: Any) -> tuple[Any, ...]:
    """Check at each optimizer step whether modules are to be hooked."""
    gates = ModuleGates()
    return register_optimizer_step_post_hook(gates.look), gates


class ModuleGates:
    """Module gates of one process."""

    def __init__(self) -> None:
        self._hook: Any = None
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}

    def remove(self) -> None:
        """Remove the hook of modules."""
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._names = None, {}

    def look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Hook modules while a breakpoint names one; remove the hook otherwise."""
        c = _core.CURRENT
        if c is None or c.gate.breaks.modules == bool(self._names):
            return
        if self._names:
            self.remove()
        elif not torch.compiler.is_compiling():
            c.guard.call(HOOK, self._enter)

    def _enter(self) -> None:
        roots = Models().outermost()
        for root in roots:  # a wrapper and the wrapped module share a name: the latter
            own = {canonical(name): m for name, m in root.named_modules()}
            self._names |= {id(m): (weakref.ref(m), name) for name, m in own.items()}
        inside = (m for root in roots for m in root.modules())
        if not any(map(is_compiled, inside)):  # a hook of all would be compiled with them
            self._hook = register_module_forward_hook(self._ended)

    def _ended(self, module: Any, args: Any, out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        c, (ref, name) = _core.CURRENT, self._names.get(id(module), (None, ""))
        if c is None or ref is None or ref() is not module:
            return
        if torch._C._current_graph_task_id() == -1:
            c.guard.call(HOOK, _pass, c, name, out)


def _pass(c: _core.Core, name: str, out: Any) -> None:
    _wait(c, name, "F")
    tensor = first_floating(out)
    if tensor is not None and tensor.requires_grad:
        tensor.register_hook(partial(_gradient, name))


def _gradient(name: str, grad: Any) -> None:
    c = _core.CURRENT
    if c is not None:
        c.guard.call(HOOK, _wait, c, name, "B")


def _wait(c: _core.Core, name: str, action: str) -> None:
    if c.gate.closed:
        text = f"{_NEXT[action]} of {name or 'the model'}"
        wait_gate(c, Gate.BREAK, text, lambda: {"module": name, "action": action})
