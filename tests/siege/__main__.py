"""``python -m tests.siege [PART …] [--seed N] [--size N] [--minutes M] [--soak SECONDS]``

``make siege``: what must never happen, tried many times; PARTS says what each does. A table at the
end; exit code 1 if anything went wrong. Each line of what went wrong has the seed that shows it
again.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import time
import uuid
from collections.abc import Callable

from tests.harness import Found
from tests.processes import MARK

DEATHS = 9
"""Small runs that are killed early for each real one."""


def _part(module: str, function: str = "run") -> Callable[..., Found]:
    """Return what runs one part; its module is imported then: others' needs are none of its."""
    return lambda *arguments: getattr(
        importlib.import_module(f"tests.siege.{module}"), function
    )(*arguments)  # fmt: skip


def _kills(seed: int, count: int, seconds: float) -> Found:
    """A real run takes as long as many small ones."""
    early = _part("deaths")(seed, DEATHS * count, seconds / 2)
    real = _part("kills")(seed, count, seconds / 2)
    return early[0] + real[0], early[1] + real[1], max(early[2], real[2])


PARTS: dict[str, tuple[Callable[..., Found], int, str]] = {
    "sessions": (_part("sessions"), 1_000, "hostile and damaged session files: loaded, drawn, "
                                           "exported"),
    "tables": (_part("tables"), 1_000, "schedules as CSV with odd cells: checked, drawn, "
                                       "predicted"),
    "frames": (_part("frames"), 200_000, "DATA and CTRL frames with odd fields against a hub"),
    "strangers": (_part("strangers"), 25_000, "odd frames of four kinds at a live hub with a real "
                                              "job"),
    "texts": (_part("texts"), 400_000, "expressions, watches, goto, sizes, rank sets, verbs"),
    "expressions": (_part("texts", "expressions"), 1_000_000, "conditions by the grammar: half of "
                                                              "them parse"),
    "kills": (_kills, 12, "kills and stops of real runs, and kills from 10 ms on"),
    "imports": (_part("imports"), 2_000, "dumps, traces and rc files with odd fields or injured "
                                         "bytes"),
    "users": (_part("users"), 30, "what another user planted, and another user at a live run"),
    "nodes": (_part("nodes"), 4, "nodes in network namespaces: cut networks, killed relays and "
                                 "hubs"),
    "beside": (_part("beside"), 6, "programs with and without pardbg, byte for byte"),
    "entrances": (_part("entrances"), 15, "the agent enters and leaves jobs that run; kills "
                                          "amid that"),
    "healthy": (_part("healthy"), 200, "healthy jobs under --on-hang: nothing is done about one"),
    "soak": (_part("soak"), 60, "a fast job with a viewer: memory"),
}  # fmt: skip
TIMED = ("kills", "beside", "sessions", "entrances", "healthy")
"""Parts that begin nothing after ``--minutes``."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--size", type=float, default=1.0, help="times as many of each")
    parser.add_argument("--minutes", type=float, default=math.inf,
                        help=f"{', '.join(TIMED)} begin nothing after it")  # fmt: skip
    parser.add_argument("--soak", type=int, default=60, metavar="SECONDS")
    words = parser.parse_args()
    os.environ.setdefault(MARK, f"{os.getpid()}-{uuid.uuid4().hex}")
    if unknown := [name for name in words.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}")
    rows = []
    for name in words.parts or PARTS:
        part, size, what = PARTS[name]
        count = words.soak if name == "soak" else max(1, round(size * words.size))
        limit = [60 * words.minutes] if name in TIMED else []
        begun = time.monotonic()
        try:
            done, bad, slowest = part(words.seed, count, *limit)
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
