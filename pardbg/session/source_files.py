"""Source lines around a frame: from the named file, or from a copy of it in this directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

MAX_BYTES: Final = 4 << 20
AROUND: Final = 40
"""Number of lines kept before and after the current one."""
_MAX_SUFFIX: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, as named in a stack."""

    file: str
    line: int


def place_of(text: str) -> Place | None:
    """Return the place named by ``file:line``; None: the text names no place."""
    file, _, number = text.rpartition(":")
    return Place(file, int(number)) if file and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class SourceLines:
    """Lines around a place."""

    place: Place
    first: int
    """Number of the first line."""
    lines: tuple[str, ...]
    note: str = ""
    """Reason why there are no lines, or a note that they are from a copy."""


def source_around(place: Place) -> SourceLines:
    """Return the lines around ``place``. Never raises: an unreadable file becomes a note. A session
    can contain any path, so only regular files of a bounded size are read."""
    if place.file.startswith("<") or place.line < 1:
        return SourceLines(place, 1, (), "no source: it is not in a file")
    path = _found(place.file)
    if path is None:
        return SourceLines(place, 1, (), "the file is not on this machine")
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        return SourceLines(place, 1, (), f"cannot be read: {error.strerror}")
    lines = text.splitlines()
    if place.line > len(lines):
        return SourceLines(
            place, 1, (), f"the file has {len(lines)} lines here: it is another version"
        )
    first = max(1, place.line - AROUND)
    note = "" if str(path) == place.file else f"from {path}"
    return SourceLines(place, first, tuple(lines[first - 1 : place.line + AROUND]), note)


def _found(file: str) -> Path | None:
    """Return the named file; else a file under this directory whose path has the same end."""
    parts = PurePath(file).parts
    tails = [Path(*parts[-number:]) for number in range(min(len(parts), _MAX_SUFFIX), 1, -1)]
    for path in (Path(file), *tails):
        try:
            if path.is_file() and os.stat(path).st_size <= MAX_BYTES:
                return path
        except (OSError, ValueError):
            continue
    return None
