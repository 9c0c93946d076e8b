"""Where a rank was when a signal of C code ended it: Python's faulthandler writes the stacks of all
threads into a file beside the ring, and passes the signal on."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import Final

SUFFIX: Final = ".crash"
_ours: list[tuple[int, tuple[int, int]]] = []
"""Descriptor that the handler writes to, and the file behind it (device, inode); empty: none."""


def open_file(path: str) -> None:
    """Have stacks written to ``path``, unless the program already has them written elsewhere. A
    program that calls ``faulthandler.enable`` later gets them itself. Raises OSError."""
    if _ours or not faulthandler.is_enabled():
        _write_to(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)


def let_go() -> None:
    """Write nothing from here on: in a forked child, until it is a rank itself, and after
    ``detach``. Whether the handler is still ours cannot be known, so it stays."""
    if _ours:
        with contextlib.suppress(OSError):
            _write_to(os.devnull, os.O_WRONLY)


def _write_to(path: str, flags: int) -> None:
    """Put the file behind the handler's descriptor, unless the program has closed that."""
    new = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if not _ours:
        faulthandler.enable(new)
        _ours.append((new, _behind(new)))
        return
    fd, before = _ours.pop()
    try:
        if _behind(fd) == before:
            os.dup2(new, fd, inheritable=False)
            _ours.append((fd, _behind(fd)))
    finally:
        os.close(new)


def _behind(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


os.register_at_fork(after_in_child=let_go)
