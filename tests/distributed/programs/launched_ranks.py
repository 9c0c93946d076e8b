"""Launchers that their environment calls ranks, as pods and job arrays have it: two nodes' (RANK 0
and 1 of 2) that start two of four ranks each. ``launched_ranks.py popen|spawn PORT``."""

from __future__ import annotations

import os
import subprocess
import sys
import time

PER_NODE = 2


def everything(how: str, port: str) -> None:
    here = {key: value for key, value in os.environ.items() if key != "RANK"}
    nodes = []
    for node in range(2):
        env = {**here, "RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port}  # fmt: skip
        nodes.append(subprocess.Popen([sys.executable, __file__, f"node-{how}", port], env=env))
    sys.exit(max(node.wait() for node in nodes))


def node(how: str, port: str) -> None:
    first = int(os.environ["RANK"]) * PER_NODE
    if how == "node-spawn":
        import torch.multiprocessing as mp

        mp.spawn(train, args=(first, port), nprocs=PER_NODE)
        return
    ranks = []
    for local in range(PER_NODE):
        env = {**os.environ, "RANK": str(first + local), "WORLD_SIZE": "4",
               "LOCAL_RANK": str(local)}  # fmt: skip
        ranks.append(subprocess.Popen([sys.executable, __file__, "rank", port], env=env))
    sys.exit(max(rank.wait() for rank in ranks))


def train(local: int, first: int, port: str) -> None:
    import torch
    import torch.distributed as dist

    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", where, rank=first + local, world_size=2 * PER_NODE)
    end = time.monotonic() + 60
    number = torch.zeros(1)
    while not number.item():
        time.sleep(0.01)
        number.fill_(float(time.monotonic() > end or os.path.exists(os.environ["END"])))
        dist.all_reduce(number, dist.ReduceOp.MAX)
    dist.destroy_process_group()


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[0] == "rank":
        train(int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]) // 2 * PER_NODE, given[1])
    elif given[0].startswith("node-"):
        node(*given)
    else:
        everything(*given)
