"""Checks of a run: ``bubble<12%``, ``step_ms.p95<450``, ``no-findings:error``.

    EXPR   = METRIC ["[" FILTER "]"] ["." AGGREGATE] OP NUMBER [UNIT]  |  no-WORD[":"WORD]
    OP     = <  <=  >  >=  ==  !=
    UNIT   = ns us ms s min h | % | B kB MB GB TB KiB MiB GiB TiB | MB/s GB/s

Parsed strictly: a unit that does not fit is an error, not a guess. A metric that the session has
no value of fails its check.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from pardbg.analysis.answers.metrics import METRICS, Metric, Number, Scope, Unit
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.findings.finding import SEVERITIES
from pardbg.analysis.pipeline.chains import why_none
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.errors import UserError
from pardbg.store.store import Store
from pardbg.words import (
    SIZE_UNITS,
    TIME_UNITS,
    binary_size,
    busbw,
    count,
    duration,
    number,
    percent,
)

UNITS: Final[dict[Unit, dict[str, float]]] = {
    "time": TIME_UNITS,
    "fraction": {"%": 0.01},
    "bytes": SIZE_UNITS,
    "rate": {"GB/s": 1.0, "MB/s": 1e-3},
    "floors": {"floors": 1.0, "floor": 1.0},
    "number": {},
}  # fmt: skip
NO: Final = {
    "no-mismatch": "mismatches", "no-missing": "missing", "no-findings": "findings",
    "no-drops": "dropped",
}  # fmt: skip
"""Short forms of checks: ``no-findings:error`` is ``findings[error]==0``."""
AGGREGATES: Final = "p1 … p99, min, max, mean, first, last, sum, count"
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_EXPR: Final = re.compile(
    r"""\s* (?P<name>[a-z_0-9]+?) (?:_(?P<suffix>ns|us|ms|s))? (?:\[(?P<filter>[^\[\]]+)\])?
        (?:\.(?P<aggregate>[a-z0-9]+))?
        \s* (?P<op><=|>=|==|!=|<|>) \s*
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?) \s* (?P<unit>[^\s\d]\S*)? \s*""",
    re.VERBOSE,
)
_MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class Check:
    """A check, parsed."""

    text: str
    metric: Metric
    filter: str
    aggregate: str
    op: str
    limit: float
    """Limit in the metric's own unit."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a check."""

    check: Check
    ok: bool
    measured: float | None
    """Measured value in the metric's own unit; None: the session has none."""
    text: str
    """Measured value in words, or the reason why there is none."""


def parse(text: str) -> Check:
    """Return the check of one expression. Raises UserError."""
    if len(text) > _MAX_TEXT:
        raise UserError(f"a check of {len(text)} characters; {_MAX_TEXT} at most")
    if text.strip().startswith("no-"):
        return _parse_no(text.strip())
    found = _EXPR.fullmatch(text)
    if found is None:
        raise UserError(f"cannot read check {text!r}: write it as bubble<12% or step.p95<450ms")
    name, suffix = found["name"], found["suffix"]
    if name not in METRICS:
        name, suffix = f"{name}_{suffix}" if suffix else name, None
    metric = METRICS.get(name)
    if metric is None:
        raise UserError(f"no metric {name!r} in {text!r}; `pardbg check --list` shows them")
    if found["filter"] and not metric.filter:
        raise UserError(f"{name} has nothing to select with [{found['filter']}]")
    if name in ("phase", "idle") and not found["filter"]:
        raise UserError(f"say which one, as in {name}[…]: {metric.filter}")
    _check_severity(metric, found["filter"] or "")
    aggregate = found["aggregate"] or metric.aggregate
    if not _is_aggregate(aggregate):
        raise UserError(f"no aggregate {aggregate!r} in {text!r}: {AGGREGATES}")
    scale = _scale(metric, suffix, found["unit"], text, aggregate == "count")
    limit = float(found["number"]) * scale
    return Check(text.strip(), metric, found["filter"] or "", aggregate, found["op"], limit)


def _parse_no(text: str) -> Check:
    word, colon, which = text.partition(":")
    name = NO.get(word)
    if name is None:
        raise UserError(f"no check {text!r}; there are {', '.join(NO)} and METRIC<NUMBER")
    metric = METRICS[name]
    if colon and (not metric.filter or not which):
        raise UserError(f"{word} takes no {which!r}; only no-findings does: no-findings:error")
    _check_severity(metric, which)
    return Check(text, metric, which, metric.aggregate, "==", 0.0)


