"""The session writer: what it writes is what came, and a cut file goes on."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.session.writer import (
    CONTROL_FLUSH_NS,
    FLUSH_NS,
    RunFacts,
    SessionWriter,
    resume,
)
from pardbg.store.source import Message
from tests.harness import whole_messages

FACTS = RunFacts("run-1", "1f1b", "n0", ("torchrun", "x.py"), "/w", "", t_ns=1_000, wall_ns=9_000)
MESSAGES = [
    Message(b"D", b"\x81\xa1k\xa3run", 1_100),
    Message(b"R0.n0.1", b"head" + bytes(640), 1_200),
    Message(b"O", b"\x80", 1_200),
    Message(b"R0.n0.2", b"other", 1_300),
]


def written(path: Path, messages: list[Message] = MESSAGES) -> SessionWriter:
    writer = SessionWriter(path, FACTS)
    for message in messages:
        writer.write(message.key, message.payload, message.received_ns)
    return writer


def test_what_is_written_reads_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    written(path).close(code=0)
    assert list(whole_messages(path)) == MESSAGES


def test_the_file_says_what_it_is_to_any_mcap_reader(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    written(path).close(code=3, hub_restarts=1)
    with path.open("rb") as file:
        reader = make_reader(file)
        assert reader.get_header().profile == "pardbg"
        about = {record.name: record.metadata for record in reader.iter_metadata()}
        summary = reader.get_summary()
        found = [(c.topic, c.message_encoding, m) for _, c, m in reader.iter_messages()]
    assert about["pardbg.run"]["name"] == "1f1b"
    assert about["pardbg.run"]["argv"] == '["torchrun", "x.py"]'
    assert about["pardbg.end"] == {"code": "3", "hub_restarts": "1", "num_messages": "4"}
    assert summary is not None and summary.statistics is not None
    assert summary.statistics.message_count == 3  # a block for each channel
    assert {schema.name for schema in summary.schemas.values()} == {"pardbg.maps", "pardbg.records"}
    # The records are in no form that FRAME has. wall = monotonic + (9000 - 1000).
    assert sorted((topic, form, m.publish_time, m.log_time) for topic, form, m in found) == [
        ("/hub/definitions", "msgpack", 9_100, 9_100), ("/hub/output", "msgpack", 9_200, 9_200),
        ("/other", "msgpack", 9_200, 9_300),
    ]  # fmt: skip
    (index,) = summary.chunk_indexes
    assert (index.message_start_time, index.message_end_time) == (9_100, 9_300)


def test_times_never_go_back(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    writer = written(path)
    writer.write(b"O", b"late", 5)
    writer.close()
    assert [m.received_ns for m in whole_messages(path)] == [1_100, 1_200, 1_200, 1_300, 1_300]


@pytest.mark.parametrize(
    ("key", "after_ns"), [(b"O", FLUSH_NS), (b"R0.n0.1", FLUSH_NS), (b"C", CONTROL_FLUSH_NS)]
)
def test_a_chunk_is_closed_in_time(tmp_path: Path, key: bytes, after_ns: int) -> None:
    """What nobody else has, sooner: what was done to the run."""
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    writer.write(b"S", b"s", 1_000)
    writer.write(key, b"a", 1_000)
    writer.tick(1_000 + after_ns - 1)
    assert list(whole_messages(path)) == []
    writer.tick(1_000 + after_ns)
    assert [m.payload for m in whole_messages(path)] == [b"s", b"a"]
    writer.close()


@pytest.mark.parametrize("cut", [0, 5, 60, 200, 400, 700])
def test_a_file_cut_anywhere_gives_its_whole_chunks(tmp_path: Path, cut: int) -> None:
    """Each message in a chunk of its own: what is kept is a beginning of what was written."""
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    for message in MESSAGES:
        writer.write(message.key, message.payload, message.received_ns)
        writer.flush()
    writer.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut] if cut else data)
    kept = list(whole_messages(path))
    assert kept == MESSAGES[: len(kept)]


def test_damage_in_a_chunk_ends_the_file_there(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    writer = written(path, MESSAGES[:2])
    writer.flush()
    good = path.stat().st_size
    writer.write(b"O", b"x" * 100, 2_000)
    writer.flush()
    writer.abandon()
    data = bytearray(path.read_bytes())
    data[good + 80] ^= 0xFF
    path.write_bytes(data)
    assert list(whole_messages(path)) == MESSAGES[:2]


def test_a_killed_writers_file_goes_on_in_place(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    killed = written(path)
    killed.flush()
    killed.write(b"O", b"lost with its chunk", 1_400)
    killed.abandon()
    seen: list[Message] = []
    writer = resume(path, FACTS, lambda stored, offset, messages: seen.extend(messages))
    assert seen == MESSAGES
    assert list(whole_messages(path)) == MESSAGES  # in place before anything new is written
    writer.write(b"R0.n0.1", b"more", 2_000)
    writer.close(code=0)
    assert list(whole_messages(path)) == [*MESSAGES, Message(b"R0.n0.1", b"more", 2_000)]
    assert [p.name for p in tmp_path.iterdir()] == ["s.mcap"]
    with path.open("rb") as file:
        assert make_reader(file).get_summary() is not None


def test_a_second_run_does_not_write_over_a_file_that_is_being_written(tmp_path: Path) -> None:
    """Two that start at once both found that it is not there."""
    path = tmp_path / "s.mcap"
    first = written(path)
    with pytest.raises(OSError) as refused:
        SessionWriter(path, FACTS)
    assert refused.value.errno == errno.EBUSY
    with pytest.raises(OSError):  # its hub is killed, and another begun
        resume(path, replace(FACTS, run="run-2"))
    first.close(code=0)
    assert list(whole_messages(path)) == MESSAGES
    SessionWriter(path, FACTS).close(code=0)  # with --force, when it is no longer written
    assert list(whole_messages(path)) == []
