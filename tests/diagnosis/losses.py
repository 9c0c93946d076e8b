"""Programs that print another loss than backward begins from: `python -m tests.diagnosis.losses
NUMBER SEED` draws some (ranks, unit, how often they print) and compares what pardbg shows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, TOKENS = 24, 256
UNITS = {"tokens": float(TOKENS), "share": 0.25, "same": 1.0}
"""unit -> what backward begins from, in units of what is printed."""


def train(unit: str, every: int, seed: int) -> None:
    """One rank: its printed loss is the mean of all ranks'."""
    dist.init_process_group("gloo")
    torch.manual_seed(seed + dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 / UNITS[unit])
    for number in range(STEPS):
        time.sleep(0.05)
        x = torch.randn(TOKENS, 8)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean() * UNITS[unit]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said = loss.detach() / UNITS[unit] / dist.get_world_size()
        dist.all_reduce(said)
        if dist.get_rank() == 0 and number % every == 0:
            print(f"step {number} loss {said.item():.4f}", flush=True)
    dist.destroy_process_group()


def shown(unit: str, every: int, seed: int, nproc: int) -> tuple[str, float]:
    """Source of the losses that the report shows, and their largest distance from the printed ones,
    as a share of these."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.mcap"
        words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc),
                 "-m", __spec__.name, "train", unit, str(every), str(seed))  # fmt: skip
        head = (sys.executable, "-m", "pardbg")
        done = subprocess.run([*head, "run", "-o", path, "--", sys.executable, *words], text=True,
                              capture_output=True, check=True, timeout=200)  # fmt: skip
        report = json.loads(subprocess.check_output([*head, "report", "--json", path]))
    lines = (line.split() for line in done.stdout.splitlines() if line.startswith("step "))
    said = {int(words[1]): float(words[3]) for words in lines}
    of = {row["step"]: row["loss"] for row in report["steps"] if row["step"] in said}
    assert said.keys() == of.keys()
    return report["loss_source"], max(abs(of[step] / said[step] - 1) for step in said)


def main() -> int:
    if sys.argv[1] == "train":
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    number, seed = map(int, sys.argv[1:])
    draw, bad = random.Random(seed), 0
    for _ in range(number):
        job = draw.choice([*UNITS]), draw.choice((1, 3)), draw.randrange(99), draw.choice((2, 3, 4))
        source, off = shown(*job)
        bad += off > 0.03
        print(f"{job!s:28} {source:40} off by {off:.1%}", flush=True)
    print(f"{number - bad} of {number} show the printed loss")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