def _check_severity(metric: Metric, which: str) -> None:
    if metric.name == "findings" and which and which not in SEVERITIES:
        raise UserError(f"no severity {which!r}: {', '.join(SEVERITIES)}")


def _scale(metric: Metric, suffix: str | None, unit: str | None, text: str, count: bool) -> float:
    """Return the factor from the number's unit to the metric's own unit."""
    known = UNITS["number" if count else metric.unit]
    if suffix is not None:
        if metric.unit != "time" or count:
            raise UserError(f"{text!r} is not a time, so it has no _{suffix}")
        if unit not in (None, suffix):
            raise UserError(f"{text!r} has two units: write {metric.name}_{suffix} or {unit}")
        return known[suffix]
    if unit is None:
        if known:
            raise UserError(f"{text!r} needs a unit: {', '.join(known)}")
        return 1.0
    if unit not in known:
        fits = f"{', '.join(known)}" if known else "none, it is a plain number"
        raise UserError(f"no unit {unit!r} for {metric.name} in {text!r}: {fits}")
    return known[unit]


def _is_aggregate(word: str) -> bool:
    percentile = re.fullmatch(r"p([1-9][0-9]?)", word)
    return percentile is not None or word in ("min", "max", "mean", "first", "last", "sum", "count")


def run(store: Store, checks: Sequence[Check], skip: int = 0) -> list[Result]:
    """Return the results of the checks at the run's end, without its first ``skip`` steps."""
    scope = Scope(View(store, None), skip)
    return [_result(scope, check) for check in checks]


def _why_none(scope: Scope, check: Check, named: str) -> str:
    if check.metric.of_speed and are_launches(scope.view):
        return f"{named} is not known: times are the host's, and the run computes on a device"
    if check.metric.name == "same":
        return f"it cannot be compared ({scope.sameness.reason}); pardbg same says why"
    if check.metric.name in ("bubble", "implied", "excess"):
        why = why_none(scope.view)
        if any(layout.chain is not None for layout in layouts(scope.view)):
            why = "its pipeline is inferred from its messages"
        if why:
            return f"this session has no {named}: {why}; name actions with pardbg_agent.action"
    return f"this session has no {named}"


def _result(scope: Scope, check: Check) -> Result:
    metric = check.metric
    hidden = metric.of_speed and are_launches(scope.view)
    values = () if hidden else metric.values(scope, check.filter)
    if not values:
        named = f"{metric.name}[{check.filter}]" if check.filter else metric.name
        return Result(check, False, None, _why_none(scope, check, named))
    measured = aggregate(values, check.aggregate)
    counts = check.aggregate == "count"
    shown = count(len(values)) if counts else show(measured, metric.unit)
    if metric.over:
        shown += f" ({check.aggregate} of {count(len(values))} {metric.over})"
    if not math.isfinite(measured):
        why = "" if metric.unit == "floors" else ": not a number"
        return Result(check, False, measured, f"{shown}{why}")
    # A share like 12 % is not exact in binary: values that print as equal are equal.
    close = math.isclose(measured, check.limit, rel_tol=1e-12)
    ok = check.op in ("<=", ">=", "==") if close else _OPERATORS[check.op](measured, check.limit)
    return Result(check, ok, measured, shown)


def aggregate(values: Sequence[Number], how: str) -> float:
    """Return one number for many values; percentiles are interpolated linearly."""
    if how == "first" or how == "last":
        return float(values[0 if how == "first" else -1])
    if how == "mean":
        return fmean(values)
    if how == "count":
        return float(len(values))
    if not all(map(math.isfinite, values)):
        return math.nan  # NaN cannot be ordered
    simple: dict[str, Callable[[Sequence[Number]], Number]] = {"min": min, "max": max, "sum": sum}
    if how in simple:
        return float(simple[how](values))
    ordered = sorted(values)
    place = (len(ordered) - 1) * int(how[1:]) / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def show(value: float, unit: Unit) -> str:
    """Return a measured value as text in its unit."""
    if not math.isfinite(value):
        return number(value)
    if unit == "time":
        return duration(value)
    if unit == "fraction":
        return percent(value, 2)
    if unit == "bytes":
        return binary_size(value)
    if unit == "rate":
        return busbw(value)
    if unit == "floors":
        return f"{number(value)} floors"
    return count(int(value)) if value == int(value) else number(value)
