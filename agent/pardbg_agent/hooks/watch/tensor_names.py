"""Names and places of tensors for ``pardbg same``: names are those in the outermost module, without
those of wrappers; a part's place is given by a DTensor's placements, or by ``pardbg_agent.layout``.
Any other tensor counts as a whole, whose replicas are known on the ranks of the
DistributedDataParallel that has it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pardbg_agent.hooks.tensors import replicated
from pardbg_agent.hooks.watch import framework_places
from pardbg_agent.wire import LAYOUT

_WRAPPERS: Final = {
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
}  # fmt: skip
_MAX_AXES: Final = 2


class Named(NamedTuple):
    """Parameter with its name and its place."""

    order: int
    """Position of the parameter in its model."""
    name: str
    tensor: Any
    over: list[int]
    """Ranks with replicas of the parameter; empty: not known."""
    model: int
    axes: list[framework_places.Axis]
    """Axes along which the rank may have slices."""
    placed: framework_places.Placed | None = None
    """Place of its values and its gradient, if the tensors do not tell it themselves."""


class Models:
    """Outermost modules, numbered in the order they are found: a rank may have several stages of
    one model, with equal names."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._roots: list[weakref.ref[nn.Module]] = []
        """Outermost modules found by the last search."""

    def number(self, outermost: nn.Module) -> int:
        return self._numbers.setdefault(id(outermost), len(self._numbers))

    def place(self, module: nn.Module) -> tuple[int, str]:
        """Return the number of the outermost module that contains a module, and the module's name
        in it followed by a dot; the outermost module's own name is empty."""
        found = _inside(self._known(), module) or _inside(self.outermost(), module)
        root, name = found or (module, "")
        return self.number(root), f"{name}." if name else ""

    def named(self, parameters: list[Any]) -> list[Named]:
        """Return the parameters of modules, by the outermost module with most of them."""
        wanted = {id(p) for p in parameters}
        found: dict[int, Named] = {}
        held = []
        for root in self._having(wanted):
            own = [(name, p) for name, p in root.named_parameters() if id(p) in wanted]
            held.append((len(own), root, own))
        for num_own, root, own in sorted(held, key=lambda item: -item[0]):
            if not num_own:
                continue
            over, model, along = _replicas(root), self.number(root), axes(root)
            known_as, flat = framework_places.layer_names(root), framework_places.flat_places(root)
            for order, (name, p) in enumerate(own):
                of = Named(
                    order, canonical(known_as(name)), p, over.get(id(p), []), model, along,
                    flat.get(id(p)),
                )  # fmt: skip
                found.setdefault(id(p), of)
        others = [p for p in parameters if id(p) not in found]
        return [
            *(found[id(p)] for p in parameters if id(p) in found),
            *(self._stated(others) if others else ()),
            *(self._fragments(others) if others else ()),
        ]

    def buffers(self, parameters: list[Any]) -> list[Named]:
        """Return the floating-point buffers of the models that have any of the parameters."""
        wanted, found = {id(p) for p in parameters}, []
        for root in self._having(wanted):
            if wanted.isdisjoint(map(id, root.parameters())):
                continue
            known_as, model = framework_places.layer_names(root), self.number(root)
            for order, (name, buffer) in enumerate(root.named_buffers()):
                if buffer.is_floating_point():
                    name = canonical(known_as(name))
                    found.append(Named(order, name, buffer, [], model, []))
        return found

    def used(
        self, stepped: Container[int], models: Container[int], ran: Container[int]
    ) -> Iterator[Named]:
        """Yield the trainable parameters of ``models`` without those that this process steps (by
        id): copies of the results of another tensor's or rank's optimizer. Without those neither
        of a module that ``ran`` nor with a gradient: a rank of a pipeline may keep the whole
        model, of which it computes one stage."""
        for root in self._known() or self.outermost():
            if self._numbers.get(id(root)) not in models:
                continue
            known_as = framework_places.layer_names(root)
            called = {id(p) for m in root.modules() if id(m) in ran for p in m.parameters(False)}
            for order, (name, p) in enumerate(root.named_parameters()):
                copied = p.requires_grad and id(p) not in stepped
                taken = copied and (id(p) in called or p.grad is not None)
                if taken and (found := framework_places.working_part(p)):
                    part, placed = found
                    name = canonical(known_as(name))
                    yield Named(order, name, part, [], self.number(root), [], placed)

    def _stated(self, others: list[Any]) -> Iterator[Named]:
        """Yield an optimizer's parameters that no module has, and that the program names."""
        said = [(p, getattr(p, LAYOUT, (0, 0, ""))[2]) for p in others]
        named = [(p, name) for p, name in said if name]
        largest = max(self.outermost(), key=_num_modules, default=None) if named else None
        if largest is None:
            return
        places = {canonical(name): at for at, (name, _) in enumerate(largest.named_parameters())}
        for at, (p, name) in enumerate(named):
            order = places.get(canonical(name), at)
            yield Named(order, canonical(name), p, [], self.number(largest), [])

    def _fragments(self, flat: list[Any]) -> Iterator[Named]:
        """Yield the parts of modules' parameters that an optimizer's flat tensors hold."""
        for root in self.outermost():
            known_as = framework_places.layer_names(root)
            for order, (name, p) in enumerate(root.named_parameters()):
                found = framework_places.flat_fragment(p, flat)
                if found is not None:
                    part, placed = found
                    name = canonical(known_as(name))
                    yield Named(order, name, part, [], self.number(root), [], placed)

    def _having(self, wanted: set[int]) -> list[nn.Module]:
        """Return the outermost modules; search again only if the last found lack a parameter."""
        known = self._known()
        has_all = wanted <= {id(p) for root in known for p in root.parameters()}
        return known if has_all else self.outermost()

    def _known(self) -> list[nn.Module]:
        """Return the last found outermost modules; none if one of them is gone."""
        known = [root for ref in self._roots if (root := ref()) is not None]
        return known if len(known) == len(self._roots) else []

    def outermost(self) -> list[nn.Module]:
        """Return the modules inside no other one, from all objects of the process: this is slow."""
        objects = gc.get_objects()
        kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, nn.Module)}
        modules = [m for m in objects if type(m) in kinds]
        inner = {id(child) for m in modules for child in vars(m).get("_modules", {}).values()}
        found = [m for m in modules if id(m) not in inner]
        self._roots = [weakref.ref(m) for m in found]
        return found


