"""What ranks may do unlike, or epoch after epoch alike: FSDP's clipping, a sampler's order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DistributedSampler

from pardbg_agent.hooks.watch import probes
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.unit.hooks.fake_world import fake_world


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 4 ranks, hooks in place; gives the ring's path."""
    monkeypatch.setattr(probes, "FREE_NS", 60_000_000_000)  # a busy machine takes its time
    yield from fake_world(tmp_path, monkeypatch)


def test_epochs_that_a_sampler_begins_by_one_number_are_told(watched: Path) -> None:
    """The second and third of number 0, the second of number 1; none of an evaluation, of a sampler
    that another one follows before a step. The part of the samples is told of each of training."""
    net = torch.nn.Linear(4, 2)
    sampler, other = (DistributedSampler([0] * 8, 2, 0) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for number in (0, 0, 0, 1, 1):
        sampler.set_epoch(number)
        iter(other)
        iter(sampler)
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        iter(sampler)
    net.eval()
    iter(sampler)
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "same order"]
    assert [(r.step, r.a, r.b) for r in found] == [(1, 0, 2), (2, 0, 3), (4, 1, 2)]
    parts = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "part of samples"]
    assert [(r.step, r.a, r.b) for r in parts] == [(s, 2, 0) for s in range(5) for _ in range(2)]


def test_fsdp_s_own_clipping_is_a_setting_too(watched: Path) -> None:
    """Its limit, which the wrapper takes, as torch.nn.utils takes it; and that this clips by the
    norm of a shard."""
    net = FullyShardedDataParallel(torch.nn.Linear(4, 2), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(21):
        net(torch.ones(1, 4)).sum().backward()
        if step > 10:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        elif step:
            net.clip_grad_norm_(0.1)
        optimizer.step()
    found = [r.b for r in read_rank(watched).of(Kind.PROBE) if r.name == "settings"]
    assert len({*found}) == len(found) == 3
    shards = [(r.step, r.a) for r in read_rank(watched).of(Kind.PROBE) if r.name == "clips shard"]
    assert shards == [(20, 0.2)]
