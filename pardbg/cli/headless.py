"""Commands without a screen: following, reporting on and controlling a job."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pardbg.cli.common import echo, talk
from pardbg.errors import UserError
from pardbg.words import duration

if TYPE_CHECKING:
    from pardbg.events.control_codes import Verb
    from pardbg.hub.run.flow import Flow
    from pardbg.hub.run.start import RunHandle
    from pardbg.hub.run.terminal import Streams
    from pardbg.hub.target import Target

POLL_S = 0.05
PASS_POLL_S = 0.005
CAPTURED_POLL_S = 0.5
RECORDED_TIMEOUT_S = 30.0
"""Maximum time, s, for the hub to write the rest of a session after its job ended."""


def default_session_path(name: str) -> Path:
    """Return ``<user data>/pardbg/sessions/<name>-<date>-<time>.mcap``."""
    import platformdirs

    stem = re.sub(r"[^\w.-]+", "-", name) or "run"
    folder = platformdirs.user_data_path("pardbg") / "sessions"
    path = folder / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.mcap"
    return path if not path.exists() else path.with_stem(f"{path.stem}-{os.getpid()}")


def history_path() -> Path:
    """Return the file of the console's history: ``<user state>/pardbg/history``."""
    import platformdirs

    return platformdirs.user_state_path("pardbg") / "history"


def follow(handle: RunHandle, streams: Streams, *, attentive: bool = False) -> int:
    """Pass input and signals to the job until it has ended and is recorded, while the launcher
    passes on its output; return the job's exit code, < 0 for a signal.

    ``attentive``: raise the level around findings.
    """
    from pardbg.hub.ranks.processes import orphaned
    from pardbg.hub.run import jobs

    notices = handle.run_dir / "notices"
    told = 0

    def send(number: int, group: bool) -> None:
        if number != signal.SIGTSTP:
            handle.signal(number, group)
        elif not orphaned() and jobs.suspend(handle.run_dir, group):
            suspend_self()

    with (
        raised_level(handle.run_dir if attentive else None),
        streams.signals as signals,
        streams.passing_keys() as suspend_self,
    ):
        while not handle.ended():
            signals.deliver(send)
            streams.flow.close_lost()
            if not handle.launcher_alive():
                streams.flow.carry(handle.run_dir)
            told = _copy(notices, told, sys.stderr.buffer)
            signals.wait(POLL_S)
        _wait_passed(handle, streams.flow)
    _wait_recorded(handle, streams.flow)
    _copy(notices, told, sys.stderr.buffer)
    talk(recorded_words(handle))
    return handle.status()


def _wait_passed(handle: RunHandle, flow: Flow) -> None:
    """Wait until the reader of stdout has all output so far, as a job at a plain pipe would."""
    marks = flow.written()
    while not flow.passed(marks):
        if not handle.launcher_alive():
            flow.carry(handle.run_dir)
        time.sleep(PASS_POLL_S)


def _wait_recorded(handle: RunHandle, flow: Flow) -> None:
    """Wait until the session is closed. A process that outlives the job keeps the launcher running,
    but not this command; errors are sent to ``notify`` first."""
    until, notify = time.monotonic() + RECORDED_TIMEOUT_S, handle.config.on_hang.notify
    while handle.alive() and time.monotonic() < until:
        telling = bool(notify) and handle.hub_alive()
        if handle.recorded() is not None and not flow.ended and not telling:
            return
        time.sleep(POLL_S)


def recorded_words(handle: RunHandle) -> str:
    """Return one line on what was recorded, and on what is missing."""
    if handle.config.is_relay:
        result = handle.recorded()
        if result is not None and result.error:
            rest = f"recover what the rings hold: `pardbg postmortem {handle.run} -o S.mcap`"
            return f"NOT recorded: {result.error}; {rest}"
        return f"recorded by the hub at {handle.config.hub}"
    parts = handle.parts()
    name = str(parts[0])
    if len(parts) > 1:
        name = f"{name} … {parts[-1].name} ({len(parts)} files, each opens alone)"
    result, last = handle.recorded(), parts[-1]
    nothing = result is not None and bool(result.error) and not result.missing_ns
    if nothing or not last.is_file() or not last.stat().st_size:
        why = result.error if result is not None else "the hub was lost"
        return f"NOT recorded: {why or f'{last} is gone'}"
    if result is None:
        ago = duration(1e9 * max(0.0, handle.ended_s() - last.stat().st_mtime))
        return (
            f"recorded {name} IN PART: the hub was lost and the file ends {ago} before the "
            f"job; what its ranks did last: pardbg postmortem {handle.run} -o S.mcap"
        )
    if result.error:
        return (
            f"recorded {name} IN PART: {result.error}; the last {duration(result.missing_ns)} are "
            f"missing ({result.messages} messages)"
        )
    return f"recorded {name}"


@contextmanager
def raised_level(run_dir: Path | None) -> Iterator[None]:
    """Record full detail around findings inside the context, for a job of level summary."""
    if run_dir is None:
        yield
        return
    from pardbg.hub.auto_level import Watcher

    watcher = Watcher(run_dir)
    watcher.start()
    try:
        yield
    finally:
        watcher.stop()


