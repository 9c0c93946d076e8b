"""Probes: NaN before a collective spreads it, and sums of replicated parameters' bits."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from pardbg_agent import core, hooks
from pardbg_agent.hooks.watch import probes
from pardbg_agent.wire import Flag, Kind
from tests.distributed.programs.watched import Record, read_rank
from tests.unit.hooks.fake_world import fake_world
from tests.unit.hooks.fsdp2 import fully_shard

BIG = probes.LEAST_BYTES // 4


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 4 ranks, hooks in place; gives the ring's path."""
    yield from _world(tmp_path, monkeypatch)


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(probes.ENV, "off")
    yield from _world(tmp_path, monkeypatch)


def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(probes, "FREE_NS", 60_000_000_000)  # a busy machine takes its time
    yield from fake_world(tmp_path, monkeypatch)


def gradients(model: torch.nn.Module) -> None:
    """The fake backend cannot average any."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)


def told(path: Path) -> list[Record]:
    beside = ("settings", "modes", "gradients", "gradients kept", "gradients added", "loss scale",
              "modes-own")  # fmt: skip
    return [
        probe for probe in read_rank(path).of(Kind.PROBE)
        if probe.name not in beside and not probe.name.startswith(("modules ", "loss by "))
    ]  # fmt: skip


def named(path: Path, head: str) -> list[tuple[int, str]]:
    """(step, rest of the name) of the records whose names begin so."""
    found = [r for r in read_rank(path).of(Kind.PROBE) if r.name.startswith(head)]
    return [(r.step, r.name.removeprefix(head)) for r in found]


def test_nan_is_seen_before_it_spreads(watched: Path) -> None:
    """Values 5 and 9 of the second op's input."""
    t = torch.zeros(BIG)
    dist.all_reduce(t)
    t[5], t[9] = float("nan"), float("inf")
    dist.all_reduce(t)
    (probe,) = told(watched)
    assert (probe.name, probe.seq, probe.a, probe.b) == ("nan", 1, 2, 5)


def test_what_is_sent_is_looked_at_what_is_received_is_not(watched: Path) -> None:
    t = torch.full((BIG,), float("nan"))
    dist.recv(t, src=0)
    assert told(watched) == []
    dist.send(t, dst=2)
    (probe,) = told(watched)
    assert (probe.peer, probe.a) == (2, BIG) and probe.flags & Flag.P2P


def test_a_sum_that_overflows_is_no_finding(watched: Path) -> None:
    dist.all_reduce(torch.full((BIG,), 1e38))
    assert told(watched) == []


def test_a_complex_number_is_one_value() -> None:
    bad = torch.zeros(8, dtype=torch.complex64)
    bad[5] = complex(float("nan"), float("inf"))
    assert probes.not_finite(bad) == probes.not_finite(bad.conj()) == (1, 5)


def test_small_and_whole_numbers_are_left_alone(watched: Path) -> None:
    dist.all_reduce(torch.full((BIG - 1,), float("nan")))
    dist.all_reduce(torch.zeros(4 * BIG, dtype=torch.int64))
    assert told(watched) == []


def test_the_norm_of_gradients_is_looked_at_and_other_small_numbers_are_not(watched: Path) -> None:
    """Of three sums of one number that is NaN, gradients are not finite at the third: the first
    bias's only. What is sent counts whatever its size."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model)
    nan = torch.full((1,), float("nan"))
    dist.all_reduce(nan.clone())
    optimizer.step()
    dist.all_reduce(nan.clone())
    model[0].bias.grad[3] = float("nan")
    dist.all_reduce(nan.clone())
    found = [(r.name, r.seq) for r in told(watched) if not r.name.startswith("checksum")]
    assert found == [("nan grad parameter 1", 1), ("nan", 2)]
    dist.send(torch.full((3,), float("nan")), dst=2)
    assert told(watched)[-1].a == 3


def test_the_parameter_is_named_at_the_optimizer_step(watched: Path) -> None:
    """Of a model whose middle bias got a NaN gradient; the one after it is clean."""
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8),
                                                        torch.nn.Linear(8, 2)))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model)
    bias = model.module[0].bias
    bias.grad[3] = float("nan")
    dist.all_reduce(torch.full((BIG,), float("nan")))
    optimizer.step()
    probe = next(r for r in told(watched) if r.name.startswith("nan grad"))
    assert (probe.name, probe.a, probe.seq) == ("nan grad 0.bias", 1, 1)


def test_checksums_say_which_replica_differs_and_where(watched: Path) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8),
                                                        torch.nn.Linear(8, 2)))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(21):
        gradients(model)
        optimizer.step()
        if core.CURRENT is not None and core.CURRENT.step == 20:
            with torch.no_grad():
                model.module[1].weight[0, 0] += 1
    sums = [(r.step, r.name, r.a, r.b) for r in told(watched)]
    name = "checksum 0.weight 0.bias 1.weight 1.bias"
    assert [(step, said) for step, said, _, _ in sums] == [(0, name), (10, name), (20, name)]
    assert sums[0][2:] == sums[1][2:] != sums[2][2:]
    parts = [int(b).to_bytes(8, "little", signed=True) for _, _, _, b in sums]
    assert [a == b for a, b in zip(parts[1], parts[2], strict=True)].index(False) == 2
    assert sum(a != b for a, b in zip(parts[1], parts[2], strict=True)) == 1


def test_of_local_sgd_by_a_hook_of_ddp_there_are_no_checksums(watched: Path) -> None:
    """Its replicas differ until an averager comes, however many steps later."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    state = post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=1)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(probes.EVERY + 1):
        gradients(model)
        optimizer.step()
    assert named(watched, "checksum") == []
    assert len(named(watched, "modes")) == 2


