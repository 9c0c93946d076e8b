"""A rank from its first moment: where the environment says RANK and WORLD_SIZE, the agent reports
before torch is imported, so that a rank which never comes to its group is known, too.

The environment is inherited: DataLoader workers, compilers and tools that a rank starts have RANK
too, and so has a launcher on clusters that set it for whole pods. None of those is a rank, and what
is taken for one by mistake costs a line and no more: it forms no group.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from pardbg_agent import wire
from pardbg_agent.settings import load_run

MAX_PARENTS: Final = 12
PROGRAMS: Final = ("torchrun", "accelerate", "deepspeed", "pip", "pardbg")
MODULES: Final = (
    "torch.distributed.run", "torch.distributed.launch", "torch._inductor.compile_worker",
    "accelerate.commands", "deepspeed.launcher", "pip", "pardbg.cli",
)  # fmt: skip
CHILDREN: Final = ("multiprocessing.resource_tracker", "multiprocessing.spawn",
                   "multiprocessing.forkserver", "compile_worker")  # fmt: skip
"""Of command lines that are no rank's: names of programs, of modules, and words in ``-c``."""
_SAME: Final = (b"RANK", b"LOCAL_RANK", b"TORCHELASTIC_RUN_ID", b"TORCHELASTIC_RESTART_COUNT")


def claims() -> bool:
    """This process is a rank, as far as its environment and its parents say."""
    if not (_is_number("RANK") and _is_number("WORLD_SIZE")):
        return False
    words = sys.orig_argv[1:8]
    return bool(words) and not _is_no_rank(words) and not _of_a_rank()


def _is_number(name: str) -> bool:
    return os.environ.get(name, "").isdigit()


def _is_no_rank(words: list[str]) -> bool:
    """The command line is a launcher's, or a child's of multiprocessing or a compiler."""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-c":
            return any(name in word for name in CHILDREN)
        if before == "-m":
            return any(word == name or word.startswith(f"{name}.") for name in MODULES)
        if not word.startswith("-"):
            return os.path.basename(word) in PROGRAMS or "compile_worker" in word
    return False


def _of_a_rank() -> bool:
    """A process above this one is the rank: it has a ring, and the same place in the job."""
    run_dir = os.environ.get(wire.ENV_RUN, "")
    own = {name: os.environb.get(name) for name in _SAME}
    pids = [str(pid) for pid in _parents()]
    if not run_dir or not pids:
        return False
    rings = load_run(run_dir).ring_dir
    if not os.path.isdir(rings):
        return False
    known = {name.split(".")[-2] for name in os.listdir(rings) if name.endswith(".ring")}
    return any(pid in known and _environment(pid) == own for pid in pids)


def _parents() -> list[int]:
    found: list[int] = []
    pid = os.getppid()
    while pid > 1 and len(found) < MAX_PARENTS:
        found.append(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _environment(pid: str) -> dict[bytes, bytes | None]:
    """What tells a process's place in the job; as it was when the process began."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = dict(part.partition(b"=")[::2] for part in file.read().split(b"\0") if part)
    except OSError:
        return {}
    return {name: pairs.get(name) for name in _SAME}