def follow_and_report(handle: RunHandle, streams: Streams, *, attentive: bool = False) -> int:
    """Show the job's output on stderr (by its ``streams``), then the report on stdout; return as
    ``follow``. For use without a terminal."""
    from pardbg.analysis.answers.report import report
    from pardbg.render.reports.text import text
    from pardbg.session.reader import SessionError, load

    code = follow(handle, streams, attentive=attentive)
    try:
        echo(text(report(load(handle.parts()[-1]))))
    except SessionError as error:
        talk(str(error))
    return code


def control(
    target: Target, verb: Verb, ranks: str | None, json_: bool, lease_s: float, timeout_s: float,
    args: Mapping[str, Any], compare: bool = False,
) -> int:  # fmt: skip
    """Send one control command; print the answer. Return 0 acknowledged, 1 refused, 2 bad usage."""
    from pardbg.events.commands import Answers
    from pardbg.hub.client import HubControl

    port = HubControl(target, script=True)
    try:
        # The command line names the run it kills: that is the confirmation.
        reply = port.command(verb, ranks, timeout_s, lease_s=lease_s, confirm=True, **args)
    finally:
        port.close()
        target.close()
    from pardbg.render.frame.control_words import error_text
    from pardbg.render.reports.replies import answers, as_json, text

    answer = reply.answer
    if json_:
        echo(json.dumps(as_json(reply), indent=2, default=str))
    elif isinstance(answer, Answers):
        echo("\n".join(answers(answer, compare=compare)))
    elif reply.ok:
        echo(text(verb, reply))
    if reply.ok:
        found = list(answer.answers.values()) if isinstance(answer, Answers) else []
        return 1 if found and all(one.refusal for one in found) else 0
    talk(error_text(reply))
    return 2 if reply.usage else 1


def watch_same(
    target: Target, reference: Path, json_: bool, lease_s: float, timeout_s: float
) -> int:
    """Compare a run's captured tensors with its reference's recording, and hold the ranks at the
    first differing module. Return 0: equal, 1: different, 2: not comparable."""
    from pardbg.analysis.same.comparison import compare
    from pardbg.analysis.same.module_rows import first_module, is_captured
    from pardbg.analysis.same.names import own_names, prefixes
    from pardbg.analysis.same.wholes import wholes
    from pardbg.control.language.arguments import at_module
    from pardbg.events.control_codes import Verb
    from pardbg.hub.run.start import RunHandle
    from pardbg.render.frame.same_words import verdict, where
    from pardbg.session.reader import Growing, load

    if target.path is None:
        raise UserError("watch same reads the run's recording: it must be on this machine")
    until, handle, first = time.monotonic() + timeout_s, RunHandle(target.path), load(reference)
    with closing(Growing(lambda: handle.parts()[-1])) as recording:
        over = False  # then the end of what it wrote is still to be read
        while not is_captured(run := recording.look()) and not over:
            over = handle.ended() or time.monotonic() >= until
            time.sleep(CAPTURED_POLL_S)
    found = compare(first, run)
    for text in (verdict(found), *where(found)):
        (talk if json_ else echo)(text)
    if found.exit_code == 1:
        name, forward = first_module(found)
        begun = {one.name: one for one in wholes(first).tensors.values() if one.what == "init"}
        own = own_names(prefixes(begun, run), name)
        at = at_module(name, forward, own)
        left = max(1.0, until - time.monotonic())
        control(target, Verb.UNTIL, None, json_, lease_s, left, {"expr": at})
    return found.exit_code


def farewell(run_dir: Path, ends: bool = False) -> int:
    """Print how to rejoin the job and where its recording is, or end the job if it ``ends`` with
    the TUI; return the job's exit code if it has ended by itself."""
    from pardbg.hub.run.config import ConfigError
    from pardbg.hub.run.start import RunHandle

    try:
        handle = RunHandle(run_dir)
    except ConfigError:
        return 0
    ended = handle.ended()
    if not ended and not ends:
        talk(f"{handle.name} keeps running, recorded in {handle.parts()[-1]}")
        end = "take the agent out" if handle.config.attached else "end it"
        talk(f"rejoin: `pardbg watch {handle.run}`; {end}: `pardbg ctl {handle.run} kill`")
        return 0
    if not ended:
        talk(f"ending {handle.name} (--keep leaves it running)")
        handle.kill()
    handle.wait_recorded(RECORDED_TIMEOUT_S)
    code = handle.wait()
    if code and ended:
        talk(f"{handle.name} ended with exit code {code}")
    last = handle.parts()[-1]
    talk(f"{recorded_words(handle)}; open it with `pardbg replay {last}`")
    return code if ended else 0


def _copy(path: Path, at: int, out: IO[bytes]) -> int:
    try:
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
    except OSError:
        return at
    if data:
        out.write(data)
        out.flush()
    return at + len(data)
