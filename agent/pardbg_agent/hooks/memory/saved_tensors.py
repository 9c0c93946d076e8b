"""Activation memory: bytes that autograd saves in a forward, counted on sampled steps only.

Saved-tensor hooks, pushed around a stage's or a wrapped model's forward, keep what autograd would
have kept (the same storage) and count it: each part once, parameters left out. A tensor with a
grad_fn is detached, as autograd itself does: a saved output would form a cycle with its own node.
``_unpack`` checks that no saved tensor was written to, which autograd leaves out under hooks. For
programs that forbid saved-tensor hooks (torch.func, some compiled code) ours are removed first, and
a forward inside the program's own hooks is not counted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pardbg_agent import core as _core
from pardbg_agent.hooks.context import LOCAL, current, of
from pardbg_agent.hooks.patching import Patches, unframed, unseen
from pardbg_agent.hooks.tensors import counts_ops, local_part

EVERY: Final = 100
FIRST: Final = 1
"""First sampled step: 1 and 2, then 100 and 101, 200 and 201, ...: the same on all ranks. Two, as a
program may do every other step in another way."""

_autograd: Any = torch._C._autograd


class Count:
    """Saved bytes of one forward."""

    __slots__ = ("_core", "_counted", "_kept", "_left_out", "_seen", "num_bytes", "pushed")

    def __init__(self, c: _core.Core, left_out: dict[int, StorageWeakRef]) -> None:
        self.num_bytes = 0
        self.pushed = False
        self._core = c
        self._seen: set[tuple[int, int]] = set()
        self._counted: dict[int, int] = {}
        self._kept: dict[int, StorageWeakRef] = {}
        self._left_out = left_out
        """Storages that are not activations, by address, while they live: the program may drop a
        model, and other tensors get its memory."""

    @unseen
    def pack(self, tensor: Any) -> Any:
        """Keep a saved tensor and count it. This runs inside the program's own operations: an error
        of the counting must not become one of theirs."""
        self._core.guard.call("saved", self.add, tensor)
        kept = tensor if tensor.grad_fn is None else tensor.detach()
        return kept, kept._version

    def beside(self) -> Count:
        """Return a new count that leaves out the tensors of this one. Backward frees saved tensors,
        and others get the memory: addresses of freed storages are not left out."""
        held = {address: s for address, s in self._kept.items() if not s.expired()}
        return Count(self._core, self._left_out | held)

    def add(self, tensor: Any) -> None:
        """Count each part of a storage once: a view saves its own bytes (a microbatch is a view of
        the batch), all views of a storage together at most the whole of it."""
        local = local_part(tensor)
        storage = local.untyped_storage()
        address, part = storage.data_ptr(), (local.data_ptr(), local.nbytes)
        if part in self._seen or _is_parameter(tensor):
            return
        left_out = self._left_out.get(address)
        if left_out is not None and not left_out.expired():
            return
        self._seen.add(part)
        if address not in self._kept:
            self._kept[address] = StorageWeakRef(storage)
        counted = self._counted.get(address, 0)
        more = min(part[1], storage.nbytes() - counted)
        self._counted[address] = counted + more
        self.num_bytes += more


@unseen
def _unpack(packed: Any) -> Any:
    tensor, version = packed
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
            f"expected version {version} instead."
        )
    return tensor


def due(step: int) -> bool:
    """Return whether this is a sampled step."""
    return FIRST <= step <= FIRST + 1 or (step >= EVERY and step % EVERY <= 1)


def begin(c: _core.Core, module: Any) -> Count | None:
    """Start counting, if this step is sampled and it is safe. Pass the result to ``end``."""
    return begin_without(c, module.parameters)


def begin_without(c: _core.Core, parameters: Callable[[], Iterable[Any]]) -> Count | None:
    """Start counting like ``begin``, with the parameters given by a function, not a module."""
    if not due(c.step) or c.level < 2 or "saved" in c.guard.disabled or not _safe(c):
        return None
    count = Count(c, storages(parameters()))
    _autograd._push_saved_tensors_default_hooks(count.pack, _unpack)
    count.pushed = True
    LOCAL.state.counting = count
    return count


def end(c: _core.Core, count: Count) -> int:
    """Stop counting; return the saved bytes."""
    LOCAL.state.counting = None
    if count.pushed:
        count.pushed = False
        _autograd._pop_saved_tensors_default_hooks()
    return count.num_bytes


def take_off(c: _core.Core, count: Count) -> int | None:
    """Return ``end(c, count)``, or None while hooks of the program are on top of the count's: then
    call again later."""
    if count.pushed and not _is_on_top(count):
        return None
    return end(c, count)


def _safe(c: _core.Core) -> bool:
    if of(c).never_counted or LOCAL.state.counting is not None:
        return False
    if not torch.is_grad_enabled():
        return False
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    if _top() is not None:
        return False  # the program's own (save_on_cpu): ours above them would disable them
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and getattr(frames, "FRAME_COUNTER", False):
        return False  # hooks around compiled code would have it compiled again
    return not counts_ops()


def install(patches: Patches) -> None:
    """Watch for programs that forbid saved-tensor hooks."""
    patches.wrap(_autograd, "_saved_tensors_hooks_disable", _disabling)
    if not hasattr(_autograd, "_top_saved_tensors_default_hooks"):
        patches.wrap(_autograd, "_push_saved_tensors_default_hooks", _pushing)
        patches.wrap(_autograd, "_pop_saved_tensors_default_hooks", _popping)


def _disabling(original: Any) -> Any:
    @unframed
    def disable(*args: Any, **kwargs: Any) -> Any:
        current().never_counted = True
        count = LOCAL.state.counting
        if count is not None and count.pushed and _is_on_top(count):
            count.pushed = False
            _autograd._pop_saved_tensors_default_hooks()
        return original(*args, **kwargs)

    return disable


_pushed: Any = threading.local()
"""This thread's saved-tensor hooks, where torch does not tell the top one (before 2.8)."""


def _pushing(original: Any) -> Any:
    @unframed
    def push(pack: Any, unpack: Any) -> Any:
        result = original(pack, unpack)
        _pushed.hooks = [*getattr(_pushed, "hooks", ()), (pack, unpack)]
        return result

    return push


def _popping(original: Any) -> Any:
    @unframed
    def pop() -> Any:
        _pushed.hooks = getattr(_pushed, "hooks", [])[:-1]
        return original()

    return pop


def _top() -> tuple[Any, Any] | None:
    """Return the saved-tensor hooks that autograd calls in this thread; None: there are none."""
    if hasattr(_autograd, "_top_saved_tensors_default_hooks"):
        top: tuple[Any, Any] | None = _autograd._top_saved_tensors_default_hooks(True)
        return top
    hooks: list[tuple[Any, Any]] = getattr(_pushed, "hooks", [])
    return hooks[-1] if hooks else None


def _is_on_top(count: Count) -> bool:
    top = _top()
    return top is not None and getattr(top[0], "__self__", None) is count


def storages(parameters: Iterable[Any]) -> dict[int, StorageWeakRef]:
    """Return the parameters' storages by address."""
    found = (local_part(p).untyped_storage() for p in parameters)
    return {storage.data_ptr(): StorageWeakRef(storage) for storage in found}


def _is_parameter(tensor: Any) -> bool:
    """Return whether a tensor is a parameter or a view of one (FSDP's unsharded ones, too)."""
    base = tensor._base
    parameter = torch.nn.Parameter
    return isinstance(tensor, parameter) or (base is not None and isinstance(base, parameter))
