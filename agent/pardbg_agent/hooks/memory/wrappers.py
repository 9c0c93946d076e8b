"""Tensors that wrappers keep in flat buffers, invisible to optimizers: ZeRO optimizers of DeepSpeed
and ColossalAI, FSDP1's flat parameters, Megatron's parameter and gradient buffers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import Context
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.tensors import local_part
from pardbg_agent.life.late_imports import LateImports


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors that one wrapper keeps on this rank."""

    level: int | None
    """ZeRO level, 0 to 3. None: parameters are over different numbers of ranks (experts)."""
    shards: int
    parameters: list[Any]
    whole_bytes: int
    """Bytes of the parameters, with all shards."""
    gradients: list[Any] | None = None
    """Gradients of the wrapper; None: they are the optimizer's parameters' own."""
    parameters_sharded: bool = False
    """Whether parameters are sharded between steps, whatever the level."""


class Wrappers:
    """All wrappers that were made, each with the function that reads it."""

    def __init__(self) -> None:
        self.made: Any = weakref.WeakKeyDictionary()
        self.gradients_bytes = 0
        """Bytes of gradients when the wrapper's step began, which frees them at once."""


def held(x: Context) -> list[Held]:
    """Return the tensors that each wrapper keeps now."""
    return [read(wrapper) for wrapper, read in list(x.part(Wrappers).made.items())]


class Tally:
    """Bytes of tensors, each part of a storage once."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._storages: set[int] = set()

    def add(self, tensors: Iterable[Any]) -> int:
        """Count tensors that were not counted yet; skip None."""
        total = 0
        for tensor in tensors:
            if tensor is None:
                continue
            local = local_part(tensor)
            key = local.data_ptr(), local.nbytes
            if key not in self._seen:
                self._seen.add(key)
                self._storages.add(local.untyped_storage().data_ptr())
                total += local.nbytes
        return total

    def has(self, tensor: Any) -> bool:
        """Return whether any part of the tensor's storage was counted."""
        return local_part(tensor).untyped_storage().data_ptr() in self._storages


def install(patches: Patches, late: LateImports) -> None:
    """Hook the wrappers when their modules are imported."""
    for module, (owner, read) in _READ.items():
        late.when_imported(module, functools.partial(_hook, patches, owner, read))


def _hook(
    patches: Patches, owner: str, read: Callable[[Any], Held], module: ModuleType
) -> None:  # fmt: skip
    def itself(c: _core.Core, wrapper: Any, *_: Any, **__: Any) -> Any:
        return wrapper

    def made(c: _core.Core, wrapper: Any, t1: int, failed: bool) -> None:
        if not failed:
            context.of(c).part(Wrappers).made[wrapper] = read

    def steps(c: _core.Core, wrapper: Any, *_: Any, **__: Any) -> None:
        known = context.of(c).part(Wrappers)
        if wrapper in known.made:
            known.gradients_bytes = Tally().add(read(wrapper).gradients or ())

    kind = getattr(module, owner, None)
    patches.around(kind, "__init__", "wrapper", itself, made)
    if owner.startswith("DeepSpeed"):
        patches.around(kind, "step", "wrapper", steps)


def _nested(value: Any) -> Iterable[Any]:
    """Yield the tensors in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _nested(each)
    elif value is not None:
        yield value


def _zero_1_2(wrapper: Any) -> Held:
    """Read ZeRO 1 or 2: all parameters in one flat buffer a group; gradients that are kept until
    the step: those of this rank's partition, and those of others that were not freed."""
    flat = list(_nested(wrapper.bit16_groups_flat))
    trained = [p for group in wrapper.bit16_groups for p in group]
    gradients = [g for p in trained for g in (p.grad, getattr(p, "grad_accum", None))]
    gradients += _nested(wrapper.averaged_gradients)
    level = 2 if wrapper.partition_gradients else 1
    counts = set(wrapper.partition_count)
    return Held(
        level if len(counts) < 2 else None, max(counts, default=1), flat,
        sum(p.nbytes for p in trained), gradients,  # without the buffers' padding
    )  # fmt: skip


def _zero_3(wrapper: Any) -> Held:
    """Read ZeRO 3: a shard of each parameter; persistent small ones are whole."""
    parameters = [p for group in wrapper.fp16_groups for p in group]
    whole_ones = [p.data for p in parameters if getattr(p, "ds_persist", False)]
    gradients = list(_nested(getattr(wrapper, "grad_partitions_flat_buffer", None)))
    gradients = gradients or list(_nested(wrapper.averaged_gradients))
    whole = sum(p.ds_numel * p.ds_tensor.element_size() for p in parameters)
    shards = int(wrapper.partition_count)
    return Held(3, shards, [p.ds_tensor for p in parameters] + whole_ones, whole, gradients)


def _low_level_zero(wrapper: Any) -> Held:
    """Read ColossalAI's ZeRO: the parameters that the model computes with, and the kept parts of
    each gradient; the optimizer steps a copy of this rank's part."""
    working = [p for group in wrapper._working_param_groups.values() for p in group]
    stores = wrapper.pg_to_grad_store.values()
    shards = {int(store.world_size) for store in stores}
    level = 2 if wrapper._partition_grads else 1
    return Held(
        level if len(shards) < 2 else None, max(shards, default=1), working,
        sum(p.nbytes for p in working),
        [p.grad for p in working] + list(_nested([store._grads_of_params for store in stores])),
    )  # fmt: skip


def _flat_handle(handle: Any) -> Held:
    """Read FSDP1: the shard; gradients are the sharded parameter's, or of its views."""
    flat, strategy = handle.flat_param, handle._sharding_strategy.name
    local = getattr(flat, "_local_shard", flat)
    whole = flat._unpadded_unsharded_size.numel() * local.element_size()
    level = 0 if strategy == "NO_SHARD" else 2 if "GRAD_OP" in strategy else 3
    return Held(level, int(handle.world_size), [local], whole, None, level > 0)


def _megatron_buffer(buffer: Any) -> Held:
    """Read flat buffers: gradients, and with the distributed optimizer also parameters."""
    parameters = [buffer.param_data] if buffer.param_data is not None else list(buffer.params)
    sharded = bool(buffer.ddp_config.use_distributed_optimizer)
    return Held(
        int(sharded), int(buffer.data_parallel_world_size), parameters,
        sum(p.nbytes for p in parameters), [buffer.grad_data],
    )  # fmt: skip


_READ: Final[dict[str, tuple[str, Callable[[Any], Held]]]] = {
    "colossalai.zero.low_level.low_level_optim": ("LowLevelZeroOptimizer", _low_level_zero),
    "deepspeed.runtime.zero.stage_1_and_2": ("DeepSpeedZeroOptimizer", _zero_1_2),
    "deepspeed.runtime.zero.stage3": ("DeepSpeedZeroOptimizer_Stage3", _zero_3),
    "torch.distributed.fsdp._flat_param": ("FlatParamHandle", _flat_handle),
    "megatron.core.distributed.param_and_grad_buffer": ("_ParamAndGradBuffer", _megatron_buffer),
}
"""Module -> (class, function that reads an instance)."""
