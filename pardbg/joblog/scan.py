"""Reader of logs of any size that finds the relevant lines.

In a healthy log only needles are searched; lines with a needle, and tracebacks, are decoded, and
prefixes are removed only from lines that match a pattern. Memory is a block and the events.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard
from mcap.writer import MCAP0_MAGIC

from pardbg.errors import UserError
from pardbg.joblog import origins
from pardbg.joblog.events import Ended, Event, Failure, IssuedAt, Line, OpTimeout, Unknown
from pardbg.joblog.needles import Needles
from pardbg.joblog.origins import Origin
from pardbg.joblog.patterns import ISSUED, NEEDLES, TABLE, TRACEBACK, event_of, known

NEAR: Final = 8
"""Maximum number of lines that belong to one message."""
_HEAD: Final = re.compile(rb"ProcessGroup\w+\.cpp:\d+\]")
_PART: Final = re.compile(rb"atchdog|WorkNCCL\(|nqueued(?: NCCL)? work")
_LOOKED_AT: Final = (
    b"\x1b", b".cpp:", b"atchdog", b"WorkNCCL(", b"nqueued", TRACEBACK, ISSUED, TABLE,
)  # fmt: skip
"""Words of lines that are decoded although no pattern matches them alone: parts of broken lines."""
_LINES: Final = Needles(NEEDLES)
_WHAT: Final = re.compile(r"\s*what\(\):\s*(?P<text>.*)")
_LAST: Final = re.compile(r"\s*Last error:\s*(?P<text>.*)")
_NCCL: Final = re.compile(r"NCCL error(?: in)?:\s*(?:\S+\.cpp:\d+, )?(?P<text>[^,(]+)")


def unbroken(block: bytes, start: int, end: int, before: Origin) -> tuple[Origin, str] | None:
    """Return the line of c10d of which ``block[start:end]`` is a part. None: it is a whole line."""
    if not (_HEAD.search(block, start, end) or _PART.search(block, start, end)):
        return None
    head, parts = start, 0
    while not _HEAD.search(block, head, end):
        if head == 0 or parts == NEAR or not _bare(block[head:end], before):
            return None
        head, parts = block.rfind(b"\n", 0, head - 1) + 1, parts + 1
    lines: list[bytes] = []
    at = head
    while at < len(block) and len(lines) <= NEAR:
        stop = block.find(b"\n", at) + 1 or len(block)
        line = block[at:stop]
        if lines and not (line.strip() and _bare(line, before)):
            break
        lines.append(line.rstrip(b"\r\n"))
        at = stop
    whole = b"".join(lines).decode(errors="replace")
    return origins.split(whole, before) if len(lines) > 1 else None


def _bare(line: bytes, before: Origin) -> bool:
    """Return whether a line has no prefix."""
    text = line.split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    return origins.split(text, before)[1] == text


def told_of(text: str, block: bytes, end: int, origin: Origin, before: Origin) -> str:
    """Return the short text of an exception: for C++ its ``what()``, for NCCL the kind of error and
    its last error. ``text``: from its first line, which ends at ``end``."""
    said = list(_following(block, end, origin, before))
    what = next((m["text"] for one in said if (m := _WHAT.match(one))), text)
    nccl = _NCCL.search(what)
    if nccl is None:
        return what
    for number, one in enumerate(said):
        if found := _LAST.match(one):
            last = found["text"] or "".join(said[number + 1 : number + 2])
            return f"NCCL: {nccl['text'].strip()}: {last.strip()}"
    return what


def _following(block: bytes, at: int, origin: Origin, before: Origin) -> Iterator[str]:
    """Yield the following lines of the same process, without prefixes."""
    for _ in range(NEAR):
        end = block.find(b"\n", at) + 1 or len(block)
        if at >= len(block):
            return
        of, text = origins.split(block[at:end].decode(errors="replace"), before)
        if of.process == origin.process or of == before:
            yield text
        at = end


BLOCK_BYTES: Final = 1 << 20
"""Bytes of a block: larger blocks do not fit into caches."""
ZSTD_BYTES: Final = 1 << 14
"""Compressed bytes read at a time."""
MAX_LINE: Final = 1 << 14
"""Maximum bytes of a line; longer lines are cut."""
MAX_EVENTS: Final = 100_000
MAX_TRACEBACK: Final = 400
"""Maximum number of lines of a traceback."""
TABLE_LINES: Final = 10
EXTENSIONS: Final = (".log", ".out", ".err", ".txt", ".gz", ".zst")


@dataclass(slots=True)
class Log:
    """Result of reading: events in the order of their lines, file by file."""

    events: list[Event] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    """Ranks that a line with a needle is of."""
    lines: dict[str, int] = field(default_factory=dict)
    """Number of lines of each file."""
    num_bytes: int = 0
    dropped: int = 0
    """Number of events dropped after the first MAX_EVENTS."""

    def add(self, event: Event) -> None:
        if event.rank is not None:
            self.ranks.add(event.rank)
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1


def read(paths: Sequence[str]) -> Log:
    """Read all logs; ``-``: standard input; a directory: the logs below it. Raises UserError."""
    log = Log()
    for name in _files(paths):
        before = origins.of_file(name)
        try:
            with _opened(name) as file:
                _Scanner(name, before, log).read(file)
        except (OSError, EOFError, zstandard.ZstdError) as error:
            raise UserError(f"cannot read {name}: {error.args[-1]}") from None
    return log


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if path != "-" and Path(path).is_dir():
            found = sorted(one for one in Path(path).rglob("*") if one.suffix in EXTENSIONS)
            if not found:
                raise UserError(f"{path} has no log ({', '.join(EXTENSIONS)})")
            yield from map(str, found)
        else:
            yield path


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    with open(name, "rb") as file:
        head = file.read(5)
    if head == MCAP0_MAGIC[:5]:
        raise UserError(f"{name} is a session, not a log: `pardbg report {name}` has its findings")
    if head[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.open(name))
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return cast(BinaryIO, _Zstd(name))
    return open(name, "rb")


class _Zstd:
    """Reader of consecutive zstd frames. Raises EOFError if the last one is truncated."""

    def __init__(self, name: str) -> None:
        self._file = open(name, "rb")  # noqa: SIM115 - closed at the with's end
        self._frame = zstandard.ZstdDecompressor().decompressobj()

    def __enter__(self) -> _Zstd:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, _size: int) -> bytes:
        """Return the next data, of any size; empty at the end."""
        while data := self._frame.unused_data or self._file.read(ZSTD_BYTES):
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            if told := self._frame.decompress(data):
                return told
        if not self._frame.eof:
            raise EOFError("it ends amid a frame of zstd")
        return b""


@dataclass(slots=True)
class _Traceback:
    """A traceback in progress: lines of its process that are not indented end it."""

    first: Line
    place: tuple[str, int, str] | None = None
    call: str = ""
    """The function of torch.distributed that the program called."""
    lines: int = 0
    pieces: int = 0
    """Number of lines that can only be the rest of a line that a viewer broke."""


_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_FRAME_BEGINS: Final = re.compile(r'\s*File "')
MAX_PIECES: Final = 4
"""Maximum number of pieces of broken lines in a traceback."""
_CALLS: Final = "frames of a call"
"""Key of the stack that has begun, whatever process its lines seem to be of."""
_CALL: Final = re.compile(r"#\d+ (?P<name>.+?) from (?P<file>.+):(?P<line>\d+)$")
_RAISED: Final = re.compile(r"(?!_?[a-z]\w*$)(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
"""Line of an exception. A lone word with a small first letter is the rest of a broken line."""
_LIBRARY: Final = re.compile(r"(?:site|dist)-packages|/lib/python3|^<|/bin/(?:torchrun|accelerate)")
_ROW: Final = re.compile(r"\s*(host|rank|exitcode|time)\s*:\s(.*)")


class _Scanner:
    def __init__(self, name: str, before: Origin, log: Log) -> None:
        self._name, self._before, self._log = name, before, log
        self._number = 0
        """Number of lines before the block."""
        self._open: dict[str, _Traceback] = {}
        self._broken: tuple[str, str] | None = None
        """Process and text of the line before, if that is an incomplete frame."""

    def read(self, file: BinaryIO) -> None:
        rest = b""
        while data := file.read(BLOCK_BYTES):
            self._log.num_bytes += len(data)
            end = data.rfind(b"\n") + 1
            if not end and len(rest) < MAX_LINE:
                rest += data
                continue
            self._block(rest + data[:end])
            rest = data[end:]
        self._block(rest)
        self._log.lines[self._name] = self._number
        for begun in self._open.values():
            if begun.place:  # the log ends before the line that says what was raised
                self._log.add(Failure(begun.first, begun.first.origin.rank, "", "", begun.place))

    def _block(self, block: bytes) -> None:
        at, number, counted = 0, self._number, 0
        starts = _LINES.lines(block)
        if self._open:
            starts.insert(0, 0)
        for start in starts:
            if start < at:
                continue  # a traceback took it
            at = start
            while True:
                number += block.count(b"\n", counted, at)
                counted = at
                end = block.find(b"\n", at) + 1 or len(block)
                self._line(block, at, end, number + 1)
                at = end
                if not self._open or at >= len(block):
                    break
        self._number += block.count(b"\n")

    def _line(self, block: bytes, start: int, end: int, number: int) -> None:
        raw = block[start : min(end, start + MAX_LINE)]
        looked_at = self._open or self._broken or any(map(raw.__contains__, _LOOKED_AT))
        if not looked_at and not known(raw.decode(errors="replace")):
            return
        origin, text = origins.split(raw.decode(errors="replace"), self._before)
        line = Line(self._name, number, origin, text)
        if self._of_traceback(line, block, end):
            return
        if TABLE in raw:
            self._table_row(block[max(0, start - TABLE_LINES * 200) : end], line)
            return
        event = event_of(line) if any(needle in raw for needle in NEEDLES) else None
        if whole := unbroken(block, start, end, self._before):
            told = event_of(replace(line, origin=whole[0], text=whole[1]))
            event = event if told is None or isinstance(told, Unknown) else told
        if isinstance(event, Failure):
            event = self._told(event, block, end)
        if event is not None:
            self._log.add(event)

    def _told(self, failure: Failure, block: bytes, end: int) -> Failure:
        origin = failure.line.origin
        return replace(failure, text=told_of(failure.text, block, end, origin, self._before))

    def _of_traceback(self, line: Line, block: bytes, end: int) -> bool:
        key, text = line.origin.process, line.text
        if text.endswith("Traceback (most recent call last):"):
            self._open[key] = _Traceback(line)
            return True
        if ISSUED.decode() in text:
            self._open[_CALLS] = _Traceback(line)
            return True
        if _CALLS in self._open and self._of_call(self._open[_CALLS], line):
            return True
        if self._broken is not None:
            (of, head), self._broken = self._broken, None
            if key in (of, self._before.process) and _goes_on(head, text):
                key, text = of, head + text
        begun = self._open.get(key)
        if begun is None:
            return False
        begun.lines += 1
        if frame := _FRAME.match(text):
            if not _LIBRARY.search(frame["file"]):
                begun.place = (frame["file"], int(frame["line"]), frame["name"])
            elif frame["file"].endswith("distributed/distributed_c10d.py"):
                begun.call = frame["name"]
            return True
        if text[:1] in (" ", "\t", "") and begun.lines < MAX_TRACEBACK:
            if _FRAME_BEGINS.match(text) and len(text) < MAX_LINE:
                self._broken = key, text
            return True
        raised = _RAISED.match(text)
        if begun.place and not raised and begun.pieces < MAX_PIECES and event_of(line) is None:
            begun.pieces += 1
            return True
        del self._open[key]
        if raised is not None:
            name, told = raised["type"].rpartition(".")[2], (raised["text"] or "").strip()
            failure = Failure(line, line.origin.rank, name, told, begun.place)
            self._log.add(self._told(failure, block, end))
        event = event_of(line)
        if isinstance(event, OpTimeout) and not event.op:
            event = replace(event, op=begun.call)
        if event is not None:
            self._log.add(event)
        return True

    def _of_call(self, begun: _Traceback, line: Line) -> bool:
        """Take an issuing call's frame, which has no prefix; any other line ends the stack."""
        frame = _CALL.match(line.text)
        if frame is None or not _LIBRARY.search(frame["file"]):
            del self._open[_CALLS]
        if frame is not None and _CALLS not in self._open:
            place = frame["file"], int(frame["line"]), frame["name"]
            self._log.add(IssuedAt(begun.first, begun.first.origin.rank, place))
        return frame is not None

    def _table_row(self, lines: bytes, line: Line) -> None:
        """Take a process of torchrun's table of failures: rank and host are in the lines before."""
        rows: dict[str, str] = {}
        first = False
        for raw in lines.splitlines()[-TABLE_LINES:]:
            text = origins.split(raw.decode(errors="replace"))[1]
            if found := _ROW.match(text):
                rows[found[1]] = found[2]
            first = first or "Root Cause" in text
        numbers = [int(n) for n in re.findall(r"-?\d+", rows.get("rank", "") + " ")]
        code = re.match(r"\s*(-?\d+)\s*\(pid: (\d+)\)", rows.get("exitcode", ""))
        if len(numbers) < 2 or code is None:
            return
        time = f"[{rows.get('time', '').strip().replace('_', ' ')}] "
        line = replace(line, origin=replace(line.origin, job_s=origins.split(time)[0].job_s))
        host = rows.get("host", "").strip()
        self._log.add(Ended(line, numbers[0], int(code[1]), numbers[1], int(code[2]), host, first))


def _goes_on(head: str, text: str) -> bool:
    """Return whether the next line can be the rest of a frame; a SyntaxError's frame has none."""
    return not (text.startswith("    ") or (head[-1].isdigit() and _RAISED.match(text)))
