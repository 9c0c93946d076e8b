"""pardbg on real pseudo-terminals: dumb ones, redirected streams, locales without UTF-8."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

import pardbg
from pardbg.cli import headless
from pardbg.hub.run.runs import RunError, find_run
from pardbg.hub.run.start import RunHandle, start_run
from pardbg.ui.terminal_driver import TerminalApp, TerminalDriver
from tests.processes import wait_until

SESSION = Path(pardbg.__file__).parents[1] / "sessions" / "1f1b.mcap"
LIMIT_S = 40.0
ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Terminal:
    """A command on a pseudo-terminal of 120x30."""

    def __init__(self, *words: str, stderr: Path | None = None, **env: str) -> None:
        self._end, inner = pty.openpty()
        made = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30", **env}
        made = {name: value for name, value in made.items() if value}
        file = stderr.open("wb") if stderr is not None else None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pardbg.cli", *words], stdin=inner, stdout=inner,
            stderr=file or inner, env=made, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        if file is not None:
            file.close()
        self.seen = b""

    def until(self, text: str) -> None:
        """Read until ``text`` came, whatever its colours."""
        end = time.monotonic() + LIMIT_S
        while text not in (shown := ESCAPE.sub(b"", self.seen).decode(errors="replace")):
            assert time.monotonic() < end, shown[-2000:]
            if not self._read():
                raise AssertionError(f"ended without {text!r}: {shown[-2000:]}")

    def _read(self) -> bool:
        if not select.select([self._end], [], [], 0.2)[0]:
            return True
        try:
            got = os.read(self._end, 65536)
        except OSError:  # the other end was closed
            return False
        self.seen += got
        return bool(got)

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def close(self) -> None:
        """Close the terminal, of which the command hears nothing: it leads no session."""
        os.close(self._end)

    def finish(self) -> int:
        """Its exit code, once it has ended and everything was read."""
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen[-2000:]
            self._read()
        while select.select([self._end], [], [], 0)[0] and self._read():
            pass
        os.close(self._end)
        return self.process.returncode


def words(seen: bytes) -> list[str]:
    return [line for line in seen.decode().replace("\r", "").split("\n") if line]


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_draw_gets_one_line(term: str) -> None:
    shown = Terminal("replay", str(SESSION), TERM=term)
    assert shown.finish() == 2
    said = words(shown.seen)
    assert len(said) == 1, said
    assert ("TERM=dumb" if term else "TERM is not set") in said[0]
    assert f"pardbg report {SESSION}" in said[0]


def test_the_screen_is_drawn_on_the_terminal_when_stderr_is_a_file(tmp_path: Path) -> None:
    log = tmp_path / "err.log"
    shown = Terminal("replay", str(SESSION), stderr=log)
    shown.until("1 Overview")
    shown.press(b"q")
    assert shown.finish() == 0
    assert log.read_bytes() == b""


def test_a_locale_without_utf8_gets_ascii() -> None:
    shown = Terminal("replay", str(SESSION), LC_ALL="C")
    shown.until("1 Overview")
    shown.press(b"2")
    shown.until("bubble")
    shown.press(b"q")
    assert shown.finish() == 0
    assert shown.seen.isascii()


def test_with_utf8_the_signs_are_drawn() -> None:
    shown = Terminal("replay", str(SESSION), LC_ALL="C.UTF-8")
    shown.until("‖ replay")
    shown.press(b"q")
    assert shown.finish() == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("words", [["replay", str(SESSION)], []])
@pytest.mark.parametrize("ignores", [False, True])
def test_a_viewer_ends_with_its_terminal(ignores: bool, words: list[str]) -> None:
    """Also without a signal, and where SIGHUP is ignored (``nohup``)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores else signal.SIG_DFL)
    try:
        shown = Terminal(*words)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        shown.until("Overview" if words else "pardbg")
        shown.close()
        assert shown.process.wait(LIMIT_S) == (0 if ignores else -signal.SIGHUP)
    finally:
        shown.process.kill()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stays", [False, True])