def test_parameters_that_no_ddp_has_are_summed_too(watched: Path) -> None:
    """Of two optimizers of a step each has its own row."""
    nets = [torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.0) for net in nets]
    for _ in range(2):
        for net, optimizer in zip(nets, optimizers, strict=True):
            gradients(net)
            optimizer.step()
    sums = [(r.step, r.seq, r.name) for r in told(watched)]
    name = "checksum-own parameter-0 parameter-1"
    assert sums == [(0, 0, name), (0, probes.MAX_RECORDS, name)]


def test_each_look_at_each_replica_has_its_own_row(watched: Path) -> None:
    """A GAN's two models and optimizers. A rank that can afford one look only is compared at that
    one: the models change between the two."""
    nets = [DistributedDataParallel(torch.nn.Linear(4, n)) for n in (2, 3)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    rows = [0, probes.MAX_LOOKS * probes.MAX_RECORDS]  # model by model, at the first look
    for net, optimizer in zip(nets, optimizers, strict=True):
        gradients(net)
        optimizer.step()
    assert [r.seq for r in told(watched)] == [*rows, *(row + probes.MAX_RECORDS for row in rows)]


def test_settings_of_each_optimizer_are_told_with_the_checksums(watched: Path) -> None:
    """Its first learning rate, and a number for all of its settings: also in a tensor on the host,
    not what counts its steps."""
    of = [{"lr": 0.5}, {"lr": 0.5, "momentum": 0.9}, {"lr": torch.tensor(0.25)}, {"lr": 0.5}]
    nets = [torch.nn.Linear(4, 2) for _ in of]
    optimizers = [
        torch.optim.SGD(net.parameters(), **each) for net, each in zip(nets, of, strict=True)
    ]
    optimizers[3].param_groups[0]["step"] = 7
    for _ in range(2):
        for net, optimizer in zip(nets, optimizers, strict=True):
            gradients(net)
            optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "settings"]
    assert [(r.step, r.seq) for r in found] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [struct.unpack("<d", struct.pack("<q", int(r.a)))[0] if type(r.a) is int else r.a
            for r in found] == [0.5, 0.5, 0.25, 0.5]  # fmt: skip
    assert len({r.b for r in found}) == 3 and found[0].b == found[3].b


def test_settings_on_a_device_are_not_read(watched: Path) -> None:
    """Neither a learning rate there, nor one of a tuple's numbers: that would wait for it."""
    there = torch.empty((), device="meta")
    nets = [torch.nn.Linear(4, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.5) for net in nets]
    optimizers[0].param_groups[0].update(betas=(0.9, None))
    optimizers[1].param_groups[0].update(betas=(0.9, there), other=there)
    for net, optimizer in zip(nets, optimizers, strict=True):
        gradients(net)
        optimizer.step()
    found = [r.b for r in read_rank(watched).of(Kind.PROBE) if r.name == "settings"]
    assert len(found) == 2 and found[0] == found[1]


def test_settings_say_to_what_gradients_were_clipped(watched: Path) -> None:
    """Of five steps with checksums: not at all, by two limits, to ask for the norm, and again not
    at all, where a step before had a limit."""
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(41):
        gradients(net)
        limit = {10: 0.1, 20: 0.2, 30: math.inf, 39: 0.1}.get(step)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=limit)
        optimizer.step()
    found = [r.b for r in read_rank(watched).of(Kind.PROBE) if r.name == "settings"]
    assert found[0] == found[3] == found[4] and len({*found[:3]}) == 3


