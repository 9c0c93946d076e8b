"""Real torch ranks for the agent's start: ``torchrun agent_torch_program.py WHAT``."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[torch.Tensor]):
    """Says in a file which process made its items."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(os.getpid())])


def reduce_some(count: int = 3) -> None:
    for _ in range(count):
        dist.all_reduce(torch.ones(4))


def workers() -> None:
    """A rank with forked and with spawned DataLoader workers."""
    dist.init_process_group("gloo")
    reduce_some()
    pids = set()
    for method in ("fork", "spawn"):
        loader = DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=method)
        pids |= {int(batch[0, 1]) for batch in loader}
    reduce_some()
    # One write: print() makes two of it when unbuffered, and the ranks share the pipe.
    line = f"[rank{dist.get_rank()}] workers {len(pids)} own {os.getpid() in pids}\n"
    os.write(1, line.encode())
    dist.destroy_process_group()


def restart() -> None:
    """Rank 1 fails in the first epoch; torchelastic starts all again.

    The groups meet in a file of their epoch: over torchrun's own store a restarted gloo group
    finds the addresses of the old one now and then, and fails or hangs, with or without us.
    """
    epoch, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
    meet = f"file://{os.environ['PARDBG']}/meet{epoch}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    reduce_some()
    if epoch == "0" and rank == 1:
        sys.exit(1)
    reduce_some()
    dist.destroy_process_group()


def attach() -> None:
    """No zero-code start: the program attaches, detaches, attaches again."""
    import pardbg_agent

    run = os.environ["RUN_DIR"]
    dist.init_process_group("gloo")
    reduce_some(2)
    assert pardbg_agent.attach(run)
    reduce_some(3)
    pardbg_agent.detach()
    reduce_some(4)
    assert pardbg_agent.attach()
    reduce_some(5)
    dist.destroy_process_group()


if __name__ == "__main__":
    {"workers": workers, "restart": restart, "attach": attach}[sys.argv[1]]()
