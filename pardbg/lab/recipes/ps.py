"""Parameter server: one rank keeps the weights, the others compute gradients for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss
from pardbg.lab.recipes.shape import BATCH

SERVER = 0


def train(world: World, options: Options) -> None:
    if world.rank == SERVER:
        serve(world, options)
    else:
        work(world, options)


def serve(world: World, options: Options) -> None:
    model = gpt(options.seed).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    workers = range(1, world.size)
    # A message is one flat vector: its parts would be 100 messages. The last number is the loss.
    weights = parameters_to_vector(model.parameters()).detach()
    pushes = [torch.empty(len(weights) + 1, device=world.device) for _ in workers]

    for step in range(options.steps):
        with watched.span("pull"):
            sends = [dist.isend(weights, worker) for worker in workers]
            for send in sends:
                send.wait()
        with watched.span("push"):
            # A buffer per worker, so that all can send at once and none waits for another.
            receives = [dist.irecv(push, w) for push, w in zip(pushes, workers, strict=True)]
            for receive in receives:
                receive.wait()
        # Added in the order of ranks, not of arrival: sums of floats depend on it, and the same
        # training should give the same numbers again.
        total = torch.stack(pushes).sum(0)
        set_gradients(model, total[:-1])
        optimizer.step()
        weights = parameters_to_vector(model.parameters()).detach()
        watched.log(staleness=0)  # everybody computed on the newest weights
        world.report(step, total[-1].item())


def work(world: World, options: Options) -> None:
    # The same model, for its shape only: its weights are the server's. No optimizer, and so no
    # optimizer state: that is the server's alone.
    model = gpt(options.seed, options.pace_ms).to(world.device)
    weights = parameters_to_vector(model.parameters()).detach()
    text = Text(options.seed, world.device)
    mine = share(world.rank - 1, world.size - 1)

    for step in range(options.steps):
        with watched.span("pull"):
            dist.recv(weights, SERVER)
        vector_to_parameters(weights, model.parameters())
        tokens, targets = (part[mine] for part in text.batch(step))
        model.zero_grad()
        # Weighted by the share's size: the server's sum is then the mean over the whole batch,
        # also where 16 sequences do not divide by the workers.
        error = loss(model(tokens), targets) * (len(tokens) / BATCH)
        error.backward()
        with watched.span("push"):
            dist.send(torch.cat([gradients(model), error.detach().view(1)]), SERVER)
        watched.step(step)


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """Return all gradients as one vector, in the order of the parameters."""
    return parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])


def set_gradients(model: torch.nn.Module, vector: torch.Tensor) -> None:
    """Set all gradients from one vector, in the order of the parameters."""
    parameters = list(model.parameters())
    parts = vector.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


if __name__ == "__main__":
    main("ps", train)
