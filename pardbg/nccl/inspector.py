"""The Inspector's JSON lines: its profiler plugin's measurements of single ops.

Format v4.0 to v4.2 and v5.x (nccl's plugins/profiler/inspector). The plugin keeps a ring of ops for
each communicator and writes the ring's contents now and then, so ops are missing in between: they
must never be matched over ranks as if they were complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

VERSIONS: Final = ("v4.", "v5.")
MAX_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MeasuredOp:
    """Measurement of one op on one rank."""

    comm: str
    """Name of the communicator, or its id."""
    op: str
    """NCCL's name of the op: ``AllReduce``, ``Send``."""
    size_bytes: int
    duration_ns: int
    on_device: bool
    """Whether the duration is the device's (``kernel_gpu``)."""
    busbw_gbps: float


def read(lines: Iterable[str]) -> list[MeasuredOp]:
    """Return the ops of these lines; lines of unknown versions are left out."""
    found = (_read(line) for line in lines if line.strip() and len(line) <= MAX_LINE)
    return [op for op in found if op is not None]


def _read(line: str) -> MeasuredOp | None:
    try:
        content: Any = json.loads(line)
        version = content["metadata"]["inspector_output_format_version"]
        return _op(content) if str(version).startswith(VERSIONS) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _op(content: Mapping[str, Any]) -> MeasuredOp:
    header, kind = content["header"], "coll" if "coll_perf" in content else "p2p"
    perf = content[f"{kind}_perf"]
    return MeasuredOp(
        comm=str(header.get("comm_name") or header["id"])[:200],
        op=str(perf[kind])[:64],
        size_bytes=_count(perf[f"{kind}_msg_size_bytes"]),
        duration_ns=_count(perf[f"{kind}_exec_time_us"]) * 1000,
        on_device=perf.get(f"{kind}_timing_source") == "kernel_gpu",
        busbw_gbps=_finite(perf[f"{kind}_busbw_gbs"]),
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number
