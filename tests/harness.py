"""The harness that siege, fuzz, diagnosis and bench share: cases by their seeds, hubs of their own,
and what was recorded. Jobs are started with ``tests.distributed.runs.started`` where pardbg's own
processes are asked, with ``pardbg_run`` where it is a command like any other, and with
``tests.processes.run_argv`` where nobody watches; ``tests.processes.wait_until`` waits for all."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcap.records import Chunk

from pardbg.hub.run import config as files
from pardbg.session.reader import DAMAGED, Decoder, records_of
from pardbg.store.source import Message
from tests.distributed.owned import PARDBG
from tests.processes import rank_env, wait_until

Found = tuple[int, list[str], float]
"""(cases tried, what went wrong, the slowest in s)"""


@dataclass(frozen=True, slots=True)
class Tried:
    """What one case of a campaign came to."""

    bad: Sequence[str] = ()
    """What went wrong."""
    how: str = ""
    """What the case was, for a reader of ``bad``."""
    counts: Sequence[str] = ()
    """Names that the campaign counts."""
    took_s: float | None = None
    """Seconds to be compared; None: those that the case took."""


def campaign(
    name: str,
    try_case: Callable[[int, random.Random, Path], Tried],
    seeds: Sequence[int],
    seconds: float = math.inf,
    root: str = "/tmp",
) -> Found:
    """Try a case for each seed, in a folder of its own; begin none after so many ``seconds``."""
    until = time.monotonic() + seconds
    done, bad, slowest, tally = 0, [], 0.0, Counter[str]()
    for seed in seeds:
        begun = time.monotonic()
        if begun > until:
            break
        with tempfile.TemporaryDirectory(prefix="pds-", dir=root) as folder:
            tried = try_case(seed, random.Random(seed), Path(folder))
        took = time.monotonic() - begun if tried.took_s is None else tried.took_s
        done, slowest = done + 1, max(slowest, took)
        tally.update(tried.counts)
        how = f"seed {seed} {tried.how}".rstrip()
        bad += [f"{how}: {what}" for what in tried.bad]
    if tally:
        print(f"{name}: " + ", ".join(f"{what} {n}" for what, n in sorted(tally.items())))
    return done, bad, slowest


def pardbg_run(
    program: Sequence[str], folder: Path, *options: str, prefix: Sequence[str] = (),
    session: Path | None = None, env: Mapping[str, str] | None = None, watched: bool = True,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start ``pardbg run`` of a program in a session of its own. Its output is in the folder's
    ``out`` and ``err``, the recording in ``s.mcap``. ``watched=False``: the program alone."""
    words = [*PARDBG, "run", *options, "-o", str(session or folder / "s.mcap"), "--"]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [*prefix, *(words if watched else ()), *program], env=rank_env(env),
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip


@contextmanager
def hub_process(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A hub of a run directory that has no job, as soon as it listens; killed at the end."""
    hub = subprocess.Popen([sys.executable, "-m", "pardbg.hub", str(run_dir)])
    try:
        wait_until(lambda: (run_dir / files.HUB_FILE).exists() or hub.poll() is not None)
        assert hub.poll() is None, "the hub ended"
        yield hub
    finally:
        hub.kill()
        hub.wait()


def whole_messages(path: Path) -> Iterator[Message]:
    """Yield messages of a file that may be cut off anywhere, up to its last whole chunk."""
    decoder = Decoder()
    try:
        with open(path, "rb") as file:
            for record in records_of(file):
                if isinstance(record, Chunk):
                    yield from decoder.messages(record)
    except (*DAMAGED, OSError):
        return
