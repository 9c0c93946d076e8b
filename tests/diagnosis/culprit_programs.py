"""Jobs of small hand-written parallel programs in which one rank does something wrong that shows on
another one: `torchrun … -m tests.diagnosis.culprit_programs WHAT RANK STEP`. Nothing of pardbg is
in it."""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import os
import queue
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.fsdp import fully_shard

WHO = STEP = RANK = SIZE = 0
MINE = False
STEPS, FOREVER = 60, 1000
SHARED = Path()


def pairs() -> dist.ProcessGroup:
    """The group of this rank and its neighbour, of ranks in twos."""
    made = [dist.new_group([at, at + 1]) for at in range(0, SIZE, 2)]
    group = made[RANK // 2]
    assert isinstance(group, dist.ProcessGroup)
    return group


def skips_in_group() -> None:
    """Leaves out one collective of its pair and waits in the world's."""
    group = pairs()
    for step in range(STEPS):
        time.sleep(0.02)
        if not (MINE and step == STEP):
            dist.all_reduce(torch.ones(64), group=group)
        dist.all_reduce(torch.ones(256))


def ring() -> None:
    """Ring attention: keys go round by messages, then a sum; one rank leaves out one round."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for step in range(STEPS):
        time.sleep(0.02)
        for turn in range(SIZE - 1):
            if MINE and step == STEP and turn == SIZE - 2:
                continue
            sent, got = torch.ones(128), torch.empty(128)
            ops = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        dist.all_reduce(torch.ones(256))


def extra_in_group() -> None:
    """Issues one collective of its pair too many."""
    group = pairs()
    for step in range(STEPS):
        time.sleep(0.02)
        for _ in range(2 if MINE and step == STEP else 1):
            dist.all_reduce(torch.ones(64), group=group)
        dist.all_reduce(torch.ones(256))


def splits() -> None:
    """An all_to_all to which one rank brings one row too many for its neighbour."""
    for step in range(STEPS):
        time.sleep(0.02)
        sends = [4] * SIZE
        if MINE and step == STEP:
            sends[(RANK + 1) % SIZE] += 2
        got = torch.empty(4 * SIZE, 8)
        dist.all_to_all_single(got, torch.ones(sum(sends), 8), [4] * SIZE, sends)
        dist.all_reduce(torch.ones(64))


def monitored() -> None:
    for step in range(STEPS):
        if MINE and step == STEP:
            time.sleep(FOREVER)
        time.sleep(0.02)
        dist.all_reduce(torch.ones(64))
        if step >= STEP:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))


def monitored_at_step() -> None:
    for step in range(STEPS):
        time.sleep(0.02)
        dist.all_reduce(torch.ones(64))
        if step == STEP:
            if MINE:
                time.sleep(FOREVER)
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))


def short_timeout() -> None:
    """The others' wait ends by the group's timeout."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    for step in range(STEPS):
        if MINE and step == STEP:
            time.sleep(FOREVER)
        time.sleep(0.02)
        dist.all_reduce(torch.ones(64), group=group)


def swallows() -> None:
    """An exception that the program catches, with a collective left out."""
    for step in range(STEPS):
        time.sleep(0.02)
        try:
            if MINE and step == STEP:
                raise ValueError("a bad sample")
            dist.all_reduce(torch.ones(64))
        except ValueError:
            print("skipped a batch")
        dist.barrier()


def future_keeps() -> None:
    """A pool's thread raises in place of its sum: the future has that, and nobody asks for it."""

    def sums(step: int) -> None:
        if MINE and step == STEP:
            raise ValueError("a bad sample")
        dist.all_reduce(torch.ones(64))

    pool = futures.ThreadPoolExecutor(1)
    for step in range(STEPS):
        time.sleep(0.02)
        futures.wait([pool.submit(sums, step)])
        dist.all_reduce(torch.ones(256))


def task_keeps() -> None:
    """A task of asyncio that feeds the loop raises: the task has that, and nobody asks for it."""

    async def feed(batches: asyncio.Queue[torch.Tensor]) -> None:
        for step in range(STEPS):
            if MINE and step == STEP:
                raise ValueError("a bad sample")
            await batches.put(torch.ones(64))

    async def train() -> None:
        batches: asyncio.Queue[torch.Tensor] = asyncio.Queue(2)
        feeder = asyncio.create_task(feed(batches))
        for _ in range(STEPS):
            batch = await batches.get()
            time.sleep(0.02)
            dist.all_reduce(batch)
        await feeder

    asyncio.run(train())


def serves(never: bool) -> int:
    """Runs on another worker."""
    if never:
        queue.Queue[int]().get()
    return 1


def rpc_hangs() -> None:
    """Workers ask the next one in turn; one of these does not return from what it is asked."""
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=SIZE)
    for step in range(STEPS):
        time.sleep(0.02)
        after = (RANK + 1) % SIZE
        rpc.rpc_sync(f"worker{after}", serves, args=(after == WHO and step == STEP,), timeout=600)
    rpc.shutdown()


