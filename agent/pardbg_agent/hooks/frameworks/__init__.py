"""Adapters for the pipelines and groups of training frameworks: an adapter is put in place when the
program imports the framework's module. An adapter imports nothing of the framework; attributes that
it does not find are left alone."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.life.late_imports import LateImports

ADAPTERS: Final = {
    "colossalai.pipeline.schedule.interleaved_pp": "colossalai.hook_interleaved",
    "colossalai.pipeline.schedule.one_f_one_b": "colossalai.hook_plain",
    "colossalai.pipeline.schedule.zero_bubble_pp": "colossalai.hook_zero_bubble",
    "colossalai.zero.low_level.low_level_optim": "colossalai.hook_zero",
    "deepspeed.runtime.engine": "deepspeed.hook_backward",
    "deepspeed.runtime.pipe.dualpipev": "deepspeed.hook_dualpipev",
    "deepspeed.runtime.pipe.engine": "deepspeed.hook_engine",
    "deepspeed.runtime.zero.stage3": "deepspeed.hook_zero",
    "deepspeed.runtime.zero.stage_1_and_2": "deepspeed.hook_zero",
    "megatron.core.pipeline_parallel.combined_1f1b": "megatron.hook_combined",
    "megatron.core.pipeline_parallel.schedules": "megatron.hook_schedules",
    "nanotron.parallel.pipeline_parallel.engine": "nanotron.hook_engines",
    "nanotron.parallel.pipeline_parallel.state": "nanotron.hook_state",
    "picotron.pipeline_parallel.pipeline_parallel": "picotron.hook_schedules",
}
"""Module of a framework -> adapter and its function that installs the hooks."""
_COLOSSAL: Final = {f"{axis}_group": axis for axis in ("pp", "tp", "dp", "sp", "ep", "moe_dp")}
GROUPS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "colossalai.booster.plugin.hybrid_parallel_plugin": (
        "HybridParallelPlugin", "__init__", _COLOSSAL,
    ),
    "colossalai.booster.plugin.moe_hybrid_parallel_plugin": (
        "MoeHybridParallelPlugin", "__init__", _COLOSSAL,
    ),
    "deepspeed.runtime.pipe.topology": (
        "PipelineParallelGrid", "__init__",
        {"pp_proc_group": "pp", "dp_proc_group": "dp", "slice_proc_group": "tp",
         "ds_model_proc_group": "mp"},
    ),
    "deepspeed.utils.groups": (
        "", "_create_expert_and_data_parallel",
        {"_EXPERT_PARALLEL_GROUP": "ep", "_EXPERT_DATA_PARALLEL_GROUP": "expert_dp"},
    ),
    "nanotron.parallel.context": (
        "ParallelContext", "_init_parallel_groups",
        {"tp_pg": "tp", "cp_pg": "cp", "dp_pg": "dp", "pp_pg": "pp", "ep_pg": "ep"},
    ),
    "picotron.process_group_manager": (
        "ProcessGroupManager", "__init__",
        {"tp_group": "tp", "cp_group": "cp", "dp_group": "dp", "pp_group": "pp"},
    ),
}  # fmt: skip
"""Module -> (class, method that makes its groups, attribute -> axis). An empty class: the function
and the variables are the module's own."""


def install(patches: Patches, late: LateImports) -> None:
    """Install the adapters when the frameworks' modules are imported."""
    for module, hook in ADAPTERS.items():
        late.when_imported(module, functools.partial(_adapt, patches, hook))
    for module, made in GROUPS.items():
        late.when_imported(module, functools.partial(_name_groups, patches, *made))


def _adapt(patches: Patches, hook: str, module: ModuleType) -> None:
    """Import the adapter only when its framework is imported: most programs need none."""
    name, _, function = hook.partition(".")
    getattr(importlib.import_module(f"{__name__}.{name}"), function)(patches, module)


def _name_groups(
    patches: Patches, owner: str, method: str, axes: dict[str, str], module: ModuleType
) -> None:
    def before(c: _core.Core, *args: Any, **_: Any) -> Any:
        return args[0] if owner else module

    def after(c: _core.Core, holder: Any, t1: int, failed: bool) -> None:
        groups.name_axes(holder, axes)

    made_by = getattr(module, owner, None) if owner else module
    patches.around(made_by, method, "groups of a framework", before, after)
