"""A viewer to be killed: it holds control for a moment and follows the run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pardbg.hub.client import HubControl, LiveSource


def main() -> None:
    run_dir = Path(sys.argv[1])
    source, control = LiveSource(run_dir), HubControl(run_dir)
    control.command("pause", timeout_s=2.0)
    time.sleep(0.3)
    control.command("continue", timeout_s=2.0)
    while not source.finished:
        source.poll(100)
    control.close()
    source.close()


if __name__ == "__main__":
    main()
