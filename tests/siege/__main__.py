"""``python -m tests.siege [PART …] [--seed N] [--size N] [--minutes M] [--soak SECONDS]``

``make siege``: what must never happen, tried many times; PARTS says what each does. A table at the
end; exit code 1 if anything went wrong. Each line of what went wrong has the seed that shows it
again.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.processes import MARK

SESSIONS = ("1f1b", "ddp", "zero3", "moe", "ddp-ring", "3d", "zbv", "fault-nan", "fault-exception",
            "fault-group-order", "fault-mismatch-op", "ps-async", "tour")  # fmt: skip
ROOT = Path(__file__).parents[2]
DEATHS = 9
"""Small runs that are killed early for each real one."""
Found = tuple[int, list[str], float]


def _sessions(seed: int, count: int, seconds: float = math.inf) -> Found:
    from tests.siege import sessions

    paths = [ROOT / "sessions" / f"{name}.mcap" for name in SESSIONS]
    return sessions.run(paths, range(seed, seed + count), seconds)


def _tables(seed: int, count: int) -> Found:
    from tests.siege import tables

    return tables.run(seed, count)


def _frames(seed: int, count: int) -> Found:
    from tests.siege import frames

    return frames.run(seed, count)


def _strangers(seed: int, count: int) -> Found:
    from tests.siege import strangers

    return strangers.run(seed, count)


def _texts(seed: int, count: int) -> Found:
    from tests.siege import texts

    return texts.run(seed, count)


def _expressions(seed: int, count: int) -> Found:
    from tests.siege import texts

    good, bad, slowest = texts.expressions(seed, count)
    few = [f"only {good:,} of {count:,} parse"] if 2 * good < count else []
    return count, bad + few, slowest


def _kills(seed: int, count: int, seconds: float = math.inf) -> Found:
    """A real run takes as long as many small ones."""
    from tests.siege import deaths, kills

    early = deaths.run(seed, DEATHS * count, seconds / 2)
    real = kills.run(seed, count, seconds / 2)
    return early[0] + real[0], early[1] + real[1], max(early[2], real[2])


def _beside(seed: int, count: int, seconds: float = math.inf) -> Found:
    from tests.siege import beside

    return beside.run(seed, count, seconds)


def _soak(seconds: int, seed: int, count: int) -> Found:
    from tests.siege import soak

    return soak.run(seconds)


def _imports(seed: int, count: int) -> Found:
    from tests.siege import imports

    return imports.run(seed, count)


def _users(seed: int, count: int) -> Found:
    from tests.siege import users

    return users.run(seed, count)


def _nodes(seed: int, count: int) -> Found:
    from tests.siege import nodes

    return nodes.run(seed, count)


PARTS: dict[str, tuple[Callable[[int, int], Found], int, str]] = {
    "sessions": (_sessions, 1_000, "hostile and damaged session files: loaded, drawn, exported"),
    "tables": (_tables, 1_000, "schedules as CSV with odd cells: checked, drawn, predicted"),
    "frames": (_frames, 200_000, "DATA and CTRL frames with odd fields against a hub"),
    "strangers": (_strangers, 25_000, "odd frames of four kinds at a live hub with a real job"),
    "texts": (_texts, 400_000, "expressions, watches, goto, sizes, rank sets, verbs"),
    "expressions": (_expressions, 1_000_000, "conditions by the grammar: half of them parse"),
    "kills": (_kills, 12, "kills and stops of real runs, and kills from 10 ms on"),
    "imports": (_imports, 2_000, "dumps, traces and rc files with odd fields or injured bytes"),
    "users": (_users, 30, "what another user planted, and another user at a live run"),
    "nodes": (_nodes, 4, "nodes in network namespaces: cut networks, killed relays and hubs"),
    "beside": (_beside, 6, "programs with and without pardbg, byte for byte"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}, soak")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--size", type=float, default=1.0, help="times as many of each")
    parser.add_argument("--minutes", type=float, default=math.inf,
                        help="kills, beside and sessions begin nothing after it")  # fmt: skip
    parser.add_argument("--soak", type=int, default=60, metavar="SECONDS")
    words = parser.parse_args()
    os.environ.setdefault(MARK, f"{os.getpid()}-{uuid.uuid4().hex}")
    every: dict[str, Any] = dict(PARTS)
    for name, part in (("kills", _kills), ("beside", _beside), ("sessions", _sessions)):
        every[name] = (partial(part, seconds=60 * words.minutes), *PARTS[name][1:])
    every |= {
        "soak": (partial(_soak, words.soak), words.soak, "a fast job with a viewer: memory"),
    }
    unknown = [name for name in words.parts if name not in every]
    if unknown:
        parser.error(f"no part {unknown[0]!r}")
    rows = []
    for name in words.parts or every:
        part, size, what = every[name]
        count = size if name == "soak" else max(1, round(size * words.size))
        begun = time.monotonic()
        try:
            done, bad, slowest = part(words.seed, count)
        except Exception as error:  # noqa: BLE001 - said in the table, the other parts go on
            done, bad, slowest = 0, [f"{type(error).__name__}: {error}"], 0.0
        rows.append((name, done, len(bad), time.monotonic() - begun, slowest, what))
        for line in bad[:20]:
            print(f"  {name}: {line}", flush=True)
    print(f"seed {words.seed}")
    print(f"{'part':<11} {'tried':>9} {'bad':>4} {'time':>8} {'slowest':>8}  what")
    for name, done, num_bad, took, slowest, what in rows:
        print(f"{name:<11} {done:>9,} {num_bad:>4} {took:>6.0f} s {slowest:>6.2f} s  {what}")
    return 1 if any(row[2] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
