"""Of an older torch's pipelining what is there is seen: no missing method costs the others."""

from __future__ import annotations

import enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline

METHODS = (
    "forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk", "perform_reduce_grad",
    "get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops",
)  # fmt: skip


class Kind(enum.Enum):
    """Torch 2.8's: numbers whose text is the verb."""

    FORWARD = 1
    FULL_BACKWARD = 10
    SEND_F = 6

    def __str__(self) -> str:
        return {1: "F", 10: "B", 6: "SEND_F"}[self.value]


def action(stage: int, kind: Kind, mb: int) -> Any:
    return SimpleNamespace(stage_index=stage, computation_type=kind, microbatch_index=mb)


def test_a_plan_whose_verbs_are_numbers() -> None:
    row = [action(1, Kind.FORWARD, 0), action(1, Kind.SEND_F, 0), None,
           action(1, Kind.FULL_BACKWARD, 0)]  # fmt: skip
    assert pipeline.texts(row) == ["1F0", "1B0"]


def test_a_schedule_without_a_table_is_planned_by_its_name() -> None:
    """Before torch 2.7 schedules of one stage a rank have none."""
    schedule = type("ScheduleGPipe", (), {})()
    schedule._n_microbatches, schedule._num_stages, schedule._has_backward = 2, 2, True
    order = {0: ["0F0", "0F1", "0B0", "0B1"], 1: ["1F0", "1F1", "1B0", "1B1"]}
    assert pipeline.plan_of(schedule) == (order, "schedule")


@pytest.mark.parametrize("missing", METHODS)
def test_a_method_that_is_not_there_costs_itself_alone(missing: str) -> None:
    def method(self: Any, *args: Any) -> list[Any]:
        return []

    there = [name for name in METHODS if name != missing]
    module = ModuleType("stage")
    module._PipelineStageBase = type("Base", (), dict.fromkeys(there, method))  # type: ignore[attr-defined]
    patches = Patches()
    pipeline._hook_stages(patches, module)
    base = module._PipelineStageBase
    assert [name for name in there if vars(base)[name] is method] == []
    assert not hasattr(base, missing)
    patches.undo()
    assert all(vars(base)[name] is method for name in there)


@pytest.mark.parametrize("missing", ["PipelineScheduleMulti", "_maybe_compute_loss"])
def test_schedules_without_a_part(missing: str) -> None:
    def method(self: Any, *args: Any) -> None:
        return None

    losses = {"_maybe_compute_loss": method, "_update_losses": method}
    losses.pop(missing, None)
    module = ModuleType("schedules")
    module._PipelineSchedule = type("Base", (), losses)  # type: ignore[attr-defined]
    for name in {"PipelineScheduleSingle", "PipelineScheduleMulti"} - {missing}:
        setattr(module, name, type(name, (), {"step": method}))
    patches = Patches()
    pipeline._hook_schedules(patches, module)
    assert module.PipelineScheduleSingle.step is not method
    patches.undo()
