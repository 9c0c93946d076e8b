"""Session files that are damaged or hostile: each is loaded, drawn, reported and exported."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from pardbg.session.writer import whole_messages
from pardbg.store.source import Message
from tests.siege.hostile import hostile
from tests.siege.limited import Outcome, limited
from tests.siege.looked_at import look, mend

KEPT = (40, 300, 4000)
"""Messages of a session, at most."""


@cache
def messages_of(path: Path) -> list[Message]:
    """The first messages of a recording."""
    return list(whole_messages(path))[: KEPT[-1]]


def case(messages: Sequence[Message], seed: int, path: Path) -> Outcome:
    """Make one file and look at it within the limits."""
    rng = random.Random(seed)
    hostile(messages[: rng.choice(KEPT)], rng, path)
    looked = limited(partial(look, path))
    return looked if looked.bad or seed % 4 else limited(partial(mend, path))


def run(
    paths: Sequence[Path], seeds: Iterable[int], seconds: float = math.inf
) -> tuple[int, list[str], float]:
    """(files, what went wrong, most seconds of processor time of one)"""
    bad: list[str] = []
    slowest, done, until = 0.0, 0, time.monotonic() + seconds
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for seed in seeds:
            if time.monotonic() > until:
                break
            outcome = case(messages_of(paths[seed % len(paths)]), seed, Path(made) / "s.mcap")
            done, slowest = done + 1, max(slowest, outcome.cpu_s)
            if outcome.bad:
                bad.append(f"seed {seed}: {outcome.bad}")
    return done, bad, slowest
