"""Session files that are damaged or hostile: each is loaded, drawn, reported and exported."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from pardbg.store.source import Message
from tests.harness import Found, Tried, campaign, whole_messages
from tests.siege.hostile import hostile
from tests.siege.limited import Outcome, limited
from tests.siege.looked_at import look, mend

SESSIONS = ("1f1b", "ddp", "zero3", "moe", "ddp-ring", "3d", "zbv", "fault-nan", "fault-exception",
            "fault-group-order", "fault-mismatch-op", "ps-async", "tour")  # fmt: skip
ROOT = Path(__file__).parents[2]
KEPT = (40, 40, 40, 300, 300, 4000)
"""Messages of a session, at most; small ones find as much and take a fifth of the time."""


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


def run(seed: int, count: int, seconds: float = math.inf) -> Found:
    """Try files; none is begun after ``seconds``; the slowest by seconds of processor time."""
    return try_seeds(range(seed, seed + count), seconds)


def try_seeds(seeds: Sequence[int], seconds: float = math.inf) -> Found:
    """Try the files of these seeds."""

    def one(seed: int, _: random.Random, folder: Path) -> Tried:
        path = ROOT / "sessions" / f"{SESSIONS[seed % len(SESSIONS)]}.mcap"
        return case(messages_of(path), seed, folder / "s.mcap").tried()

    root = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"
    return campaign("sessions", one, seeds, seconds, root)
