"""One rank whose exit is well, though it has handlers older than torch: ``exit_handlers.py WHAT``,
``reads`` or ``raises``. Nothing of pardbg is in it."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading


def says_who_watches() -> None:
    names = [thread.name for thread in threading.enumerate()]
    os.write(1, f"[rank{os.environ['RANK']}] watched {'pardbg' in names}\n".encode())
    if sys.argv[1] == "raises":
        raise LookupError("no server")


if __name__ == "__main__":
    atexit.register(says_who_watches)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main() -> None:
    dist.init_process_group("gloo")
    log: multiprocessing.Queue[bytes] = multiprocessing.Queue()
    log.put(bytes(1 << 20))
    dist.all_reduce(torch.ones(4))
    assert len(log.get()) == 1 << 20
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
