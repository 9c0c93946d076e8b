"""Jobs of several ranks each, forked from one process that has imported torch: a torchrun start
costs more than the training. Like torchrun it ends the other ranks when one has failed.

    python -m tests.faults.programs.fault_jobs DIR

DIR has jobs.json: [{"name": recipe or "in-turn", "ranks": 3, "options": [...]}]; each job's exit
codes (or minus the signal) go to DIR/NAME.json, each rank's output to DIR/NAME.RANK.out and .err.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# The heavy imports, once for all ranks.
from pardbg.recipes.catalogue import RECIPES
from pardbg.recipes.faults import group_order, p2p_cycle, slow_link, stage_imbalance  # noqa: F401
from pardbg.recipes.launch import main
from tests.faults.programs import in_turn

GRACE_S = 4.0
"""How long the others may take to notice that a rank has failed; torchrun gives them less."""


def child(job: dict[str, Any], rank: int, port: int, folder: Path) -> None:
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{job['name']}.{rank}.{kind}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(job["ranks"]), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = [job["name"], "--pace", "0", *job["options"]]
    if job["name"] == "in-turn":
        main("ddp", in_turn.train)
    else:
        module = importlib.import_module(RECIPES[job["name"]].module)
        main(job["name"], module.train)


def start(job: dict[str, Any], folder: Path) -> list[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    pids = []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            try:
                child(job, rank, port, folder)
            except BaseException:  # noqa: BLE001 - a forked child goes no further
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return pids


def run(jobs: list[dict[str, Any]], folder: Path) -> None:
    pids = {job["name"]: start(job, folder) for job in jobs}
    codes: dict[int, int] = {}
    failed_at: dict[str, float] = {}
    while len(codes) < sum(map(len, pids.values())):
        for name, ranks in pids.items():
            for pid in [p for p in ranks if p not in codes]:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > failed_at.get(name, float("inf")):
                    os.kill(pid, signal.SIGTERM)
            if any(codes.get(pid) for pid in ranks):
                failed_at.setdefault(name, time.monotonic() + GRACE_S)
        time.sleep(0.02)
    for name, ranks in pids.items():
        (folder / f"{name}.json").write_text(json.dumps([codes[pid] for pid in ranks]))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    run(json.loads((where / "jobs.json").read_text()), where)
