"""The way of a job's output, where the kernel does not take all of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pardbg.hub.run import config as files
from pardbg.hub.run import flow
from pardbg.hub.run.flow import Flow, Route, spools
from tests.processes import wait_until

TEXT = b"".join(b"line %d\n" % number for number in range(50_000))


class Pipes:
    """A flow from two pipes to two files."""

    def __init__(self, folder: Path, flags: int = 0) -> None:
        (self._out_r, self.out), (self._err_r, self.err) = os.pipe(), os.pipe()
        self.path = folder / "through"
        opened = os.O_WRONLY | os.O_CREAT | flags
        through = [os.open(self.path, opened), os.open(folder / "other", opened)]
        out, err, self._charge = spools()
        self._spools = out, err
        routes = [Route(self._out_r, out, through[0]), Route(self._err_r, err, through[1])]
        self.flow = Flow(routes, self._charge)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.out, view) :]

    def end(self) -> None:
        for fd in (self.out, self.err):
            os.close(fd)
        wait_until(lambda: self.flow.ended, 20, "the end of both streams")


@pytest.fixture
def appending(tmp_path: Path) -> Iterator[Pipes]:
    """To a file that is opened to append, as `>> log` does: sendfile refuses it."""
    (tmp_path / "through").write_bytes(b"before\n")
    yield Pipes(tmp_path, os.O_APPEND)


def test_to_a_file_opened_to_append(appending: Pipes, tmp_path: Path) -> None:
    assert appending.flow.carry(tmp_path)
    appending.write(TEXT)
    marks = appending.flow.written()
    assert marks == [len(TEXT), 0]
    wait_until(lambda: appending.flow.passed(marks), 20, "all of it")
    appending.flow.catch_up()
    assert (tmp_path / files.OUT_FILE).stat().st_size == len(TEXT)
    appending.end()
    assert appending.path.read_bytes() == b"before\n" + TEXT


def test_a_spool_that_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files: what comes goes to the reader without it, in order."""
    moves = []
    move = flow._Lane._move

    def limited(lane: flow._Lane) -> int:
        moves.append(lane)
        if len(moves) > 2:
            raise OSError(errno.EFBIG, "File too large")
        return move(lane)

    monkeypatch.setattr(flow._Lane, "_move", limited)
    pipes = Pipes(tmp_path)
    assert pipes.flow.carry(tmp_path)
    pipes.write(TEXT)
    pipes.end()
    assert len(moves) > 2 and pipes.path.read_bytes() == TEXT
