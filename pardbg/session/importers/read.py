"""Import of files: their type is detected, and they are read safely."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from pardbg.errors import UserError
from pardbg.events.log_facts import LogLine, LogSays
from pardbg.session.importers import flight_recorder, kineto
from pardbg.session.importers.build import Imported, RankBuild, write
from pardbg.words import binary_size

MAX_JSON_BYTES: Final = 2 << 30
MAX_PICKLE_BYTES: Final = 64 << 20
READ_BYTES: Final = 4 << 20
MAX_OBJECTS_BYTES: Final = 4 << 30
"""Maximum memory of a file's values, estimated from its brackets and commas."""
MAX_FILES: Final = 4096
_RANK: Final = re.compile(r"rank[_\-.]?(\d{1,6})|(\d{1,6})$", re.IGNORECASE)
_DAY_NS: Final = 86_400 * 10**9
HEAD_BYTES: Final = 1 << 16
JSON_HEAD: Final = 400
"""Bytes in which a JSON dump has its first large key; a log may be lines of JSON."""
_IN_DUMPS: Final = (b"pg_config", b"entries")
Dumps = dict[int, tuple[Path, Any]]
"""Rank -> (file, content)."""


def import_files(paths: Sequence[Path], output: Path) -> Imported:
    """Read dumps or traces (files, or directories of them) and write a session.

    Raises UserError; OSError if ``output`` cannot be written.
    """
    files = _files(paths)
    dumps, traces = _contents(files)
    if dumps and traces:
        one, other = dumps, traces
        raise UserError(
            f"{next(iter(one.values()))[0]} is a Flight Recorder dump and "
            f"{next(iter(other.values()))[0]} a profiler trace: import them apart"
        )
    made, builds = flight_recorder.build(dumps) if dumps else kineto.build(traces)
    return write(output, made, builds, files, _written(files, builds) if dumps else 0)


def looks_like_dump(path: Path) -> bool:
    """Return whether a file begins like a Flight Recorder dump. Raises OSError."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            file.seek(0)
            with suppress(EOFError, zlib.error), gzip.open(file) as packed:
                head = packed.read(HEAD_BYTES)
    begin = {b"\x80": head, b"{": head[:JSON_HEAD]}.get(head[:1], b"")
    return any(word in begin for word in _IN_DUMPS)


def read_dumps(paths: Sequence[Path]) -> Dumps:
    """Read Flight Recorder dumps. Raises UserError."""
    dumps, traces = _contents(paths)
    for path, _ in traces.values():
        raise UserError(f"{path} is a profiler trace: `pardbg import` reads it")
    return dumps


def write_log(
    output: Path, files: Sequence[Path], dumps: Dumps, ranks: Sequence[int],
    said: Sequence[LogSays], lines: Sequence[LogLine],
) -> Imported:  # fmt: skip
    """Write a session of a job log's conclusions, and its dumps. ``ranks``: those in the log."""
    if dumps:
        made, builds = flight_recorder.build(dumps)
    else:
        world = max(ranks, default=-1) + 1
        made = Imported("a job's log", [*ranks])
        made.lacks = ["ops, steps, phases, memory and loss: a log has none"]
        builds = [RankBuild(rank, world, "", rank + 1, "") for rank in ranks]
    made.command = "explain"
    stamps = [path.stat().st_mtime_ns for path in files] or [time.time_ns()]
    end_ns = _written([path for path, _ in dumps.values()], builds) if dumps else max(stamps)
    return write(output, made, builds, files, end_ns, said, lines)


def _contents(files: Sequence[Path]) -> tuple[Dumps, Dumps]:
    """Return dumps and traces by rank."""
    found: dict[str, Dumps] = {"dump": {}, "trace": {}}
    for path in files:
        kind, rank, content = _classified(path)
        known = found[kind].get(rank)
        if known is not None:
            raise UserError(f"two files of rank {rank}: {known[0]} and {path}; give one of them")
        found[kind][rank] = (path, content)
    return found["dump"], found["trace"]


