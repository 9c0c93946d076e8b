"""A recipe's ranks, forked from one process that has imported torch: with few cores a torchrun
start costs several times the training. Everything else is real: processes, gloo, the agent, which
meets its ranks as a forking launcher's.

    python -m tests.distributed.programs.forked_ranks NPROC MODULE [OPTIONS]
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys


def rank_env(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def reap(pids: set[int]) -> int:
    """Wait for all; when one has failed, end the others, as torchrun does. The exit code."""
    code = 0
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if os.waitstatus_to_exitcode(status) and not code:
            code = 1
            for other in pids:
                os.kill(other, signal.SIGTERM)
    return code


def main() -> int:
    size, module, options = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for name in (module, "torch._dynamo"):  # torch and all, once for all ranks;
        importlib.import_module(name)  # the first optimizer would import dynamo
    port, pids = free_port(), set()
    for rank in range(size):
        pid = os.fork()
        if not pid:
            os.environ.update(rank_env(rank, size, port))
            sys.argv = [module, *options]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        pids.add(pid)
    return reap(pids)


if __name__ == "__main__":
    sys.exit(main())
