"""Bytes on disk per record, and what packing costs: the recorded sessions, and a made stream.

Each recorded recipe is written again by ``pardbg repair``, so the figure is the writer's, whoever
recorded the file. These runs take some seconds: what is there once per run (definitions) and per
second (STATE) weighs much in them, so the rows alone are beside it, and a made run of 200,000
records. Speed is CPU time against a plain mcap file, one message each, in turns.
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
from mcap.reader import make_reader
from mcap.writer import Writer

from pardbg.session import record_blocks
from pardbg.session.message_blocks import Numbered
from pardbg.session.reader import open_session
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
    """(records, bytes of them alone in one chunk)."""
    groups: dict[bytes, Numbered] = {}
    for number, message in enumerate(frames):
        group = groups.setdefault(message.key, Numbered([], []))
        group.numbers.append(number)
        group.messages.append(message)
    blocks = record_blocks.encode(list(groups.values()))
    packed = zstandard.ZstdCompressor(3).compress(b"".join(block.data for block in blocks))
    return sum(wire.FRAME.unpack_from(m.payload)[2] for m in frames), len(packed)


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
    """Large and small batches, written and read, as a session and as a plain file in turns."""
    figures = []
    for size in (BATCH, 12):
        messages = stream(size)
        plain, session = folder / "plain.mcap", folder / "session.mcap"
        writes = _ratio(partial(write, session, messages), partial(write_plain, plain, messages))
        reads = _ratio(partial(_messages, session), partial(read_plain, plain))
        assert _messages(session)[1:] == messages  # but for the run's facts
        sizes = session.stat().st_size / plain.stat().st_size
        count = sum(wire.FRAME.unpack_from(m.payload)[2] for m in messages)
        for name, (ours, ratio) in (("write", writes), ("read", reads)):
            note = f"batches of {size}: {ratio:.2f}× the time of plain mcap"
            figures.append(Figure(f"{name} blocks", count / ours, "records/core-s", 2e6,
                                  higher_is_better=True, note=note))  # fmt: skip
        figures.append(Figure(f"size, batches of {size}", sizes, "× plain mcap"))
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


def write(path: Path, messages: Iterable[Message]) -> None:
    writer = SessionWriter(path, FACTS)
    for message in messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)


def write_plain(path: Path, messages: Iterable[Message]) -> None:
    """Each message as it came, in zstd chunks of 1 MiB."""
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        channels: dict[bytes, int] = {}
        for number, message in enumerate(messages):
            key, time_ns = message.key, message.received_ns
            if key not in channels:
                channels[key] = writer.register_channel(key.decode(), "", 0)
            writer.add_message(channels[key], time_ns, message.payload, time_ns, number)
        writer.finish()


def read_plain(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(len(message.data) for _, _, message in make_reader(file).iter_messages())
