"""A viewer as the TUI has it, without a screen: a store fed live, a frame 4 times a second."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.hub.client import LiveSource
from pardbg.store import Store


def main() -> None:
    source, store = LiveSource(Path(sys.argv[1])), Store(live=True)
    due = 0.0
    while not source.finished:
        store.apply_all(source.poll(50))
        if time.monotonic() >= due:
            snapshot(store, None)
            due = time.monotonic() + 0.25
    source.close()


if __name__ == "__main__":
    main()
