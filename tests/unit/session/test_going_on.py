"""A session whose writer was killed goes on behind its last whole chunk, whatever its length."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from mcap.reader import make_reader
from mcap.summary import Summary

from pardbg.session import reader, writer
from pardbg.session.layout import SCHEMAS
from pardbg.session.repair import repair
from pardbg.session.writer import (
    NOTHING_KNOWN,
    REPLAY_BYTES,
    Known,
    RunFacts,
    SessionWriter,
    resume,
)
from pardbg.store.source import Message
from tests.harness import whole_messages

FACTS = RunFacts("run-1", "1f1b", "n0", ("torchrun", "x.py"), "/w", "", t_ns=1_000, wall_ns=9_000)


def killed(path: Path, num_chunks: int, size: int = 1 << 10) -> list[Message]:
    """What a killed writer wrote: ``num_chunks`` chunks of two messages, and part of another."""
    made = SessionWriter(path, FACTS)
    messages = [
        Message(b"O", (b"%03d." % n) * (size // 4), 2_000 + n) for n in range(2 * num_chunks)
    ]  # fmt: skip
    for n, message in enumerate(messages):
        made.write(message.key, message.payload, message.received_ns)
        if n % 2:
            made.flush()
    made.abandon()
    with path.open("ab") as file:
        file.write(path.read_bytes()[-40:])
    return messages


def killed_with_state(path: Path, num_chunks: int) -> Known:
    """A killed writer's file, and its state at the end of the last chunk."""
    killed(path, num_chunks, size=2048)
    writer = resume(path, FACTS)
    known = writer.known()
    writer.abandon()
    return known


def summary_of(path: Path) -> Summary:
    """As mcap's own reader finds it."""
    with path.open("rb") as file:
        found = make_reader(file).get_summary()
    assert found is not None
    return found


def bytes_read() -> int:
    """By this process, from files, so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_any_mcap_reader_finds_is_what_a_writer_that_lived_would_have_left(
    tmp_path: Path,
) -> None:
    path, whole = tmp_path / "s.mcap", tmp_path / "whole.mcap"
    messages = killed(path, 20)
    later = Message(b"C", b"more", 9_000)
    going_on = resume(path, FACTS)
    going_on.write(later.key, later.payload, later.received_ns)
    going_on.close(code=0)
    lived = SessionWriter(whole, FACTS)
    for n, message in enumerate([*messages, later]):
        lived.write(message.key, message.payload, message.received_ns)
        if n % 2:
            lived.flush()
    lived.close(code=0)
    found, expected = summary_of(path), summary_of(whole)
    assert found.channels == expected.channels and found.schemas == expected.schemas
    assert found.statistics == expected.statistics and len(found.schemas) == len(SCHEMAS)
    assert found.metadata_indexes[0] == expected.metadata_indexes[0]
    assert found.chunk_indexes[:20] == expected.chunk_indexes[:20]
    assert len(found.chunk_indexes) == len(expected.chunk_indexes) == 21
    with path.open("rb") as file:
        numbers = [m.sequence for _, _, m in make_reader(file, validate_crcs=True).iter_messages()]
    assert numbers == list(range(0, 42, 2))
    assert list(whole_messages(path)) == [*messages, later]


def test_a_longer_recording_costs_no_more_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight times the chunks: 64 bytes more read for each, and none more unpacked."""
    unpacked: list[int] = []
    real = writer.unpack_chunk
    monkeypatch.setattr(writer, "REPLAY_BYTES", 5 * 4096)
    monkeypatch.setattr(writer, "unpack_chunk", lambda chunk: unpacked.append(1) or real(chunk))
    cost = []
    for num_chunks in (50, 400):
        path = tmp_path / f"{num_chunks}.mcap"
        known = killed_with_state(path, num_chunks)
        unpacked.clear()
        before = bytes_read()
        resume(path, FACTS, known=known).abandon()
        cost.append((bytes_read() - before, len(unpacked)))
    (few, few_unpacked), (many, many_unpacked) = cost
    assert 0 < few_unpacked == many_unpacked < 10
    assert many - few <= 64 * 350 + 4096


