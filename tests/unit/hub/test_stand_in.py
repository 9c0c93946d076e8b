"""What a job writes while its owner is stopped, wherever that is stopped: nobody waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pardbg.hub.run import config as files
from pardbg.hub.run.output import StandIn
from tests.processes import wait_until

OWNER = """
import os, signal, sys, threading
from pathlib import Path
from pardbg.hub.run import output

place, source, stops = sys.argv[1], int(sys.argv[3]), {}

def stopping(name, call, wanted):
    def replaced(*args):
        here = name == place and wanted(*args) and not stops
        if here and "before" in name:
            stops[0] = signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        done = call(*args)
        if here and "after" in name:
            stops[0] = signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return done
    return replaced

ring = output.RingFile
ring._missed = stopping("before it reads", ring._missed, lambda *_: True)
os.read = stopping("after it read", os.read, lambda fd, *_: fd == source)
ring.append = stopping("after it kept", ring.append, lambda *_: True)
for name in ("before it looks aside", "after it looked aside"):
    ring._has_aside = stopping(name, ring._has_aside, lambda *_: True)
print("on", file=sys.stderr, flush=True)
pump = output.Pump(Path(sys.argv[2]), [output.Stream(source, "job.out", 1)])
sys.stdin.read()
pump.finish()
"""


@pytest.fixture
def ends() -> Iterator[tuple[int, int, int]]:
    """A pipe for stdout, which its user closes, and the writer's end of one for stderr."""
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    for fd in (out_r, out_w):
        os.set_blocking(fd, False)
    yield out_r, out_w, err_w
    os.close(err_r)
    os.close(err_w)


@contextmanager
def owner(place: str, folder: Path, source: int) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", OWNER, place, str(folder), str(source)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=[source]) as found:
        try:
            assert found.stderr is not None and found.stderr.readline() == b"on\n"
            os.close(source)
            yield found
        finally:
            found.kill()


def write(end: int, text: bytes, stand_in: StandIn) -> None:
    """More than a pipe holds, with nobody but the stand-in to read it."""
    view = memoryview(text)

    def written() -> bool:
        nonlocal view
        stand_in.turn()
        try:
            view = view[os.write(end, view) :]
        except BlockingIOError:
            pass
        return not view

    wait_until(written, 20, "all to be written")


@pytest.mark.parametrize(
    "place",
    [
        "before it reads",
        "after it read",
        "after it kept",
        "before it looks aside",
        "after it looked aside",
    ],
)
def test_one_stopped_while_it_takes_output_holds_nobody_up(
    tmp_path: Path, ends: tuple[int, int, int], place: str
) -> None:
    """All of it arrives, in order, kept and passed on."""
    out_r, out_w, err_w = ends
    text = b"".join(b"%06d\n" % n for n in range(50_000))
    with owner(place, tmp_path, out_r) as process:
        status = psutil.Process(process.pid).status
        os.write(out_w, text[:7])
        wait_until(lambda: status() == psutil.STATUS_STOPPED, 20, "its stop")
        stand_in = StandIn(tmp_path, process.pid, [out_w, err_w])
        write(out_w, text[7:], stand_in)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not stand_in.turn(), 20, "its going on")
        os.close(out_w)
        shown, _ = process.communicate(timeout=30)
    assert shown == text
    assert (tmp_path / files.OUT_FILE).read_bytes() == text
    assert [path.name for path in tmp_path.iterdir()] == [files.OUT_FILE]


def test_what_was_put_aside_for_one_that_was_killed_is_kept(
    tmp_path: Path, ends: tuple[int, int, int]
) -> None:
    out_r, out_w, err_w = ends
    with owner("after it kept", tmp_path, out_r) as process:
        status = psutil.Process(process.pid).status
        os.write(out_w, b"first\n")
        wait_until(lambda: status() == psutil.STATUS_STOPPED, 20, "its stop")
        stand_in = StandIn(tmp_path, process.pid, [out_w, err_w])
        write(out_w, b"second\n", stand_in)
        assert stand_in.turn(), "it is stopped"
        process.kill()
        process.wait(20)
        assert not stand_in.turn()
    os.close(out_w)
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == b"first\nsecond\n"
