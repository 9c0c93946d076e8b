"""A rehearsal as a session: the ranks' played runs, and the stacks of ranks that are stuck."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from pardbg.analysis.findings.stalls.rehearsed import NOTE, PLACES
from pardbg.analysis.hangs.stacks import place
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Stall, StallPart
from pardbg.lab.rehearse.differences import differences
from pardbg.lab.rehearse.order import Played
from pardbg.lab.rehearse.rank_trace import Frame
from pardbg.lab.rehearse.server import HOST
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.words import plural, ranks_text
from pardbg_agent.wire import FRAME, PROTOCOL_VERSION, DefKind, Key

BEGIN_NS: Final = 1_000_000_000
STALL_NS: Final = 2_500_000_000
"""Time from the last event of stuck ranks to their stacks, ns; a live hub takes as long."""
END_NS: Final = 8_000_000_000
BATCH: Final = 8192
MAX_STACKS: Final = 256
MAX_LINE: Final = 2000
MAX_DIFFERENCES: Final = 64
MAX_ODD: Final = 8
MAX_PLACES: Final = 8192


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Facts of a rehearsal, written beside the ranks."""

    command: tuple[str, ...]
    world: int
    ranks: tuple[int, ...]
    """Ranks that were requested."""
    transport: str
    interrupted: bool


def notes(said: Rehearsal, played: Mapping[int, Played]) -> list[str]:
    """Return notes for readers of the session, a line each."""
    lines = [
        f"rehearsed {plural(len(played), 'rank')} of {said.world:,}, one by one, without a network:"
        " times count events, they measure nothing",
        "floating-point values that come from other ranks are arbitrary; what a program decides by"
        " them may differ",
        f"sends as on a {said.transport} transport: a model",
    ]
    if more := also_run(said.ranks, played):
        lines.append(more)
    absent = sorted(set(range(said.world)) - played.keys())
    if absent:
        lines.append(f"not run, taken to do what their groups do: {ranks_text(absent)}")
    if said.interrupted:
        lines.append("interrupted: what had run by then")
    lost = sum(one.trace.lost for one in played.values())
    if lost:
        lines.append(f"{lost:,} records did not fit the ring: PARDBG_RING makes it larger")
    return lines


def also_run(wanted: Sequence[int], ran: Iterable[int]) -> str:
    """Return a line about ranks that ran without a request; empty: there are none."""
    more = sorted(set(ran) - set(wanted))
    why = "others wait for their integers (shapes, objects)"
    return f"{ranks_text(more)} ran too: {why}" if more else ""


def write(path: Path, said: Rehearsal, played: Mapping[int, Played]) -> None:
    """Write the session. Raises OSError."""
    wall = time.time_ns()
    last = BEGIN_NS + max((one.end_ns for one in played.values()), default=0)
    run = f"rehearsal-{wall:x}"
    facts = RunFacts(run, "rehearsal", HOST, said.command, str(Path.cwd()), "", BEGIN_NS, wall)
    writer = SessionWriter(path, facts)
    hub = Key.DEFINITION.value
    _say(writer, hub, BEGIN_NS, **facts.definition())
    for rank in sorted(played):
        _define(writer, played[rank], wall)
    _note(writer, "rehearsed", said.transport)
    if any(one.stuck is not None and not one.cut for one in played.values()):
        _note(writer, NOTE, [
            {"kind": one.kind, "rank": one.rank, "where": one.call.place, "text": one.text,
             "group": one.call.label, "seq": one.call.seq, "op": str(one.call)}
            for one in differences(one.trace for one in played.values())[:MAX_DIFFERENCES]
        ])  # fmt: skip
    if places := _places(played):
        _note(writer, PLACES, places)
    for when, proc, payload in sorted(_frames(played)):
        writer.write(Key.RECORDS.value + proc, payload, when)
    number = 0
    output = played[min(played)].trace.output if played else ()
    for line in [*notes(said, played), *output]:
        number += 1
        _say(writer, Key.OUTPUT.value, last, n=number, t_ns=last, rank=None, stream="stdout",
             text=line[:MAX_LINE])  # fmt: skip
    _ends(writer, played, last)
    stuck = [one for one in played.values() if one.stuck is not None and not one.cut]
    if stuck:
        ranks = sorted(one.trace.rank for one in stuck)
        when = last + STALL_NS
        stall = Stall(when, _stacks(stuck), dict.fromkeys(ranks, "rehearsal"))
        _say(writer, Key.CONTROL.value, when, **ControlEvent(stall, n=1, t_ns=when).plain())
        _say(writer, Key.OUTPUT.value, last + END_NS, n=number + 1, t_ns=last + END_NS, rank=None,
             stream="stdout", text=f"{ranks_text(ranks)} would go no further")  # fmt: skip
    else:
        _say(writer, hub, last, k=DefKind.END.value, proc=None, t_ns=last,
             code=max((abs(one.trace.code) for one in played.values()), default=0))  # fmt: skip
    writer.close(None)


