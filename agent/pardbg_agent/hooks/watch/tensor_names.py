"""Names and places of tensors for ``pardbg same``: names are of the outermost module, without those
of wrappers; a part's place is a DTensor's placements, or what ``pardbg_agent.layout`` says. Any
other tensor counts as a whole, whose replicas are known on the ranks of the
DistributedDataParallel that has it.
"""

from __future__ import annotations

import gc
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pardbg_agent.wire import LAYOUT

_WRAPPERS: Final = {
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
}  # fmt: skip
_DEEPEST: Final = 32


class Named(NamedTuple):
    """A parameter, and where it is."""

    order: int
    """In its model."""
    name: str
    tensor: Any
    over: list[int]
    """Ranks of its replicas; empty: not known."""
    model: int


class Models:
    """Outermost modules, numbered as they are met: a rank may have several stages of one model,
    which have equal names."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def number(self, outermost: nn.Module) -> int:
        """Return a module's number."""
        return self._numbers.setdefault(id(outermost), len(self._numbers))

    def place(self, module: nn.Module) -> tuple[int, str]:
        """Return the number of the outermost module that has a module, and the module's name in it
        with a dot behind; of itself the name is empty."""
        alive = self.alive()
        parents = {id(child): (m, name) for m in alive for name, child in m._modules.items()}
        names: list[str] = []
        while (found := parents.get(id(module))) is not None and len(names) < _DEEPEST:
            module, name = found
            names.append(name)
        return self.number(module), "".join(f"{name}." for name in reversed(names))

    def named(self, parameters: list[Any]) -> list[Named]:
        """Return the parameters that a module has, by the outermost module with most of them."""
        wanted = {id(p) for p in parameters}
        found: dict[int, Named] = {}
        held = []
        for root in self.outermost():
            own = [(name, p) for name, p in root.named_parameters() if id(p) in wanted]
            held.append((len(own), root, own))
        for num_own, root, own in sorted(held, key=lambda item: -item[0]):
            over, model = _replicas(root), self.number(root) if num_own else -1
            for order, (name, p) in enumerate(own):
                of = Named(order, canonical(name), p, over.get(id(p), []), model)
                found.setdefault(id(p), of)
        return [found[id(p)] for p in parameters if id(p) in found]

    @staticmethod
    def alive() -> list[nn.Module]:
        """Return all modules of the process."""
        return [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]

    def outermost(self) -> list[nn.Module]:
        """Return the modules that no other has."""
        modules = self.alive()
        inner = {id(child) for m in modules for child in m._modules.values()}
        return [m for m in modules if id(m) not in inner]


def is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile makes the module's call."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def canonical(name: str) -> str:
    """Return a name without the names of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in _WRAPPERS)


def place(parameter: Any, tensor: Any, part: Any) -> tuple[list[int], list[int]]:
    """Return (shape of the whole, offset of the rank's part) of a parameter's value or gradient,
    ``tensor``, of which the rank has ``part``; an offset of another length than the
    shape's: it is not known."""
    said = getattr(parameter, LAYOUT, None)
    if said is not None:
        return list(said[0]), list(said[1])
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return list(tensor.shape), [0] * tensor.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, placements
    )
    known = tuple(size) == tuple(part.shape) and not any(p.is_partial() for p in placements)
    return list(tensor.shape), list(offset) if known else [0] * (tensor.dim() + 1)


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
