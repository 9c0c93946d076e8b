"""The same training in one process: the reference for every other recipe's losses.

python -m pardbg.lab.recipes.single --steps 20
"""

from __future__ import annotations

import argparse

import torch

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.model import gpt, loss


def train(steps: int, seed: int, lr: float) -> None:
    model = gpt(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    text = Text(seed, torch.device("cpu"))
    for step in range(steps):
        tokens, targets = text.batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        print(f"step {step} loss {error.item():.9g}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the small GPT in one process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train(given.steps, given.seed, given.lr)
