"""Place of a rank's tensors and layers, as frameworks without DTensors give it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch.distributed as dist
from torch import nn

from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.tensors import local_part

Axis = tuple[int, int]
"""(number of equal slices of a whole, index of the rank's slice)"""
_MEGATRON: Final = "megatron.core.parallel_state"


class Placed(NamedTuple):
    """Place of the rank's part in a tensor."""

    shape: list[int]
    """Shape of the whole tensor."""
    offset: list[int]
    """Offset of the part; unknown if its length differs from the shape's."""
    blocks: tuple[int, int, int, int] | None = None
    """(dim, parts, at, blocks) if the whole has several blocks along ``dim``, and the part a slice
    of each; ``offset`` is then that of the slices, were they side by side."""
    stated: bool = True
    """Whether the tensor or the program states the place; else the part only looks like a whole."""
    summand: tuple[int, int] | None = None
    """(index, number) of this summand, where parts at this place are not added up yet."""


def tensor_parallel() -> Axis | None:
    """Return the rank's place in tensor parallelism: Megatron's, else that in the group which a
    framework or a mesh calls tp."""
    state = sys.modules.get(_MEGATRON)
    names = "get_tensor_model_parallel_world_size", "get_tensor_model_parallel_rank"
    return (_asked(state, *names) if state is not None else None) or groups.place_on("tp")


def megatron_place(parameter: Any, part: Any) -> Placed | None:
    """Return the place that Megatron's attributes give (megatron/core/tensor_parallel/layers.py):
    stride s belongs to a layer whose output is s blocks, as a gated MLP's."""
    state = sys.modules.get(_MEGATRON)
    dim, blocks = getattr(parameter, "partition_dim", -1), getattr(parameter, "partition_stride", 1)
    if state is None or not getattr(parameter, "tensor_model_parallel", False):
        return None
    of = "tensor_model" if getattr(parameter, "allreduce", True) else "expert_tensor"
    axis = _asked(state, f"get_{of}_parallel_world_size", f"get_{of}_parallel_rank")
    if axis is None or not 0 <= dim < part.dim() or part.shape[dim] % blocks:
        return None
    parts, at = axis
    along = [part.shape[d] * (at if d == dim else 0) for d in range(part.dim())]
    shape = [n * (parts if d == dim else 1) for d, n in enumerate(part.shape)]
    several = blocks > 1 and parts > 1
    return Placed(shape, along, (dim, parts, at, blocks) if several else None)


def flat_places(root: nn.Module) -> dict[int, Placed]:
    """Return the places of parameters that FSDP1 keeps in flat shards, by id, if the optimizer has
    the original ones (use_orig_params; torch/distributed/fsdp/_flat_param.py)."""
    found = {}
    for module in root.modules():
        flat: Any = getattr(getattr(module, "_handle", None), "flat_param", None)
        parameters = getattr(flat, "_params", None) or ()
        infos = getattr(flat, "_shard_param_infos", None) or ()
        for p, info, shape in zip(parameters, infos, getattr(flat, "_shapes", ()), strict=False):
            begin = info.intra_param_start_idx if info.in_shard else 0
            found[id(p)] = Placed([math.prod(shape)], [begin])
    return found


def flat_fragment(parameter: Any, flat: list[Any]) -> tuple[Any, Placed] | None:
    """Return the part of a module's parameter, with its gradient, that is in one of an optimizer's
    ``flat`` tensors, as DeepSpeed's ZeRO has them (deepspeed/utils/tensor_fragment.py)."""
    if getattr(parameter, "ds_tensor", None) is not None:
        return _gathered_fragment(parameter, flat)
    mapping = getattr(parameter, "_hp_mapping", None)
    part = getattr(mapping, "hp_fragment", None)
    if mapping is None or part is None:
        return None
    here = part.untyped_storage().data_ptr()
    of = next((one for one in flat if one.untyped_storage().data_ptr() == here), None)
    if of is None:
        return None
    made, address = part.detach(), mapping.hp_fragment_address
    if of.grad is not None:
        made.grad = of.grad.detach().narrow(0, address.start, address.numel)
    return made, Placed([parameter.numel()], [mapping.lp_fragment_address.start])


def _gathered_fragment(parameter: Any, flat: list[Any]) -> tuple[Any, Placed] | None:
    """Return the part of a parameter that ZeRO 3 gathers on demand: equal numbers of elements on
    the ranks of a group, the last rank's padded (deepspeed/runtime/zero/stage3.py)."""
    optimizer: Any = getattr(parameter, "_z3_optimizer", None)
    known = getattr(optimizer, "grad_position", {})
    at = known.get(optimizer.get_param_id(parameter)) if optimizer is not None else None
    if at is None:
        return None
    of_group, start, number = at
    of: Any = optimizer.fp32_partitioned_groups_flat[of_group]
    if all(one is not of for one in flat):
        return None
    begin, own = _gathered_share(parameter, number)
    made = of.detach().narrow(0, start, own)
    if of.grad is not None:
        made.grad = of.grad.detach().narrow(0, start, own)
    return made, Placed([parameter.ds_numel], [begin])


def _gathered_share(parameter: Any, number: int) -> tuple[int, int]:
    """Return (first, number) of this rank's elements; ``number`` includes the padding."""
    begin = min(dist.get_rank(parameter.ds_process_group) * number, parameter.ds_numel)
    return begin, min(number, parameter.ds_numel - begin)


def working_part(parameter: Any) -> tuple[Any, Placed | None] | None:
    """Return the rank's part of a module's parameter between steps, and its place; None: the rank
    has none, as the parameter is gathered on demand."""
    part = getattr(parameter, "ds_tensor", None)
    if part is None:
        here = local_part(parameter)
        freed = here.untyped_storage().size() < here.numel() * here.element_size()
        return None if freed or not here.numel() else (parameter, None)
    begin, own = _gathered_share(parameter, part.numel())
    whole = part.dim() == 1 and part.untyped_storage().size() >= own * part.element_size()
    return (
        (part.detach().narrow(0, 0, own), Placed([parameter.ds_numel], [begin])) if whole else None
    )


def layer_names(root: nn.Module) -> Callable[[str], str]:
    """Return a function from a rank's layer name to the whole model's: Megatron's pipeline stages
    number their layers from 0 each, as expert parallelism does experts."""
    state = sys.modules.get(_MEGATRON)
    found: dict[str, str] = {}
    for name, module in root.named_modules() if state is not None else ():
        place, _, last = name.rpartition(".")
        number = getattr(module, "layer_number", None)
        if last.isdecimal() and place.endswith("local_experts"):
            axis = _asked(
                state, "get_expert_model_parallel_world_size", "get_expert_model_parallel_rank"
            )
            here = len(root.get_submodule(place)._modules)
            found[name] = f"{place}.{int(last) + (axis[1] if axis else 0) * here}"
        elif last.isdecimal() and isinstance(number, int):
            found[name] = f"{place}.{number - 1}"
    moved = {of: to for of, to in found.items() if of != to}
    return lambda name: _renamed(name, moved)


def _renamed(name: str, moved: dict[str, str]) -> str:
    """Return a name with the whole model's numbers of all layers on its path."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        to = moved.get(".".join(parts[:end]))
        if to is not None:
            parts[end - 1] = to.rpartition(".")[2]
    return ".".join(parts)


def _asked(of: Any, size: str, rank: str) -> Axis | None:
    """Return a framework's (size, rank) of a group of its own; None if it has none yet."""
    values = [getattr(of, name, None) for name in (size, rank)]
    try:
        parts, at = [value() if callable(value) else value for value in values]
    except (AssertionError, RuntimeError, ValueError):  # not made yet
        return None
    return (parts, at) if isinstance(parts, int) and isinstance(at, int) else None
