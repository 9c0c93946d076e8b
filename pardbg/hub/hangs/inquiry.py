"""``RUN_DIR hang|end``: looks into ranks that stand still, or at a run that has ended.

Exit code 0: there is a hang, all was done that was asked for, and HANG_FILE says which processes it
is due to; 1: there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.analysis.answers.hang import hung
from pardbg.analysis.answers.report import Report, report
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.hangs.hang_bundle import write
from pardbg.hub.hangs.notify import tell
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import read_part
from pardbg.session.reader import load
from pardbg.session.rotation import part_path
from pardbg.session.writer import resume

NICE: Final = 10
COMMAND_S: Final = 60.0
"""How long an abort waits for the command; it is not ended then."""


@dataclass(frozen=True, slots=True)
class Hung:
    """The run as recorded so far, and what hangs in it."""

    session: Path
    view: View
    report: Report
    found: tuple[Finding, ...]


def main(argv: list[str]) -> int:
    """Look; see above."""
    os.umask(0o077)
    os.nice(NICE)
    config = files.load(Path(argv[0]))
    newest = part_path(Path(config.session), read_part(config.dir))
    if argv[1] == "end":
        tell(config, report(load(newest)).findings, "end")
        return 0
    with tempfile.TemporaryFile(dir=newest.parent) as file, open(newest, "rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        copy = Path(f"/proc/self/fd/{file.fileno()}")
        resume(copy, config.facts).close()  # the run goes on, and this copy of it ends here
        view = View(load(copy), None)
        if not (found := hung(view)):
            return 1
        _act(config, Hung(copy, view, report(view.store), found))
    return 0


def _act(config: RunConfig, seen: Hung) -> None:
    bundle = _bundle(config, seen) if config.on_hang.bundle else None
    errors = [one for one in seen.report.findings if one.severity == "error"]
    tell(config, [*seen.found, *(one for one in errors if one not in seen.found)], "hang", bundle)
    if bundle is not None and config.on_hang.command:
        _run(config, [*config.on_hang.command, str(bundle)])
    procs = (seen.view.ranks[rank].proc for one in seen.found[:1] for rank in one.culprits
             if rank in seen.view.ranks)  # fmt: skip
    files.write_json(config.dir / files.HANG_FILE, {"culprits": list(procs)})


def _bundle(config: RunConfig, seen: Hung) -> Path | None:
    """Write ``NAME.tar.zst`` beside the recording, ``NAME-2`` … for later hangs."""
    first = Path(config.session)
    names = (f"{first.stem}{f'-{n}' if n > 1 else ''}.tar.zst" for n in range(1, 1000))
    path = next(place for name in names if not (place := first.with_name(name)).exists())
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(fresh, "xb") as file:
            write(file, config, seen.session, seen.view, seen.report)
        os.replace(fresh, path)
    except (OSError, ValueError) as error:
        files.add_notice(config.dir, f"cannot write {path}: {error}")
        return None
    files.add_notice(config.dir, f"hang: {seen.found[0].text} Wrote {path}")
    return path


def _run(config: RunConfig, argv: list[str]) -> None:
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, cwd=config.cwd or None)
        process.wait(COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        files.add_notice(config.dir, f"--on-hang exec: {error}")
