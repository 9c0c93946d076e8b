"""Layouts by hand beyond tensor parallelism: a vocabulary cut over ranks, positions of each sample
(context parallelism), experts, parameters gathered on demand, statistics kept in buffers. Each has
a switch for the mistakes that programmers make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import pardbg_agent
from tests.same.cuts import Cut, Tp, _Gather, _Reduce, _Scatter, copied
from tests.same.model import LENGTH, WIDE, WORDS, Attention, Block, Decoder, Faults

EXPERTS = 4
Get = Callable[[Tensor], Tensor]


# -- vocabulary


class VocabHead(nn.Module):
    """Logits of the rank's words."""

    def __init__(self, tp: Tp) -> None:
        super().__init__()
        self.tp = tp
        self.weight = tp.part(torch.randn(WORDS, WIDE) * WIDE**-0.5, 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(copied(x, self.tp, False), self.weight)


def vocab_loss(logits: Tensor, tokens: Tensor, tp: Tp, faults: Faults) -> Tensor:
    """Mean cross-entropy of the next token, from (samples, LENGTH, WORDS / ranks)."""
    if faults.at("gathered"):  # already all of them, and taken for a part
        logits = _Gather.apply(logits.transpose(1, 2), tp, True).transpose(1, 2)
    logits, wanted = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    most = logits.detach().amax(-1, keepdim=True)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=tp.group)
    logits = logits - most
    total = _Reduce.apply(logits.exp().sum(-1), tp.group)
    at = (tp.at + 1) % tp.size if faults.at("mask") else tp.at
    place = wanted - at * logits.shape[-1]
    own = (place >= 0) & (place < logits.shape[-1])
    found = logits.gather(1, (place * own).unsqueeze(1)).squeeze(1) * own
    return (total.log() - _Reduce.apply(found, tp.group)).mean()


# -- context


class ContextAttention(Attention):
    """Queries of the rank's positions, keys and values of all."""

    def __init__(self, tp: Tp, places: Tensor) -> None:
        super().__init__(Tp())
        self.context, self.places = tp, places

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        k, v = (_Gather.apply(part(x), self.context, True) for part in (self.k, self.v))
        q, k, v = (
            y.view(rows, y.shape[1], self.heads, -1).transpose(1, 2) for y in (self.q(x), k, v)
        )
        own = self.places.chunk(self.context.size)[self.context.at]
        mask = own.unsqueeze(1) >= self.places
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(rows, length, -1))


class ContextDecoder(Decoder):
    """Of (samples, the rank's positions)."""

    def __init__(self, tp: Tp, zigzag: bool, faults: Faults) -> None:
        super().__init__(faults=faults)
        self.context, self.order = tp, order(tp, zigzag)
        seen = self.order.flip(0) if faults.at("order") else self.order
        for block in self.blocks:
            at = ContextAttention(tp, seen)
            at.load_state_dict(block.attn.state_dict())
            block.attn = at

    def forward(self, tokens: Tensor) -> Tensor:
        own = self.order.chunk(self.context.size)[self.context.at]
        x = self.embed(tokens) + self.places(own)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def order(tp: Tp, zigzag: bool) -> Tensor:
    """Positions in the order of the ranks that have them; zigzag: a pair of chunks each."""
    if not zigzag:
        return torch.arange(LENGTH)
    chunks = torch.arange(LENGTH).chunk(2 * tp.size)
    return torch.cat([c for at in range(tp.size) for c in (chunks[at], chunks[-1 - at])])


def context_loss(model: ContextDecoder, tokens: Tensor, faults: Faults) -> Tensor:
    """The rank's part of the mean cross-entropy of the next token."""
    tp, rows = model.context, len(tokens)
    own = model.order.chunk(tp.size)[tp.at]
    mine = tokens[:, own]
    if faults.at("edge"):  # the next token of a chunk's last one is in another chunk
        wanted = torch.cat([mine[:, 1:], torch.full((rows, 1), -100)], 1)
    else:
        wanted = torch.cat([tokens[:, 1:], torch.full((rows, 1), -100)], 1)[:, own]
    logits = model(mine)
    total = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    number = (wanted >= 0).sum() if faults.at("local-tokens") else rows * (LENGTH - 1)
    return total / number


# -- experts


