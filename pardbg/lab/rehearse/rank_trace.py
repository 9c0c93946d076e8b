"""One rank's rehearsal: its records, its definitions, and its ops' places in the program."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg.store.definitions import GroupDef, OpDef, group_def, op_def
from pardbg_agent.defs import read_file
from pardbg_agent.ring import RingError, RingReader
from pardbg_agent.wire import DefKind

Records = NDArray[Any]
Frame = tuple[str, int, str]
NO_OP: Final = OpDef("", "", "", None, 0)
BATCH: Final = 1 << 16


@dataclass(slots=True)
class Trace:
    """Trace of one rank's run."""

    rank: int
    records: Records
    """Records in order; times are the process's own."""
    definitions: list[dict[str, Any]]
    places: bytes
    """Places of the rank's ops, as written by ``Alone.write_places``."""
    code: int
    cpu_ms: int
    lost: int = 0
    """Number of records that did not fit into the ring."""
    why: str = ""
    """``train.py:12: RuntimeError: …`` if the program raised."""
    output: tuple[str, ...] = ()
    ops: dict[int, OpDef] = field(default_factory=dict)
    """Id of the definition in this process -> op."""
    groups: dict[int, GroupDef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for definition in self.definitions:
            if definition.get("k") == DefKind.OP.value:
                self.ops[definition["id"]] = op_def(definition)
            elif definition.get("k") == DefKind.GROUP.value:
                self.groups[definition["id"]] = group_def(definition, 0)

    def op(self, number: int) -> OpDef:
        """Return an op's definition; one without a name if it is missing."""
        return self.ops.get(number, NO_OP)

    def stacks(self) -> list[tuple[Frame, ...]]:
        """Return the stack of each OP_ISSUE, in order."""
        try:
            written = msgpack.unpackb(self.places)
        except ValueError:
            return []
        stacks = [tuple((f, n, w) for f, n, w in stack) for stack in written["stacks"]]
        return [stacks[number] for number in written["ops"]]


def collect(folder: Path, rank: int, pid: int, host: str, code: int, cpu_ms: int) -> Trace:
    """Read the files of an ended rank, and remove them."""
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
        lines = _text(folder / f"err.{rank}").strip().splitlines()
        trace.why = lines[-1] if lines else f"exit code {code}"
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
