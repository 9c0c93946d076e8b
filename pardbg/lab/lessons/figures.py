"""Figures of a run for the calculations of lessons, from its report: ``max memory.gradients_bytes``
is one of many values, ``only number/all_reduce`` that of an op, an axis, a phase or an action."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import mean, median
from typing import Any, Final

from pardbg.analysis.answers.report import Report
from pardbg.analysis.findings.kinds.stall_kinds import MissingRank


class Unknown(ValueError):
    """A figure that this run does not have."""


def figure(name: str, report: Report) -> tuple[float, str]:
    """Return value and kind of a figure; kinds: ``bytes`` (traffic), ``memory`` (bytes, too),
    ``ns``, ``share``, empty: a plain number. Raises Unknown."""
    how, _, path = name.partition(" ")
    family, slash, of = path.partition("/")
    if slash or family in _FAMILIES:
        kind, take = _FAMILIES[family]
        values = take(report, of)
    else:
        first, _, field = path.partition(".")
        hang = first == "missing"
        values = _of_hang(report, field) if hang else _values([report], path.split("."))
        kind = next((kind for end, kind in _KINDS.items() if path.endswith(end)), "")
    values = [value for value in values if value is not None]
    if not values:
        raise Unknown(f"{report.run.name} has no {path}")
    return _OF_MANY[how](values), kind


_OF_MANY: Final[Mapping[str, Callable[[list[Any]], float]]] = {
    "only": lambda values: values[0], "first": lambda values: values[0], "count": len,
    "max": max, "min": min, "mean": mean, "median": median,
}  # fmt: skip
_KINDS: Final = {"_bytes": "memory", "_ns": "ns", "_fraction": "share"}
"""End of a field's name -> kind of the figure."""


def _values(found: list[Any], names: list[str]) -> list[Any]:
    """Return the values of nested attributes, with tuples replaced by their items."""
    for name in names:
        fields = [getattr(one, name, None) for one in found]
        found = [
            one for field in fields for one in (field if isinstance(field, tuple) else [field])
        ]
    return found


def _ops(field: str) -> Callable[[Report, str], list[Any]]:
    """Return a sum over a step's ops with a name or on an axis."""

    def take(report: Report, of: str) -> list[Any]:
        ops = report.traffic.step.ops if report.traffic.step is not None else ()
        found = [getattr(op, field) for op in ops if of in (op.op, op.axis)]
        return [sum(found)] if found else []

    return take


def _groups(report: Report, axis: str) -> list[Any]:
    ops = report.traffic.step.ops if report.traffic.step is not None else ()
    return list(next((op.groups for op in ops if op.axis == axis), ()))


def _sent(report: Report, _of: str) -> list[Any]:
    """Return the bytes that each rank sends in a step: only observed ones, if there are any."""
    edges = report.traffic.step.edges if report.traffic.step is not None else ()
    source = "observed" if any(edge[2] == "observed" for edge in edges) else "modelled"
    sums: dict[int, float] = defaultdict(float)
    for src, _, how, num_bytes in edges:
        sums[src] += num_bytes if how == source else 0
    return list(sums.values())


def _steps(there: bool) -> Callable[[Report, str], Iterable[Any]]:
    """Return the times of steps with a phase, or without, except the first with its set-up."""
    return lambda report, phase: [
        row.duration_ns for row in report.steps[1:] if (phase in row.phases) is there
    ]


def _of_hang(report: Report, field: str) -> list[Any]:
    """Return a fact about the first missing rank."""
    for finding in report.findings:
        if isinstance(facts := finding.facts, MissingRank):
            argv = report.run.argv
            said = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word == "--timeout-s"]
            known: dict[str, list[Any]] = {
                "culprit": sorted(finding.culprits), "victims": list(facts.victims),
                "waited_ns": [facts.until_ns - min(wait.since_ns for wait in facts.waits)],
                "timeout_ns": [float(seconds) * 1e9 for seconds in said],
            }  # fmt: skip
            return known[field]
    return []


_FAMILIES: Final[Mapping[str, tuple[str, Callable[[Report, str], Iterable[Any]]]]] = {
    "number": ("", _ops("number")), "payload": ("bytes", _ops("payload")),
    "sent": ("bytes", lambda report, of: (_ops("sent") if of else _sent)(report, of)),
    "groups": ("", _groups), "steps-with": ("ns", _steps(True)),
    "steps-without": ("ns", _steps(False)),
    "axis": ("", lambda report, axis: _groups(report, axis)[0] if _groups(report, axis) else []),
    "phase": ("ns", lambda report, name: [row.phases.get(name) for row in report.steps]),
    "time": ("ns", lambda report, kind: [
        stage.median_ns for stage in (report.pipeline.stages if report.pipeline else ())
        if stage.kind == kind
    ]),
}  # fmt: skip
"""Name before ``/`` -> kind, and function from the report and the name after ``/`` to values."""