def test_between_two_apps_the_shell_is_not_seen(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first app leaves its picture to the second, which ends as every app does."""
    written: list[str] = []
    monkeypatch.setattr(LinuxDriver, "write", lambda _, data: written.append(data))
    for app in (SimpleNamespace(stays=stays), SimpleNamespace(stays=False)):
        driver = TerminalDriver.__new__(TerminalDriver)
        driver._app = cast("Any", app)
        for data in ("\x1b[?1049h", "drawn", "\x1b[?1049l", "\x1b[?25h"):
            driver.write(data)
    one = ["\x1b[?1049h", "drawn", "\x1b[?1049l", "\x1b[?25h"]
    assert written == (["\x1b[?1049h", "drawn", "drawn", *one[2:]] if stays else one * 2)


def test_leaving_says_how_to_come_back_and_how_to_end_the_job(tmp_path: Path) -> None:
    """``watch`` takes the job's command without ``--``; the job goes on, and can be ended so."""
    session = tmp_path / "s.mcap"
    shown = Terminal("watch", "-o", str(session), "sleep", "300")
    shown.until("9 Output")
    shown.press(b"q")
    assert shown.finish() == 0
    said = ESCAPE.sub(b"", shown.seen).decode(errors="replace")
    assert f"sleep keeps running, recorded in {session}" in said
    found = re.search(r"rejoin: `pardbg watch (\S+)`; end it: `pardbg ctl (\S+) kill`", said)
    assert found is not None and found[1] == found[2]
    ended = Terminal("ctl", found[1], "kill")
    assert ended.finish() == 0
    handle = find_run_dir(found[1])
    assert handle is None or RunHandle(handle).wait(30) != 0


def find_run_dir(name: str) -> Path | None:
    try:
        return find_run(name).path
    except RunError:
        return None


@pytest.mark.timeout(120)
def test_leaving_may_end_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As leaving a demo does without ``--keep``."""
    handle = start_run(["sleep", "300"], name="nap", session=tmp_path / "n.mcap")
    assert headless.farewell(handle.run_dir, ends=True) == 0
    assert handle.ended()
    wait_until(lambda: not handle.alive(), what="launcher and hub end")
    said = capsys.readouterr().err
    assert "ending nap (--keep leaves it running)" in said
    assert f"pardbg replay {tmp_path / 'n.mcap'}" in said


@pytest.mark.parametrize("more", [{"COLORTERM": ""}, {"COLORTERM": "truecolor"}])
def test_without_colours_text_differs_from_its_ground(more: dict[str, str]) -> None:
    """NO_COLOR, on a terminal of 16 colours and on one of all."""
    terminal = Terminal("replay", str(SESSION), TERM="xterm", NO_COLOR="1", **more)
    terminal.until("host code")
    terminal.press(b"q")
    assert terminal.finish() == 0
    before = terminal.seen[: terminal.seen.index(b"host code")].decode()
    inks = {"3": "", "4": ""}
    for codes in re.findall(r"\x1b\[([\d;]*)m", before):
        for ground, ink in re.findall(r"(?:^|;)([34])(8;2;\d+;\d+;\d+|[0-79])(?=;|$)", codes):
            inks[ground] = ink
        if codes == "0":
            inks = {"3": "", "4": ""}
    assert inks["3"] and inks["3"] != inks["4"], inks


def test_the_input_thread_ends_with_the_app_however_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a terminal that is gone Textual's clean-up fails before it tells the thread."""

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the terminal is gone")

    app, driver = TerminalApp(), TerminalDriver.__new__(TerminalDriver)
    driver.exit_event = Event()
    app._driver = driver
    monkeypatch.setattr(App, "run", fails)
    with pytest.raises(OSError, match="gone"):
        app.run()
    assert driver.exit_event.is_set()
