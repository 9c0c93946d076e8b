"""Whom stacks name: every way to wait of some ranks beside every way not to of others."""

from __future__ import annotations

import pytest

from pardbg.hub.attach.stacks_verdict import RankStack, judge

TORCH = "/venv/lib/python3.11/site-packages/torch"
USER = ("/home/u/train.py", 88, "step")
WAITS = {
    "all_reduce": (USER, (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
                   (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce")),
    "backward": (USER, (f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward")),
    "ddp": (USER, (f"{TORCH}/nn/parallel/distributed.py", 1600, "forward")),
}  # fmt: skip
DOES_NOT = {
    "asleep": (True, (USER, ("/home/u/data.py", 7, "load"))),
    "computes": (False, (USER, (f"{TORCH}/nn/functional.py", 9, "linear"))),
    "reads": (True, (USER, (f"{TORCH}/utils/data/dataloader.py", 9, "_next_data"))),
    "saves": (True, (USER, (f"{TORCH}/serialization.py", 9, "save"))),
    "in pdb": (True, (USER, ("/usr/lib/python3.11/pdb.py", 9, "interaction"))),
}


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize("other", DOES_NOT)
def test_who_does_not_wait_is_waited_for(waits: str, other: str) -> None:
    asleep, frames = DOES_NOT[other]
    stacks = [RankStack(rank, WAITS[waits], True) for rank in (0, 1, 3)]
    found = judge([*stacks, RankStack(2, frames, asleep)])
    assert (found.kind, found.culprits, found.waiting) == ("missing-rank", (2,), (0, 1, 3))


def test_the_axis_is_that_of_the_library_that_waits() -> None:
    """The innermost library of one: FSDP inside of a pipeline's stage waits for its shards."""
    op = WAITS["all_reduce"][-1]
    fsdp = (f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 9, "unshard")
    stage = (f"{TORCH}/distributed/pipelining/stage.py", 9, "forward_one_chunk")
    stacks = {"fsdp": (USER, stage, fsdp, op), "pp": (USER, stage, op), "": (stage, USER, op)}
    assert all(RankStack(0, frames, True).axis == axis for axis, frames in stacks.items())


SYNC = (USER, (f"{TORCH}/cuda/__init__.py", 1090, "synchronize"))
ON_DEVICE = {
    "synchronize": (SYNC, "    return torch._C._cuda_synchronize()"),
    "item": ((USER,), "    total += loss.item()"),
    "scaler": ((USER, (f"{TORCH}/amp/grad_scaler.py", 9, "_maybe_opt_step")),
               "    if not sum(v.item() for v in found.values()):"),
}  # fmt: skip


def on_device(rank: int, how: str, has_device: bool = True) -> RankStack:
    frames, source = ON_DEVICE[how]
    return RankStack(rank, frames, False, has_device, source)


@pytest.mark.parametrize("how", ON_DEVICE)
@pytest.mark.parametrize("other", DOES_NOT)
def test_who_is_elsewhere_while_hosts_wait_for_their_devices(how: str, other: str) -> None:
    asleep, frames = DOES_NOT[other]
    culprit = RankStack(2, frames, asleep, True, "    y = self.linear(x)")
    stacks = [on_device(rank, how) for rank in (0, 1, 3)]
    found = judge([*stacks, culprit])
    assert (found.kind, found.culprits, found.waiting) == ("behind-devices", (2,), (0, 1, 3))
    # One of them waits in an op itself: the others' devices are behind the same.
    mixed = judge([*stacks[:2], RankStack(3, WAITS["all_reduce"], True, True), culprit])
    assert (mixed.kind, mixed.culprits) == ("missing-rank", (2,))
    assert judge(stacks).kind == "all-wait"


def test_a_call_that_lasts_may_be_a_launch_that_waits() -> None:
    """The first launch of a kernel loads it, and waits for the op that is on the device."""
    stands = RankStack(0, DOES_NOT["computes"][1], False, True, "    y = x.sum()", stands=True)
    found = judge([stands, RankStack(1, DOES_NOT["asleep"][1], True, True)])
    assert (found.kind, found.culprits) == ("behind-devices", (1,))
    assert judge([stands]).kind == "all-wait"


def test_without_a_device_a_read_value_is_no_wait() -> None:
    assert judge([on_device(0, "item", has_device=False)]).kind == "nobody-waits"


def test_who_waits_elsewhere_than_most() -> None:
    recv = (USER, (f"{TORCH}/distributed/distributed_c10d.py", 2500, "recv"))
    stacks = [RankStack(rank, WAITS["all_reduce"], True) for rank in (0, 1, 3)]
    found = judge([*stacks, RankStack(2, recv, True)])
    assert (found.kind, found.culprits, found.call) == ("different-ops", (2,), "all_reduce")
    tie = judge([stacks[0], RankStack(2, recv, True)])
    assert (tie.kind, tie.culprits) == ("all-wait", ())


def test_nobody_and_everybody() -> None:
    assert judge([RankStack(r, DOES_NOT["computes"][1], False) for r in (0, 1)]).kind == (
        "nobody-waits"
    )
    everybody = judge([RankStack(r, WAITS["all_reduce"], True) for r in (0, 1)])
    assert (everybody.kind, everybody.culprits) == ("all-wait", ())


def test_a_rank_whose_stack_cannot_be_read() -> None:
    stacks = [RankStack(rank, WAITS["all_reduce"], True) for rank in (0, 1)]
    assert judge(stacks, silent=[2]).culprits == (2,)
