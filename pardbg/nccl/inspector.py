"""The Inspector's JSON lines: what its profiler plugin measured of single ops.

Format v4.0 to v4.2 and v5.x (nccl's plugins/profiler/inspector). The plugin keeps a ring of ops for
each communicator and writes what is in it now and then, so ops are missing between those that are
there: they are never to be matched over ranks as if they were complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

VERSIONS: Final = ("v4.", "v5.")
MAX_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """One op on one rank. Times are the host's wall clock."""

    comm_id: str
    comm_name: str
    rank: int
    """In the communicator."""
    num_ranks: int
    host: str
    pid: int
    op: str
    """NCCL's name: ``AllReduce``, ``Send``."""
    seq: int
    """Of the communicator's ops of this kind."""
    peer: int | None
    """Of a send or receive, in the communicator."""
    size_bytes: int
    duration_ns: int
    source: str
    """``kernel_gpu``: by the device; ``kernel_cpu``, ``collective_cpu``: by the host; empty: an
    Inspector that did not say."""
    busbw_gbps: float
    begin_ns: int | None
    """Start of its first kernel, where the Inspector was verbose."""

    @property
    def on_device(self) -> bool:
        """Return whether the duration is the device's."""
        return self.source == "kernel_gpu"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Lines that are no ops of a known version."""

    malformed: int = 0
    versions: tuple[str, ...] = ()
    """Unknown versions."""


def read(lines: Iterable[str]) -> tuple[list[MeasuredOp], Skipped]:
    """Return the ops of these lines, and what was skipped."""
    ops: list[MeasuredOp] = []
    malformed, unknown = 0, set[str]()
    for line in lines:
        if not line.strip():
            continue
        try:
            content: Any = json.loads(line) if len(line) <= MAX_LINE else None
            version = _version(content)
            if version.startswith(VERSIONS):
                ops.append(_op(content))
            else:
                unknown.add(version)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            malformed += 1
    return ops, Skipped(malformed, tuple(sorted(unknown))[:8])


def _version(content: Any) -> str:
    version = content["metadata"]["inspector_output_format_version"]
    if not isinstance(version, str):
        raise TypeError
    return version[:16]


def _op(content: Mapping[str, Any]) -> MeasuredOp:
    header, metadata = content["header"], content["metadata"]
    kind = "coll" if "coll_perf" in content else "p2p"
    perf = content[f"{kind}_perf"]
    peer = perf.get("p2p_peer")
    return MeasuredOp(
        comm_id=str(header["id"])[:64],
        comm_name=str(header.get("comm_name", ""))[:200],
        rank=_count(header["rank"]),
        num_ranks=_count(header["n_ranks"]),
        host=str(metadata.get("hostname", ""))[:200],
        pid=_count(metadata.get("pid", 0)),
        op=str(perf[kind])[:64],
        seq=_count(perf[f"{kind}_sn"]),
        peer=None if peer is None else _count(peer),
        size_bytes=_count(perf[f"{kind}_msg_size_bytes"]),
        duration_ns=_count(perf[f"{kind}_exec_time_us"]) * 1000,
        source=str(perf.get(f"{kind}_timing_source", ""))[:32],
        busbw_gbps=_finite(perf[f"{kind}_busbw_gbs"]),
        begin_ns=min(_starts(perf), default=None),
    )


def _starts(perf: Mapping[str, Any]) -> Iterator[int]:
    trace = perf.get("event_trace_ts") or {}
    for event in trace.get("kernel_events", ()):
        if start := _count(event.get("kernel_start_ts", 0)):
            yield start * 1000


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number
