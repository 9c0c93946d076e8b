"""Fake ranks whose control goes through another socket than the hub's, and that hold themselves for
three seconds without a word instead of ten: so that a test can cut the line.

    python -m tests.faults.programs.away_ranks SOCKET RANKS STEPS SECONDS
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pardbg_agent.control import gate
from tests.distributed import fake_ranks

LEASE_NS = 3_000_000_000


def main() -> int:
    run = json.loads(Path(os.environ["PARDBG"], "run.json").read_text())
    run["ctrl"] = f"ipc://{sys.argv[1]}"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder, "run.json").write_text(json.dumps(run))
        os.environ["PARDBG"] = folder
        gate.LEASE_NS = LEASE_NS  # type: ignore[misc]
        return fake_ranks.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
