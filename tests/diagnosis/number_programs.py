"""Data parallel training that ends well and is wrong, or costs more than it should:
`torchrun … -m tests.diagnosis.number_programs WHAT RANK STEP`. Nothing of pardbg is in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn import functional
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 60
BY_DDP = ("wrapped-twice", "averaged-twice", "same-data-ddp", "fine-ddp",
          "keeps-gradients-ddp", "fine-accumulates-ddp", "never-clears-ddp", "eval-ddp",
          "scale-differs-ddp", "fine-weights-ddp", "zeros-ddp", "dropout-ddp", "loss-ddp",
          "fine-dummy-ddp", "frozen-ddp")  # fmt: skip


IN_STEP = ("accumulates-less-in-step", "fine-accumulates-in-step", "same-data-in-step")


class Scattering(torch.optim.SGD):
    """Sums gradients in parts within its step: each rank steps its part and gathers the others'."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        size = dist.get_world_size()
        for p in self.param_groups[0]["params"]:
            flat, new = (
                nn.functional.pad(t.flatten(), (0, -p.numel() % size)) for t in (p.grad, p)
            )
            own = torch.empty(len(flat) // size)
            dist.reduce_scatter_tensor(own, flat / size)
            dist.all_gather_into_tensor(flat, new.chunk(size)[dist.get_rank()] - 0.01 * own)
            p.copy_(flat[: p.numel()].view_as(p))


class Job(torch.utils.data.IterableDataset[torch.Tensor]):
    """One rank's training."""

    def __init__(self, what: str, who: int, step: int) -> None:
        self.what, self.step = what, step
        self.rank = dist.get_rank()
        self.mine, self.steps = self.rank == who, 0
        torch.manual_seed(self.rank if what in ("init-differs", "sharded-never-equal") else 0)
        self.model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        if what == "dropout-ddp":
            self.model.append(nn.Dropout(0.5 if self.mine else 0.1))  # type: ignore[operator]
        self.parameters = list(self.model.parameters())
        for parameter in self.parameters if what == "zeros-ddp" and self.mine else ():
            parameter.register_hook(lambda grad: grad * (self.steps < step))
        if what in BY_DDP:
            self.model = DDP(self.model, find_unused_parameters=what == "frozen-ddp")
        if what == "wrapped-twice":
            self.model = DDP(self.model)
        rate = 0.02 if what == "lr-at-first" and self.mine else 0.01
        decay = 0.1 if what == "decay-differs" and self.mine else 0.0
        by = Scattering if what.endswith("in-step") else torch.optim.SGD
        self.optimizer = by(self.parameters, lr=rate, momentum=0.9, weight_decay=decay)
        same = what.startswith("same-data")
        self.data = torch.Generator().manual_seed(7 if same else 100 + self.rank)

    def train(self) -> None:
        skips = self.what.startswith("skips")
        loader = torch.utils.data.DataLoader(self, batch_size=None)
        batches = iter(self if self.what.endswith("by-hand") else loader)
        for number in range(STEPS + (skips and self.mine)):
            time.sleep(0.02)
            at = number >= self.step
            if self.what in ("eval-ddp", "eval-by-hand") and self.mine and number == self.step:
                self.model.eval()
            if self.what.startswith("frozen") and self.mine and number == self.step:
                for parameter in self.parameters[:2]:
                    parameter.requires_grad_(False)
            if self.what == "lr-differs" and self.mine and at:
                self.optimizer.param_groups[0]["lr"] = 0.03
            keeps = self.what.startswith("keeps") and self.mine and at
            if not (keeps or self.what.startswith("never-clears")):
                self.optimizer.zero_grad()
            if "accumulates" in self.what:
                self.accumulate(batches, at)
            elif self.what == "zeros-ddp":
                self.steps += 1
            x = next(batches)
            if skips and self.mine and number == self.step:
                x[0] = float("nan")
            loss = (self.model(x) - x[:, :8]).pow(2).mean()
            if self.what == "loss-ddp" and self.mine:
                loss = (self.model(x) - x[:, :8]).abs().mean()
            if self.what == "fine-dummy-ddp" and self.mine:  # a rank that has no data takes part
                loss = loss * 0
            if self.what.startswith("scale-differs") and not self.mine:
                loss = loss / dist.get_world_size()
            if self.what == "fine-weights-ddp":  # of the samples that a rank has more than others
                loss = loss * (1.5 if self.rank == 0 else 0.5 if self.rank == 1 else 1.0)
            if self.what.startswith("skips-nan") and not torch.isfinite(loss):
                continue
            if self.what == "fine-clears-twice":
                self.optimizer.zero_grad()
            loss.backward()
            if self.what.startswith("skips-late") and not torch.isfinite(loss):
                continue
            if self.what == "zeros-by-hand" and self.mine and at:
                self.optimizer.zero_grad(set_to_none=False)
            if self.what == "steps-early" and at:
                self.optimizer.step()
            if self.what not in (*BY_DDP, *IN_STEP) or (self.what == "averaged-twice" and at):
                self.average_by_shards() if self.what.startswith("sharded") else self.average()
            if self.what != "steps-early" or not at:
                self.optimizer.step()
            if self.rank == 0 and number % 10 == 0:
                print(f"step {number} loss {loss.item():.4f}", flush=True)

    def accumulate(self, batches: Iterator[torch.Tensor], at: bool) -> None:
        """Run the backwards before the one that is averaged."""
        last = self.what == "fine-accumulates-once-less" and self.step == self.steps
        less = self.mine and ((at and self.what.startswith("accumulates-less")) or last)
        self.steps += 1
        apart = self.model.no_sync() if isinstance(self.model, DDP) else nullcontext()
        with apart:
            for _ in range(2 if less else 3):
                self.model(next(batches)).pow(2).mean().backward()

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(16, 64, generator=self.data)

    def average(self) -> None:
        works = []
        for at, parameter in enumerate(self.parameters):
            if self.what == "leaves-out" and at == self.step // 10:
                continue
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
            works.append(dist.all_reduce(parameter.grad, async_op=True))
        if self.what != "never-waited":
            for work in works:
                assert work is not None
                work.wait()

    def average_by_shards(self) -> None:
        """Each rank sums its part; then the parts are gathered."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
        flat = nn.functional.pad(flat, (0, -flat.numel() % dist.get_world_size()))
        own = torch.empty(flat.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(own, flat)
        dist.all_gather_into_tensor(flat, own)
        sizes = [grad.numel() for grad in grads]
        for grad, part in zip(grads, flat[: sum(sizes)].split(sizes), strict=True):
            grad.copy_(part.view_as(grad))


def pipeline(what: str) -> None:
    """Two stages, replicated on the other ranks: gradients are averaged over a stage's replicas."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    at, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    torch.manual_seed(at)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    stage = PipelineStage(module, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(7 if what == "same-data-pipeline" else 7 + replica)
    for _ in range(STEPS):
        time.sleep(0.02)
        x, y = torch.randn(2, 32, 64, generator=data)
        schedule.step(*(() if at else (x,)), **({"target": y} if at else {}))
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size() // 2
            dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        if what == "clips-pipeline":
            nn.utils.clip_grad_norm_(module.parameters(), 0.01)
        elif what == "fine-clips-pipeline":
            norm = nn.utils.clip_grad_norm_(module.parameters(), float("inf")) ** 2
            dist.all_reduce(norm, group=mesh.get_group("pp"))
            nn.utils.clip_grads_with_norm_(module.parameters(), 0.01, norm.sqrt())
        optimizer.step()
        optimizer.zero_grad()


def local_sgd(period: int) -> None:
    """All parameters are averaged, one after the other, after so many steps of this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for number in range(1, STEPS // 4 * period + 1):
        time.sleep(0.02)
        x = torch.randn(16, 64, generator=data)
        optimizer.zero_grad()
        (model(x) - x[:, :8]).pow(2).mean().backward()
        optimizer.step()
        for parameter in model.parameters() if number % period == 0 else ():
            with torch.no_grad():
                dist.all_reduce(parameter)
                parameter.div_(dist.get_world_size())


def zero(what: str, mine: bool, since: int) -> None:
    """Optimizer state in parts: each rank steps its part of the parameters, and gathers all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    parameters, size = list(model.parameters()), dist.get_world_size()
    flat = nn.utils.parameters_to_vector(parameters).detach()
    whole = nn.functional.pad(flat, (0, -flat.numel() % size))
    own = nn.Parameter(whole.chunk(size)[dist.get_rank()].clone())
    optimizer = torch.optim.Adam([own], lr=0.01 if what == "rate-zero" and mine else 0.001)

    def gather() -> None:
        dist.all_gather_into_tensor(whole, own.detach())
        nn.utils.vector_to_parameters(whole[: flat.numel()], parameters)

    for number in range(STEPS):
        time.sleep(0.02)
        x = torch.randn(16, 64, generator=data)
        (model(x) - x[:, :8]).pow(2).mean().backward()
        grads = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]) / size
        own.grad = torch.empty_like(own)
        dist.reduce_scatter_tensor(
            own.grad, nn.functional.pad(grads, (0, whole.numel() - len(grads)))
        )
        model.zero_grad()
        early = number >= since and "early" in what and (mine or what == "gathers-early-zero")
        if early:
            gather()
        optimizer.step()
        if not early:
            gather()


