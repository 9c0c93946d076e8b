"""``RUN_DIR hang|end SINCE_NS``: inquiry into ranks that stand still since then, while none was
held, or into a run that has ended.

HANG_FILE tells that there is a hang, and its culprit processes, before anything is done about it;
without a file there is none."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

from pardbg.analysis.answers.hang import hung
from pardbg.analysis.answers.report import Report, finding_json, report
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.hangs.hang_bundle import OUTPUT_BYTES, write
from pardbg.hub.ranks.processes import give_way
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import read_part
from pardbg.session.reader import load
from pardbg.session.rotation import part_path

TIMEOUT_S: Final = 10.0


def tell(
    config: RunConfig, found: Iterable[Finding], when: str, bundle: Path | None = None
) -> None:
    """Notify of errors, and at a hang of all that is ``found``, each once in a run: a command gets
    JSON, an address a POST."""
    path = config.dir / files.NOTIFIED_FILE
    told = (files.read_json(path) or {"findings": []})["findings"]
    for one in found if config.on_hang.notify else ():
        key = [one.kind, sorted(one.culprits or one.ranks), one.group, one.seq]
        if key in told or (when == "end" and one.severity != "error"):
            continue
        told.append(key)
        files.write_json(path, {"findings": told})
        about = {"run": config.run, "name": config.name, "host": config.host, "when": when,
                 "session": config.session, "bundle": None if bundle is None else str(bundle),
                 "finding": finding_json(one)}  # fmt: skip
        try:
            _send(config, json.dumps(about).encode())
        except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as why:
            files.add_notice(config.dir, f"--notify: {why}")
            return  # the others would fail, too: they are notified at the end


def _send(config: RunConfig, data: bytes) -> None:
    where, cwd = config.on_hang.notify, config.cwd or None
    if where.startswith(("http://", "https://")):
        kind = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(where, data, kind), timeout=TIMEOUT_S).close()
    else:
        subprocess.run(shlex.split(where), cwd=cwd, input=data, timeout=TIMEOUT_S, check=True)


LOOK_S, MORE_S = 120.0, 20.0
"""Maximum time, in s, for the whole inquiry, and then for each remaining part."""
SPACE: Final = 3
"""Free space for a bundle, in recordings: for a copy of it, the bundle, and the rest of the run."""
COMMAND_S: Final = 60.0
"""Maximum wait, in s, of an abort for the command; the command is not ended then."""


def main(argv: list[str]) -> int:
    """Run the inquiry; see the module."""
    os.umask(0o077)
    give_way()
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, MORE_S)
    config = files.load(Path(argv[0]))
    newest = part_path(Path(config.session), read_part(config.dir))
    if argv[1] == "end":
        tell(config, report(load(newest)).findings, "end")
        return 0
    view = View(load(newest, growing=True), None)
    if found := hung(view, int(argv[2])):
        culprits = [view.ranks[rank].proc for rank in found[0].culprits if rank in view.ranks]
        files.write_json(config.dir / files.HANG_FILE, {"culprits": culprits})
        _act(config, newest, view, found)
    return 0


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError("out of time")


def _act(config: RunConfig, session: Path, view: View, found: tuple[Finding, ...]) -> None:
    how, data = config.on_hang, report(view.store)
    bundle = _bundle(config, session, view, data) if how.bundle else None
    if bundle is not None:
        files.add_notice(config.dir, f"hang: {found[0].text} Wrote {bundle}")
    errors = [one for one in data.findings if one.severity == "error"]
    tell(config, [*found, *errors], "hang", bundle)
    if bundle is not None and how.command:
        _run(config, [*how.command, str(bundle)])


def _bundle(config: RunConfig, session: Path, view: View, data: Report) -> Path | None:
    """Write ``NAME.tar.zst`` beside the recording, ``NAME-2`` … for later hangs."""
    first = Path(config.session)
    names = (f"{first.stem}{f'-{n}' if n > 1 else ''}.tar.zst" for n in range(1, 1000))
    path = next(place for name in names if not (place := first.with_name(name)).exists())
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if shutil.disk_usage(path.parent).free < SPACE * session.stat().st_size + OUTPUT_BYTES:
            raise OSError("the recording needs what is left of the disk")
        with open(fresh, "xb") as file:
            write(file, config, session, view, data)
        os.replace(fresh, path)
    except Exception as error:  # noqa: BLE001 - somebody is told all the same
        fresh.unlink(missing_ok=True)
        files.add_notice(config.dir, f"cannot write {path}: {error}")
        return None
    return path


def _run(config: RunConfig, argv: list[str]) -> None:
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd=config.cwd or None)
        process.wait(COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        files.add_notice(config.dir, f"--on-hang exec: {error}")
