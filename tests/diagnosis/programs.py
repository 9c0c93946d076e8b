"""A training program as somebody else would have written it, with one thing that goes wrong:
`torchrun … -m tests.diagnosis.programs WHAT RANK STEP [SECONDS]`. Nothing of pardbg is in it."""

from __future__ import annotations

import ctypes
import datetime
import os
import pdb
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 400
ORDER = torch.ones(16)


class Job:
    """One rank's training."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.logs = False
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 8)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        torch.manual_seed(self.rank)
        self.side = dist.new_group(group_desc="side")

    def train(self, wrong: Callable[[Job], None] | None, step: int) -> None:
        for number in range(STEPS):
            if wrong is not None and number == step:
                wrong(self)
            self.forward_backward()
            time.sleep(0.3 if self.logs and number % 5 == 0 else 0)
            dist.all_reduce(ORDER.clone())

    def forward_backward(self) -> None:
        loss = self.model(torch.randn(8, 64)).pow(2).mean()
        time.sleep(0.02)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def sleep(job: Job) -> None:
    time.sleep(1000)


def in_pdb(job: Job) -> None:
    reader, _ = os.pipe()  # a terminal at which nobody types
    pdb.Pdb(stdin=os.fdopen(reader), stdout=sys.stdout).set_trace()


def stop(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(job: Job) -> None:
    sys.exit(0)


def leave_at_once(job: Job) -> None:
    os._exit(0)


def leave_with_code(job: Job) -> None:
    os._exit(7)


def crash(job: Job) -> None:
    ctypes.string_at(8)


def kill(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raises(job: Job) -> None:
    raise ValueError("batch 17 has no labels")


def skips_barrier(job: Job) -> None:
    """The others' next op is a barrier, this rank's the backward's all_reduce."""


def barrier(job: Job) -> None:
    dist.barrier()


def barrier_at_last(job: Job) -> None:
    """What it raises leads it to a barrier; the others' next op is the backward's all_reduce."""
    try:
        raises(job)
    finally:
        dist.barrier()


def short(job: Job) -> None:
    dist.all_reduce(torch.ones(8))


def long(job: Job) -> None:
    dist.all_reduce(torch.ones(16))


def spins(job: Job) -> None:
    """Python code that never ends, with the GIL let go now and then."""
    while True:
        pass


def gil(job: Job) -> None:
    """C code that keeps the GIL."""
    ctypes.PyDLL(None).sleep(int(job.seconds))


def in_kernel(job: Job) -> None:
    """C code that lets go of the GIL and waits: a pipe nobody writes to."""
    reader, _ = os.pipe()
    os.read(reader, 1)


def lock(job: Job) -> None:
    """A lock that this process itself holds."""
    one = threading.Lock()
    one.acquire()
    one.acquire()


def every_fifth(job: Job) -> None:
    """From here on this rank logs for a while in every fifth step."""
    job.logs = True


def evaluates(job: Job) -> None:
    """Not wrong at all: rank 0 evaluates for a while, the others wait in a barrier."""
    until = time.monotonic() + job.seconds
    while job.rank == 0 and time.monotonic() < until:
        with torch.no_grad():
            job.model.module(torch.randn(256, 64))
    dist.barrier()


def trains_alone(job: Job) -> None:
    """Goes on training what the others do not, for ever: its status changes all the time."""
    model = nn.Linear(64, 8)
    while True:
        model(torch.randn(256, 64)).sum().backward()


def computes_long(job: Job) -> None:
    """Not wrong at all: one long step on every rank."""
    until = time.monotonic() + job.seconds
    while time.monotonic() < until:
        torch.randn(200, 200) @ torch.randn(200, 200)


def saves(job: Job) -> None:
    """Not wrong at all: rank 0 writes a large checkpoint, slowly."""
    if job.rank == 0:
        until = time.monotonic() + job.seconds
        while time.monotonic() < until:
            torch.save(job.model.state_dict(), os.devnull)
    dist.barrier()


WRONG: dict[str, tuple[Callable[[Job], None], Callable[[Job], None] | None]] = {
    "sleep": (sleep, None), "pdb": (in_pdb, None), "stop": (stop, None), "leave": (leave, None),
    "leave-at-once": (leave_at_once, None), "leave-with-code": (leave_with_code, None),
    "crash": (crash, None), "kill": (kill, None), "raises": (raises, None),
    "barrier-at-last": (barrier_at_last, None),
    "skips-barrier": (skips_barrier, barrier), "short-tensor": (short, long),
    "spins": (spins, None), "gil": (gil, None), "in-kernel": (in_kernel, None),
    "lock": (lock, None), "every-fifth": (every_fifth, None),
    "evaluates": (evaluates, evaluates), "saves": (saves, saves),
    "trains-alone": (trains_alone, None),
    "computes-long": (computes_long, computes_long), "nothing": (lambda job: None, None),
}  # fmt: skip
"""What the chosen rank does at the chosen step, and what the others do there."""


def main() -> None:
    what, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    job = Job(float(sys.argv[4]) if len(sys.argv) > 4 else 8)
    own, others = WRONG[what]
    job.train(own if job.rank == rank else others, step)


if __name__ == "__main__":
    main()