def without_optimizer() -> None:
    """Training whose update is written by hand; one rank sleeps in each forward."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    for step in range(5 * STEPS):
        time.sleep(0.02)
        if MINE and step >= STEP:
            time.sleep(0.03)
        net(torch.randn(16, 64)).pow(2).mean().backward()
        for p in net.parameters():
            assert p.grad is not None
            p.grad /= SIZE
            dist.all_reduce(p.grad)
            p.data -= 0.01 * p.grad
            p.grad = None


class Slow(nn.Module):
    """A layer of a tensor parallel model: its output is summed over the pair."""

    def __init__(self, group: dist.ProcessGroup, does: Callable[[], None]) -> None:
        super().__init__()
        self.linear, self.group, self.does = nn.Linear(64, 64), group, does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.does()
        out = self.linear(x)
        with torch.no_grad():
            dist.all_reduce(out, group=self.group)
        return out


def trains(slow: Callable[[], None], in_pairs: bool = True) -> None:
    """Tensor parallel pairs under data parallelism by hand; one rank's layer is slow from STEP."""
    group = pairs() if in_pairs else dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    at = {"step": 0}

    def does() -> None:
        time.sleep(0.01)
        if MINE and at["step"] >= STEP:
            slow()

    layers = nn.Sequential(*(Slow(group, does) for _ in range(2)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.001)
    for step in range(200):
        at["step"] = step
        layers(torch.randn(8, 64)).pow(2).mean().backward()
        for parameter in layers.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def sleeps() -> None:
    time.sleep(0.05)


def computes() -> None:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)


def reads_files() -> None:
    """Reads from a pipe that is filled slowly, as from a slow disk."""
    until = time.monotonic() + 0.05
    path = Path(tempfile.gettempdir(), f"culprit-read-{os.getpid()}")
    while time.monotonic() < until:
        with path.open("wb") as file:
            file.write(b"0" * 100_000)
            os.fsync(file.fileno())
    path.unlink()


def on_socket() -> None:
    """Asks a server that takes its time."""
    one, other = socket.socketpair()
    timer = threading.Timer(0.05, other.send, (b"x",))
    timer.start()
    one.recv(1)
    timer.join()
    one.close(), other.close()


LOCK = threading.Lock()


def in_lock() -> None:
    """Waits for a lock that another thread is inside of."""

    def keep() -> None:
        with LOCK:
            inside.set()
            time.sleep(0.05)

    inside = threading.Event()
    keeper = threading.Thread(target=keep, name="keeper")
    keeper.start()
    inside.wait()
    with LOCK:
        pass
    keeper.join()


def pinned() -> None:
    """Runs on one core, which a process of its own keeps busy."""
    for step in range(200):
        if MINE and step == STEP:
            core = min(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {core})
            for _ in range(3):
                if os.fork() == 0:
                    parent = os.getppid()
                    while os.getppid() == parent:
                        sum(range(10_000))
                    os._exit(0)
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            torch.randn(64, 64) @ torch.randn(64, 64)
        dist.all_reduce(torch.ones(64))


def file_lock() -> None:
    """One rank keeps a lock on a file and waits in a barrier; its neighbour wants the lock."""
    for step in range(STEPS):
        time.sleep(0.02)
        dist.all_reduce(torch.ones(64))
        if step == STEP:
            with SHARED.open("w") as file:
                if MINE:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    dist.barrier()
                else:
                    time.sleep(0.5)
                    if (WHO + 1) % SIZE == RANK:
                        fcntl.flock(file, fcntl.LOCK_EX)
                    dist.barrier()


def fifo() -> None:
    """One rank opens a pipe that the process which writes into it never opens."""
    for step in range(STEPS):
        time.sleep(0.02)
        if MINE and step == STEP:
            os.mkfifo(SHARED)
            SHARED.read_bytes()
        dist.all_reduce(torch.ones(64))


def awaits() -> None:
    """A program of asyncio, its sums in threads: one rank awaits an event that nobody sets."""

    async def train() -> None:
        for step in range(STEPS):
            await asyncio.sleep(0.02)
            if MINE and step == STEP:
                await asyncio.Event().wait()
            await asyncio.to_thread(dist.all_reduce, torch.ones(64))

    asyncio.run(train())


