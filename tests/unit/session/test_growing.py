"""A recording that is still written is read on, never again from its begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.session.reader import Decoder, Growing, load
from tests.unit.session.test_reader import write

STEP = 97
"""Bytes that the file grows by: most looks find a record in part."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offset of each chunk's first message, as it is decoded."""
    found, messages = [], Decoder.messages

    def noted(self: Decoder, chunk: object) -> object:
        found.append(chunk.message_start_time)  # type: ignore[attr-defined]
        return messages(self, chunk)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "messages", noted)
    return found


def test_each_chunk_is_decoded_once_however_often_it_is_looked_at(
    tmp_path: Path, decoded: list[int]
) -> None:
    whole = write(tmp_path / "whole.mcap")
    output, num_chunks = len(load(whole).output), len(decoded)
    assert (output, num_chunks > 10) == (20, True)
    decoded.clear()

    data, path = whole.read_bytes(), tmp_path / "growing.mcap"
    recording, counts = Growing(lambda: path), []
    for end in range(0, len(data) + STEP, STEP):
        path.write_bytes(data[:end]) if not end else _append(path, data, end)
        counts.append(len(recording.look().output))
    recording.close()
    assert len(decoded) == num_chunks
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 20
    assert len(set(counts)) > 5
    assert recording.store.live and not recording.store.truncated
    assert recording.store.run_ends == load(whole).run_ends


def test_a_later_part_is_read_alone(tmp_path: Path) -> None:
    """It begins with all definitions."""
    parts = [write(tmp_path / "first.mcap")]
    recording = Growing(lambda: parts[-1])
    first = recording.look()
    parts.append(tmp_path / "second.mcap")
    assert recording.look() is first  # nothing of it is there yet
    write(parts[-1])
    second = recording.look()
    assert second is not first and len(second.output) == 20
    recording.close()


def test_what_is_damaged_within_ends_there(tmp_path: Path) -> None:
    path = write(tmp_path / "s.mcap")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    recording = Growing(lambda: path)
    assert 0 <= len(recording.look().output) < 20
    assert recording.store.truncated
    recording.close()


def _append(path: Path, data: bytes, end: int) -> None:
    with path.open("ab") as file:
        file.write(data[path.stat().st_size : end])
