"""Repair: what is whole is kept wherever it stands, what is lost is said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.session.reader import SessionError, load
from pardbg.session.repair import repair
from pardbg.session.writer import SessionWriter
from tests.harness import whole_messages
from tests.unit.session.test_reader import FACTS, foreign, write

NOTES = (b"repaired", b"session.truncated")


def payloads(path: Path) -> list[bytes]:
    """Of the run itself, without what the repair says."""
    found = [message.payload for message in whole_messages(path)]
    return [payload for payload in found if not any(note in payload for note in NOTES)]


def chunk_places(path: Path) -> list[tuple[int, int]]:
    """[begin, end) of the chunks, from the index."""
    with open(path, "rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    return [
        (index.chunk_start_offset, index.chunk_start_offset + index.chunk_length)
        for index in summary.chunk_indexes
    ]


def test_a_whole_file_stays_what_it_is(tmp_path: Path) -> None:
    whole, out = write(tmp_path / "s.mcap"), tmp_path / "r.mcap"
    done = repair(whole, out)
    assert payloads(out) == payloads(whole)
    assert not done.lost and done.text().endswith("nothing was lost")
    assert chunk_places(out) and not load(out).truncated


def test_a_cut_off_file_gets_its_end_and_says_that_it_was_cut(tmp_path: Path) -> None:
    whole, out = tmp_path / "s.mcap", tmp_path / "r.mcap"
    writer = SessionWriter(whole, FACTS)
    for message in whole_messages(write(tmp_path / "w.mcap")):
        if b"code" not in message.payload:  # not the run's end
            writer.write(message.key, message.payload, message.received_ns)
            writer.flush()
    writer.abandon()
    whole.write_bytes(whole.read_bytes()[:-300])
    kept = payloads(whole)
    done = repair(whole, out)
    assert kept and payloads(out) == kept
    assert "everything after its last whole chunk" in done.text()
    assert chunk_places(out)  # has an index again
    store = load(out)
    assert store.truncated  # the run's end was not in the file: it still is not
    assert [event.fact.TAG for _, event in store.controls.last(None, 9)] == ["repaired"]


@pytest.mark.parametrize("damage", ["content", "length", "gone", "zeros"])
def test_a_damaged_chunk_costs_itself_alone(tmp_path: Path, damage: str) -> None:
    path, out = write(tmp_path / "s.mcap"), tmp_path / "r.mcap"
    before, data = payloads(path), bytearray(path.read_bytes())
    places = chunk_places(path)
    begin, end = places[4]
    with open(path, "rb") as file:
        summary = make_reader(file).get_summary()
        assert summary is not None
        index = summary.chunk_indexes[4]
        to_wall = FACTS.wall_ns - FACTS.t_ns
        lost = sum(
            index.message_start_time <= message.received_ns + to_wall <= index.message_end_time
            for message in whole_messages(path)
        )
    if damage == "content":
        data[begin + 80] ^= 0xFF
    elif damage == "length":
        data[begin + 1 : begin + 9] = b"\xff" * 8
    elif damage == "gone":
        del data[begin + 20 : end - 20]
    else:
        data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    done = repair(path, out)
    after = payloads(out)
    assert done.num_chunks == len(places) - 1 and len(done.lost) == 1
    assert set(after) < set(before) and 0 < len(before) - len(after) <= lost
    assert done.expected_messages == len(before)
    assert f"{len(before) - len(after)} messages" in done.text()
    assert not load(out).truncated  # its end was there


def test_any_damage_is_survived(tmp_path: Path) -> None:
    whole, path, out = write(tmp_path / "s.mcap"), tmp_path / "d.mcap", tmp_path / "r.mcap"
    before, rng = payloads(whole), random.Random(7)
    for _ in range(25):
        data = bytearray(whole.read_bytes())
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(8, len(data)), rng.randint(1, 200)
            data[at : at + length] = rng.randbytes(rng.choice([0, length]))
        path.write_bytes(data)
        try:
            repair(path, out)
        except SessionError as error:
            assert "\n" not in str(error)
            continue
        assert set(payloads(out)) <= set(before)
        load(out)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello world!", "not a session"),
        (b"\x89MCAP0\r\n" + bytes(99), "no whole"),
    ],
)
def test_nothing_to_repair(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "s.mcap"
    path.write_bytes(content)
    with pytest.raises(SessionError, match=says):
        repair(path, tmp_path / "r.mcap")
    with pytest.raises(SessionError, match="not a pardbg session"):
        repair(foreign(tmp_path / "f.mcap", "ros2", {}), tmp_path / "r.mcap")
