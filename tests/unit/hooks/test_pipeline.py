"""A stage of a pipeline of one rank, each way: the same records, whoever writes them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from pardbg_agent import core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.context import local
from pardbg_agent.hooks.training.pipeline_actions import Actions
from pardbg_agent.wire import Flag, Kind
from tests.unit.hooks.recorded import rank

REDUCES = hasattr(PipelineStage, "perform_reduce_grad")
"""From torch 2.10; before, gradients are reduced inside the last backward."""
ACTIONS = ["0F0", "0F1", "0B0", "0B1", *(["0REDUCE_GRAD"] if REDUCES else [])]


class Net(torch.nn.Linear):
    fails = False

    def forward(self, x: Any) -> Any:
        if self.fails:
            raise ArithmeticError("no forward")
        return super().forward(x)


class Job:
    """Two microbatches, and when each one's loss was computed."""

    def __init__(self) -> None:
        self.net = Net(4, 4)
        device, group = torch.device("cpu"), dist.new_group([1])
        try:
            self.stage: Any = PipelineStage(self.net, 0, 1, device, group=group)
        except TypeError:  # before torch 2.6 it must be told what comes in
            self.stage = PipelineStage(self.net, 0, 1, device, torch.ones(1, 4), group=group)
        self.lost: list[int] = []
        self.schedule = ScheduleGPipe(self.stage, 2, loss_fn=self.loss)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, y: Any, target: Any) -> Any:
        found = (y - target).square().mean()
        self.lost.append(now_ns())
        return found

    def step(self) -> None:
        self.lost.clear()
        self.schedule.step(torch.ones(2, 4), target=torch.zeros(2, 4))
        self.optimizer.step()


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Verbs of the actions that Python was asked about."""
    begins, asked = Actions.begins, list[str]()

    def noted(self: Any, verb: str, *rest: Any) -> Any:
        asked.append(verb)
        return begins(self, verb, *rest)

    monkeypatch.setattr(Actions, "begins", noted)
    return asked


def test_a_step_is_recorded_and_python_is_asked_where_it_must_be(
    way: str, watched: Path, by_python: list[str]
) -> None:
    """Steps 1 and 2 are sampled; in step 4 a gate is closed. A forward ends with its loss."""
    job, c = Job(), core.ensure()
    for step in range(5):
        c.gate.set_delay(int(step == 4))
        by_python.clear()
        job.step()
        quick = way == "native" and step in (0, 3)
        assert len(by_python) == (0 if quick else len(ACTIONS))
        found = [r for r in rank(watched).of(Kind.ACTION) if r.step == step]
        assert [r.text for r in found] == ACTIONS
        assert all(r.t0 < r.t1 and not r.flags and not r.b for r in found)
        assert [r.a > 0 for r in found] == [step in (1, 2)] * 2 + [False] * len(ACTIONS[2:])
        forwards = zip(found, job.lost[-2:], strict=False)
        assert all(r.t0 < lost < r.t1 for r, lost in forwards)
        assert c.pipeline.done == ACTIONS[:4] == c.pipeline.plan
        counts = {("F", 0): 2, ("B", 0): 2} | ({("REDUCE_GRAD", 0): 1} if REDUCES else {})
        assert c.context.actions.counts == counts
    assert c.guard.errors == 0 and c.gate.inside == local().nest.action == 0


def _two_chunks_by_hand(stage: PipelineStage) -> None:
    first = stage.forward_one_chunk(fwd_chunk_id=0, args=(torch.ones(1, 4),), kwargs={})
    second = stage.forward_one_chunk(1, (torch.ones(1, 4),), {})
    stage.backward_one_chunk(0, loss=first.sum(), full_backward=False)
    stage.backward_weight_one_chunk(0)
    stage.backward_one_chunk(1, second.sum(), True)
    stage.has_backward = False
    with contextlib.suppress(KeyError):  # of torch before 2.9, which forgets the chunk first
        stage.backward_one_chunk(0)


@pytest.mark.skipif(
    not hasattr(PipelineStage, "backward_weight_one_chunk"), reason="torch has one backward"
)
def test_a_call_by_name_two_part_backwards_and_an_evaluation(way: str, watched: Path) -> None:
    job, c = Job(), core.ensure()
    job.step()
    made = c.context.actions
    made.run_begins([])
    try:
        _two_chunks_by_hand(job.stage)
    finally:  # else the tests behind this one run inside a pipeline, too
        made.run_ended(now_ns(), False)
    found = [r.text for r in rank(watched).of(Kind.ACTION)][len(ACTIONS) :]
    assert found == ["0F0", "0F1", "0I0", "0W0", "0B1"]
    assert c.guard.errors == 0


def test_a_forward_that_raises(way: str, watched: Path) -> None:
    """What it raises arrives, its record says it, and the next step is as ever."""
    job, c = Job(), core.ensure()
    job.step()
    c.step_end()
    c.step_end()  # past the sampled ones
    job.net.fails = True
    with pytest.raises(RuntimeError, match="failed to run forward") as caught:
        job.step()
    assert isinstance(caught.value.__cause__, ArithmeticError)
    failed = rank(watched).of(Kind.ACTION)[len(ACTIONS) :]
    assert [(r.text, r.flags) for r in failed] == [("0F0", Flag.FAILED)]
    assert (
        c.pipeline.done == [] and c.gate.inside == local().nest.action == local().nest.pipeline == 0
    )
    job.net.fails = False
    job.stage.clear_runtime_states()
    job.step()
    assert [r.text for r in rank(watched).of(Kind.ACTION)][-len(ACTIONS) :] == ACTIONS
    assert c.guard.errors == 0


def test_a_loss_that_begins_its_backward_in_parts(way: str, watched: Path) -> None:
    """torchtitan's: each half's backward is part of the last stage's forward, and the halves, which
    the program has divided by all it will add up, are no losses of the step. Two microbatches of
    0.5 each: 1."""
    job, c = Job(), core.ensure()
    c.identity = replace(c.identity, world_size=1)
    job.schedule.scale_grads = False

    def loss(y: Any, target: Any) -> Any:
        leaf = y.detach().requires_grad_()
        for half in leaf.chunk(2, dim=1):
            (half.sum() * float("nan")).backward()
        return y.sum() * 0 + 0.5

    job.schedule._loss_fn = loss
    job.step()
    seen = rank(watched)
    assert [r.text for r in seen.of(Kind.ACTION)] == ACTIONS
    assert [r.name for r in seen.of(Kind.PHASE)] == ["pipeline", "optimizer"]
    c.identity = replace(c.identity, world_size=2)  # replicas: what they divided by is not known
    job.step()
    assert [r.a for r in rank(watched).of(Kind.METRIC, "loss")] == [1.0]
