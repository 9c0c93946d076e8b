"""``python -m pardbg.hub RUNDIR``: the hub process of one run.

The job starts as soon as the hub listens, so everything else is imported after that.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pardbg.hub.run import config as files
from pardbg.hub.run import signals
from pardbg.hub.run.config import RunConfig
from pardbg.hub.serve.sockets import begin_to_listen

if TYPE_CHECKING:
    from pardbg.hub.relay import Relay
    from pardbg.hub.serve.hub import Hub


def main(argv: list[str]) -> int:
    """Run the hub or relay; return 0 after the run, 2 for a run that cannot be served."""
    parser = argparse.ArgumentParser(prog="pardbg hub")
    parser.add_argument("run_dir", type=Path)
    # Descriptors: the job's output, to read when the launcher is gone; the pipe by which
    # received signals are reported to the owner.
    parser.add_argument("--sources", type=int, nargs=2, default=[])
    parser.add_argument("--heard", type=int, default=-1)
    words = parser.parse_args(argv)
    os.umask(0o077)
    try:
        config = files.load(words.run_dir)
        serving: list[Hub | Relay] = []
        outlive_signals(config, serving, words.heard)
        hub = _relay(config, words.sources) if config.is_relay else _hub(config, words.sources)
        serving.append(hub)
        hub.open()
    except files.ConfigError as error:
        print(f"pardbg hub: {error}", file=sys.stderr)
        return 2
    hub.run()
    return 0


def _hub(config: RunConfig, sources: list[int]) -> Hub:
    listening = begin_to_listen(config)
    from pardbg.hub.serve.hub import Hub

    return Hub(config, sources, listening)


def _relay(config: RunConfig, sources: list[int]) -> Relay:
    from pardbg.hub.relay import Relay

    return Relay(config, sources)


def outlive_signals(config: RunConfig, serving: list[Hub | Relay], heard_fd: int = -1) -> None:
    """Make the hub end with its job, not at a signal to all processes: SIGTERM ends it, with the
    session closed, only without a running job."""

    def stop(number: int) -> None:
        launched = (config.dir / files.LAUNCH_FILE).exists()
        for hub in serving:
            if number == signal.SIGTERM and (hub.over or not launched):
                hub.stopping = True

    signals.report(signals.HUB, heard_fd, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
