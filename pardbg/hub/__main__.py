"""``python -m pardbg.hub RUNDIR``: the hub process of one run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from pardbg.hub.run import config as files
from pardbg.hub.serve.hub import Hub


def main(argv: list[str]) -> int:
    """0 when the run is over or on SIGTERM; 2 for a run that cannot be served."""
    if len(argv) != 1:
        print("usage: python -m pardbg.hub RUNDIR", file=sys.stderr)
        return 2
    try:
        hub = Hub(files.load(Path(argv[0])))
        stop_on_signals(hub)
        hub.open()
    except files.ConfigError as error:
        print(f"pardbg hub: {error}", file=sys.stderr)
        return 2
    hub.run()
    return 0


def stop_on_signals(hub: Hub) -> None:
    """SIGTERM flushes and closes the session. SIGINT is the job's and the viewers' business."""

    def stop(number: int, frame: FrameType | None) -> None:
        hub.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
