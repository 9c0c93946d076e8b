"""What one rank left: its records, definitions, and where in the program its ops stand."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg_agent.defs import read_file
from pardbg_agent.ring import RingError, RingReader
from pardbg_agent.wire import DefKind

Records = NDArray[Any]
Frame = tuple[str, int, str]
BATCH: Final = 1 << 16


@dataclass(slots=True)
class Trace:
    """One rank's run."""

    rank: int
    records: Records
    """In the order in which they were made; times are the process's own."""
    definitions: list[dict[str, Any]]
    said: bytes
    """What ``Alone.write_places`` wrote."""
    code: int
    cpu_ms: int
    lost: int = 0
    """Records that did not fit the ring."""
    why: str = ""
    """``train.py:12: RuntimeError: …`` where the program raised."""
    output: tuple[str, ...] = ()
    ops: dict[int, dict[str, Any]] = field(default_factory=dict)
    """OP definitions by id."""
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for said in self.definitions:
            if said.get("k") == DefKind.OP.value:
                self.ops[said["id"]] = said
            elif said.get("k") == DefKind.GROUP.value:
                self.groups[said["id"]] = said

    def keys(self) -> dict[int, str]:
        """Return the names of the groups, the same on all ranks, by their ids here."""
        return {number: said["key"] for number, said in self.groups.items()}

    def stacks(self) -> list[tuple[Frame, ...]]:
        """Return the stack of each OP_ISSUE, in order."""
        try:
            said = msgpack.unpackb(self.said)
        except ValueError:
            return []
        stacks = [tuple((f, n, w) for f, n, w in stack) for stack in said["stacks"]]
        return [stacks[number] for number in said["ops"]]


def collect(folder: Path, rank: int, pid: int, host: str, code: int, cpu_ms: int) -> Trace:
    """Read what an ended rank left, and remove it."""
    stem = folder / "rings" / f"0.{host}.{pid}"
    ring, defs = stem.with_name(f"{stem.name}.ring"), stem.with_name(f"{stem.name}.defs")
    records, lost = np.zeros(0, RECORD_DTYPE), 0
    payloads: list[bytes] = []
    with contextlib.suppress(OSError, RingError):
        records, lost = _records(ring)
        payloads = read_file(str(defs))
    trace = Trace(
        rank, records, [msgpack.unpackb(p) for p in payloads], _bytes(folder / f"places.{rank}"),
        code, cpu_ms, lost, _text(folder / f"why.{rank}"),
        tuple(_text(folder / f"out.{rank}").splitlines()[:1000]),
    )  # fmt: skip
    if code and not trace.why:
        said_last = _text(folder / f"err.{rank}").strip().splitlines()
        trace.why = said_last[-1] if said_last else f"exit code {code}"
    for path in (ring, defs, *(folder / f"{n}.{rank}" for n in ("places", "why", "out", "err"))):
        path.unlink(missing_ok=True)
    return trace


def _records(path: Path) -> tuple[Records, int]:
    reader = RingReader.open(str(path))
    parts = []
    while (batch := reader.read(BATCH, final=True)) is not None:
        parts.append(np.frombuffer(batch[1], RECORD_DTYPE))
    lost = reader.lost
    reader.close()
    return np.concatenate(parts) if parts else np.zeros(0, RECORD_DTYPE), lost


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")
