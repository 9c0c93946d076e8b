"""Output of the job: its files, line by line, with the rank if torchrun gives it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.hub.run.config import ERR_FILE, OUT_FILE

MAX_LINE: Final = 16 << 10
"""Maximum bytes of a line; longer ones are split."""
READ_BYTES: Final = 64 << 10
MAX_LINES: Final = 2000
"""Maximum bytes read and lines said per turn and stream, so that flooded output cannot stall the
hub, or the job's end."""
MAX_BEHIND: Final = 4 << 20
"""Lead, in bytes, beyond which a stream is a flood: only its newest output is then read."""
PARTIAL_NS: Final = 500_000_000
"""Time after which a line without an end is shown."""
_PREFIX: Final = re.compile(r"\[(?:rank|default)(\d{1,6})\]:? ?")
_END: Final = re.compile(rb"\r\n|[\r\n]")


@dataclass(frozen=True, slots=True)
class Line:
    """Line of the job's output."""

    stream: str
    """Stream: stdout or stderr."""
    text: str
    rank: int | None
    offset: int
    """Offset of the next line in the stream's file."""


class Tail:
    """Reader of a file that another process writes."""

    def __init__(self, path: Path, stream: str, offset: int = 0) -> None:
        self._path, self._stream = path, stream
        self.offset = offset
        """Offset of the first byte not yet given out."""
        self._rest = b""
        self._rest_ns = 0
        self._fd = -1
        self.num_lost = 0
        """Bytes given up because they came too fast or found no room."""
        self._num_told = 0

    def read(self, now: int, *, final: bool = False) -> list[Line]:
        """Return lines since the last call; with ``final`` also a last one without an end."""
        data = self._read()
        if data:
            self._rest += data
            self._rest_ns = now
        self._give_up_most()
        lines = self._lost() + self._whole_lines()
        if self._rest and ((final and not data) or now - self._rest_ns >= PARTIAL_NS):
            lines.append(self._line(self._rest, len(self._rest)))
            self._rest = b""
        return lines

    def _give_up_most(self) -> None:
        if (extra := self._rest.count(b"\n") - MAX_LINES) > 0:
            kept = self._rest.split(b"\n", extra)[-1]
            self._skip_to(self.offset + len(self._rest) - len(kept))
            self._rest = kept

    def _skip_to(self, offset: int) -> None:
        self.num_lost += offset - self.offset
        self.offset, self._rest = offset, b""

    def _lost(self) -> list[Line]:
        lost, self._num_told = self.num_lost - self._num_told, self.num_lost
        text = f"pardbg: {lost} bytes of output are missing here"
        return [Line(self._stream, text, None, self.offset)] if lost else []

    @property
    def at_end(self) -> bool:
        """Return whether the whole file has been returned."""
        try:
            return not self._rest and self.offset >= os.stat(self._path).st_size
        except OSError:
            return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bytes:
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            at = self.offset + len(self._rest)
            end = os.fstat(self._fd).st_size
            wanted = end - READ_BYTES if end - at > MAX_BEHIND else at
            begin = os.lseek(self._fd, wanted, os.SEEK_DATA)
            if begin > at:  # or a hole: output that was given up before it could be read
                self._skip_to(begin)
            size = min(READ_BYTES, os.lseek(self._fd, begin, os.SEEK_HOLE) - begin)
            return os.pread(self._fd, size, begin)
        except OSError:
            return b""  # nothing there (yet)

    def _whole_lines(self) -> list[Line]:
        lines, start, data = [], 0, self._rest
        for found in _END.finditer(data):
            if found.end() == len(data) and found.group() == b"\r":
                break  # its \n may be on the way
            lines += self._cut(data[start : found.start()], found.end() - start)
            start = found.end()
        self._rest = data[start:]
        while len(self._rest) > MAX_LINE:
            lines.append(self._line(self._rest[:MAX_LINE], MAX_LINE))
            self._rest = self._rest[MAX_LINE:]
        return lines

    def _cut(self, raw: bytes, size: int) -> list[Line]:
        """Return a line, in pieces if it is too long; ``size`` includes its end."""
        lines = []
        while len(raw) > MAX_LINE:
            lines.append(self._line(raw[:MAX_LINE], MAX_LINE))
            raw, size = raw[MAX_LINE:], size - MAX_LINE
        lines.append(self._line(raw, size))
        return lines

    def _line(self, raw: bytes, size: int) -> Line:
        self.offset += size
        text, rank = split_rank(raw.decode("utf-8", "replace").strip("\0"))
        return Line(self._stream, text, rank, self.offset)


class JobOutput:
    """Reader of both output streams of a job, from ``offsets`` on."""

    def __init__(self, run_dir: Path, offsets: Mapping[str, int]) -> None:
        self._tails = {
            stream: Tail(run_dir / name, stream, offsets.get(stream, 0))
            for stream, name in (("stdout", OUT_FILE), ("stderr", ERR_FILE))
        }

    def lines(self, now: int, *, final: bool = False) -> list[Line]:
        """Return the lines since the last call; with ``final`` those without an end, too."""
        return [line for tail in self._tails.values() for line in tail.read(now, final=final)]

    @property
    def offsets(self) -> dict[str, int]:
        """Offset of each stream's first byte not yet returned."""
        return {stream: tail.offset for stream, tail in self._tails.items()}

    @property
    def at_end(self) -> bool:
        """Return whether everything has been returned."""
        return all(tail.at_end for tail in self._tails.values())

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()


def split_rank(text: str) -> tuple[str, int | None]:
    """Return ``[default3]:loss 2`` as (``loss 2``, 3). torch prefixes with ``[rank3]: ``."""
    found = _PREFIX.match(text)
    if found is None:
        return text, None
    return text[found.end() :], int(found[1])
