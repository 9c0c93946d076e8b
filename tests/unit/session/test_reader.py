"""Session files: whole, cut off anywhere, newer, hostile, and not sessions at all."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import pytest
import zstandard
from mcap.records import Chunk
from mcap.writer import Writer

from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.session import reader
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import SessionError, load, open_session
from pardbg.session.writer import RunFacts, SessionWriter
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import ns

FACTS = RunFacts("run-1", "1f1b", "host", ("python", "train.py"), "/", "", ns(0), 1 << 60)


def write(path: Path, close: bool = True, every: int = 2) -> Path:
    """A session with a chunk for every few messages."""
    trace = two_ranks()
    for t in range(20):
        trace.output(t, f"line {t}")
    trace.flush()
    trace.end(30)
    writer = SessionWriter(path, FACTS)
    for i, message in enumerate(sorted(trace.messages, key=lambda m: m.received_ns)):
        writer.write(message.key, message.payload, message.received_ns)
        if i % every == every - 1:
            writer.flush()
    if close:
        writer.close(0)
    else:
        writer.flush()
        writer.abandon()
    return path


def test_round_trip(tmp_path: Path) -> None:
    store = load(write(tmp_path / "s.mcap"))
    shown = snapshot(store, None)
    assert (shown.run.run, shown.run.name) == ("run-1", "1f1b")
    assert shown.run.argv == ("python", "train.py")
    assert not shown.run.truncated and shown.run.exit_code == 0
    assert shown.pipeline is not None and shown.pipeline.step is not None
    assert shown.pipeline.step.bubble_fraction == pytest.approx(0.4)
    assert len(store.output) == 20


def test_a_file_whose_writer_was_killed(tmp_path: Path) -> None:
    store = load(write(tmp_path / "s.mcap", close=False))
    shown = snapshot(store, None)
    assert shown.run.truncated and shown.pipeline is not None
    assert [f.kind for f in shown.findings] == ["truncated"]


def test_any_prefix_loads(tmp_path: Path) -> None:
    whole = write(tmp_path / "s.mcap").read_bytes()
    part = tmp_path / "part.mcap"
    lines = []
    footer = 8 + 9 + 20  # magic, and the footer's head and body: without them it is cut off
    for size in [*range(8, len(whole) - footer, 97), len(whole) - footer]:
        part.write_bytes(whole[:size])
        store = load(part)
        assert store.truncated
        report(store)
        lines.append(len(store.output))
    assert lines == sorted(lines) and lines[-1] == 20


def test_a_flipped_byte_ends_the_file_there(tmp_path: Path) -> None:
    path = write(tmp_path / "s.mcap")
    whole = bytearray(path.read_bytes())
    for at in range(300, len(whole), 211):
        damaged = whole.copy()
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        try:
            report(load(path))
        except SessionError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello world", "not a session"),
        (b"\x89MC", "cut off after 3 bytes"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00", "gunzip"),
    ],
)
def test_not_a_session(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(SessionError, match=says):
        open_session(path)


def test_no_such_file_directory_and_no_permission(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="no such file"):
        open_session(tmp_path / "none")
    with pytest.raises(SessionError, match="is a directory"):
        open_session(tmp_path)
    path = write(tmp_path / "s.mcap")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads every file")
    with pytest.raises(SessionError, match="permission denied"):
        open_session(path)


def foreign(path: Path, profile: str, metadata: dict[str, str]) -> Path:
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start(profile=profile)  # type: ignore[no-untyped-call]
        writer.add_metadata("pardbg.run", metadata)  # type: ignore[no-untyped-call]
        writer.finish()  # type: ignore[no-untyped-call]
    return path


def test_another_programs_mcap(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="not a pardbg session"):
        open_session(foreign(tmp_path / "a.mcap", "ros2", {}))


@pytest.mark.parametrize(
    ("name", "number", "says"),
    [("format", "4", "newer pardbg .format 4"), ("wire", "2", "newer pardbg .wire 2"),
     ("format", "2", "record it anew")],
)  # fmt: skip
def test_other_versions_are_refused(tmp_path: Path, name: str, number: str, says: str) -> None:
    path = foreign(tmp_path / "a.mcap", "pardbg", {"format": "3", "wire": "1", name: number})
    with pytest.raises(SessionError, match=says):
        open_session(path)


@pytest.mark.parametrize("stated", [1 << 40, 1000])
def test_a_chunk_that_says_or_holds_too_much(
    tmp_path: Path, stated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb: small on disk, large unpacked, whether it says so or lies."""
    monkeypatch.setattr(reader, "MAX_CHUNK_BYTES", 1 << 20)
    bomb = zstandard.ZstdCompressor(write_content_size=stated != 1000).compress(bytes(64 << 20))
    chunk = Chunk("zstd", bomb, 0, 0, 0, stated)
    with pytest.raises((ValueError, zstandard.ZstdError)):
        reader.unpack_chunk(chunk)


def test_a_record_that_says_it_is_huge(tmp_path: Path) -> None:
    path = write(tmp_path / "s.mcap", close=False)
    with open(path, "ab") as file:
        file.write(struct.pack("<BQ", 6, 1 << 60) + b"x" * 100)
    store = load(path)
    assert store.truncated and len(store.output) == 20


def test_reads_are_bounded() -> None:
    file = reader._Bounded(io.BytesIO(b"abc"))
    assert file.read(1 << 62) == b"abc"


def test_replay_clock() -> None:
    clock = ReplayClock()
    clock.bounds(1000, 5_000_001_000)
    assert (clock.now(7.0), clock.playing) == (1000, False)
    clock.play(7.0)
    assert clock.now(8.0) == 1_000_001_000
    clock.set_speed(2.0, 8.0)
    assert clock.now(8.5) == 2_000_001_000
    clock.stop(8.5)
    assert clock.now(99.0) == 2_000_001_000
    clock.step(-1_000_000_000, 99.0)
    assert clock.now(99.0) == 1_000_001_000
    clock.step(-(10**12), 99.0)
    assert clock.now(99.0) == 1000
    clock.seek(4_500_001_000, 99.0)
    clock.play(100.0)
    assert clock.now(101.0) == 5_000_001_000 and not clock.playing
    clock.play(102.0)  # at the end: from the begin
    assert clock.now(102.0) == 1000


def test_replay_clock_plays_backwards() -> None:
    clock = ReplayClock(0, 10_000_000_000)
    clock.seek(5_000_000_000, 0.0)
    clock.set_speed(-1.0, 0.0)
    clock.toggle(0.0)
    assert clock.now(2.0) == 3_000_000_000
    clock.faster(2.0)
    assert clock.speed == -2.0
    assert clock.now(4.0) == 0 and not clock.playing
