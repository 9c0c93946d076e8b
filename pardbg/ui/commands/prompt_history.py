"""The lines typed at the ``:`` prompt, kept from one session to the next."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

KEPT: Final = 500
MAX_LINE: Final = 1000
_SLACK: Final = 2
"""The file is cut to KEPT lines once it has so many times as many."""


class History:
    """Oldest first. Without a path nothing is kept; what cannot be read or written is left out."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[str] = []

    def load(self) -> None:
        """Read the file; a long one is written again, cut."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            found = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            self.lines = [line[:MAX_LINE] for line in found if line.strip()][-KEPT:]
            if len(found) > _SLACK * KEPT:
                fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
                self._write(fresh, os.O_TRUNC, "".join(f"{line}\n" for line in self.lines))
                os.replace(fresh, self._path)

    def add(self, line: str) -> bool:
        """Remember a line; False: it was the last one already."""
        if not line or self.lines[-1:] == [line]:
            return False
        self.lines = [*self.lines[1 - KEPT :], line[:MAX_LINE]]
        return True

    def keep(self, line: str) -> None:
        """Write it down. Slow: not in the UI's thread."""
        if self._path is not None and line.isprintable():
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._write(self._path, os.O_APPEND, f"{line[:MAX_LINE]}\n")

    def _write(self, path: Path, how: int, text: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