def _written(files: Sequence[Path], builds: Sequence[Any]) -> int:
    """Return when the newest dump was written (ns), by its file: a hang lasted until then."""
    newest = max((t for build in builds for t, _ in build.records), default=0)
    stamp = max(path.stat().st_mtime_ns for path in files)
    return stamp if newest <= stamp <= newest + _DAY_NS else newest


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
            if not inside:
                raise UserError(f"{path} is empty: give dumps or traces, or a directory of them")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise UserError(f"no such file: {path}")
    if len(files) > MAX_FILES:
        raise UserError(f"{len(files):,} files; {MAX_FILES:,} at most")
    return files


def _classified(path: Path) -> tuple[str, int, Any]:
    content = _content(path)
    if flight_recorder.is_dump(content):
        return "dump", _rank(path, None), content
    if kineto.events_of(content):
        return "trace", _rank(path, kineto.rank_of(content)), content
    raise UserError(f"{path} is neither a Flight Recorder dump nor a profiler trace")


def _rank(path: Path, said: int | None) -> int:
    if said is not None and 0 <= said < 1 << 16:
        return said
    name = path.name
    for suffix in (".gz", ".json", ".pkl", ".pickle", ".pt.trace"):
        name = name.removesuffix(suffix)
    found = _RANK.search(name)
    number = int(found[1] or found[2]) if found is not None else -1
    if not 0 <= number < 1 << 15:
        raise UserError(f"{path} does not say its rank: name it like trace_rank_0")
    return number


def _content(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            head = file.read(2)
            file.seek(0)
            if head == b"\x1f\x8b":
                with gzip.open(file) as packed:
                    return _json(_bounded(packed, MAX_JSON_BYTES, path), path)
            if head[:1] == b"\x80":
                return _plain_pickle(_bounded(file, MAX_PICKLE_BYTES, path))
            return _json(_bounded(file, MAX_JSON_BYTES, path), path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, RecursionError) as error:
        if isinstance(error, _NotPlain):
            raise UserError(f"{path}: {error}") from None
        raise UserError(
            f"{path} is neither a Flight Recorder dump nor a profiler trace (it is damaged, or "
            f"something else)"
        ) from None


def _bounded(file: Any, limit: int, path: Path) -> bytearray:
    """Return the whole file, read in pieces, since a large read allocates its memory first."""
    data = bytearray()
    while piece := file.read(READ_BYTES):
        data += piece
        if len(data) > limit:
            raise UserError(f"{path} is larger than {binary_size(limit)}: that is not read")
    return data


def _json(data: bytearray, path: Path) -> Any:
    """Parse JSON of bounded memory: a list or map takes at least 64 bytes, a value 40."""
    lists, values = data.count(b"[") + data.count(b"{"), data.count(b",")
    takes = lists * 64 + values * 40 + len(data)
    if takes > MAX_OBJECTS_BYTES:
        raise UserError(
            f"{path} would take {binary_size(takes)} of memory: more than "
            f"{binary_size(MAX_OBJECTS_BYTES)} is not read"
        )
    return json.loads(data)


class _NotPlain(ValueError):
    """A pickle that names a class or function."""


class _PlainUnpickler(pickle._Unpickler):
    """Unpickler of containers, text and numbers; names of code are refused before any lookup.

    Uses Python's implementation: the one in C allocates whatever size an 18-byte file states.
    """

    def _refuse(self) -> None:
        raise _NotPlain("its pickle has more than plain values: refused")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: _refuse,
    }

    def find_class(self, module: str, name: str) -> Any:
        raise _NotPlain(f"its pickle names {module[:40]}.{name[:40]}: refused, it could run code")

    def persistent_load(self, pid: Any) -> Any:
        raise _NotPlain("its pickle refers to things outside of it: refused")


def _plain_pickle(data: bytearray) -> Mapping[str, Any]:
    try:
        content = _PlainUnpickler(io.BytesIO(data)).load()
    except _NotPlain:
        raise
    # Damaged pickles raise nearly anything; none of it is ours.
    except Exception as error:
        raise ValueError("damaged pickle") from error
    if not isinstance(content, dict):
        raise ValueError("not a map")
    return content
