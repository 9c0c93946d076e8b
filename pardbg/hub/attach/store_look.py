"""Which ranks have come to ``init_process_group``, of all machines, by the job's own TCPStore.

Looked at as one more client, which only asks whether keys are there. gloo sets a key for each rank
before it connects (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp); NCCL sets none of a rank.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from pardbg.hub.attach.job_ranks import JobRank

ASK_S: Final = 5
TAKES_S: Final = 30.0
"""Until an answer, with torch's import."""
ATTEMPT: Final = "TORCHELASTIC_RESTART_COUNT"
KEY: Final = "default_pg/0//cpu//0/"
"""Of a rank of the default group, ahead of its number."""
_PROBE: Final = f"""import datetime, json, sys
from torch.distributed import TCPStore
host, port, first, world = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
until = datetime.timedelta(seconds={ASK_S})
store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=until)
print(json.dumps([rank for rank in range(world) if store.check([first + str(rank)])]))
"""


@dataclass(frozen=True, slots=True)
class StoreLook:
    """``why``: it could not be asked. No rank in ``come``: none has, or the group is not gloo's."""

    come: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    why: str = ""


def ask_store(ranks: Sequence[JobRank]) -> StoreLook:
    """Ask the store of one job."""
    rank = ranks[0]
    host, port = rank.job[:2]
    if not (host and port.isdecimal()):
        return StoreLook(why="MASTER_ADDR and MASTER_PORT are not in the ranks' environment")
    try:
        process = psutil.Process(rank.pid)
        environ = process.environ()
        python = _python(process, environ)
    except psutil.Error as error:
        return StoreLook(why=str(error))
    if environ.get(ATTEMPT, "0") != "0":
        return StoreLook(why="the ranks were restarted, and it keeps the keys of those before")
    argv = [python, "-c", _PROBE, host, port, KEY, str(rank.world_size)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=TAKES_S, check=False,
            stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return StoreLook(why=f"{type(error).__name__}: {error}")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return StoreLook(why=next((one for one in lines if "Error: " in one), lines[-1]))
    come = frozenset(json.loads(done.stdout))
    both = [
        tuple(r for r in range(rank.world_size) if (r in come) is side) for side in (True, False)
    ]
    return StoreLook(both[0], both[1])


def _python(process: psutil.Process, environ: Mapping[str, str]) -> str:
    """Return a Python that has torch: this one, else the rank's."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    first: str = process.cmdline()[0]
    if "/" in first:
        return first if first.startswith("/") else f"{process.cwd()}/{first}"
    return shutil.which(first, path=environ.get("PATH")) or str(process.exe())