def test_the_modes_of_what_fsdp_shards_are_told(watched: Path) -> None:
    """A layer in a model of two layers: 3 modules, each counted once, though one is in two
    units."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    for part in (net[0], net):
        fully_shard(part)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(11):
        net[1].train(step < 10)
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "modes"]
    assert [(r.step, r.seq, r.a, r.b) for r in found] == [(0, 0, 3, 3), (10, 0, 2, 3)]


def test_modes_of_a_model_that_nothing_wraps_are_told_once_it_was_evaluated(watched: Path) -> None:
    """Of 3 modules one stays in eval mode at first, then all; another model's do not count."""
    net, other = (torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(31):
        if step in (1, 20):
            (net if step == 20 else other).eval()
        if step == 11:
            net[0].eval()
        gradients(net)
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "modes-own"]
    assert [(r.step, r.a, r.b) for r in found] == [(0, 0, 0), (10, 0, 0), (20, 0, 3), (30, 0, 3)]


def test_the_numbers_that_a_loss_was_multiplied_by_are_told(watched: Path) -> None:
    """Of the first backward of every tenth step: 3 / 4 / 2 * 0.5 of a loss of 8, and of one that a
    scaler multiplies, by what it was before; then no number at all."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(21):
        loss = (weight * 8).sum()
        if step == 0:
            loss = loss * 3 / 4 / 2 * 0.5
        (scaler.scale(loss / 4) if step == 10 else loss).backward()
        (weight * 2).sum().backward()
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "loss scale"]
    bits = [struct.unpack("<q", struct.pack("<d", value))[0] for value in (1.5, 2.0, 8.0)]
    said = [(r.step, r.a, r.b) for r in found]
    assert said == [(0, 0.1875, bits[0]), (10, 0.25, bits[1]), (20, 1.0, bits[2])]


def test_the_ops_that_made_a_loss_are_told(watched: Path) -> None:
    """Of every tenth step: without numbers that it was multiplied by, and what a scaler adds."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(21):
        loss = weight.pow(2).sum() if step < 20 else weight.pow(2).mean() + weight.sum()
        (scaler.scale(loss / 4) if step == 10 else loss * 3).backward()
        optimizer.step()
    assert named(watched, "loss by ") == [
        (0, "SumBackward0 PowBackward0 AccumulateGrad"),
        (10, "SumBackward0 PowBackward0 AccumulateGrad"),
        (20, "AddBackward0 MeanBackward0 PowBackward0 AccumulateGrad"),
    ]


def test_the_modules_of_a_replica_are_told_with_what_they_are_set_to(watched: Path) -> None:
    """Each class once, without sizes, and none that is not torch's own."""

    class Own(torch.nn.Module):
        __constants__ = ("p",)
        p = 0.25

    layers = [torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 4), Own()]
    net = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(11):
        layers[1].p = 0.1 if step < 10 else 0.5  # type: ignore[assignment]
        layers[0].requires_grad_(step < 10)
        gradients(net)
        optimizer.step()
    assert named(watched, "modules ") == [
        (0, "Dropout(p=0.1) Linear() Sequential() parameters(trained=4)"),
        (10, "Dropout(p=0.5) Linear() Sequential() parameters(trained=2)"),
    ]


def test_zeros_that_a_rank_gives_to_sums_are_counted(watched: Path) -> None:
    """Of every tenth step: one with values, or with one value, a small one, one of several tensors,
    and a gather do not count."""
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    zeros = torch.zeros(BIG)
    for step in range(31):
        gradients(net)
        for tensor in (-zeros, torch.ones(BIG), zeros[:8].clone()):
            dist.all_reduce(tensor if step else torch.ones_like(tensor))
        if step == 20:
            dist.all_reduce(torch.cat([zeros, torch.ones(1)]))
            dist.reduce_scatter(torch.empty(BIG), [torch.zeros(BIG)] * 4)
        dist.all_gather([torch.empty(BIG) for _ in range(4)], zeros)
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "zeros"]
    size = probes.LEAST_BYTES
    assert [(r.step, r.a, r.b) for r in found] == [
        (10, size, size), (20, size, size), (30, size, size)
    ]  # fmt: skip


def test_gradients_that_an_optimizer_took_are_summed(watched: Path) -> None:
    """Equal ones give equal sums; a parameter without one does not count."""
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*net.parameters(), torch.nn.Parameter(torch.ones(3))], lr=0.1)
    for scale in (1.0, 1.0, 2.0):
        for _ in range(probes.EVERY):
            for p in net.parameters():
                p.grad = torch.arange(p.numel(), dtype=p.dtype).view_as(p) * scale + 1
            optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "gradients"]
    assert [(r.step, r.seq, r.b) for r in found] == [(0, 0, 2), (10, 0, 2), (20, 0, 2)]
    first, same, other = (r.a for r in found)
    assert first == same != other


