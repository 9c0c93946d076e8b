"""A trace for Perfetto and chrome://tracing: ranks are processes, lanes are threads.

Chrome's JSON, gzipped: the one form that both read (Perfetto's own protobuf opens in Perfetto
only). Times are µs since the run's begin, exact to the ns; ``otherData`` has the begin.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import times
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings import findings
from pardbg.events import fields
from pardbg.session.export.gathered import Array
from pardbg.session.export.slices import LANES, OP_LANES, Slices, gathered, nesting_rows, slices
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.process import Process
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow over ranks, in order of time."""

    kind: str
    """``p2p`` or ``collective``."""
    stops: tuple[tuple[int, int, int], ...]
    """(rank, begin of the rank's op, time at which the arrow touches it), ns."""


def flows(view: View) -> Iterator[Flow]:
    """Yield arrows: from each send to its receive; through a collective's arrivals to the last."""
    for pair in p2p_rows(view, None):
        if pair.send_ns is None or pair.recv_ns is None:
            continue
        meet = max(pair.send_ns, pair.recv_ns)
        if pair.done_ns is not None:
            meet = max(pair.recv_ns, min(meet, pair.done_ns))
        yield Flow("p2p", ((pair.src, pair.send_ns, pair.send_ns), (pair.dst, pair.recv_ns, meet)))
    for row in collectives(view, None):
        arrived = sorted((a.issued_ns, a.rank) for a in row.arrivals if a.issued_ns is not None)
        if len(arrived) > 1:
            yield Flow("collective", tuple((rank, t, t) for t, rank in arrived))


COMPRESSION: Final = 1
"""gzip level of a trace for a single look: level 6 saves a fifth and takes three times as long."""
_ROWS_PER_LANE: Final = 100
_LANES_UP_TO: Final = 16
_DIGITS: Final = np.array([f"{ns:03}" for ns in range(1000)], object)


@dataclass(slots=True)
class Counts:
    """Numbers of what was written to a trace."""

    slices: int = 0
    counters: int = 0
    flows: int = 0


@dataclass(slots=True)
class _Place:
    pid: int
    tids: dict[int, int] = field(default_factory=dict)
    """begin of an op's slice -> the slice's thread"""


def write_trace(store: Store, path: Path) -> Counts:
    """Write a trace of the whole run; gzipped unless ``path`` ends in ``.json``."""
    store.settle()
    view, counts = View(store, None), Counts()
    with _open(path) as out:
        facts = {
            "begin_ns": view.begin_ns, "run": str(store.run.get("run", "")),
            "wall_ns": fields.integer_or_none(store.run, "wall_ns"), "clock": "hub CLOCK_MONOTONIC",
            "times": times(view) or "host",
        }  # fmt: skip
        out.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(facts))
        out.write(',"traceEvents":[\n')
        out.write('{"ph":"M","name":"trace_name","pid":0,"args":{"name":"pardbg"}}')
        places: dict[int, _Place] = {}
        for batch in _batches(_places(view)):
            for process, place in batch:
                if process.rank is not None and view.ranks.get(process.rank) is process:
                    places[process.rank] = place
            for lines in _processes(view, batch, counts):
                if lines:
                    out.write(",\n" + ",\n".join(lines))
        for line in _flow_events(view, places, counts):
            out.write(",\n" + line)
        for line in _instants(view):
            out.write(",\n" + line)
        out.write("\n]}\n")
    return counts


def _open(path: Path) -> IO[str]:
    if path.suffix == ".json":
        return open(path, "w", encoding="utf-8")
    return gzip.open(path, "wt", compresslevel=COMPRESSION, encoding="utf-8")


def _places(view: View) -> Iterator[tuple[Process, _Place]]:
    """Yield each process with its pid: its rank, unless a newer process has this rank."""
    for at, process in enumerate(view.store.of_part()):
        shown = process.rank is not None and view.ranks.get(process.rank) is process
        pid = process.rank if shown and process.rank is not None else 1_000_000 + at
        yield process, _Place(pid)


_BATCH_ROWS: Final = 1 << 16
"""Maximum rows of processes that are written together."""
_Batch = Sequence[tuple[Process, _Place]]


