"""A small GPT, whole or cut into pipeline stages.

tokens ─► Embedding ─► Block × 8 ─► Head ─► a score for each possible next byte

437 thousand parameters: small enough for any CPU, the same parts as a large one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardbg.lab.recipes.paced import Paced, PacedLinear
from pardbg.lab.recipes.shape import BLOCKS, CONTEXT, HEADS, VOCABULARY, WIDTH, share


class Embedding(nn.Module):
    """Embedding of token and position as a vector: [batch, time] int64 → [batch, time, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(places)


class Attention(nn.Module):
    """Causal attention: each position attends to itself and to those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        # -1 heads: all of them here, a rank's own where tensor parallelism cuts qkv (tp.py).
        heads = self.qkv(x).unflatten(-1, (3, -1, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a two-layer network, each added to its input."""

    def __init__(self, pace_ms: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        paced = pace_ms > 0
        last = PacedLinear(4 * WIDTH, WIDTH, pace_ms) if paced else nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), last)
        # Backward sleeps as long for the input's gradient, here, and for the weights', above.
        self.paced = Paced(pace_ms, backward=1.0) if paced else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        # Behind the block, not before it: autograd reaches this place in every block, also in the
        # first, whose input is tokens and has no gradient.
        return self.paced(x)


class Head(nn.Module):
    """Projection of vectors to scores: [batch, time, WIDTH] → [batch, time, VOCABULARY]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x))


def gpt(seed: int, pace_ms: float = 0.0) -> nn.Sequential:
    """Return the whole model with the weights of this seed, on the CPU. A block takes ``pace_ms``
    more in forward and twice that in backward."""
    torch.manual_seed(seed)
    return nn.Sequential(Embedding(), *(Block(pace_ms) for _ in range(BLOCKS)), Head())


def stage(whole: nn.Sequential, index: int, num_stages: int) -> nn.Sequential:
    """Return stage ``index`` of ``num_stages``: its share of the blocks in order, earlier stages
    the larger ones; the first stage has the embedding too, the last one the head."""
    mine = share(index, num_stages, BLOCKS)
    return blocks_of(whole, mine.start, mine.stop)


def blocks_of(whole: nn.Sequential, first: int, last: int) -> nn.Sequential:
    """Return blocks [first, last); with the first the embedding, with the last the head."""
    embedding, *blocks, head = whole
    before = [embedding] if first == 0 else []
    behind = [head] if last == BLOCKS else []
    return nn.Sequential(*before, *blocks[first:last], *behind)


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per byte; log 256 = 5.5 is pure guessing."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())
