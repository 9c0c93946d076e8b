"""What wrappers keep in flat buffers, read from objects shaped as theirs."""

from __future__ import annotations

from types import SimpleNamespace as Made

import torch

from pardbg.analysis.memory.breakdown import zero_model
from pardbg.store.definitions import ModelDef
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.memory.wrappers import (
    Tally,
    _low_level_zero,
    _megatron_buffer,
    _zero_1_2,
    _zero_3,
)


def between_steps(model: ModelDef) -> int | None:
    zero = zero_model(model, None)
    return None if zero is None else zero.bytes_at(zero.level)


def test_a_part_of_a_storage_counts_once() -> None:
    buffer = torch.zeros(8)
    tally = Tally()
    assert tally.add([buffer[:4], buffer[4:], buffer[:4], None]) == 32
    assert tally.has(buffer[2:3])
    assert not tally.has(torch.zeros(1))


def test_megatrons_buffers_with_and_without_the_distributed_optimizer() -> None:
    """100 parameters in bfloat16, gradients in float32: 200 and 400 bytes."""
    trained = [torch.zeros(60, dtype=torch.bfloat16), torch.zeros(40, dtype=torch.bfloat16)]
    plain = _megatron_buffer(Made(
        param_data=None, params=trained, grad_data=torch.zeros(100), data_parallel_world_size=4,
        ddp_config=Made(use_distributed_optimizer=False),
    ))  # fmt: skip
    assert (plain.level, plain.whole_bytes, Tally().add(plain.gradients or ())) == (0, 200, 400)
    flat = _megatron_buffer(Made(
        param_data=torch.zeros(100, dtype=torch.bfloat16), params=trained,
        grad_data=torch.zeros(100), data_parallel_world_size=4,
        ddp_config=Made(use_distributed_optimizer=True),
    ))  # fmt: skip
    assert (flat.level, flat.shards, Tally().add(flat.parameters)) == (1, 4, 200)


def test_zero_keeps_the_gradients_of_its_partition() -> None:
    trained = [torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)]
    flat = torch.cat([*(p.detach() for p in trained), torch.zeros(2)])  # padded
    held = _zero_1_2(Made(
        bit16_groups=[trained], bit16_groups_flat=[flat], averaged_gradients={0: [torch.zeros(4)]},
        partition_gradients=True, partition_count=[2],
    ))  # fmt: skip
    assert (held.level, held.shards, held.whole_bytes) == (2, 2, 32)
    assert Tally().add(held.gradients or ()) == 16


def test_experts_that_are_sharded_over_fewer_ranks_have_no_level() -> None:
    flat = [torch.zeros(4), torch.zeros(4)]
    held = _zero_1_2(Made(
        bit16_groups=[[p] for p in flat], bit16_groups_flat=flat, averaged_gradients={},
        partition_gradients=False, partition_count=[2, 1],
    ))  # fmt: skip
    assert (held.level, held.whole_bytes) == (None, 32)


def test_colossalais_zero_keeps_what_the_model_computes_with() -> None:
    """Two parameters of 4 in bfloat16 (16 bytes) over 2 ranks; level 1 keeps both halves of their
    gradients, in float32 here."""
    working = [torch.zeros(4, dtype=torch.bfloat16) for _ in range(2)]
    store = Made(
        world_size=2,
        _grads_of_params={0: {id(p): [torch.zeros(2), torch.zeros(2)] for p in working}},
    )
    held = _low_level_zero(Made(
        _working_param_groups={0: working}, pg_to_grad_store={"dp": store}, _partition_grads=False,
    ))  # fmt: skip
    assert (held.level, held.shards, held.whole_bytes) == (1, 2, 16)
    assert (Tally().add(held.parameters), Tally().add(held.gradients or ())) == (16, 32)


def test_zero_3_keeps_small_parameters_whole_beside_their_shards() -> None:
    """Of 8 + 100 parameters in float32 the 8 stay gathered: shards of 16 and 200 bytes, and 32."""
    small, large = torch.zeros(8), torch.zeros(0)
    for p, number in ((small, 8), (large, 100)):
        p.ds_tensor, p.ds_numel, p.ds_persist = torch.zeros(number // 2), number, number == 8  # type: ignore[attr-defined]
    held = _zero_3(Made(fp16_groups=[[small, large]], averaged_gradients={}, partition_count=2))
    assert (held.level, held.whole_bytes, Tally().add(held.parameters)) == (3, 432, 248)


def test_a_copy_that_the_optimizer_steps_is_expected_beside_its_states() -> None:
    """bfloat16 P = G = 200 bytes, a float32 copy of 400 and two states of 400 each over 4 ranks:
    200 + 200 + 1200 / 4."""
    model = ModelDef(1, 4, 200, "Adam", master_bytes=400)
    assert between_steps(model) == 700


def test_a_group_that_has_no_name_is_called_by_its_class() -> None:
    class ProcessGroupDummy:
        @property
        def group_name(self) -> str:
            raise ValueError("ProcessGroup name not set")  # as torchft's do

    assert groups._torch_name(ProcessGroupDummy()) == "ProcessGroupDummy"
