"""A look into a hang, and at a run that ended, with disk, time or the other side against it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from pardbg.hub.hangs import inquiry
from pardbg.hub.run import config as files
from pardbg.hub.run.config import OnHang, RunConfig, make

SESSION = Path(__file__).parents[3] / "sessions" / "fault-kill.mcap"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    return made(tmp_path, monkeypatch, "tee told")


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notify: str) -> RunConfig:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("pardbg.hub.run.config.shm_root", lambda: tmp_path / "no-shm" / "pardbg")
    monkeypatch.chdir(tmp_path)
    session = tmp_path / "d" / "s.mcap"
    session.parent.mkdir()
    shutil.copy(SESSION, session)
    how = OnHang(bundle=True, after_s=3.0, notify=notify)
    return make(["true"], name="x", session=session, on_hang=how)


def look(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """Look as the process does; return its notices. What it found is no hang, but is said so."""
    found = (SimpleNamespace(culprits=(), text="It hangs."),)
    monkeypatch.setattr(inquiry, "hung", lambda *_: found)
    told: list[Any] = []
    monkeypatch.setattr(inquiry, "tell", lambda *words: told.append(words))
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(inquiry, "give_way", lambda: None)
    monkeypatch.setattr(inquiry, "LOOK_S", 0.0)
    inquiry.main([str(config.dir), "hang", "0"])
    assert [words[2:] for words in told] == [("hang", None)]  # told, though there is no bundle
    return (config.dir / files.NOTICES_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("error", [OSError("full"), ValueError("8 GiB"), RuntimeError("a bug")])
def test_a_bundle_that_fails_leaves_no_file(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def write(file: BinaryIO, *_: object) -> None:
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(inquiry, "write", write)
    assert f"s.tar.zst: {error}" in look(config, monkeypatch)
    assert os.listdir(Path(config.session).parent) == ["s.mcap"]


def test_a_bundle_leaves_the_recording_its_space(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = os.path.getsize(config.session)
    free = SimpleNamespace(free=2 * size + inquiry.OUTPUT_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert "the recording needs" in look(config, monkeypatch)
    assert os.listdir(Path(config.session).parent) == ["s.mcap"]


CODE = """
import signal, sys
from pardbg.hub.hangs import inquiry

tell = inquiry.tell
def in_time(*words):
    # Not from the start: a busy machine takes seconds to read the recording.
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]), inquiry.MORE_S)
    tell(*words)
inquiry.tell = in_time
inquiry.main(sys.argv[2:])
"""


def at_the_end(config: RunConfig, tell_s: float = 50.0) -> None:
    argv = [sys.executable, "-c", CODE, str(tell_s), str(config.dir), "end", "0"]
    subprocess.run(argv, cwd="/", timeout=55, check=True)


def test_a_side_that_answers_for_ever_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, the end of the headers never."""

    def drip() -> None:
        other, _ = server.accept()
        with other, contextlib.suppress(OSError):
            other.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                other.sendall(b"x")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, daemon=True).start()
        where = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = made(tmp_path, monkeypatch, where)
        at_the_end(config, tell_s=1.0)
    assert "--notify: out of time" in (config.dir / files.NOTICES_FILE).read_text(encoding="utf-8")


def test_a_command_is_run_where_the_job_is_once_for_each_error(config: RunConfig) -> None:
    for _ in range(2):
        at_the_end(config)
    assert (Path(config.cwd) / "told").read_text(encoding="utf-8").count('"rank-lost"') == 1
