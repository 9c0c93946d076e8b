"""A rank for torchrun that trains nothing: gates and steps, until STOP is there. RAISE-n makes rank
n raise.

    torchrun … -m tests.faults.programs.restarted_ranks FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pardbg_agent import core
from pardbg_agent.wire import Gate


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    agent = core.ensure()
    while not (folder / "STOP").exists():
        for gate, text in ((Gate.ACTION, "0F0"), (Gate.OPTIMIZER, "optimizer")):
            if agent.gate.closed:
                agent.gate.wait(gate, text)
        time.sleep(0.005)
        agent.step_end()
        if (folder / f"RAISE-{rank}").exists():
            raise RuntimeError("as the test asked")


if __name__ == "__main__":
    main()
