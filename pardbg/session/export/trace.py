"""A trace for Perfetto and chrome://tracing: ranks are processes, lanes are threads.

Chrome's JSON, gzipped: the one form that both read (Perfetto's own protobuf opens in Perfetto
only). Times are µs since the run's begin, exact to the ns; ``otherData`` has the begin.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings import findings
from pardbg.events import fields
from pardbg.session.export.slices import LANES, Array, Slices, nesting_rows, slices
from pardbg.store.process import Process
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow over ranks, in order of time."""

    kind: str
    """``p2p`` or ``collective``."""
    stops: tuple[tuple[int, int, int], ...]
    """(rank, begin of the op there, where the arrow touches it), ns."""


def flows(view: View) -> Iterator[Flow]:
    """From each send to its receive; through a collective's arrivals, the last one at the end."""
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
"""Of a trace made for one look: level 6 makes it a fifth smaller and takes three times."""
_ROWS_PER_LANE: Final = 100


@dataclass(slots=True)
class Counts:
    """What was written."""

    slices: int = 0
    counters: int = 0
    flows: int = 0


@dataclass(slots=True)
class _Place:
    pid: int
    tids: dict[int, int] = field(default_factory=dict)
    """begin of an op's slice -> its thread"""


def write_trace(store: Store, path: Path) -> Counts:
    """Write the whole run; gzipped unless ``path`` ends in ``.json``."""
    store.settle()
    view, counts = View(store, None), Counts()
    with _open(path) as out:
        facts = {
            "begin_ns": view.begin_ns, "run": str(store.run.get("run", "")),
            "wall_ns": fields.integer_or_none(store.run, "wall_ns"), "clock": "hub CLOCK_MONOTONIC",
        }  # fmt: skip
        out.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(facts))
        out.write(',"traceEvents":[\n')
        out.write('{"ph":"M","name":"trace_name","pid":0,"args":{"name":"pardbg"}}')
        places: dict[int, _Place] = {}
        for process, place in _places(view):
            if process.rank is not None and view.ranks.get(process.rank) is process:
                places[process.rank] = place
            for lines in _process(view, process, place, counts):
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
    """A pid per process: its rank, where no newer process has that."""
    for at, process in enumerate(view.store.of_part()):
        shown = process.rank is not None and view.ranks.get(process.rank) is process
        pid = process.rank if shown and process.rank is not None else 1_000_000 + at
        yield process, _Place(pid)


def _process(view: View, process: Process, place: _Place, counts: Counts) -> Iterator[list[str]]:
    found = slices(process, view.end_ns)
    counters = _counters(view, process, place.pid)
    if not found and not counters:
        return
    yield list(_names(view, process, place.pid))
    rows_of: dict[int, int] = {}
    for part in found:
        order, rows = nesting_rows(part.t0_ns, part.t1_ns)
        rows_of[part.lane] = max(rows, default=0)
        yield _slice_events(part, order, rows, place, view.begin_ns)
        counts.slices += len(rows)
    yield list(_threads(place.pid, rows_of))
    yield counters
    counts.counters += len(counters)


def _names(view: View, process: Process, pid: int) -> Iterable[str]:
    who = f"rank {process.rank}" if process.rank is not None else process.proc
    if view.epoch and process.epoch < view.epoch:
        who += f" (round {process.epoch})"
    yield _meta("process_name", pid, 0, {"name": f"{who}  {process.host}:{process.pid}"})
    sort = process.rank if process.rank is not None else 1 << 20
    yield _meta("process_sort_index", pid, 0, {"sort_index": sort})


def _threads(pid: int, rows_of: Mapping[int, int]) -> Iterable[str]:
    for lane, last in rows_of.items():
        for row in range(last + 1):
            tid = lane * _ROWS_PER_LANE + row
            name = LANES[lane] if row == 0 else f"{LANES[lane]} {row + 1}"
            yield _meta("thread_name", pid, tid, {"name": name})
            yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})


def _meta(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})


def _slice_events(
    part: Slices, order: Array, rows: list[int], place: _Place, begin_ns: int
) -> list[str]:
    t0 = (part.t0_ns[order] - begin_ns).tolist()
    length = (part.t1_ns - part.t0_ns)[order].tolist()
    first = part.lane * _ROWS_PER_LANE
    if part.is_ops:
        begun = part.t0_ns[order].tolist()
        place.tids.update(zip(begun, (first + row for row in rows), strict=True))
    heads, bodies, pid = part.heads, part.bodies, place.pid
    return [
        f'{{"ph":"X","pid":{pid},"tid":{first + row},"ts":{t // 1000}.{t % 1000:03},'
        f'"dur":{d // 1000}.{d % 1000:03},{heads[head]}{bodies[at]}}}}}'
        for at, row, t, d, head in zip(
            order.tolist(), rows, t0, length, part.head_of[order].tolist(), strict=True
        )
    ]


def _counters(view: View, process: Process, pid: int) -> list[str]:
    """Memory by name and stage, and the program's numbers. Those that are not finite are marks:
    JSON has no word for them."""
    lines = []
    memory = process.table("memory")
    rows = memory.tuples(slice(None), "name_id", "stage", "t1_ns", "a")
    for name_id, stage, t, value in rows:
        name = f"memory: {process.name(name_id)}" + (f" stage {stage}" if stage >= 0 else "")
        lines.append(_counter(name, "bytes", pid, t - view.begin_ns, value))
    metric = process.table("metric")
    numbers = np.where(
        (metric.col("flags") & 1) != 0, metric.col("a").view("<f8"), metric.col("a").astype("f8")
    ).tolist()
    columns = (metric.col(c).tolist() for c in ("name_id", "t1_ns"))
    for name_id, t, number in zip(*columns, numbers, strict=True):
        name, at = process.name(name_id), t - view.begin_ns
        if math.isfinite(number):
            lines.append(_counter(name, name, pid, at, number))
        else:
            lines.append(_instant(f"{name} is {number}", "p", pid, at, {}))
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
    """Arrows between ops' slices: s begins one, t passes on, f ends it."""
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
