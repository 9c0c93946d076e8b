"""A bookmark in a recorded session: appended in place, and nothing that was recorded is at risk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.session import bookmarks
from pardbg.session.appending import summary_place
from pardbg.session.bookmarks import add_bookmarks
from pardbg.session.reader import SessionError, load
from pardbg.session.repair import repair
from pardbg.store.history import Bookmark
from tests.harness import whole_messages
from tests.unit.session.test_reader import write

MARK = Bookmark(3_000_000, "slow here")


def payloads(path: Path) -> list[bytes]:
    return [message.payload for message in whole_messages(path)]


def test_it_is_there_the_rest_is_as_it_was_and_other_tools_read_it(tmp_path: Path) -> None:
    path = write(tmp_path / "s.mcap")
    before = payloads(path)
    add_bookmarks(path, [MARK], 5_000_000)
    add_bookmarks(path, [Bookmark(4_000_000, "later")], 5_000_000)
    add_bookmarks(path, [Bookmark(4_000_000, "")], 5_000_000)  # takes it away
    assert payloads(path)[: len(before)] == before
    store = load(path)
    assert list(store.bookmarks.all()) == [MARK] and not store.truncated
    with open(path, "rb") as file:
        summary = make_reader(file).get_summary()
        assert summary is not None and summary.statistics is not None
        assert summary.statistics.message_count == sum(1 for _ in make_reader(file).iter_messages())
        assert summary.statistics.chunk_count == len(summary.chunk_indexes)


def test_only_the_end_of_the_file_is_written(tmp_path: Path) -> None:
    """The same file (no copy takes its place), its data section byte for byte."""
    path = write(tmp_path / "s.mcap")
    inode, data = path.stat().st_ino, path.read_bytes()
    with open(path, "rb") as file:
        place = summary_place(file)
    assert place is not None
    add_bookmarks(path, [MARK], 5_000_000)
    assert path.stat().st_ino == inode and list(tmp_path.iterdir()) == [path]
    assert path.read_bytes()[: place[0]] == data[: place[0]]


def test_nothing_is_lost_wherever_the_write_is_cut_off(tmp_path: Path) -> None:
    """As a machine that dies in the middle leaves it: any number of the new bytes over the old."""
    path, cut, out = write(tmp_path / "s.mcap"), tmp_path / "cut.mcap", tmp_path / "r.mcap"
    before, old = payloads(path), path.read_bytes()
    with open(path, "rb") as file:
        place = summary_place(file)
    assert place is not None
    add_bookmarks(path, [MARK], 5_000_000)
    new, begin = path.read_bytes(), place[0]
    for count in range(begin, len(new), 41):
        cut.write_bytes(new[:count] + old[count:])
        store = load(cut)
        assert payloads(cut)[: len(before)] == before, count
        assert list(store.bookmarks.all()) in ([], [MARK])
        if count % 3 == 0:
            repair(cut, out)
            assert payloads(out)[: len(before)] == before, count
            out.unlink()


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "s.mcap")
    old, pwrite, failed = path.read_bytes(), os.pwrite, []

    def full(number: int, data: bytes, offset: int) -> int:
        if failed:
            return pwrite(number, data, offset)
        failed.append(pwrite(number, data[: len(data) // 2], offset))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bookmarks.os, "pwrite", full)
    with pytest.raises(SessionError, match="cannot keep the bookmark: No space left"):
        add_bookmarks(path, [MARK], 5_000_000)
    assert failed and path.read_bytes() == old


def test_two_viewers_of_one_file_do_not_write_over_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "s.mcap")
    program = (
        "import sys; from pathlib import Path; from pardbg.session.bookmarks import *\n"
        "first = int(sys.argv[2])\n"
        "for i in range(20): add_bookmarks(Path(sys.argv[1]), [Bookmark(first + i, 'm')], 9)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(first)])
        for first in (1000, 2000)
    ]
    try:
        assert [process.wait(30) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert len(list(load(path).bookmarks.all())) == 40


def test_a_read_only_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "s.mcap")
    monkeypatch.setattr(bookmarks.os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(SessionError, match=r"s\.mcap is read-only"):
        add_bookmarks(path, [MARK], 5_000_000)
