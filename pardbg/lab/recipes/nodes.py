"""Several torchrun launchers on this machine, as if each were a node of its own.

    node 0: torchrun ─► ranks 0, 1 ┐ meet at the c10d rendezvous of node 0,
    node 1: torchrun ─► ranks 2, 3 ┘ and are one job of 4 ranks

On real nodes the same line is typed on each, with one of them as the rendezvous. Here they are all
started from one place, so that one interrupt ends them all and one exit code says how it went.

    R=pardbg.lab.recipes; python -m $R.nodes --nnodes 2 --nproc-per-node 2 -m $R.ddp --steps 20
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

GRACE_S = 10.0
"""Maximum time, s, for the other launchers to notice that one has failed."""
ASKED_S = 2.0
"""Time, s, after which launchers are interrupted that an interrupt has not reached. Mostly it does,
as they are of the same process group."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="torchrun, several times on this machine", allow_abbrev=False
    )
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    given, program = parser.parse_known_args()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(given.nnodes),
        "--nproc-per-node", str(given.nproc_per_node), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", f"pardbg-{os.getpid()}",
        "--local-addr", "127.0.0.1", *program,
    ]  # fmt: skip
    end_at: list[float] = []

    def asked(_: int, __: FrameType | None) -> None:
        end_at.append(time.monotonic() + ASKED_S)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    launchers = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(given.nnodes)]
    return wait(launchers, end_at)


def wait(launchers: list[subprocess.Popen[bytes]], end_at: list[float]) -> int:
    """Return the first exit code that is not 0, once all have ended. ``end_at``: times from which
    on launchers still running are terminated."""
    failed = False
    while any(launcher.poll() is None for launcher in launchers):
        if not failed and any(launcher.returncode for launcher in launchers):
            failed = True
            end_at.append(time.monotonic() + GRACE_S)
        if end_at and time.monotonic() > min(end_at):
            end_at[:] = []
            for launcher in launchers:
                if launcher.poll() is None:
                    launcher.terminate()
        time.sleep(0.1)
    codes = [launcher.returncode for launcher in launchers]
    code = next((code for code in codes if code), 0)
    return 128 - code if code < 0 else code  # a signal's, as a shell says it


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
