"""Removal of what runs leave behind: the only module that removes it.

Looking at something must never delete it. So a directory is removed only if all of this holds, each
found by ``lstat`` or through a descriptor, never by following a link:

- its parent is a directory of ours, 0700 and no link (other users cannot put anything there);
- it is a directory of ours, no link, and carries our mark: a file with the run's id, which is also
  the directory's name;
- and of its contents only names that pardbg gives are removed. Anything else stays, and so does the
  directory then.

``tests/contracts/test_removal.py`` keeps every other module from removing foreign files."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

MARK_FILE: Final = ".pardbg-run"
"""File in each directory that we make for a run, with nothing but the run's id."""
MAX_MARK: Final = 128
RINGS_DIR: Final = "rings"
_RUN_FILES: Final = re.compile(
    r"run\.json|hub\.pid|launch\.json|job\.json|exit\.json|part\.json|\.?hub\.state|keys\.json"
    r"|(?:recorded|hang|notified)\.json|hub\.log|job\.(?:out|err)|notices|relay\.json|told|kill|data|pub|ctrl"
    r"|\.[a-z]+\.(?:json|pid)\.\d+|plan|imports(?:\.learnt)?|(?:out|err|why|places)\.\d+"
)
"""Files of launcher, hub and rehearsals in a run's directory (``.…``: JSON files half written)."""
RING: Final = ".ring"
_RING_SUFFIXES: Final = (RING, ".defs", ".board", ".board.new", ".crash")
_RING_FILES: Final = re.compile(".+(?:" + "|".join(map(re.escape, _RING_SUFFIXES)) + ")")
_MEETING: Final = re.compile(r"tasks-\d+-\d+\.json")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refusal(root: Path) -> str:
    """Return why ``root`` cannot be used for runs, in one line; empty if it can, or is missing."""
    try:
        found = root.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{root}: {error.strerror or error}; {_CHOOSE}"
    if stat.S_ISLNK(found.st_mode):
        return f"{root} is a symbolic link; {_CHOOSE}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{root} is not a directory; {_CHOOSE}"
    if found.st_uid != os.getuid():
        return f"{root} belongs to another user (uid {found.st_uid}); {_CHOOSE}"
    return ""


_CHOOSE: Final = "set TMPDIR or XDG_RUNTIME_DIR to a directory of your own"


def is_private(path: Path) -> bool:
    """Return whether the directory is ours, 0700 and no link."""
    with contextlib.suppress(OSError), _opened(path) as fd:
        return _private(fd)
    return False


def mark(path: Path, run: str) -> None:
    """Put the mark of ``run`` into a directory that was just made. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path / MARK_FILE, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(run)


def marked(path: Path) -> str:
    """Return the run whose mark the directory carries; empty if it is not one that we made."""
    with contextlib.suppress(OSError), _opened(path) as fd:
        return _mark_in(fd) if os.fstat(fd).st_uid == os.getuid() else ""
    return ""


def remove_run(run_dir: Path) -> bool:
    """Remove a dead run's directory, with the rings in it. Return True if all of it is gone."""
    with contextlib.suppress(OSError), _child(run_dir, run_dir.name) as (root, fd):
        with contextlib.suppress(OSError), _opened(Path(RINGS_DIR), fd) as rings:
            if _mark_in(rings) == run_dir.name:
                _empty(rings, _RING_FILES)
        with contextlib.suppress(OSError):
            os.rmdir(RINGS_DIR, dir_fd=fd)
        return _empty(fd, _RUN_FILES) and _rmdir(run_dir.name, root)
    return False


def remove_unstarted(run: str, roots: Iterable[Path], ring_root: Path) -> None:
    """Remove the remains of a run that never had a job, where its making may have been cut short: a
    directory without a mark is removed if it is empty."""
    remove_rings(ring_root / run, run)
    for root in roots:
        remove_run(root / run)
    for path in (ring_root / run, *(root / run for root in roots)):
        with contextlib.suppress(OSError), _opened(path.parent) as fd:
            if _private(fd):
                os.rmdir(run, dir_fd=fd)


def remove_empty(path: Path) -> None:
    """Remove a file of ours with nothing in it, such as a recording that never began."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_size:
            os.unlink(path)


def remove_rings(ring_dir: Path, run: str) -> bool:
    """Remove a run's ring files and their directory. Return True if all of it is gone."""
    with contextlib.suppress(OSError), _child(ring_dir, run) as (root, fd):
        return _empty(fd, _RING_FILES) and _rmdir(ring_dir.name, root)
    return False


def remove_ring(ring_dir: Path, run: str, proc: str) -> None:
    """Remove the files of one process's ring."""
    with contextlib.suppress(OSError), _child(ring_dir, run) as (_, fd):
        for suffix in _RING_SUFFIXES:
            _unlink(proc + suffix, fd)


def remove_meeting(path: Path) -> None:
    """Remove the file by which the tasks of a launcher met."""
    with contextlib.suppress(OSError), _opened(path.parent) as fd:
        if _private(fd) and _MEETING.fullmatch(path.name):
            os.unlink(path.name, dir_fd=fd)


@contextlib.contextmanager
def _opened(path: Path, within: int | None = None) -> Iterator[int]:
    fd = os.open(path, _DIRECTORY, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _child(path: Path, run: str) -> Iterator[tuple[int, int]]:
    """Yield descriptors of the parent and of ``path``, if both may be changed. Raises OSError."""
    with _opened(path.parent) as root, _opened(Path(path.name), root) as fd:
        if not _private(root) or not _private(fd) or _mark_in(fd) != run:
            raise PermissionError(f"{path} is not a directory that pardbg created")
        yield root, fd


def _private(fd: int) -> bool:
    found = os.fstat(fd)
    return found.st_uid == os.getuid() and not found.st_mode & 0o077


def _mark_in(fd: int) -> str:
    try:
        file = os.open(MARK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                       dir_fd=fd)  # fmt: skip
    except OSError:
        return ""
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return ""
        return os.read(file, MAX_MARK).decode("utf-8", "replace")
    finally:
        os.close(file)


def _empty(fd: int, ours: re.Pattern[str]) -> bool:
    """Unlink the names that are ours, the mark last and only if no other name is left."""
    names = [name for name in os.listdir(fd) if name != MARK_FILE]
    left = [name for name in names if not ours.fullmatch(name) or not _unlink(name, fd)]
    return not left and _unlink(MARK_FILE, fd)


def _unlink(name: str, fd: int) -> bool:
    try:
        os.unlink(name, dir_fd=fd)
    except OSError:
        return False
    return True


def _rmdir(name: str, root: int) -> bool:
    os.rmdir(name, dir_fd=root)
    return True