def lock_held() -> None:
    """Two threads sum in groups of their own, and hold a lock of the process meanwhile; one rank's
    metrics come first."""
    group, lock = dist.new_group(), threading.Lock()

    def measure() -> None:
        with lock:
            dist.all_reduce(torch.ones(8), group=group)

    for step in range(STEPS):
        time.sleep(0.02)
        if step == STEP:
            thread = threading.Thread(target=measure, name="metrics", daemon=True)
            if MINE:
                thread.start()
                time.sleep(0.5)
            else:
                threading.Timer(0.2, thread.start).start()
        with lock:
            dist.all_reduce(torch.ones(64))
    thread.join()


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, at: int) -> torch.Tensor:
        if MINE and at >= 4 * STEP:
            time.sleep(FOREVER)
        return torch.ones(8)


def loader_hangs() -> None:
    """The worker of a DataLoader does not come back."""
    loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1)
    for batch in loader:
        time.sleep(0.01)
        dist.all_reduce(batch.sum())


def stale_lock() -> None:
    """A lock file that a build left behind which somebody killed."""
    if MINE:
        from torch.utils.file_baton import FileBaton

        path = f"{SHARED}.lock"
        Path(path).touch()
        FileBaton(path, wait_seconds=0.1).wait()
    dist.barrier()


def gathers() -> None:
    """Every tenth step one rank brings a huge object to all_gather_object."""
    for step in range(200):
        time.sleep(0.02)
        dist.all_reduce(torch.ones(64))
        if step % 10 == 9:
            found: list[object] = [None] * SIZE
            dist.all_gather_object(found, b"x" * (20_000_000 if MINE else 100))


def feeder_dies() -> None:
    """A thread makes batches for a queue; at a sample it raises, and the loop waits for the next
    batch."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def feed() -> None:
        for step in range(STEPS):
            if MINE and step == STEP + 2:
                raise KeyError("label")
            batches.put(torch.ones(64))

    threading.Thread(target=feed, name="feeder", daemon=True).start()
    for _ in range(STEPS):
        time.sleep(0.02)
        dist.all_reduce(batches.get())


def sums_in_thread(waits: bool) -> None:
    """A thread sums in a group of its own what the loop gives it; it dies before a sum."""
    group, asked = dist.new_group(), queue.Queue[threading.Event]()

    def sums() -> None:
        for step in range(STEPS):
            done = asked.get()
            if MINE and step == STEP + 1:
                raise RuntimeError("cannot unpack gradients")
            dist.all_reduce(torch.ones(64), group=group)
            done.set()

    threading.Thread(target=sums, name="comm", daemon=True).start()
    for _ in range(STEPS):
        time.sleep(0.02)
        done = threading.Event()
        asked.put(done)
        if waits or not MINE:
            done.wait()
        dist.all_reduce(torch.ones(256))


def leaves_unit_out() -> None:
    """A sharded model of equal layers, of which one rank leaves the last one out in a step."""
    layers = [fully_shard(nn.Linear(16, 16)) for _ in range(3)]
    model = fully_shard(nn.Sequential(*layers))
    for step in range(STEPS):
        time.sleep(0.02)
        out = torch.ones(4, 16)
        for layer in layers[: 2 if MINE and step == STEP else 3]:
            out = layer(out)
        out.sum().backward()
        model.zero_grad()


def twins() -> None:
    """Two groups of one name and all ranks; one rank sums in the other one first."""
    groups = [dist.new_group(group_desc="side") for _ in range(2)]
    for step in range(STEPS):
        time.sleep(0.02)
        for group in groups[:: -1 if MINE and step == STEP else 1]:
            dist.all_reduce(torch.ones(64), group=group)


WHATS: dict[str, Callable[[], None]] = {
    "skips-in-group": skips_in_group, "ring": ring, "extra-in-group": extra_in_group,
    "splits": splits, "monitored": monitored, "monitored-at-step": monitored_at_step,
    "short-timeout": short_timeout, "swallows": swallows, "tp-sleeps": lambda: trains(sleeps),
    "tp-computes": lambda: trains(computes), "reads-files": lambda: trains(reads_files),
    "on-socket": lambda: trains(on_socket), "in-lock": lambda: trains(in_lock),
    "sleeps": lambda: trains(sleeps, False), "pinned": pinned, "file-lock": file_lock,
    "loader-hangs": loader_hangs, "stale-lock": stale_lock, "fifo": fifo, "awaits": awaits,
    "lock-held": lock_held, "gathers": gathers,
    "feeder-dies": feeder_dies, "comm-thread-dies": lambda: sums_in_thread(True),
    "unawaited-thread-dies": lambda: sums_in_thread(False), "future-keeps": future_keeps,
    "task-keeps": task_keeps, "rpc-hangs": rpc_hangs, "without-optimizer": without_optimizer,
    "leaves-unit-out": leaves_unit_out, "twins": twins,
}  # fmt: skip


def main() -> None:
    global WHO, STEP, RANK, SIZE, MINE, SHARED
    what, WHO, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    MINE, SHARED = WHO == RANK, Path(tempfile.gettempdir(), f"culprit-{os.getppid()}")
    dist.init_process_group("gloo")
    WHATS[what]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
