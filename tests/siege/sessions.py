"""Session files that are damaged or hostile: each is loaded, drawn, reported and exported."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pardbg.session.writer import whole_messages
from pardbg.store.source import Message
from tests.siege.hostile import hostile
from tests.siege.limited import Outcome, limited
from tests.siege.looked_at import look

KEPT = (40, 300, 4000)
"""Messages of a session, at most."""


def messages_of(path: Path) -> list[Message]:
    return list(whole_messages(path))[: KEPT[-1]]


def case(messages: Sequence[Message], seed: int, path: Path) -> Outcome:
    """Make one file and look at it within the limits."""
    rng = random.Random(seed)
    hostile(messages[: rng.choice(KEPT)], rng, path)
    return limited(partial(look, path))


def run(
    paths: Sequence[Path], seed: int, count: int, seconds: float
) -> tuple[int, list[str], float]:
    """(files, what went wrong, most seconds of processor time of one)"""
    bad: list[str] = []
    slowest, done, until = 0.0, 0, time.monotonic() + seconds
    every = [messages_of(path) for path in paths]
    gc.freeze()  # children collect none of it, so it stays shared
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for number in range(seed, seed + count):
            if time.monotonic() > until:
                break
            outcome = case(every[number % len(every)], number, Path(made) / "s.mcap")
            done, slowest = done + 1, max(slowest, outcome.cpu_s)
            if outcome.bad:
                bad.append(f"seed {number}: {outcome.bad}")
    return done, bad, slowest