def _batches(places: Iterable[tuple[Process, _Place]]) -> Iterator[_Batch]:
    batch: list[tuple[Process, _Place]] = []
    rows = 0
    for one in places:
        number = sum(len(one[0].table(name)) for name in TABLE_NAMES)
        if batch and rows + number > _BATCH_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(one)
        rows += number
    if batch:
        yield batch


def _processes(view: View, batch: _Batch, counts: Counts) -> Iterator[list[str]]:
    """Yield the lines of each process: its name, its slices, its threads, its counters."""
    found = slices([process for process, _ in batch], view.end_ns)
    drawn = {} if found is None else _drawn(found, batch, view.begin_ns)
    numbers = _counters(view, batch)
    for at, (process, place) in enumerate(batch):
        lines, rows_of = drawn.get(at, ([], {}))
        counters = numbers.get(at, [])
        counts.slices += len(lines)
        counts.counters += len(counters)
        if lines or counters:
            yield list(_names(view, process, place.pid))
            yield lines
            yield list(_threads(place.pid, rows_of))
            yield counters


def _drawn(
    found: Slices, batch: _Batch, begin_ns: int
) -> dict[int, tuple[list[str], dict[int, int]]]:
    """Return index of a process -> its slices, and the last row of each of its lanes."""
    apart = found.who * _LANES_UP_TO + found.lane
    order, rows = nesting_rows(found.t0_ns, found.t1_ns, apart)
    tids = found.lane[order] * _ROWS_PER_LANE + rows
    lines = _slice_events(found, order, tids, [place.pid for _, place in batch], begin_ns)
    _note_ops(found, order, tids, batch)
    groups, begins = np.unique(apart[order], return_index=True)
    last = np.maximum.reduceat(rows, begins).tolist()
    ends = [*begins.tolist()[1:], len(lines)]
    drawn: dict[int, tuple[list[str], dict[int, int]]] = {}
    for group, row, lo, hi in zip(groups.tolist(), last, begins.tolist(), ends, strict=True):
        at, lane = divmod(group, _LANES_UP_TO)
        of, rows_of = drawn.setdefault(at, ([], {}))
        of += lines[lo:hi]
        rows_of[lane] = row
    return drawn


