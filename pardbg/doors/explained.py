"""A job's logs and Flight Recorder dumps, explained together, and as a session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pardbg.joblog.scan import EXTENSIONS, Log, read
from pardbg.joblog.verdict import Verdict, judge
from pardbg.joblog.words import said
from pardbg.session.importers.build import Imported
from pardbg.session.importers.flight_recorder import dumped
from pardbg.session.importers.read import Dumps, looks_like_dump, read_dumps, write_log


@dataclass(frozen=True, slots=True)
class Explained:
    """Logs and dumps that were read, with the verdict on them."""

    verdict: Verdict
    log: Log
    dumps: Dumps
    files: tuple[Path, ...]

    def write(self, output: Path) -> Imported:
        """Write the verdict as a session. Raises OSError if the session cannot be written."""
        facts, lines = said(self.verdict)
        return write_log(output, self.files, self.dumps, self.verdict.ranks, facts, lines)


def explained(paths: Sequence[str]) -> Explained:
    """Read logs and dumps; a directory stands for the files below it. Raises UserError."""
    logs, files = _told_apart(paths)
    dumps = read_dumps(files)
    log = read(logs)
    verdict = judge(log, [dumped(rank, *dump) for rank, dump in sorted(dumps.items())])
    there = (*files, *(Path(name) for name in logs if name != "-"))
    return Explained(verdict, log, dumps, tuple(one for one in there if one.exists()))


def _told_apart(paths: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the paths of logs, and those of dumps."""
    logs: list[str] = []
    dumps: list[Path] = []
    for name in paths:
        below = sorted(Path(name).rglob("*")) if name != "-" and Path(name).is_dir() else []
        found = [one for one in below or [Path(name)] if name != "-" and _is_dump(one)]
        dumps += found
        if found and below:
            logs += [str(p) for p in below if p.suffix in EXTENSIONS and p not in found]
        elif not found:
            logs.append(name)
    return logs, dumps


def _is_dump(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file() and looks_like_dump(path)
    return False
