"""Comparison of two runs: changes beyond noise, the largest first.

A quantity is compared by its median over steps or ops. The interval of the difference (99 %) is
bootstrapped over blocks of neighbouring values, as neighbours are alike; a difference whose
interval holds 0 is none. That is the noise *within* each run: only repeated runs show how a machine
varies from run to run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.answers.metrics import METRICS, Number, Scope, Unit, free_steps, ops
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import json_number
from pardbg.analysis.base.run import run_info
from pardbg.analysis.base.times import times
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import SEVERITIES, Severity
from pardbg.analysis.pipeline.values import CAUSES
from pardbg.store.store import Store

Outcome = Literal["more", "less", "same", "few", "only a", "only b"]
LEAST: Final = 5
"""Minimum number of values on either side for a statement about noise."""
DRAWS: Final = 2000
CONFIDENCE: Final = 0.99
MAX_VALUES: Final = 20_000
"""Number of values above which they are thinned evenly, which does not move medians."""
SMALLEST: Final = 0.005
"""Share of the value below which a difference does not count, however significant."""
NOISY_SIZE: Final = 0.02
"""Share of the value below which a difference of sizes counted by the operating system is none."""
_NOISY_SIZES: Final = ("memory rss", "memory allocated")
_LOSS: Final = "loss"
_EXACT: Final = "records lost"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity in both runs, in the base terms of its unit (ns, bytes, fraction …)."""

    section: str
    """Section: steps, pipeline, collectives, memory or run."""
    name: str
    unit: Unit
    a: float | None
    b: float | None
    low: float | None
    """Lower end of the interval of b - a; None: too few values, or none varies."""
    high: float | None
    num_a: int
    num_b: int
    outcome: Outcome
    weight: float
    """Importance of the change, as a share of the step, the memory or the value."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Numbers of findings of one kind in both runs."""

    kind: str
    severity: Severity
    num_a: int
    num_b: int
    text: str
    """Text of one of the findings."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Comparison of two runs."""

    name_a: str
    name_b: str
    rows: tuple[Row, ...]
    """Compared quantities, those that changed beyond noise first, by weight."""
    findings: tuple[FindingRow, ...]
    notes: tuple[str, ...]
    """Reasons why the comparison is limited: other schedule, other number of ranks …"""


_CLOCKS: Final = {"": "a host that computes", "host": "launches on a host", "device": "devices"}


@dataclass(frozen=True, slots=True)
class _Quantity:
    section: str
    name: str
    unit: Unit
    values: Callable[[Scope], Sequence[Number]]
    share: float
    """Weight of a change by the quantity's whole value."""


def diff(a: Store, b: Store, skip: int = 1) -> Diff:
    """Return the comparison of ``b`` with ``a``, without the first ``skip`` steps of either."""
    scopes = Scope(View(a, None), skip), Scope(View(b, None), skip)
    rows = [row for quantity in _quantities(*scopes) if (row := _row(quantity, *scopes))]
    rows.sort(key=lambda row: (row.outcome in ("same", "few"), -row.weight, row.section, row.name))
    names = [run_info(scope.view).name for scope in scopes]
    return Diff(names[0], names[1], tuple(rows), _findings(*scopes), tuple(_notes(*scopes)))


def as_dict(found: Diff) -> dict[str, Any]:
    """Return the comparison in the form that ``pardbg diff --json`` prints."""
    return {
        "a": found.name_a,
        "b": found.name_b,
        "rows": [
            {
                "section": row.section, "name": row.name, "unit": row.unit,
                "a": json_number(row.a), "b": json_number(row.b),
                "difference_interval": None if row.low is None else [row.low, row.high],
                "num_a": row.num_a, "num_b": row.num_b, "outcome": row.outcome,
            }
            for row in found.rows
        ],
        "findings": [
            {"kind": f.kind, "severity": f.severity, "num_a": f.num_a, "num_b": f.num_b}
            for f in found.findings
        ],
        "notes": list(found.notes),
    }  # fmt: skip