def _slice_events(
    found: Slices, order: Array, tids: Array, pids: Sequence[int], begin_ns: int
) -> list[str]:
    t0 = found.t0_ns[order] - begin_ns
    length = (found.t1_ns - found.t0_ns)[order]
    heads, bodies = found.heads, found.bodies
    columns = (np.array(pids)[found.who[order]], tids, *_micros(t0), *_micros(length),
               found.head_of[order], order)  # fmt: skip
    return [
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{t}.{t_ns},"dur":{d}.{d_ns},'
        f"{heads[head]}{bodies[at]}}}}}"
        for pid, tid, t, t_ns, d, d_ns, head, at in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _micros(ns: Array) -> tuple[Array, Array]:
    """Return whole µs, and the three digits after the point."""
    return ns // 1000, _DIGITS[ns % 1000]


def _note_ops(found: Slices, order: Array, tids: Array, batch: _Batch) -> None:
    """Note the thread of each op's slice, for arrows."""
    ops = np.isin(found.lane[order], OP_LANES)
    columns = (found.who[order][ops], found.t0_ns[order][ops], tids[ops])
    for at, begun, tid in zip(*(column.tolist() for column in columns), strict=True):
        batch[at][1].tids[begun] = tid


def _names(view: View, process: Process, pid: int) -> Iterable[str]:
    who = f"rank {process.rank}" if process.rank is not None else process.proc
    if view.epoch and process.epoch < view.epoch:
        who += f" (round {process.epoch})"
    yield _meta("process_name", pid, 0, "name", f"{who}  {process.host}:{process.pid}")
    sort = process.rank if process.rank is not None else 1 << 20
    yield _meta("process_sort_index", pid, 0, "sort_index", sort)


def _threads(pid: int, rows_of: Mapping[int, int]) -> Iterable[str]:
    for lane, last in rows_of.items():
        for row in range(last + 1):
            tid = lane * _ROWS_PER_LANE + row
            name = LANES[lane] if row == 0 else f"{LANES[lane]} {row + 1}"
            yield _meta("thread_name", pid, tid, "name", name)
            yield _meta("thread_sort_index", pid, tid, "sort_index", tid)


def _meta(name: str, pid: int, tid: int, key: str, value: str | int) -> str:
    args = f'{{"{key}": {json.dumps(value)}}}'
    return f'{{"ph": "M", "name": "{name}", "pid": {pid}, "tid": {tid}, "args": {args}}}'


def _counters(view: View, batch: _Batch) -> dict[int, list[str]]:
    """Return counters of memory by name and stage, and of the program's numbers. Numbers that are
    not finite become marks, since JSON cannot express them."""
    lines: dict[int, list[str]] = {}
    processes = [process for process, _ in batch]
    rows, who = gathered(processes, "memory")
    cells = rows.tuples("name_id", "stage", "t1_ns", "a")
    for at, (name_id, stage, t, value) in zip(who.tolist(), cells, strict=True):
        process, place = batch[at]
        name = f"memory: {process.name(name_id)}" + (f" stage {stage}" if stage >= 0 else "")
        counter = _counter(name, "bytes", place.pid, t - view.begin_ns, value)
        lines.setdefault(at, []).append(counter)
    rows, who = gathered(processes, "metric")
    whole = rows.col("a")
    numbers = np.where((rows.col("flags") & 1) != 0, whole.view("<f8"), whole.astype("f8"))
    cells = rows.tuples("name_id", "t1_ns")
    for at, (name_id, t), number in zip(who.tolist(), cells, numbers.tolist(), strict=True):
        process, place = batch[at]
        name, t = process.name(name_id), t - view.begin_ns
        if math.isfinite(number):
            counter = _counter(name, name, place.pid, t, number)
        else:
            counter = _instant(f"{name} is {number}", "p", place.pid, t, {})
        lines.setdefault(at, []).append(counter)
    return lines


def _counter(name: str, key: str, pid: int, t: int, value: float) -> str:
    return (
        f'{{"ph":"C","pid":{pid},"ts":{t // 1000}.{t % 1000:03},"name":{json.dumps(name)},'
        f'"args":{{{json.dumps(key)}:{value!r}}}}}'
    )


def _instant(name: str, scope: str, pid: int, t: int, args: Mapping[str, Any]) -> str:
    head = f'{{"ph":"i","s":"{scope}","pid":{pid},"tid":0,"ts":{t // 1000}.{t % 1000:03},'
    return f'{head}"name":{json.dumps(name)},"args":{json.dumps(args, default=str)}}}'


def _instants(view: View) -> list[str]:
    lines = [
        _instant(
            f"finding: {f.kind}", "g", 0, max(0, f.t_ns - view.begin_ns),
            {"text": f.text, "severity": f.severity, "culprits": list(f.culprits)},
        )
        for f in findings(view)
    ]  # fmt: skip
    for t_ns, event in view.store.controls.last(None, len(view.store.controls)):
        fields = event.plain()
        name = f"control: {fields['event']}"
        lines.append(_instant(name, "g", 0, max(0, t_ns - view.begin_ns), fields))
    return lines


def _flow_events(view: View, places: Mapping[int, _Place], counts: Counts) -> Iterator[str]:
    """Yield arrows between ops' slices: event s begins an arrow, t continues it, f ends it."""
    for number, flow in enumerate(flows(view)):
        stops = [
            (places[rank], places[rank].tids.get(begun), t)
            for rank, begun, t in flow.stops
            if rank in places
        ]
        drawn = [(place.pid, tid, t) for place, tid, t in stops if tid is not None]
        if len(drawn) < 2:
            continue
        counts.flows += 1
        for at, (pid, tid, t_ns) in enumerate(drawn):
            ph = "s" if at == 0 else "f" if at == len(drawn) - 1 else "t"
            t = t_ns - view.begin_ns
            yield (
                f'{{"ph":"{ph}","bp":"e","id":{number},"cat":"{flow.kind}","name":"{flow.kind}",'
                f'"pid":{pid},"tid":{tid},"ts":{t // 1000}.{t % 1000:03}}}'
            )