def fsdp(what: str, mine: bool, since: int) -> None:
    """Parameters in shards, each stepped by its rank's optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    whole = (
        FullyShardedDataParallel(model, device_id=torch.device("cpu")) if "own" in what else None
    )
    for module in (model[0], model[2], model) if whole is None else ():
        fully_shard(module)
    rate = 0.01 if what == "rate-fsdp" and mine else 0.001
    leaves_out = what == "fine-leaves-out-fsdp" or (what.startswith("leaves-out") and mine)
    parameters = list(model.parameters())[: -1 if leaves_out else None]
    parts = (parameters[:1], parameters[1:]) if "two" in what else (parameters,)
    # in which order a rank steps its optimizers is its own matter
    optimizers = [torch.optim.AdamW(of, lr=rate) for of in parts[:: -1 if mine else 1]]
    same = what == "same-data-fsdp"
    data = torch.Generator().manual_seed(7 if same else 100 + dist.get_rank())
    for number in range(STEPS):
        time.sleep(0.02)
        model.train(not (what == "eval-fsdp" and mine and number >= since))
        if what != "never-clears-fsdp":
            model.zero_grad()
        x = torch.randn(16, 64, generator=data)
        ((whole or model)(x) - x[:, :8]).pow(2).mean().backward()
        alone = what == "clips-shards-own-fsdp"
        limit = 10.0 if mine and number >= since and not alone else 0.1
        if whole is not None and not alone:
            whole.clip_grad_norm_(limit)
        elif what.startswith("clips"):
            nn.utils.clip_grad_norm_((whole or model).parameters(), limit)
        if not (what == "no-step-fsdp" and mine and number >= since and number % 5 == 0):
            for optimizer in optimizers:
                optimizer.step()


def gathers(what: str, mine: bool, since: int) -> None:
    """Sequence parallel: ranks gather what each computed of its part, and the loss is of all."""
    torch.manual_seed(0)
    model, head = nn.Linear(64, 8), nn.Linear(8, 1)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for number in range(STEPS):
        time.sleep(0.02)
        optimizer.zero_grad()
        own = model(torch.randn(16, 64, generator=data))
        if what == "nan-gathers" and mine and number == since:
            own = own + torch.zeros_like(own).index_put((torch.tensor(0),), torch.tensor(torch.nan))
        if what == "fine-gathers":  # the largest of rows that are masked out
            largest = own.detach().masked_fill(own > 0, -torch.inf)
            dist.all_gather([torch.empty_like(own) for _ in range(dist.get_world_size())], largest)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.detach())
        parts[dist.get_rank()] = own
        head(torch.cat(parts)).pow(2).mean().backward()
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = nn.utils.parameters_to_vector(grads) / dist.get_world_size()
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat, grads)
        optimizer.step()


def equal(what: str, mine: bool, since: int) -> None:
    """Tensors of one size, averaged by hand one after the other: one rank leaves the third out. All
    end after as many averages."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, bias=False) for _ in range(4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    averaged, number = 0, 0
    while averaged < 4 * STEPS:
        time.sleep(0.02)
        x = torch.randn(16, 64, generator=data)
        optimizer.zero_grad()
        (model(x) - x).pow(2).mean().backward()
        less = mine and (number == since if what == "once-less-equal" else number >= since)
        for at, layer in enumerate(layers):
            if (at != 2 or not less) and averaged < 4 * STEPS:
                assert layer.weight.grad is not None
                layer.weight.grad /= dist.get_world_size()
                dist.all_reduce(layer.weight.grad)
                averaged += 1
        optimizer.step()
        number += 1


