"""Jobs that go wrong before, between or after the training, in messages and in how they end:
`torchrun … -m tests.diagnosis.setup_programs WHAT RANK STEP`. Nothing of pardbg is in it."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

WHAT, WHO, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MINE = RANK == WHO
FOREVER = 1000


def dies_at_import() -> None:
    if MINE:
        import a_package_that_nobody_installed  # type: ignore[import-not-found]  # noqa: F401


def never_begins() -> None:
    if MINE:
        time.sleep(FOREVER)


def goes_to_another_port() -> None:
    if MINE:
        os.environ["MASTER_PORT"] = "1"
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def goes_to_another_host() -> None:
    """Its name for the host of rank 0 leads nowhere."""
    if MINE:
        os.environ["MASTER_ADDR"] = "nowhere.invalid"
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def expects_more() -> None:
    """One rank expects a rank more than there are."""
    if MINE:
        os.environ["WORLD_SIZE"] = str(SIZE + 1)


def wait_for_ever() -> None:
    time.sleep(FOREVER)


def exit_hangs_early() -> None:
    """As a client does that is imported before torch, whose server does not answer at the end."""
    if MINE:
        atexit.register(wait_for_ever)


BEFORE: dict[str, Callable[[], None]] = {
    "dies-at-import": dies_at_import, "never-begins": never_begins,
    "another-port": goes_to_another_port, "another-host": goes_to_another_host,
    "expects-more": expects_more, "exit-hangs-early": exit_hangs_early,
}  # fmt: skip
if __name__ == "__main__" and WHAT in BEFORE:
    BEFORE[WHAT]()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402


def leaves_group_out() -> None:
    if not MINE:
        dist.new_group(list(range(SIZE)))


def groups_in_another_order() -> None:
    pairs = [[0, 1], [0, SIZE - 1]]
    for ranks in reversed(pairs) if MINE else pairs:
        dist.new_group(ranks)


def leaves_mesh_out() -> None:
    if not MINE:
        init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("dp", "tp"))


def key_nobody_sets() -> None:
    store = dist.distributed_c10d._get_default_store()
    if MINE:
        time.sleep(FOREVER)
        store.set("weights-ready", "1")
    store.get("weights-ready")


def barrier_alone() -> None:
    if MINE:
        time.sleep(FOREVER)
    dist.barrier()


def save_hangs() -> None:
    if MINE:

        class Stuck(torch.nn.Module):
            def __reduce__(self) -> tuple[object, ...]:
                time.sleep(FOREVER)
                return (torch.nn.Module, ())

        torch.save(Stuck(), os.devnull)
    dist.barrier()


def exit_hangs() -> None:
    dist.barrier()
    if MINE:
        atexit.register(wait_for_ever)
    dist.destroy_process_group()
    sys.exit(0)


LOG: list[multiprocessing.Queue[bytes]] = []


def fills_queue() -> None:
    """Nobody reads it, and multiprocessing's exit handler waits until somebody has."""
    if MINE:
        LOG.append(multiprocessing.Queue())
        LOG[0].put(bytes(1 << 20))


def other() -> int:
    return (WHO + 1) % SIZE


def message(mine: torch.Tensor, theirs: torch.Tensor, tags: tuple[int, int] = (0, 0)) -> None:
    """From WHO to the next rank."""
    if MINE:
        dist.send(mine, other(), tag=tags[0])
    elif other() == RANK:
        dist.recv(theirs, WHO, tag=tags[1])


def another_tag() -> None:
    message(torch.ones(64), torch.ones(64), (7, 9))


def another_dtype() -> None:
    message(torch.ones(64), torch.ones(64, dtype=torch.int32))


def another_size() -> None:
    message(torch.ones(96), torch.ones(64))


def two_threads() -> None:
    """Nobody says which thread's op comes first."""

    def measure() -> None:
        for number in range(30):
            time.sleep(0.01 + 0.02 * ((RANK + number + WHO) % 3))
            dist.broadcast(torch.ones(8), 0)

    threading.Thread(target=measure, name="metrics", daemon=True).start()


def nothing() -> None:
    """A healthy job."""


def slow_import() -> None:
    """Healthy: one rank works for some seconds before it comes to its group."""
    until = time.monotonic() + 4
    while MINE and time.monotonic() < until:
        pass


AT_STEP: dict[str, Callable[[], None]] = {
    "group-left-out": leaves_group_out, "groups-order": groups_in_another_order,
    "mesh-left-out": leaves_mesh_out, "key-nobody-sets": key_nobody_sets,
    "barrier-alone": barrier_alone, "save-hangs": save_hangs, "exit-hangs": exit_hangs,
    "exit-hangs-queue": fills_queue,
    "tag": another_tag, "dtype": another_dtype, "size": another_size,
    "two-threads": two_threads, "healthy": nothing,
}  # fmt: skip


def main() -> None:
    if WHAT == "slow-import":
        slow_import()
    dist.init_process_group("gloo")
    for step in range(60):
        if step == STEP:
            AT_STEP.get(WHAT, nothing)()
        numbers = torch.ones(1000)
        if STEP > 2 and WHAT in ("tag", "dtype", "size") and step < STEP:
            message(torch.ones(64), torch.ones(64))
        time.sleep(0.02)
        dist.all_reduce(numbers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