def test_what_is_not_known_yet_is_read(tmp_path: Path) -> None:
    """From the offset up to which the hub kept its state, and what late viewers get before it."""
    path = tmp_path / "s.mcap"
    messages = killed(path, 10)
    seen: list[tuple[int, Message]] = []
    going_on = resume(
        path, FACTS, lambda chunk, offset, found: seen.extend((offset, m) for m in found)
    )
    assert [message for _, message in seen] == messages  # REPLAY_BYTES are more than all of it
    assert len({offset for offset, _ in seen}) == 10
    assert REPLAY_BYTES > 20 * 1024
    assert going_on.num_messages == going_on.num_written == 20
    going_on.abandon()


@pytest.mark.parametrize("seed", range(8))
def test_a_file_cut_at_any_byte_goes_on(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "s.mcap"
    messages = killed(path, 4)
    data = path.read_bytes()
    for size in range(seed, len(data), 8 * 7):
        path.write_bytes(data[:size])
        kept = list(whole_messages(path))
        assert kept == messages[: len(kept)]
        going_on = resume(path, FACTS)
        going_on.write(b"O", b"more", 9_000)
        going_on.close(code=0)
        assert list(whole_messages(path)) == [*kept, Message(b"O", b"more", 9_000)]
        assert not reader.load(path).truncated
        with path.open("rb") as file:
            summary = make_reader(file).get_summary()
        assert summary is not None and len(summary.chunk_indexes) == len(kept) // 2 + 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.mcap"]


def test_damage_in_what_is_read_ends_the_file_there(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    messages = killed(path, 10)
    data = bytearray(path.read_bytes())
    places = [at for at in range(len(data)) if data.startswith(b"\x04\x00\x00\x00zstd", at)]
    data[places[7] + 30] ^= 0xFF
    path.write_bytes(data)
    resume(path, FACTS).close()
    assert list(whole_messages(path)) == messages[:14]
    assert repair(path, tmp_path / "r.mcap").whole


def test_a_file_that_was_closed_goes_on_before_its_end(tmp_path: Path) -> None:
    """The hub may be killed after that, while late viewers still fetch the run's history."""
    path = tmp_path / "s.mcap"
    made = SessionWriter(path, FACTS)
    made.write(b"O", b"one", 2_000)
    made.close(code=3)
    going_on = resume(path, FACTS)
    going_on.write(b"O", b"two", 3_000)
    going_on.close(code=4)
    assert [m.payload for m in whole_messages(path)] == [b"one", b"two"]
    with path.open("rb") as file:
        ends = [m.metadata for m in make_reader(file).iter_metadata() if m.name == "pardbg.end"]
    assert [end["code"] for end in ends] == ["4"]
    assert ends[0]["num_messages"] == "2"


@pytest.mark.parametrize("read", ["all", "what is not known"])
def test_channels_and_numbers_of_messages_are_those_of_the_whole_file(
    tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three channels, two of them before the state that was kept; none is read again for it."""
    monkeypatch.setattr(writer, "REPLAY_BYTES", 0)
    path = tmp_path / "s.mcap"
    made = SessionWriter(path, FACTS)
    made.write(b"D0.n0.1", msgpack.packb({"k": "process", "rank": 7}), 2_000)
    made.write(b"O", b"\x80", 2_001)
    made.flush()
    known = made.known()
    made.write(b"O", b"\x80", 2_002)
    made.write(b"C", b"\x80", 2_003)
    made.flush()
    made.abandon()
    seen: list[Message] = []
    going_on = resume(
        path, FACTS, lambda stored, offset, found: seen.extend(found),
        known if read != "all" else NOTHING_KNOWN,
    )  # fmt: skip
    assert len(seen) == (4 if read == "all" else 2)
    assert going_on.num_messages == 4
    going_on.write(b"D0.n0.1", b"\x80", 3_000)
    going_on.close()
    summary = summary_of(path)
    assert summary.statistics is not None
    topics = {channel.topic: number for number, channel in summary.channels.items()}
    counts = summary.statistics.channel_message_counts
    assert {topic: counts[number] for topic, number in topics.items()} == {
        "/rank/7/definitions": 2, "/hub/output": 2, "/hub/events": 1,
    }  # fmt: skip
    assert [m.payload[:1] for m in whole_messages(path)] == [b"\x82", *[b"\x80"] * 4]
