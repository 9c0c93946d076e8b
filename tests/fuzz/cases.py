"""One damaged file: load it and compute everything of it, as the commands and screens do."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pardbg.session.reader import SessionError, load
from tests.harness import whole_messages


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    kind: Literal["loaded", "refused", "bad"]
    text: str = ""


def _one_line(said: str) -> Outcome:
    if "\n" in said or len(said) > 400:
        return Outcome("bad", f"not one line: {said!r}")
    return Outcome("refused", said)


def cut_places(data: bytes, count: int, seed: int = 0) -> list[int]:
    """Random places, anywhere in the file."""
    rng = random.Random(seed)
    return [rng.randrange(len(data)) for _ in range(count)]


def run_cut(data: bytes, place: int) -> Outcome:
    """A file cut there has exactly the messages of its whole chunks, and says that it was cut."""
    with _file(data) as whole, _file(data[:place]) as part:
        expected = [m.payload for m in whole_messages(Path(whole))]
        kept = [m.payload for m in whole_messages(Path(part))]
        if kept != expected[: len(kept)]:
            return Outcome("bad", "not a prefix of the whole file's messages")
        try:
            store = load(part)
        except SessionError as error:
            if kept:
                return Outcome("bad", f"{len(kept)} messages are whole, but: {error}")
            return _one_line(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return Outcome("bad", repr(error))
        lines = sum(b'"text"' in p or b"\xa4text" in p for p in kept if b"stream" in p)
        if len(store.output) != lines:
            return Outcome("bad", f"{len(store.output)} of {lines} lines of output")
        return Outcome("loaded")


class _file:
    """Bytes as a file in memory, gone at the end."""

    def __init__(self, data: bytes) -> None:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        fd, self._path = tempfile.mkstemp(suffix=".mcap", dir=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(data)

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        os.unlink(self._path)
