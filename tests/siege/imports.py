"""Dumps and traces of other tools, and rc files, with odd fields or injured bytes: imported and
reported, or refused in one line; never more memory or time than stated."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import resource
from functools import partial
from pathlib import Path
from typing import Any

from pardbg.analysis.answers.report import report
from pardbg.cli.rc import named_rc
from pardbg.errors import UserError
from pardbg.session.importers.read import import_files
from pardbg.session.reader import load
from pardbg.ui.commands.startup import hub_request, parse_rc_line
from tests.harness import Found, Tried, campaign
from tests.siege import texts
from tests.siege.limited import MOST_BYTES, here
from tests.siege.values import mutated_value

DATA = Path(__file__).parents[1] / "data" / "imported"
KEEP = 200
"""Entries or events: the rest of a file says the same again."""


def samples() -> list[tuple[str, Any]]:
    """(file name, content): one of each kind."""
    with open(DATA / "fr_rank_0", "rb") as file:
        dump = pickle.load(file)  # noqa: S301 - ours, from the tests' data
    dump["entries"] = dump["entries"][:KEEP]
    with gzip.open(DATA / "trace_rank0.json.gz") as packed:
        trace = json.load(packed)
    trace["traceEvents"] = trace["traceEvents"][:KEEP]
    return [("fr_rank_0", dump), ("fr_rank_0.json", dump), ("trace_rank0.json", trace)]


def imported(folder: Path, name: str, content: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 5))):
        content = mutated_value(content, rng)
    pickled = name == "fr_rank_0"
    try:
        data = pickle.dumps(content, 2) if pickled else json.dumps(content, default=repr).encode()
    except TypeError:
        return  # bytes as a key: JSON has none
    if rng.random() < 0.3:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(4) :]
    if not pickled and rng.random() < 0.2:
        name, data = name + ".gz", gzip.compress(data)[: rng.choice((20, 10**9))]
    (folder / name).write_bytes(data)
    import_files([folder / name], folder / "s.mcap")
    report(load(folder / "s.mcap"))


def begun_with(folder: Path, rng: random.Random) -> None:
    """What is understood of an rc file, line by line."""
    words = [
        "break",
        "tbreak",
        "watch",
        "delay",
        "goto",
        "pause",
        "p",
        "kill",
        "level",
        "#",
        "until",
    ]
    lines = (f"{rng.choice(words)} {texts.text(rng)}" for _ in range(rng.randrange(20)))
    (folder / "rc").write_bytes("\n".join(lines).encode("utf-8", "replace"))
    for line in named_rc(folder / "rc").lines:
        try:
            found = parse_rc_line(line)
            hub_request(found.action, found.argument)
        except UserError as error:
            assert "\n" not in str(error).strip(), f"more than a line: {error!r}"


def run(seed: int, count: int) -> Found:
    """Try files; the slowest by seconds of processor time."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (2 * MOST_BYTES, most))
    every = samples()

    def one(number: int, rng: random.Random, folder: Path) -> Tried:
        if number % 4 == 3:
            return here(partial(begun_with, folder, rng)).tried("rc")
        name, content = every[number % len(every)]
        return here(partial(imported, folder, name, content, rng)).tried(name)

    return campaign("imports", one, range(seed, seed + count))
