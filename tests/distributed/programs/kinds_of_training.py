"""Training as people write it, in many kinds, which knows nothing of pardbg: prints each step, its
loss and when it ended, and ends when the file STOP is there (as rank 0 sees it) or after STEPS.

    torchrun --nproc-per-node 2 kinds_of_training.py KIND STOP STEPS
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[int], torch.Tensor]
WIDTH = 8
PACE = float(os.environ.get("PACE", "1"))
"""Times what it waits between steps."""


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    return DistributedDataParallel(layers)


def batch() -> torch.Tensor:
    return torch.randn(4, WIDTH)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def plain() -> Step:
    model = model_of()
    optimizer = sgd(model)
    return lambda step: train(model, optimizer, batch())


def several() -> Step:
    """Two models in turn, one of them only each second step."""
    one, other = model_of(), model_of()
    steps = sgd(one), torch.optim.Adam(other.parameters(), lr=0.001)

    def do(step: int) -> torch.Tensor:
        loss = train(one, steps[0], batch())
        return loss + train(other, steps[1], batch()) if step % 2 else loss

    return do


def zero() -> Step:
    model = model_of()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    return lambda step: train(model, optimizer, batch())


def compiled() -> Step:
    model = torch.compile(model_of(), backend="aot_eager")
    optimizer = sgd(model)
    return lambda step: train(model, optimizer, batch())


def compiled_step() -> Step:
    model = model_of()
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
    return lambda step: train(model, optimizer, batch())


def accumulated() -> Step:
    model = model_of()
    optimizer = sgd(model)

    def do(step: int) -> torch.Tensor:
        with model.no_sync():
            for _ in range(3):
                model(batch()).pow(2).mean().backward()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return do


def scheduled() -> Step:
    model = model_of()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def do(step: int) -> torch.Tensor:
        loss = train(model, optimizer, batch())
        rates.step()
        return loss

    return do


def scaled() -> Step:
    model = model_of()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)

    def do(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # leaves out those whose gradients are infinite
        scaler.update()
        return loss

    return do


def closure() -> Step:
    """Each step() calls the model some times."""
    model = model_of()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def do(step: int) -> torch.Tensor:
        x = batch()

        def again() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        loss = optimizer.step(again)
        assert isinstance(loss, torch.Tensor)
        return loss

    return do


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, item: int) -> torch.Tensor:
        return torch.full((WIDTH,), item / 512)


def loaded(how: str) -> Step:
    model = model_of()
    optimizer = sgd(model)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield from torch.utils.data.DataLoader(
                Numbers(), 4, shuffle=True, num_workers=2, multiprocessing_context=how
            )

    x = batches()
    return lambda step: train(model, optimizer, next(x))


def saving() -> Step:
    model = model_of()
    optimizer = sgd(model)
    log = logging.getLogger("train")
    path = sys.argv[2] + ".pt"

    def do(step: int) -> torch.Tensor:
        loss = train(model, optimizer, batch())
        if dist.get_rank() == 0:
            for _ in range(20):
                log.warning("step %d", step)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        if step % 10 == 9:
            dist.barrier()
        return loss

    return do


class Late(Exception):
    pass


def signalled() -> Step:
    """A timer's handler raises what the program catches."""
    model = model_of()
    optimizer = sgd(model)

    def late(number: int, frame: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)

    def do(step: int) -> torch.Tensor:
        loss = train(model, optimizer, batch())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            time.sleep(1)
        except Late:
            os.kill(os.getpid(), signal.SIGUSR1)
        return loss

    return do


def uneven() -> Step:
    """Ranks come to the end of a step one after the other; none is quick."""
    model = model_of()
    optimizer = sgd(model)

    def do(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        time.sleep(PACE * 1.5 * ((dist.get_rank() + step) % 3))
        optimizer.step()
        time.sleep(PACE * 1.5 * (dist.get_rank() % 2))
        return loss

    return do


KINDS: dict[str, Callable[[], Step]] = {
    "plain": plain, "several": several, "zero": zero, "compiled": compiled,
    "compiled_step": compiled_step, "accumulated": accumulated, "scheduled": scheduled,
    "scaled": scaled, "closure": closure, "fork": lambda: loaded("fork"),
    "spawn": lambda: loaded("spawn"), "saving": saving, "signalled": signalled, "uneven": uneven,
    "thread": plain,
}  # fmt: skip


def main() -> None:
    kind, stop, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo")
    do = (KINDS.get(kind) or import_module("sharded_kinds").KINDS[kind])()
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        loss = do(step)
        over = torch.tensor([float(os.path.exists(stop)), loss.item()], dtype=torch.float64)
        dist.all_reduce(over)
        if dist.get_rank() == 0:
            print(step, over[1].item(), time.time(), flush=True)
        time.sleep(PACE * 0.02)
        if over[0]:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "thread":
        trains = threading.Thread(target=main)
        trains.start()
        trains.join()
    else:
        main()
