"""Where a rank was when a signal of C code ended it: Python's faulthandler writes the stacks of all
threads into a file beside the ring, and passes the signal on."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import Final

SUFFIX: Final = ".crash"
_open: list[tuple[int, int]] = []
"""(descriptor, inode) of this process's file; empty: there is none."""


def open_file(path: str) -> None:
    """Have stacks written to ``path``, unless the program already has them written elsewhere. A
    program that calls ``faulthandler.enable`` later gets them itself. Raises OSError."""
    if faulthandler.is_enabled() or _open:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    _open.append((fd, os.fstat(fd).st_ino))
    faulthandler.enable(fd)


def let_go() -> None:
    """Write nothing from here on: in a forked child, which is another process, and after
    ``detach``. Whether the handler is still ours cannot be known, so it stays."""
    for fd, inode in _open:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:  # else the program has closed it
                nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nowhere, fd, inheritable=False)
                os.close(nowhere)
    _open.clear()


os.register_at_fork(after_in_child=let_go)
