"""Builder of sessions from other tools' data: definitions and records like an agent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from pardbg.errors import UserError
from pardbg.events.control_events import ControlEvent
from pardbg.events.log_facts import LogLine, LogSays
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg_agent.wire import (
    FRAME,
    NO_GROUP,
    NONE,
    PROTOCOL_VERSION,
    RECORD,
    DefKind,
    Key,
    Kind,
    Lane,
)

BATCH: Final = 8192
_INT32: Final = (1 << 32) - 1


@dataclass(slots=True)
class Imported:
    """Summary of an import."""

    source: str
    """``Flight Recorder dumps`` or ``profiler traces``."""
    ranks: list[int]
    num_records: int = 0
    num_ops: int = 0
    lacks: list[str] = field(default_factory=list)
    """Descriptions of facts that the files lack."""
    command: str = "import"


class RankBuild:
    """Data of one rank: interns its names, ops and groups, keeps its records. Times: epoch ns."""

    def __init__(self, rank: int, world: int, host: str, pid: int, backend: str) -> None:
        self.rank, self.host = rank, host
        self.proc = f"0.{host or 'host'}.{pid}"
        self.definitions: list[dict[str, Any]] = []
        self.records: list[tuple[int, bytes]] = []
        self.num_ops = 0
        self._backend = backend
        self._ids: dict[Any, int] = {}
        self._groups: dict[str, int] = {}
        self._define(
            DefKind.PROCESS, proc=self.proc, rank=rank, world_size=world, host=host, pid=pid,
            epoch=0,
        )  # fmt: skip

    def name(self, text: str) -> int:
        """Return the id of a string."""
        if text not in self._ids:
            self._ids[text] = len(self._ids) + 1
            self._define(DefKind.NAME, id=self._ids[text], s=text[:500])
        return self._ids[text]

    def op(self, op: str, dtype: str) -> int:
        """Return the id of an op's signature."""
        key = (op, dtype)
        if key not in self._ids:
            self._ids[key] = len(self._ids) + 1
            self._define(
                DefKind.OP, id=self._ids[key], op=op, dtype=dtype, reduce="", root=NONE, tag=0,
                coalesced=False,
            )  # fmt: skip
        return self._ids[key]

    def group(self, key: str, name: str, ranks: Sequence[int]) -> int:
        """Return the id of a process group; an empty ``ranks``: members not known."""
        if key not in self._groups:
            if len(self._groups) >= NO_GROUP:
                raise UserError("too many process groups")
            self._groups[key] = len(self._groups)
            self._define(
                DefKind.GROUP, id=self._groups[key], key=key, name=name, axis=None,
                ranks=list(ranks), backend=self._backend,
            )  # fmt: skip
        return self._groups[key]

    def span(self, kind: Kind, name: str, t0: int, t1: int, step: int = 0, flags: int = 0) -> None:
        """Add a STEP, PHASE or SPAN record."""
        lane = {Kind.STEP: Lane.STEP, Kind.PHASE: Lane.PHASE}.get(kind, Lane.USER)
        name_id = 0 if kind is Kind.STEP else self.name(name)
        self._record(kind, lane, flags, name_id, t0, t1, step)

    def op_at(
        self, kind: Kind, op_id: int, group: int, seq: int, t0: int, t1: int, *, step: int = 0,
        peer: int = NONE, flags: int = 0, sizes: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """Write OP_ISSUE or OP_DONE; without a DONE flag the time of completion is not known."""
        self.num_ops += kind is Kind.OP_ISSUE
        self._record(kind, Lane.COMM, flags, op_id, t0, t1, step, seq, group, peer, *sizes)

    def _define(self, kind: DefKind, **fields: Any) -> None:
        self.definitions.append({"k": kind.value, **fields})

    def _record(
        self, kind: Kind, lane: Lane, flags: int, name_id: int, t0: int, t1: int, step: int,
        seq: int = 0, group: int = NO_GROUP, peer: int = NONE, a: int = 0, b: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= t0 <= t1 < 1 << 62 or not -(1 << 15) <= peer < 1 << 15:
            return
        packed = RECORD.pack(
            int(kind), int(lane), int(flags), name_id, t0, t1, min(max(step, 0), _INT32),
            min(max(seq, 0), _INT32), group, NONE, NONE, peer, min(a, 1 << 60), min(b, 1 << 60), 0,
        )  # fmt: skip
        self.records.append((t0 if kind is Kind.OP_ISSUE else t1, packed))


def write(
    output: Path, made: Imported, builds: Sequence[RankBuild], files: Sequence[Path], end_ns: int,
    said: Sequence[LogSays] = (), lines: Sequence[LogLine] = (),
) -> Imported:  # fmt: skip
    """Write the session. ``end_ns``: end of the sources; ``said``, ``lines``: from the log."""
    times = [t for build in builds for t, _ in build.records]
    if not times and not said:
        raise UserError(f"{files[0] if files else '-'}: nothing in it that could be shown")
    begin = min(times, default=end_ns)
    host = builds[0].host if builds else ""
    facts = RunFacts(
        f"import-{begin}", f"imported {made.source}", host,
        ("pardbg", made.command, *map(str, files)), str(Path.cwd()), "", begin, begin,
    )  # fmt: skip
    writer = SessionWriter(output, facts)
    for build in builds:
        key = Key.DEFINITION.value + build.proc.encode("ascii", "replace")
        for fields in build.definitions:
            writer.write(key, msgpack.packb(fields), begin)
    for received, proc, payload in sorted(_batches(builds)):
        writer.write(Key.RECORDS.value + proc.encode("ascii", "replace"), payload, received)
    end_ns = max([end_ns, *times])
    own = (LogLine(None, text) for text in (f"imported {made.source}", *made.lacks))
    printed = ({"rank": one.rank, "stream": "stdout", "text": one.text} for one in (*own, *lines))
    messages = [(Key.OUTPUT, plain) for plain in printed]
    messages += [(Key.CONTROL, ControlEvent(fact).plain()) for fact in said]
    for number, (of, plain) in enumerate(messages, 1):
        packed = msgpack.packb({**plain, "n": number, "t_ns": end_ns})
        writer.write(of.value, packed, end_ns)
    writer.close(None)
    made.num_records = len(times)
    made.num_ops = sum(build.num_ops for build in builds)
    return made


def _batches(builds: Sequence[RankBuild]) -> list[tuple[int, str, bytes]]:
    made = []
    for build in builds:
        build.records.sort(key=lambda record: record[0])
        for first in range(0, len(build.records), BATCH):
            part = build.records[first : first + BATCH]
            body = b"".join(
                raw[:-8] + (first + at + 1).to_bytes(8, "little")
                for at, (_, raw) in enumerate(part)
            )
            head = FRAME.pack(PROTOCOL_VERSION, 0, len(part), first, 0, part[-1][0])
            made.append((part[-1][0], build.proc, head + body))
    return made