def _quantities(a: Scope, b: Scope) -> list[_Quantity]:
    """Return every quantity that either run has."""
    quantities = [_of("steps", "step time", "step", "", 1.0)]
    phases = _known(a, b, lambda s: {name for row in free_steps(s) for name in row.phases})
    quantities += [
        _of("steps", f"phase {name}", "phase", name, _phase_share(a, name)) for name in phases
    ]
    quantities += _losses(a, b)
    quantities.append(_of("pipeline", "bubble", "bubble", "", 1.0))
    quantities.append(_of("pipeline", "implied bubble", "implied", "", 0.5))
    quantities += [_of("pipeline", f"idle: {cause}", "idle", cause, 0.5) for cause in CAUSES]
    quantities.append(_of("pipeline", "in flight", "in_flight", "", 0.1))
    kinds = _known(a, b, lambda s: {f"{row.group}/{row.op}" for row in ops(s)})
    for kind in kinds:
        share = _op_share(a, kind)
        quantities += [
            _of("collectives", f"{kind} {word}", metric, kind, share)
            for word, metric in (("skew", "skew"), ("transfer", "transfer"))
        ]
    quantities.append(_of("collectives", "p2p transfer", "p2p", "", 0.1))
    for name in ("parameters", "gradients", "optimizer", "activations", "rss", "allocated"):
        quantities.append(_of("memory", f"memory {name}", "memory", name, 0.5))
    quantities.append(_of("run", "agent", "agent", "", 1.0))
    quantities.append(_of("run", "records lost", "dropped", "", 0.01))
    return quantities


def _of(section: str, name: str, metric: str, which: str, share: float) -> _Quantity:
    found = METRICS[metric]
    return _Quantity(section, name, found.unit, lambda scope: found.values(scope, which), share)


def _losses(a: Scope, b: Scope) -> list[_Quantity]:
    """Return the loss of the last step that both runs have."""
    found = [{r.step: r.loss for r in free_steps(s) if r.loss is not None} for s in (a, b)]
    common = max(found[0].keys() & found[1].keys(), default=None)
    if common is None:
        return []
    values = {id(scope): [loss[common]] for scope, loss in zip((a, b), found, strict=True)}
    name = f"{_LOSS} of step {common}"
    return [_Quantity("steps", name, "number", lambda scope: values[id(scope)], 0.1)]


def _known(a: Scope, b: Scope, names: Callable[[Scope], set[str]]) -> list[str]:
    return sorted(names(a) | names(b))[:64]


def _phase_share(scope: Scope, name: str) -> float:
    """Return a phase's share of the step time."""
    return _ratio(METRICS["phase"].values(scope, name), METRICS["step"].values(scope, ""))


def _op_share(scope: Scope, kind: str) -> float:
    """Return the time in ops of one kind (waits and transfers), as a share of all steps."""
    return min(1.0, _ratio(
        [(r.skew_ns or 0) + (r.transfer_ns or 0) for r in ops(scope, kind)],
        METRICS["step"].values(scope, ""),
    ))  # fmt: skip


def _ratio(parts: Sequence[Number], whole: Sequence[Number]) -> float:
    return sum(parts) / sum(whole) if sum(whole) > 0 else 0.1


def _row(quantity: _Quantity, a: Scope, b: Scope) -> Row | None:
    values = [_thinned(quantity.values(scope)) for scope in (a, b)]
    if not len(values[0]) and not len(values[1]):
        return None
    middles = [float(np.median(v)) if len(v) else None for v in values]
    low: float | None = None
    high: float | None = None
    outcome, weight = _missing(middles), 1.0
    first, second = middles
    if outcome is None and first is not None and second is not None:
        finite = math.isfinite(first) and math.isfinite(second)
        if finite and min(map(len, values)) >= LEAST and quantity.section != "memory":
            low, high = interval(values[0], values[1])
        outcome = _outcome(first, second, low, high, quantity, values)
        weight = quantity.share * _change(first, second, quantity.unit)
    assert outcome is not None
    return Row(
        quantity.section, quantity.name, quantity.unit, first, second, low, high,
        len(values[0]), len(values[1]), outcome, weight,
    )  # fmt: skip


def _thinned(values: Sequence[Number]) -> Floats:
    found = np.array(values, dtype=np.float64)
    if len(found) > MAX_VALUES:
        found = found[np.linspace(0, len(found) - 1, MAX_VALUES).astype(np.int64)]
    return found


