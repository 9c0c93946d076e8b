"""Stand-in for the job of a run that was attached to: a process that ends with the ranks.

Its end by SIGTERM (``pardbg ctl RUN kill``) takes the agent out of them; they run on."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from pardbg.hub.attach.entry import RANKS_FILE, is_forsaken, leave, read_ranks
from pardbg_agent.wire import ENV_RUN

POLL_S: Final = 0.1


class _Asked(BaseException):
    pass


def main(argv: list[str]) -> int:
    """Wait for the end of all ranks; the run's directory is in the environment."""
    signal.signal(signal.SIGTERM, _ask)
    run_dir = Path(os.environ[ENV_RUN])
    try:
        while read_ranks(run_dir) or not (run_dir / RANKS_FILE).exists():
            if is_forsaken(run_dir):
                return 0
            time.sleep(POLL_S)
    except _Asked:
        for rank, why in leave(read_ranks(run_dir), run_dir).items():
            print(f"pardbg: the agent is still in rank {rank}: {why}", file=sys.stderr)
    return 0


def _ask(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Asked