def clears(how: str, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clear gradients in one of the ways of programs, or leave them."""
    if how in ("none", "zeros"):
        optimizer.zero_grad(set_to_none=how == "none")
    for p in net.parameters() if how in ("by hand", "data", "decayed") else ():
        assert p.grad is not None
        if how == "by hand":
            p.grad = None
        elif how == "data":
            p.grad.data.zero_()
        else:
            p.grad.mul_(0.9)


@pytest.mark.parametrize(
    ("how", "kept"),
    [("none", 0), ("zeros", 0), ("by hand", 0), ("data", 0), ("decayed", 0), ("not", 1)],
)
@pytest.mark.parametrize("backwards", [1, 3])
def test_a_backward_tells_whether_gradients_of_a_step_were_kept(
    watched: Path, how: str, kept: int, backwards: int
) -> None:
    """Of the steps that are looked at: the first of the next step's backwards tells."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(probes.EVERY + 2):
        clears(how if net[0].weight.grad is not None else "none", net, optimizer)
        for _ in range(backwards):
            net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "gradients kept"]
    assert [(r.step, r.a) for r in found] == [(0, kept), (probes.EVERY, kept)]


class Seen(TorchDispatchMode):
    """A program's own: the names of all ops."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_program_that_sees_each_op_sees_none_of_ours(watched: Path) -> None:
    def train() -> list[str]:
        model, scaler = torch.nn.Linear(4, 2), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Seen() as mode:
            for _ in range(3):
                (model(torch.ones(2, 4)).sum() / 2).backward()
                optimizer.step()
                optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        return mode.names

    seen = train()
    assert len(read_rank(watched).of(Kind.METRIC, "loss")) == 4
    hooks.uninstall()
    assert seen == train() and seen


def test_a_large_parameter_is_read_in_turns() -> None:
    big = torch.zeros(probes.MAX_ELEMENTS + 1, dtype=torch.int32)
    big[-1] = 7
    assert [int(probes.window(big, turn).sum()) for turn in (0, 1, 2)] == [0, 7, 0]
    assert probes.window(torch.zeros(0), 3).numel() == 0
    assert probes.window(torch.tensor(2.0), 3).tolist() == [2.0]


def test_they_can_be_left_out(without: Path) -> None:
    dist.all_reduce(torch.full((BIG,), float("nan")))
    assert told(without) == []


def test_their_time_has_a_limit(watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "FREE_NS", 0)
    monkeypatch.setattr(probes, "SHARE", 0.0)
    t = torch.zeros(16 * BIG)
    t[1] = float("nan")
    monkeypatch.setattr(probes, "now_ns", lambda: 2 * BIG)  # looked at: elements 0, BIG, 2 * BIG
    dist.all_reduce(t)
    assert told(watched) == []
    dist.all_reduce(torch.full((BIG,), float("nan")))
    assert [probe.a for probe in told(watched)] == [BIG]


@pytest.mark.parametrize(
    "large", [torch.ones(BIG, dtype=torch.complex64), torch.ones(BIG, 2)[:, 0]]
)
def test_what_cannot_be_read_in_part_is_left_where_there_is_no_time(
    watched: Path, monkeypatch: pytest.MonkeyPatch, large: torch.Tensor
) -> None:
    looks: list[torch.Tensor] = []
    monkeypatch.setattr(probes, "not_finite", looks.append)
    now = core.CURRENT
    assert now is not None
    probes.check_input(now, large)
    assert len(looks) == 1
    monkeypatch.setattr(probes, "FREE_NS", 0)
    monkeypatch.setattr(probes, "SHARE", 0.0)
    probes.check_input(now, large)
    assert len(looks) == 1


def test_gradients_are_counted_only_where_their_sum_is_not_finite(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting takes 20 times as long as a sum, and the op waits for it. A sparse one has none."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Embedding(8, 2, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model)
    model[1].weight.grad = None
    model[1](torch.tensor([1])).sum().backward()
    assert model[1].weight.grad.is_sparse
    optimizer.step()
    counted: list[torch.Tensor] = []
    original = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda t: (counted.append(t), original(t))[1])
    dist.all_reduce(torch.full((1,), float("nan")))
    assert [len(one) for one in counted] == [1]
    assert core.CURRENT is not None and core.CURRENT.guard.errors == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_small_tensor_before_large_ones_is_looked_at(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tensors are one op: the first one is looked at, whatever its size."""
    monkeypatch.setattr(probes, "FREE_NS", 0)
    monkeypatch.setattr(probes, "SHARE", 0.0)
    for value in (0.0, float("nan")):
        dist.all_reduce_coalesced([torch.full((1,), value), torch.zeros(BIG)])
    assert [probe.a for probe in told(watched)] == [1]
    assert core.CURRENT is not None and core.CURRENT.guard.errors == 0