def _missing(middles: Sequence[float | None]) -> Outcome | None:
    if middles[0] is None:
        return "only b"
    return "only a" if middles[1] is None else None


def _outcome(
    a: float, b: float, low: float | None, high: float | None, quantity: _Quantity,
    values: Sequence[Floats],
) -> Outcome:  # fmt: skip
    few = min(map(len, values)) < LEAST
    steady = not few and all(v.min() == v.max() for v in values)
    least = NOISY_SIZE if quantity.name in _NOISY_SIZES else SMALLEST
    small = abs(b - a) <= least * max(abs(a), abs(b))
    exact = quantity.name == _EXACT or quantity.name.startswith(_LOSS)  # whatever differs changed
    if not (math.isfinite(a) and math.isfinite(b)):
        return "same" if str(a) == str(b) else "less" if math.isnan(a) or b < a else "more"
    if quantity.section == "memory" or exact or steady:
        return "same" if small else "more" if b > a else "less"
    if low is None or high is None:
        return "few"
    if low <= 0 <= high or small:
        return "same"
    return "more" if b > a else "less"


def _change(a: float, b: float, unit: Unit) -> float:
    """Return the relative change, bounded; for fractions the difference in points."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if str(a) == str(b) else 1.0
    if unit == "fraction":
        return abs(b - a)
    return abs(b - a) / max(abs(a), abs(b)) if a or b else 0.0


def interval(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the CONFIDENCE interval of median(b) - median(a); equal values give the same one."""
    rng = np.random.default_rng(20260101)
    differences = _medians(b, rng) - _medians(a, rng)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return float(low), float(high)


def _medians(values: Floats, rng: np.random.Generator) -> Floats:
    """Return medians of random samples of the values' size, drawn in whole blocks."""
    size = len(values)
    block = max(1, round(size ** (1 / 3)))
    number = math.ceil(size / block)
    starts_at = size - block + 1
    found = np.empty(DRAWS)
    at_once = max(1, 2_000_000 // (number * block))
    for begin in range(0, DRAWS, at_once):
        count = min(at_once, DRAWS - begin)
        starts = rng.integers(0, starts_at, size=(count, number))
        index = (starts[:, :, None] + np.arange(block)).reshape(count, -1)[:, :size]
        found[begin : begin + count] = np.median(values[index], axis=1)
    return found


def _findings(a: Scope, b: Scope) -> tuple[FindingRow, ...]:
    found = [findings(scope.view) for scope in (a, b)]
    counts = [Counter((f.kind, f.severity) for f in side) for side in found]
    texts = {(f.kind, f.severity): f.text for side in found for f in side}
    rows = [
        FindingRow(kind, severity, counts[0][kind, severity], counts[1][kind, severity],
                   texts[kind, severity])
        for kind, severity in texts
    ]  # fmt: skip
    return tuple(
        sorted(rows, key=lambda r: (SEVERITIES.index(r.severity), r.num_a == r.num_b, r.kind))
    )


def _notes(a: Scope, b: Scope) -> list[str]:
    """Return reasons why figures may differ although nothing became better or worse."""
    notes = []
    ranks = [len(scope.view.ranks) for scope in (a, b)]
    if ranks[0] != ranks[1]:
        notes.append(f"{ranks[0]} ranks beside {ranks[1]}: figures per rank are not the same work")
    clocks = [_CLOCKS[times(scope.view)] for scope in (a, b)]
    if clocks[0] != clocks[1]:
        notes.append(f"times of {clocks[0]} beside {clocks[1]}: their clocks differ")
    schedules = [
        ", ".join(sorted({plan.schedule for plan in scope.view.store.plans.values()}))
        for scope in (a, b)
    ]
    if schedules[0] != schedules[1]:
        notes.append(f"schedule {schedules[0] or 'none'} beside {schedules[1] or 'none'}")
    for scope, name in ((a, "A"), (b, "B")):
        if scope.view.store.truncated:
            notes.append(f"{name} is cut off or damaged")
        if not METRICS["step"].values(scope, ""):
            notes.append(f"{name} has no complete step to compare")
    return notes
