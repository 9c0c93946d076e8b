"""Lines with a needle are found in one pass, and those of no pattern are left as they are."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pardbg.joblog import origins
from pardbg.joblog.needles import Needles
from pardbg.joblog.patterns import NEEDLES
from pardbg.joblog.scan import read

SEED = 20261127


def beginnings(block: bytes, needles: tuple[bytes, ...]) -> list[int]:
    at, found = 0, []
    for line in block.splitlines(keepends=True):
        if any(needle in line for needle in needles):
            found.append(at)
        at += len(line)
    return found


@pytest.mark.parametrize("needles", [NEEDLES, (b"abc", b"bca", b"abba")], ids=["all", "alike"])
def test_lines_are_those_that_hold_a_needle(needles: tuple[bytes, ...]) -> None:
    draw = random.Random(SEED)
    finder = Needles(needles)
    alphabet = b"".join(needles)
    for _ in range(400):
        parts = [
            draw.choice([
                draw.choice(needles), b"\n", draw.choice(needles)[draw.randrange(3) :],
                bytes(draw.choices(alphabet, k=draw.randrange(5))),
            ])
            for _ in range(draw.randrange(30))
        ]  # fmt: skip
        block = b"".join(parts)
        assert finder.lines(block) == beginnings(block, needles), block


@pytest.mark.parametrize("block", [b"", b"\n", b"S", b"SI", b"SIG", b"\xff" * 5])
def test_short_blocks(block: bytes) -> None:
    assert Needles(NEEDLES).lines(block) == beginnings(block, NEEDLES)


def test_it_takes_less_than_a_search_for_each() -> None:
    line = (
        b"[rank%d]: 2026-11-20 08:00:00,6 INFO step: %d  loss:  4.17  memory: 45.32GiB  NCCL INFO\n"
    )
    block = b"".join(line % (n % 8, n) for n in range(10_000))
    finder = Needles(NEEDLES)
    took = []
    for search in (finder.lines, lambda text: [text.find(needle) for needle in NEEDLES]):
        times = []
        for _ in range(7):
            begun = time.process_time()
            search(block)
            times.append(time.process_time() - begun)
        took.append(min(times))
    assert took[0] < took[1]


def test_prefixes_of_healthy_lines_are_not_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of needles are in healthy lines, too."""
    (tmp_path / "job.log").write_text(
        "[rank3]: Starting new HTTPS connection (1): huggingface.co:443\n"
        "[rank3]: lr scheduler is called before the collective optimizer\n"
        "(Worker pid=3) node3:1:2 [0] NCCL INFO Init timings: total 0.3\n"
        "srun: error: node17: task 3: Out Of Memory\n"
    )
    split = []
    monkeypatch.setattr(origins, "split", lambda line, *rest: split.append(line) or plain(line))
    plain = lambda line: (origins.Origin(), line)  # noqa: E731
    found = read([str(tmp_path / "job.log")])
    assert len(found.events) == 1 and {line[:5] for line in split} == {"srun:"}