def _inside(roots: list[nn.Module], module: nn.Module) -> tuple[nn.Module, str] | None:
    """Return the outermost module that contains a module, and the module's name in it."""
    places = ((root, name) for root in roots for name, m in root.named_modules() if m is module)
    return next(places, None)


def _num_modules(root: nn.Module) -> int:
    return sum(1 for _ in root.modules())


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module's call is compiled by torch.compile."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def canonical(name: str) -> str:
    """Return a name without the names of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in _WRAPPERS)


def place(parameter: Any, tensor: Any, part: Any) -> framework_places.Placed:
    """Return the place of the rank's ``part`` in ``tensor``, a parameter's value or gradient."""
    said = getattr(parameter, LAYOUT, None)
    if said is not None:
        return framework_places.Placed(list(said[0]), list(said[1]))
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return framework_places.megatron_place(parameter, part) or framework_places.Placed(
            list(tensor.shape), [0] * tensor.dim(), stated=False
        )
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, placements
    )
    summands = [dim for dim, p in enumerate(placements) if p.is_partial()]
    known = tuple(size) == tuple(part.shape) and all(
        type(placements[dim]) is Partial and placements[dim].reduce_op == "sum" for dim in summands
    )
    return framework_places.Placed(
        list(tensor.shape), list(offset) if known else [0] * (tensor.dim() + 1),
        summand=_summand(tensor.device_mesh, summands) if summands else None,
    )  # fmt: skip


def _summand(mesh: Any, dims: Iterable[int]) -> tuple[int, int]:
    """Return (index, number) of the rank's summand along these dimensions of a mesh."""
    at, count = 0, 1
    for dim in dims:
        at, count = at * mesh.size(dim) + mesh.get_local_rank(dim), count * mesh.size(dim)
    return at, count


def axes(root: nn.Module) -> list[framework_places.Axis]:
    """Return the axes that may cut a model's tensors: of meshes that cut parameters; without any, a
    framework's tensor parallelism, or groups that DistributedDataParallel does not use."""
    found: dict[framework_places.Axis, None] = {}
    for p in root.parameters():
        mesh: Any = getattr(p, "device_mesh", None)
        for dim, placement in enumerate(getattr(p, "placements", ())):
            if placement.is_shard():
                found[mesh.size(dim), mesh.get_local_rank(dim)] = None
    stated = None if found else framework_places.tensor_parallel()
    if stated is not None:
        found = {stated: None}
    elif not found:
        wrappers = [m for m in root.modules() if isinstance(m, DistributedDataParallel)]
        data = [dist.get_process_group_ranks(m.process_group) for m in wrappers]
        groups = [of for of in c10d._world.pg_group_ranks.values() if list(of) not in data]
        smaller = [ranks for ranks in groups if 1 < len(ranks) < c10d.get_world_size()]
        own = c10d.get_rank()
        found = {(len(ranks), ranks[own]): None for ranks in smaller or groups if own in ranks}
    return [axis for axis in found if axis[0] > 1][:_MAX_AXES]


def _replicas(root: nn.Module) -> dict[int, list[int]]:
    """Return the ranks that keep a parameter equal, by the parameter's id."""
    found: dict[int, list[int]] = {}
    for module in root.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = dist.get_process_group_ranks(module.process_group)
            found |= {id(p): ranks for _, p in replicated(module)}
    for p in root.parameters():
        mesh = getattr(p, "device_mesh", None)
        if mesh is not None:
            found[id(p)] = mesh.mesh.flatten().tolist()
    return found
