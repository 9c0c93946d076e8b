"""Data parallel training that one rank slows down now and then, or in a way that no phase tells:
`torchrun … -m tests.diagnosis.slow_programs WHAT RANK STEP`. With `fine-WHAT` all ranks do the same
at the same time. Nothing of pardbg is in it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, EVERY, LONG_S = 150, 5, 0.15
BURST = range(22, 34)
"""Steps in which all ranks are slow, too, as by other load on the host."""


def sleeps() -> None:
    time.sleep(LONG_S)


def on_socket() -> None:
    """Asks a server that takes its time."""
    one, other = socket.socketpair()
    timer = threading.Timer(LONG_S, other.send, (b"x",))
    timer.start()
    one.recv(1)
    timer.join()
    one.close(), other.close()


def in_lock() -> None:
    """Waits for a lock that another thread is inside of."""

    def keep() -> None:
        with lock:
            inside.set()
            time.sleep(LONG_S)

    lock, inside = threading.Lock(), threading.Event()
    keeper = threading.Thread(target=keep, name="keeper")
    keeper.start()
    inside.wait()
    with lock:
        keeper.join()


def runs_child() -> None:
    subprocess.run(["sleep", str(LONG_S)], check=True)


def computes() -> None:
    until = time.thread_time() + LONG_S
    while time.thread_time() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)


def counts() -> None:
    """Makes a metric in Python, in each step."""
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        sum(range(1000))


def saves() -> None:
    """Writes a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(20):
            torch.save({"state": torch.zeros(1_000_000)}, Path(folder, "state.pt"))


NOW_AND_THEN: dict[str, Callable[[], None]] = {
    "sleeps": sleeps, "socket": on_socket, "lock": in_lock, "child": runs_child,
    "computes": computes, "saves": saves, "burst": sleeps,
}  # fmt: skip


class Metrics(threading.Thread):
    """Sums what it is given, in a group of its own."""

    def __init__(self, slow: bool) -> None:
        super().__init__(name="metrics", daemon=True)
        self.slow, self.group = slow, dist.new_group()
        self.asked, self.done = queue.Queue[bool](), queue.Queue[bool]()
        self.start()

    def run(self) -> None:
        while self.asked.get():
            if self.slow:
                time.sleep(0.06)
            dist.all_reduce(torch.ones(64), group=self.group)
            self.done.put(True)


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that the loader's workers need so long for, each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(self.seconds)
        number = 1000 * dist.get_rank() + at  # a worker's own seed is the same on all ranks
        return torch.randn(16, 64, generator=torch.Generator().manual_seed(number))


def batches(slow: bool, workers: int) -> Iterator[torch.Tensor]:
    """Return a loader that has a batch each 60 ms in the mean, or each 2: ``workers`` at once."""
    samples = Batches((0.06 if slow else 0.002) * workers)
    return iter(torch.utils.data.DataLoader(samples, None, num_workers=workers))


def train(what: str, mine: bool, since: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = Metrics(mine) if what == "thread" else None
    loader = batches(mine, since // 5) if what == "loads" else None
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        time.sleep(0.14 if what == "burst" and step in BURST else 0.02)
        due = step >= since and step % EVERY == 0
        if due and mine and what in NOW_AND_THEN:
            NOW_AND_THEN[what]()
        optimizer.zero_grad()
        batch = torch.randn(16, 64, generator=data) if loader is None else next(loader)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if metrics is not None:
            metrics.asked.put(True)
            metrics.done.get()
        if what == "evaluates" and step % 10 == 9:
            with torch.no_grad():
                for _ in range(40 if mine else 5):
                    net(torch.randn(16, 64, generator=data))
                    time.sleep(0.005)
        if what == "burns" and mine and step >= since:
            counts()
        if what == "gathers" and due:
            found: list[object] = [None] * dist.get_world_size()
            dist.all_gather_object(found, b"x" * (5_000_000 if mine else 100))


def main() -> None:
    what, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    mine = rank == int(os.environ["RANK"]) or what.startswith("fine-")
    train(what.removeprefix("fine-"), mine, int(sys.argv[3]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
