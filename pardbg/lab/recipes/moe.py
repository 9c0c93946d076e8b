"""Mixture of experts: in two of the blocks eight MLPs replace one, two on each rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import Block, gpt, loss
from pardbg.lab.recipes.shape import EXPERTS, MOE_BLOCKS, WIDTH

NUDGE = 0.02
"""Step by which the bias of an expert moves that had too many tokens, or too few."""


class Experts(nn.Module):
    """Replacement of a block's MLP: a router, and this rank's share of the experts."""

    def __init__(self, mlps: Sequence[nn.Module], world: World, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        each = EXPERTS // world.size
        self.mine = nn.ModuleList(mlps[world.rank * each : (world.rank + 1) * each])
        self.bias = torch.zeros(EXPERTS)
        """Bias added to the scores only for the choice of experts, so that no expert starves."""
        self.counts = torch.zeros(EXPERTS, dtype=torch.int64)
        """Number of this rank's tokens for each expert in the last forward."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        expert = (scores.detach() + self.bias.to(x.device)).argmax(-1)
        weight = scores.gather(1, expert[:, None])  # through it the router gets its gradient
        self.counts = torch.bincount(expert, minlength=EXPERTS)

        # How many tokens come to my experts, from each rank: known to their senders only.
        arriving = torch.empty_like(self.counts)
        dist.all_to_all_single(arriving, self.counts, group=self.group)
        arriving = arriving.view(-1, len(self.mine))  # [rank it comes from, my expert]
        leaving = self.counts.view(-1, len(self.mine))  # [rank it goes to, its expert]
        send, receive = leaving.sum(1).tolist(), arriving.sum(1).tolist()

        # Dispatch: sorted by expert, the tokens for each rank lie next to each other. These two
        # know their backward: gradients go the other way round.
        order = expert.argsort(stable=True)
        here = all_to_all_single_autograd(tokens[order], receive, send, self.group)
        done = self.compute(here, arriving)
        # Combine: the same way back, and into the old order.
        back = all_to_all_single_autograd(done, send, receive, self.group)
        home = torch.empty_like(tokens).index_copy(0, order, back)
        return (home * weight).view_as(x)

    def compute(self, here: Tensor, arriving: Tensor) -> Tensor:
        """Return each row's output of its expert. Rows come by rank, and per rank by expert."""
        parts = here.split(arriving.flatten().tolist())
        of_expert = [torch.cat(parts[i :: len(self.mine)]) for i in range(len(self.mine))]
        made = [mlp(rows) for mlp, rows in zip(self.mine, of_expert, strict=True)]
        pieces = [m.split(n.tolist()) for m, n in zip(made, arriving.T, strict=True)]
        return torch.cat([piece for of_rank in zip(*pieces, strict=True) for piece in of_rank])


def build(world: World, options: Options) -> tuple[nn.Sequential, dict[int, Experts]]:
    """Return the GPT with experts in some blocks, and the experts by block. Every rank makes all of
    them from the same seed and keeps its own."""
    # The ranks of the default group again, under a name of their own: DDP's traffic stays apart.
    group = dist.new_group(group_desc="ep")
    model = gpt(options.seed, options.pace_ms)
    layers: dict[int, Experts] = {}
    for number in MOE_BLOCKS:
        block = model[1 + number]  # 0 is the embedding
        assert isinstance(block, Block)
        mlps = [Block(0.0).mlp for _ in range(EXPERTS)]
        layers[number] = Experts(mlps, world, group)
        block.mlp = nn.Sequential(layers[number])
    return model.to(world.device), layers


def balance(layers: dict[int, Experts], world: World) -> None:
    """Count tokens over all ranks and adjust: experts with more than their share become less
    likely. 128 more bytes a step. Integers, so that all ranks get equal results."""
    counts = torch.stack([layer.counts for layer in layers.values()])
    dist.all_reduce(counts)
    for (number, layer), load in zip(layers.items(), counts.cpu(), strict=True):
        layer.bias += NUDGE * (load.float().mean() - load).sign()
        if world.rank == 0:  # for the screen: tokens per expert in this step
            watched.log(**{f"block {number} expert/{e}": n for e, n in enumerate(load.tolist())})


def train(world: World, options: Options) -> None:
    model, layers = build(world, options)
    # DDP must leave the experts alone: each rank has others.
    names = [name for name, _ in model.named_parameters() if ".mine." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    replicas = DistributedDataParallel(model, bucket_cap_mb=0.5)
    experts = [p for layer in layers.values() for p in layer.mine.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options):
        error = loss(replicas(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        for p in experts:  # the sum over all ranks' tokens; the loss is the mean over ranks
            assert p.grad is not None
            p.grad /= world.size
        optimizer.step()
        balance(layers, world)

        world.report_mean(step, error)


if __name__ == "__main__":
    main("moe", train)