def _define(writer: SessionWriter, one: Played, wall: int) -> None:
    """Write a rank's definitions, under a name that is equal in all rehearsals."""
    key = Key.DEFINITION.value + _proc(one)
    for fields in one.trace.definitions:
        if fields.get("k") == DefKind.PROCESS.value:
            fields = {**fields, "proc": _proc(one).decode(), "pid": one.trace.rank + 1,
                      "start_ns": BEGIN_NS, "wall_ns": wall, "host": HOST}  # fmt: skip
        moment = BEGIN_NS
        if fields.get("k") in (DefKind.EXCEPTION.value, DefKind.ERROR.value):
            moment = BEGIN_NS + one.end_ns
            if one.stuck is not None and fields["k"] == DefKind.EXCEPTION.value:
                continue  # it would not have come that far
        _say(writer, key, BEGIN_NS, **{**fields, **({"t_ns": moment} if "t_ns" in fields else {})})


def _ends(writer: SessionWriter, played: Mapping[int, Played], last: int) -> None:
    for one in played.values():
        if one.stuck is None or one.cut:
            _say(writer, Key.DEFINITION.value, last, k=DefKind.END.value, proc=_proc(one).decode(),
                 t_ns=BEGIN_NS + one.end_ns, reason="exit", last_index=len(one.records) - 1,
                 dropped=one.trace.lost, code=one.trace.code)  # fmt: skip


def _frames(played: Mapping[int, Played]) -> list[tuple[int, bytes, bytes]]:
    """Return (time, process, FRAME with its records), in order of time."""
    made = []
    for one in played.values():
        records = one.records
        for name in ("t0_ns", "t1_ns"):
            records[name] += BEGIN_NS
        for first in range(0, len(records), BATCH):
            part = records[first : first + BATCH]
            when = int(part["t1_ns"].max())
            head = FRAME.pack(PROTOCOL_VERSION, 0, len(part), first, one.trace.lost, when)
            made.append((when, _proc(one), head + part.tobytes()))
    return made


def _stacks(stuck: Sequence[Played]) -> tuple[StallPart, ...]:
    """Return the stacks of stuck ranks, with ranks at equal stacks together."""
    found: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
    for one in stuck:
        stacks = one.trace.stacks()
        if one.stuck is not None and one.stuck < len(stacks):
            found[stacks[one.stuck]].append(one.trace.rank)
    parts = list(found.items())[:MAX_STACKS]
    return tuple(StallPart(tuple(sorted(ranks)), stack) for stack, ranks in parts)


def _places(played: Mapping[int, Played]) -> list[tuple[int, int, str]]:
    """Return (rank, time, place) of each rank's first ops that not all members issue alike."""
    found = []
    for rank, one in played.items():
        stacks = one.trace.stacks() if one.odd else []
        for number, when in one.odd[:MAX_ODD]:
            found.append((rank, BEGIN_NS + when, place(stacks[number]) or ""))
    return found[:MAX_PLACES]


def _note(writer: SessionWriter, key: str, value: Any) -> None:
    _say(writer, Key.DEFINITION.value, BEGIN_NS, k=DefKind.NOTE.value, key=key, value=value)


def _say(writer: SessionWriter, to: bytes, when: int, **fields: Any) -> None:
    writer.write(to, msgpack.packb(fields, default=str), when)


def _proc(one: Played) -> bytes:
    return f"0.{HOST}.{one.trace.rank + 1}".encode()
