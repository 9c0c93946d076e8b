"""A small decoder whose layers may be cut over ranks, with places for mistakes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.same.cuts import Cut, Tp, copied, reduced

WIDE, HEADS, LENGTH, WORDS, BLOCKS = 32, 4, 8, 48, 3


class Faults:
    """What is done wrong, and in which block."""

    def __init__(self, name: str = "", block: int = -1) -> None:
        self.name, self.block = name, block

    def at(self, name: str, block: int = -1) -> bool:
        return self.name == name and self.block in (block, -1)


class Attention(nn.Module):
    def __init__(self, tp: Tp) -> None:
        super().__init__()
        self.heads = HEADS // tp.size
        self.q, self.k, self.v = (Cut(WIDE, WIDE, tp, 0) for _ in range(3))
        self.proj = Cut(WIDE, WIDE, tp, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        q, k, v = (
            layer(x).view(rows, length, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    def __init__(self, tp: Tp) -> None:
        super().__init__()
        self.up, self.down = Cut(WIDE, 4 * WIDE, tp, 0), Cut(4 * WIDE, WIDE, tp, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, at: int, tp: Tp, positions: bool, faults: Faults) -> None:
        super().__init__()
        self.at, self.tp, self.positions, self.faults = at, tp, positions, faults
        self.norm1, self.attn = nn.LayerNorm(WIDE), Attention(tp)
        self.norm2, self.mlp = nn.LayerNorm(WIDE), Mlp(tp)

    def forward(self, x: Tensor) -> Tensor:
        wrong, at = self.faults.at, self.at
        y = copied(self.norm1(x), self.tp, self.positions, wrong("copy-attn", at))
        x = x + reduced(self.attn(y), self.tp, self.positions)
        y = copied(self.norm2(x), self.tp, self.positions, wrong("copy-mlp", at))
        fault = "none" if wrong("not-reduced", at) else "twice" if wrong("twice", at) else ""
        y = reduced(self.mlp(y), self.tp, self.positions, fault)
        if wrong("scaled", at):
            y = y * 1.25
        if wrong("no-residual", at):
            return y
        return x + y


class Decoder(nn.Module):
    """Tokens (samples, LENGTH) to logits (samples, LENGTH, WORDS)."""

    def __init__(
        self, tp: Tp | None = None, positions: bool = False, faults: Faults | None = None,
        again: bool = False, blocks: int = BLOCKS,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tp, self.positions, self.again = tp or Tp(), positions, again
        self.faults = faults or Faults()
        self.embed = nn.Embedding(WORDS, WIDE)
        self.places = nn.Embedding(LENGTH, WIDE)
        self.blocks = nn.ModuleList(
            Block(at, self.tp, positions, self.faults) for at in range(blocks)
        )
        self.norm = nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        if self.positions:
            x = x.chunk(self.tp.size, 1)[self.tp.at]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        y = self.norm(x)
        if self.positions:
            y = copied(y, self.tp, True, fault=True)  # every rank has all logits: not summed
        return self.head(y)


def loss_of(logits: Tensor, tokens: Tensor, faults: Faults | None = None) -> Tensor:
    """Mean cross-entropy of the next token."""
    shift = 2 if faults is not None and faults.at("labels") else 1
    logits, wanted = logits[:, :-shift], tokens[:, shift:]
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