def ring(mine: bool, since: int) -> None:
    """Gradients go around a ring and are added up; a rank leaves one receive out, so that its
    buffer stays as it was. Nobody waits for the last message of the rank before it."""
    torch.manual_seed(0)
    rank, size, sent = dist.get_rank(), dist.get_world_size(), []
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(100 + rank)
    for number in range(STEPS):
        time.sleep(0.02)
        x = torch.randn(16, 64, generator=data)
        optimizer.zero_grad()
        (model(x) - x[:, :8]).pow(2).mean().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        own = total = nn.utils.parameters_to_vector(grads) / size
        for hop in range(size - 1):
            got = torch.zeros_like(own)
            sent.append((dist.isend(own, (rank + 1) % size), own))
            if not mine or number != since or hop:
                dist.recv(got, (rank - 1) % size)
            own, total = got, total + got
        nn.utils.vector_to_parameters(total, grads)
        optimizer.step()


def epochs(what: str) -> None:
    """A shuffled part of the samples for each rank, in another order each time where the sampler is
    told so; and an evaluation after each, in the same order."""
    torch.manual_seed(0)
    samples = torch.randn(16 * 4 * dist.get_world_size(), 64)
    sampler, other = (torch.utils.data.DistributedSampler(samples) for _ in range(2))
    model = DDP(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(STEPS // 4):
        if what == "fine-epochs":
            sampler.set_epoch(epoch)
        for x in torch.utils.data.DataLoader(samples, 16, sampler=sampler):
            time.sleep(0.02)
            optimizer.zero_grad()
            (model(x) - x[:, :8]).pow(2).mean().backward()
            optimizer.step()
        model.eval()
        for x in torch.utils.data.DataLoader(samples, 16, sampler=other):
            model(x)
        model.train()


def join() -> None:
    """A rank has fewer batches: DDP takes part in the others' averages for it."""
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(4):
        with model.join():
            for _ in range(STEPS // 4 - 5 * (dist.get_rank() == 0)):
                time.sleep(0.02)
                x = torch.randn(16, 64, generator=data)
                optimizer.zero_grad()
                (model(x) - x[:, :8]).pow(2).mean().backward()
                optimizer.step()


def gan() -> None:
    """Two optimizers in turn: each clears its own gradients alone, before its own backward."""
    torch.manual_seed(0)
    critic, maker = nn.Linear(64, 1), nn.Linear(8, 64)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (critic, maker)]
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        time.sleep(0.02)
        for net, optimizer in zip((critic, maker), optimizers, strict=True):
            made = maker(torch.randn(16, 8, generator=data))
            real = critic(torch.randn(16, 64, generator=data))
            loss = critic(made).mean() - real.mean() if net is critic else -critic(made).mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            for p in net.parameters():
                assert p.grad is not None
                p.grad /= dist.get_world_size()
                dist.all_reduce(p.grad)
            optimizer.step()


def to_all(what: str) -> None:
    """Tokens go to experts on other ranks, told how many before, and come back; where nothing is
    wrong, all report one loss."""
    torch.manual_seed(0)
    router, expert, head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)
    parameters = [*router.parameters(), *expert.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    size = dist.get_world_size()
    data = torch.Generator().manual_seed(7 if what == "same-data-to-all" else 7 + dist.get_rank())
    for _ in range(STEPS):
        time.sleep(0.02)
        x = torch.randn(8 * size, 64, generator=data)
        optimizer.zero_grad()
        counts = torch.full((size,), 8)
        dist.all_to_all_single(torch.empty_like(counts), counts)
        away = functional.all_to_all_single(torch.empty_like(x), router(x))
        back = functional.all_to_all_single(torch.empty_like(x), expert(away).relu())
        loss = (head(back) - x[:, :8]).pow(2).mean()
        (functional.all_reduce(loss) / size if what == "fine-to-all" else loss).backward()
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= size
            dist.all_reduce(parameter.grad)
        optimizer.step()


def tensor_parallel(mine: bool, since: int) -> None:
    """Each rank has a part of the hidden units, and all take one loss of their sum; one rank once
    skips a batch."""
    torch.manual_seed(dist.get_rank())
    into, out = nn.Linear(64, 16), nn.Linear(16, 8, bias=False)
    optimizer = torch.optim.SGD([*into.parameters(), *out.parameters()], lr=0.01)
    data = torch.Generator().manual_seed(7)
    for number in range(STEPS):
        time.sleep(0.02)
        for _ in range(2 if mine and number == since else 1):
            x, y = torch.randn(64, 64, generator=data), torch.randint(8, (64,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(functional.all_reduce(out(into(x).relu())), y).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    if sys.argv[1].endswith("gan"):
        gan()
    elif sys.argv[1].endswith("gathers"):
        gathers(sys.argv[1], int(sys.argv[2]) == dist.get_rank(), int(sys.argv[3]))
    elif sys.argv[1].endswith("fsdp"):
        fsdp(sys.argv[1], int(sys.argv[2]) == dist.get_rank(), int(sys.argv[3]))
    elif sys.argv[1].endswith("less-equal"):
        equal(sys.argv[1], int(sys.argv[2]) == dist.get_rank(), int(sys.argv[3]))
    elif sys.argv[1].endswith("ring"):
        ring(sys.argv[1] != "fine-ring" and int(sys.argv[2]) == dist.get_rank(), int(sys.argv[3]))
    elif sys.argv[1] in ("same-order", "fine-epochs"):
        epochs(sys.argv[1])
    elif sys.argv[1].endswith("tp"):
        mine = sys.argv[1] != "fine-tp" and int(sys.argv[2]) == dist.get_rank()
        tensor_parallel(mine, int(sys.argv[3]))
    elif sys.argv[1].endswith("to-all"):
        to_all(sys.argv[1])
    elif sys.argv[1].endswith("join"):
        join()
    elif sys.argv[1].endswith("zero"):
        zero(sys.argv[1], int(sys.argv[2]) == dist.get_rank(), int(sys.argv[3]))
    elif sys.argv[1].endswith("local-sgd"):
        other = sys.argv[1].startswith("other") and int(sys.argv[2]) == dist.get_rank()
        local_sgd(5 if other else 4)
    elif sys.argv[1].endswith("pipeline"):
        pipeline(sys.argv[1])
    else:
        train()
    dist.barrier()
    dist.destroy_process_group()


def train() -> None:
    Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).train()


if __name__ == "__main__":
    main()
