"""Bytes on disk per record, and what packing costs: the recorded sessions, and a made stream.

Each recorded recipe is written again by ``pardbg repair``, so the figure is the writer's, whoever
recorded the file. These runs take some seconds: what is there once per run (definitions) and per
second (STATE) weighs much in them, so the rows alone are beside it, and a made run of 200,000
records. Speed is CPU time against format 1, one MCAP message each, in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import zstandard
from mcap.writer import Writer

from pardbg.session import columns
from pardbg.session.reader import PROFILE, RUN_METADATA, open_session
from pardbg.session.repair import repair
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.source import Message
from pardbg_agent import wire
from tests.bench.bench_hub import BATCH, batch
from tests.bench.figures import Figure
from tests.bench.long_session import make
from tests.sessions.wanted import RECIPES

SESSIONS = Path(__file__).parents[2] / "sessions"
FACTS = RunFacts("bench", "bench", "host", ("bench",), "/", "", 0, 1 << 60)
BATCHES, ROUNDS = 64, 7


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*_recipes(folder), _made(folder), *_speed(folder)]


def _recipes(folder: Path) -> list[Figure]:
    figures, sizes = [], []
    for wanted in RECIPES:
        path, out = SESSIONS / wanted.file, folder / "s.mcap"
        if not path.exists():
            continue
        repair(path, out)
        frames = [m for m in _messages(out) if m.key[:1] == wire.Key.RECORDS.value]
        count, rows = _rows(frames)
        sizes.append(out.stat().st_size / count)
        note = f"{count:,} records, {rows / count:.1f} for the rows alone"
        figures.append(Figure(f"disk per record: {wanted.recipe}", sizes[-1], "B", 12, note=note))
    if sizes:
        figures.append(Figure("disk per record: median of recipes", median(sizes), "B", 12))
    return figures


def _rows(frames: list[Message]) -> tuple[int, int]:
    """(records, bytes of them alone as one pack has them)."""
    frames = sorted(frames, key=lambda message: message.key)
    keys = sorted({message.key for message in frames})
    counts = [wire.FRAME.unpack_from(m.payload)[2] for m in frames]
    body = b"".join(m.payload[wire.FRAME.size :] for m in frames)
    procs = np.repeat([keys.index(m.key) for m in frames], counts)
    packed = columns.pack(np.frombuffer(body, columns.DTYPE), procs)
    return sum(counts), len(zstandard.ZstdCompressor(9).compress(packed))


def _made(folder: Path) -> Figure:
    path = folder / "long.mcap"
    count = make(path, 200_000)
    return Figure("disk per record: made run", path.stat().st_size / count, "B", 12,
                  note=f"{count:,} records")  # fmt: skip


def _messages(path: Path) -> list[Message]:
    source, found = open_session(path), []
    while not source.finished:
        found += source.poll(0)
    source.close()
    return found


# --------------------------------------------------------------------------- speed


def _speed(folder: Path) -> list[Figure]:
    """Large and small batches, written and read, in both formats in turns."""
    figures = []
    for size in (BATCH, 12):
        messages = stream(size)
        old, new = folder / "1.mcap", folder / "2.mcap"
        writes = _ratio(partial(write_2, new, messages), partial(write_1, old, messages))
        reads = _ratio(partial(_messages, new), partial(_messages, old))
        assert _messages(new)[1:] == _messages(old)[1:]  # but for the run's facts
        bytes_2, bytes_1 = new.stat().st_size, old.stat().st_size
        count = sum(wire.FRAME.unpack_from(m.payload)[2] for m in messages)
        for name, (ours, ratio) in (("write", writes), ("read", reads)):
            note = f"batches of {size}: {ratio:.2f}× the time of format 1"
            figures.append(Figure(f"{name} packs", count / ours, "records/core-s", 2e6,
                                  higher_is_better=True, note=note))  # fmt: skip
        figures.append(Figure(f"size, batches of {size}", bytes_2 / bytes_1, "× format 1"))
    return figures


def _ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """(CPU seconds of ours, how many times theirs): medians, in turns."""
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        times.append((_cpu_s(ours), _cpu_s(theirs)))
    return median(a for a, _ in times), median(a / b for a, b in times)


def _cpu_s(work: Callable[[], object]) -> float:
    t0 = time.process_time()
    work()
    return time.process_time() - t0


def stream(size: int) -> list[Message]:
    """BATCHES large batches of records, in messages of ``size``."""
    rng = np.random.default_rng(7)
    made: list[Message] = []
    for number in range(BATCHES):
        body = batch(number // 4 * BATCH, rng)[wire.FRAME.size :]
        for first in range(0, BATCH, size):
            records = body[first * 64 : (first + size) * 64]
            head = wire.FRAME.pack(
                wire.PROTOCOL_VERSION, 0, len(records) // 64, number // 4 * BATCH + first, 0, 0
            )
            key = b"R0.bench.%d" % (number % 4)
            made.append(Message(key, head + records, len(made) * 1_000_000))
    return made


def write_2(path: Path, messages: Iterable[Message]) -> None:
    writer = SessionWriter(path, FACTS)
    for message in messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)


def write_1(path: Path, messages: Iterable[Message]) -> None:
    """As the writer of format 1 did."""
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start(profile=PROFILE)
        writer.add_metadata(RUN_METADATA, {**FACTS.metadata(), "format": "1"})
        channels: dict[bytes, int] = {}
        for number, message in enumerate(messages):
            key, time_ns = message.key, message.received_ns
            if key not in channels:
                channels[key] = writer.register_channel(
                    f"records/{key[1:].decode()}", "x-pardbg-records", 0,
                    {"key": key[:1].decode(), "proc": key[1:].decode()},
                )  # fmt: skip
            writer.add_message(channels[key], time_ns, message.payload, time_ns, number)
        writer.finish()


if __name__ == "__main__":
    for figure in main():
        print(figure.line())
