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