class Experts(nn.Module):
    """Each token goes to one of EXPERTS, of which a rank has some: tokens of all ranks come to
    each, and the sum of what they make of them goes back."""

    def __init__(self, ep: Tp, local: bool, faults: Faults, at: int) -> None:
        super().__init__()
        self.ep, self.faults, self.at = ep, faults, at
        self.router = nn.Linear(WIDE, EXPERTS, bias=False)
        made = [nn.Sequential(Cut(WIDE, 2 * WIDE, Tp(), 0), nn.GELU(), Cut(2 * WIDE, WIDE, Tp(), 0))
                for _ in range(EXPERTS)]  # fmt: skip
        each = EXPERTS // ep.size
        self.mine = range(ep.at * each, (ep.at + 1) * each)
        names = [str(n - self.mine[0] if local else n) for n in self.mine]
        self.experts = nn.ModuleDict(zip(names, [made[n] for n in self.mine], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        ep, shape = self.ep, x.shape
        weights, chosen = self.router(x).softmax(-1).flatten(0, 1).max(-1)
        tokens = x.flatten(0, 1)
        if ep.size > 1:
            tokens = _Gather.apply(tokens.unsqueeze(0), ep, True).squeeze(0)
            others = [torch.empty_like(chosen) for _ in range(ep.size)]
            dist.all_gather(others, chosen, group=ep.group)
            chosen = torch.cat(others)
        out = torch.zeros_like(tokens)
        for number, expert in zip(self.mine, self.experts.values(), strict=True):
            if self.faults.at("next-expert", self.at):
                number = (number + 1) % EXPERTS
            out = out + expert(tokens) * (chosen == number).unsqueeze(1)
        if ep.size > 1:
            out = _Scatter.apply(out.unsqueeze(0), ep).squeeze(0)
        return (out * weights.unsqueeze(1)).view(shape)


def with_experts(ep: Tp, local: bool, faults: Faults) -> Decoder:
    model = Decoder(faults=faults)
    for at, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        block.mlp = Experts(ep, local, faults, at)  # type: ignore[assignment]
    return model


# -- parameters gathered on demand


class Gathered:
    """ZeRO 3 by hand: each rank has a flat shard of every parameter; the optimizer steps shards."""

    def __init__(self, model: nn.Module, faults: Faults) -> None:
        self.model, self.faults = model, faults
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shards: dict[str, nn.Parameter] = {}
        for name, p in model.named_parameters():
            each = -(-p.numel() // self.size)
            part = p.detach().flatten()[each * self.rank : each * (self.rank + 1)].clone()
            shard = self.shards[name] = nn.Parameter(part)
            offset = min(each * self.rank, p.numel())
            pardbg_agent.layout(shard, (p.numel(),), (offset,), name)

    def gather(self) -> None:
        for name, p in self.model.named_parameters():
            each = -(-p.numel() // self.size)
            mine = torch.zeros(each, dtype=p.dtype)
            mine[: self.shards[name].numel()] = self.shards[name].detach()
            parts = [torch.empty_like(mine) for _ in range(self.size)]
            dist.all_gather(parts, mine)
            with torch.no_grad():
                p.copy_(torch.cat(parts)[: p.numel()].view_as(p))

    def scatter(self) -> None:
        for name, p in self.model.named_parameters():
            grad = p.grad
            assert grad is not None
            dist.all_reduce(grad)
            grad = grad if self.faults.at("summed") else grad / self.size
            each = -(-p.numel() // self.size)
            mine = grad.flatten()[each * self.rank : each * (self.rank + 1)]
            self.shards[name].grad = mine.clone()
            p.grad = None


# -- statistics in buffers


class Running(nn.Module):
    """Passes on what it gets, and keeps the mean of its features over all samples."""

    mean: Tensor

    def __init__(self, group: Any, sync: bool, faults: Faults) -> None:
        super().__init__()
        self.group, self.sync, self.faults = group, sync, faults
        self.register_buffer("mean", torch.zeros(WIDE))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            new = x.flatten(0, -2).mean(0)
            if self.sync:
                dist.all_reduce(new, group=self.group)
                new /= 1 if self.faults.at("mean-summed") else dist.get_world_size(self.group)
            self.mean.lerp_(new, 0.5)
        return x


class RunningDecoder(Decoder):
    def __init__(self, group: Any, sync: bool, faults: Faults) -> None:
        super().__init__(faults=faults)
        self.norm = nn.Sequential(Running(group, sync, faults), self.norm)  # type: ignore[assignment]
