"""A session whose writer was killed goes on behind its last whole chunk, whatever its length."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.session import reader, writer
from pardbg.session.repair import repair
from pardbg.session.writer import REPLAY_BYTES, RunFacts, SessionWriter, resume, whole_messages
from pardbg.store.source import Message

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


def bytes_read() -> int:
    """By this process, from files, so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_any_mcap_reader_finds_is_what_a_writer_that_lived_would_have_left(
    tmp_path: Path,
) -> None:
    path, whole = tmp_path / "s.mcap", tmp_path / "whole.mcap"
    messages = killed(path, 20)
    later = Message(b"R0.n0.1", b"more", 9_000)
    going_on = resume(path, FACTS)
    going_on.write(later.key, later.payload, later.received_ns)
    going_on.close(code=0)
    lived = SessionWriter(whole, FACTS)
    for n, message in enumerate([*messages, later]):
        lived.write(message.key, message.payload, message.received_ns)
        if n % 2:
            lived.flush()
    lived.close(code=0)
    assert path.read_bytes() == whole.read_bytes()
    with path.open("rb") as file:
        found = make_reader(file, validate_crcs=True)
        summary = found.get_summary()
        assert summary is not None and summary.statistics is not None
        assert len(summary.chunk_indexes) == summary.statistics.chunk_count == 21
        packs = [m.sequence for _, _, m in found.iter_messages()]
    assert packs == list(range(0, 42, 2))
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
        killed(path, num_chunks, size=2048)
        unpacked.clear()
        before = bytes_read()
        resume(path, FACTS, known=path.stat().st_size).abandon()
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


def test_a_writer_keeps_little_of_each_chunk(tmp_path: Path) -> None:
    """A recording of days has a million of them: their index is kept as it will be written."""
    made = SessionWriter(tmp_path / "s.mcap", FACTS)
    for n in range(100):
        made.write(b"O", b"x", 2_000 + n)
        made.flush()
    assert len(made._summary.chunks) <= 100 * 100
    made.close()
