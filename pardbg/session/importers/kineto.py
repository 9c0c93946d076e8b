"""Traces of ``torch.profiler`` (Kineto's Chrome JSON, one file per rank) as a session.

Steps are ``ProfilerStep#N``. A collective is an op where the trace says its group (NCCL's
``record_param_comms``), with its kernel's end as completion; on gloo a trace names neither group
nor number, so there collectives are spans of the timeline and are not matched over ranks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pardbg.analysis.base.intervals import Interval as Span
from pardbg.analysis.base.intervals import union
from pardbg.events import fields
from pardbg.session.importers.build import Imported, RankBuild
from pardbg.session.importers.flight_recorder import DTYPES, ITEM_BYTES
from pardbg_agent.tables.c10d_ops import kind_named
from pardbg_agent.wire import NONE, Flag, Kind

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})$")
_PHASES: Final = (("Optimizer.step#", "optimizer"), ("enumerate(DataLoader)#", "data"))
_BACKWARD: Final = "autograd::engine::evaluate_function"
_KERNELS: Final = ("kernel", "gpu_memcpy", "gpu_memset")
MERGE_NS: Final = 20_000
"""Maximum gap, ns, between kernels that count as one stretch of GPU work."""
Event = Mapping[str, Any]


def events_of(content: Any) -> list[Event] | None:
    """Return the events if this is a Chrome trace; else None."""
    found = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(found, list):
        return None
    return [event for event in found if isinstance(event, dict)]


def rank_of(content: Any) -> int | None:
    """Return the rank that the trace names."""
    info = content.get("distributedInfo") if isinstance(content, dict) else None
    return fields.integer_or_none(info, "rank") if isinstance(info, dict) else None


def build(traces: Mapping[int, tuple[Path, Any]]) -> tuple[Imported, list[RankBuild]]:
    """Convert rank -> (file, content) to records."""
    made = Imported("profiler traces", sorted(traces))
    builds = []
    seen: set[str] = set()
    for rank, (_, content) in sorted(traces.items()):
        one = _Trace(rank, max(traces) + 1, content)
        one.add_all()
        builds.append(one.built)
        seen |= one.seen
    made.lacks.append("memory and loss: not taken from a profiler trace")
    if "steps" not in seen:
        made.lacks.append("steps: no ProfilerStep in it; call prof.step() once per step")
    if "unnamed" in seen:
        made.lacks.append(
            "groups of its collectives: shown in the timeline, not matched over ranks"
        )
    elif "ops" not in seen:
        made.lacks.append("collectives: none in it")
    return made, builds


class _Trace:
    def __init__(self, rank: int, world: int, content: Any) -> None:
        facts = content if isinstance(content, dict) else {}
        info = facts.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self.base = fields.integer(facts, "baseTimeNanoseconds", 0)
        self.events = [e for e in events_of(content) or [] if e.get("ph") == "X"]
        pids = [e["pid"] for e in self.events[:1000] if isinstance(e.get("pid"), int)]
        self.built = RankBuild(
            rank, fields.integer(info, "world_size", world), fields.text(facts, "host_name"),
            next((pid for pid in pids if 0 < pid < 1 << 40), rank + 1),
            fields.text(info, "backend"),
        )  # fmt: skip
        config = info.get("pg_config")
        self.config = {
            fields.text(g, "pg_name"): (fields.text(g, "pg_desc"), fields.integers(g, "ranks"))
            for g in (config if isinstance(config, list) else ())
            if isinstance(g, dict)
        }
        self.seen: set[str] = set()
        """Kinds of evidence found: ``steps``, ``ops`` with their group, and ``unnamed`` ops."""
        self.steps: list[tuple[Span, int]] = []

    def add_all(self) -> None:
        self._steps()
        kernels = self._kernels()
        for event in self.events:
            span, name = self._span(event), fields.text(event, "name")
            if span is None or not name:
                continue
            if name == "record_param_comms" and self._op(event, span, kernels):
                continue
            if event.get("cat") == "user_annotation" and not _STEP.match(name):
                self._annotation(name, span)
        self._backward()
        self._gpu()

    def _span(self, event: Event) -> Span | None:
        begin, length = event.get("ts"), event.get("dur", 0)
        if not isinstance(begin, (int, float)) or not isinstance(length, (int, float)):
            return None
        if not (0 <= begin < 1e16 and 0 <= length < 1e15):
            return None
        whole = int(begin)
        t0 = self.base + whole * 1000 + round((begin - whole) * 1000)
        return t0, t0 + round(length * 1000)

    def _steps(self) -> None:
        for event in self.events:
            found = _STEP.match(fields.text(event, "name"))
            span = self._span(event)
            if found is None or span is None or event.get("cat") != "user_annotation":
                continue
            self.seen.add("steps")
            self.steps.append((span, int(found[1])))
        self.steps.sort()
        for span, step in self.steps:
            self.built.span(Kind.STEP, "", *span, step)

    def _step_at(self, t_ns: int) -> int:
        at = bisect_right(self.steps, t_ns, key=lambda step: step[0][0])
        return self.steps[at - 1][1] if at else 0

    def _annotation(self, name: str, span: Span) -> None:
        step = self._step_at(span[0])
        for start, phase in _PHASES:
            if name.startswith(start):
                self.built.span(Kind.PHASE, phase, *span, step)
                return
        if name.startswith(("gloo:", "nccl:", "mpi:", "ucc:")):
            self.seen.add("unnamed")
        self.built.span(Kind.SPAN, name, *span, step)

    def _op(self, event: Event, span: Span, kernels: Mapping[int, Span]) -> bool:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        group, seq = fields.text(args, "Process Group Name"), fields.integer_or_none(args, "Seq")
        raw = fields.text(args, "Collective name")
        if not group or seq is None or not raw:
            return False
        self.seen.add("ops")
        desc, ranks = self.config.get(group, ("", ()))
        group_id = self.built.group(group, desc or group, ranks)
        op = kind_named(raw)
        dtype = fields.text(args, "dtype")
        item = ITEM_BYTES.get(dtype, 0)
        sizes = tuple(
            max(0, fields.integer(args, f"{side} msg nelems", 0)) * item for side in ("In", "Out")
        )
        p2p = op in ("send", "recv")
        flags = int((Flag.P2P if p2p else Flag(0)) | (Flag.SEND if op == "send" else Flag(0)))
        other = fields.integer(args, "Dst Rank" if op == "send" else "Src Rank", NONE)
        more: dict[str, Any] = {
            "step": self._step_at(span[0]), "peer": other if p2p else NONE,
            "sizes": (sizes[0], sizes[1]),
        }  # fmt: skip
        op_id = self.built.op(op, DTYPES.get(dtype, dtype.lower()))
        self.built.op_at(Kind.OP_ISSUE, op_id, group_id, seq, *span, flags=flags, **more)
        kernel = kernels.get(fields.integer(args, "External id", -1))
        if kernel is not None:
            flags |= int(Flag.DONE_DEVICE)
            self.built.op_at(
                Kind.OP_DONE, op_id, group_id, seq, span[0], max(span[0], kernel[1]), flags=flags,
                **more,
            )  # fmt: skip
        return True

    def _kernels(self) -> dict[int, Span]:
        found: dict[int, Span] = {}
        for event in self._gpu_events():
            args, span = event.get("args"), self._span(event)
            if span is None or not isinstance(args, dict) or not _communicates(event):
                continue
            found[fields.integer(args, "External id", -1)] = span
        return found

    def _gpu_events(self) -> Iterator[Event]:
        return (event for event in self.events if event.get("cat") in _KERNELS)

    def _backward(self) -> None:
        """Write the backward of each step: from the first autograd function to the last."""
        bounds: dict[int, Span] = {}
        for event in self.events:
            if not fields.text(event, "name").startswith(_BACKWARD):
                continue
            span = self._span(event)
            if span is not None:
                step = self._step_at(span[0])
                known = bounds.get(step, span)
                bounds[step] = (min(known[0], span[0]), max(known[1], span[1]))
        for step, span in bounds.items():
            self.built.span(Kind.PHASE, "backward", *span, step, int(Flag.INFERRED))

    def _gpu(self) -> None:
        """Write compute on the device, with kernels close to each other as one span."""
        events = (event for event in self._gpu_events() if not _communicates(event))
        spans = (span for event in events if (span := self._span(event)))
        for span in union(spans, MERGE_NS):
            self.built.span(Kind.SPAN, "gpu compute", *span, self._step_at(span[0]))


def _communicates(event: Event) -> bool:
    return fields.text(event, "name").startswith(("nccl", "rccl"))
