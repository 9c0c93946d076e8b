"""More kinds of ``kinds_of_training``: those that import much more of torch."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from kinds_of_training import WIDTH, Step, batch, sgd, train
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def sharded(mesh: DeviceMesh) -> Step:
    """FSDP2: each layer for itself, then what is left."""
    model = layers()
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return lambda step: train(model, optimizer, batch())


def fsdp() -> Step:
    return sharded(init_device_mesh("cpu", (dist.get_world_size(),)))


def hsdp() -> Step:
    """Half as many shards as ranks, or as many of an odd number, each held by several ranks."""
    world = dist.get_world_size()
    copies = 2 if world % 2 == 0 else 1
    names = ("replicate", "shard")
    return sharded(init_device_mesh("cpu", (copies, world // copies), mesh_dim_names=names))


def fsdp1() -> Step:
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    optimizer = sgd(model)
    return lambda step: train(model, optimizer, batch())


def tensors() -> Step:
    """Tensor parallel: the same batch on all ranks, columns then rows of the weights."""
    model = layers()
    plan = {str(k): ColwiseParallel() if k % 2 == 0 else RowwiseParallel() for k in range(4)}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, plan)
    optimizer = sgd(model)

    def do(step: int) -> torch.Tensor:
        torch.manual_seed(step)
        return train(model, optimizer, batch())

    return do


def piped() -> Step:
    """1F1B: a layer each rank, eight micro-batches."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(layers()[rank], rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda y, target: (y - target).pow(2).mean())
    optimizer = sgd(stage.submod)

    def do(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        torch.manual_seed(step)
        x, target = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
        given = (x,) if rank == 0 else ()
        schedule.step(*given, **({"target": target, "losses": losses} if rank == world - 1 else {}))
        optimizer.step()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return do


def ring() -> Step:
    """Hand-written data parallelism: each gradient goes once around in isend and irecv."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = layers()
    optimizer = sgd(model)

    def averaged(gradient: torch.Tensor) -> torch.Tensor:
        total, passing = gradient.clone(), gradient
        for _ in range(world - 1):
            coming = torch.empty_like(passing)
            to = dist.isend(passing, (rank + 1) % world)
            dist.irecv(coming, (rank - 1) % world).wait()
            to.wait()
            total, passing = total + coming, coming
        return total / world

    def do(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = averaged(parameter.grad)
        optimizer.step()
        return loss

    return do


KINDS: dict[str, Callable[[], Step]] = {
    "fsdp": fsdp, "hsdp": hsdp, "fsdp1": fsdp1, "tensors": tensors, "piped": piped, "ring": ring,
}  # fmt: skip
