"""Figures of a live run for export, each with its labels and its maximum number of series.

The values are those of reports and screens. A value that is not known, or whose clock says nothing
about it, has no series.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Final, Literal, get_args

from pardbg.analysis.answers.ranks import RankNow, RankStateName, rank_rows
from pardbg.analysis.answers.report_pipeline import bandwidths
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import rehearsed, run_info
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.base.times import times
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import SEVERITIES
from pardbg.analysis.findings.reported import readings
from pardbg.analysis.memory.breakdown import memory_rows
from pardbg.analysis.pipeline.pipeline_steps import pipeline_view
from pardbg.events.device_facts import DeviceNews
from pardbg.plain_text import plain
from pardbg.words import rank_set

MAX_SERIES: Final = 200
"""Maximum number of series of a run, whatever its job does."""
MAX_RANKS: Final = 64
MAX_LABEL: Final = 120
OPS: Final = 256
"""Number of newest collectives from which skew and bandwidth are computed."""
STATES: Final[tuple[RankStateName, ...]] = get_args(RankStateName)
MEMORY: Final = (
    "parameters", "gradients", "optimizer", "activations_peak", "unattributed", "total",
    "reserved", "peak", "limit",
)  # fmt: skip
NCCL_NAMES: Final = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast", "reduce": "Reduce", "all_to_all": "AlltoAll", "gather": "Gather",
    "scatter": "Scatter",
}  # fmt: skip
"""c10d's name of an op -> NCCL's name."""
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")

MAX_DEVICES: Final = 8
Row = tuple[tuple[str, ...], float]
"""Values of a family's labels, and the figure."""
Rows = Callable[[View], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Family:
    """Metrics of one name, with a series per set of labels."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    most: int
    """Maximum number of series."""
    meaning: str
    rows: Rows
    of_speed: bool = False
    """Whether there are no series if durations are not known."""
    otel: str = ""
    """Name in OpenTelemetry, with labels named like ``hw.id``; empty: it has none."""
    unit: str = ""
    """Unit in OpenTelemetry's notation."""

    @property
    def otlp_name(self) -> str:
        return self.otel or self.name.removesuffix("_total")

    @property
    def otlp_labels(self) -> tuple[str, ...]:
        dotted = (label.replace("_", ".") for label in self.labels)
        return tuple(dotted) if self.otel else self.labels


@per_view
def _ranks(view: View) -> tuple[RankNow, ...]:
    return rank_rows(view, pipeline_view(view))


@per_view
def _step(view: View) -> StepRow | None:
    return next(reversed(unheld_step_rows(view)), None)


@per_view
def _ops(view: View) -> tuple[CollectiveRow, ...]:
    return tuple(row for row in collectives(view, OPS) if row.verdict == "matched")


@per_view
def _clock(view: View) -> str:
    """Return the clock of durations; empty: they are of launches, or of a rehearsal."""
    known = bool(view.ranks) and times(view) != "host" and not rehearsed(view)
    return (times(view) or "host") if known else ""


def figures(view: View) -> Iterator[tuple[Family, Sequence[Row]]]:
    """Return the families that have figures now."""
    for family in FAMILIES:
        if not family.of_speed or _clock(view):
            rows = islice(family.rows(view), family.most)
            # Names that are cut or made plain may be alike: no series is there twice.
            if shown := {tuple(map(_label, labels)): value for labels, value in rows}:
                yield family, tuple(shown.items())


def _label(text: str) -> str:
    """Return a label's value, cut: names are the job's, and lists of ranks may be long."""
    text = plain(text)
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _run(view: View) -> Iterator[Row]:
    run = run_info(view)
    size = str(run.world_size or "")
    yield (run.name, run.run, run.backend, size, _clock(view) or "unknown"), 1


def _states(view: View) -> Iterator[Row]:
    count = Counter(row.state for row in _ranks(view))
    yield from (((state,), count[state]) for state in STATES)


def _stalled(view: View) -> Iterator[Row]:
    now = view.now_ns
    began = {row.rank: row.since_ns if row.state == "waiting" else None for row in _ranks(view)}
    stalled = {rank: 0 if since is None else max(0, now - since) for rank, since in began.items()}
    longest = sorted(stalled, key=lambda rank: -stalled[rank])[:MAX_RANKS]
    for row in _ranks(view):
        if row.rank in longest:
            yield (str(row.rank), row.host), stalled[row.rank] / 1e9


def _spread(values: Sequence[float]) -> Iterator[Row]:
    if values:
        yield ("mean",), fmean(values)
        yield ("max",), max(values)


def _over_ranks(value: Callable[[RankNow], float | None]) -> Rows:
    """Return rows of a figure of each rank; a rank whose value is None has no row."""
    return lambda view: _spread(
        [figure for row in _ranks(view) if (figure := value(row)) is not None]
    )


def _one(value: Callable[[View], float | None]) -> Rows:
    """Return the row of a figure of the run; no row if the value is None."""
    return lambda view: (((), figure) for figure in [value(view)] if figure is not None)


def _step_seconds(view: View) -> Iterator[Row]:
    if (step := _step(view)) is not None:
        yield (_clock(view),), step.duration_ns / 1e9


def _phases(view: View) -> Iterator[Row]:
    step = _step(view)
    phases = step.phases if step is not None else {}
    for name, ns in sorted(phases.items(), key=lambda one: -one[1]):
        yield (name, _clock(view)), ns / 1e9


def _bubbles(view: View) -> Iterator[Row]:
    found = pipeline_view(view)
    if found is None or found.last_complete is None:
        return
    step = found.last_complete
    kinds = {"measured": step.bubble_fraction, "implied": step.implied_fraction,
             "bound": step.bound_fraction}  # fmt: skip
    for kind, value in kinds.items():
        if value is not None:
            yield (found.schedule, kind, _clock(view)), value


def _skew(view: View) -> Iterator[Row]:
    of: dict[tuple[str, str], list[CollectiveRow]] = defaultdict(list)
    for row in _ops(view):
        if row.skew_ns is not None:
            of[row.group, row.op].append(row)
    for (group, op), rows in sorted(
        of.items(), key=lambda one: -sum(r.wait_ns or 0 for r in one[1])
    ):
        skews = [row.skew_ns or 0 for row in rows]
        yield (group, op, "median", _clock(view)), median(skews) / 1e9
        yield (group, op, "max", _clock(view)), max(skews) / 1e9


def _bandwidth(view: View, of_nccl: bool) -> Iterator[tuple[str, str, int, int, float]]:
    """Yield (group, op, maximum bytes, ranks, GB/s) of the newest ops' size classes, those with
    most ops first; of NCCL (by its own or the device's times), else of other backends."""
    backends = {row.group: row for row in _ops(view)}
    for one in sorted(bandwidths(_ops(view)), key=lambda one: -one.number):
        group = view.store.groups.get(backends[one.group].key)
        nccl = group is not None and "nccl" in group.backend
        if (
            one.busbw_gbps is not None
            and nccl == of_nccl
            and (not nccl or _clock(view) == "device")
        ):
            size = len(backends[one.group].arrivals)
            yield one.group, one.op, one.up_to_bytes, size, one.busbw_gbps


def _nccl(view: View) -> Iterator[Row]:
    nodes = str(run_info(view).num_hosts)
    for group, op, most, size, rate in _bandwidth(view, True):
        yield (group, nodes, str(size), NCCL_NAMES.get(op, op), size_range(most)), rate


def _other_bandwidth(view: View) -> Iterator[Row]:
    for group, op, most, size, rate in _bandwidth(view, False):
        yield (group, str(size), op, size_range(most), _clock(view)), rate


def size_range(up_to_bytes: int) -> str:
    """Return a size class, a power of two, in the form of NCCL Inspector's ranges: ``1-2MB``."""
    unit, most = 0, up_to_bytes
    while most > 1024 and unit < len(_UNITS) - 1:
        most, unit = most // 1024, unit + 1
    return f"{max(1, most // 2)}-{most}{_UNITS[unit]}"


def _memory(view: View) -> Iterator[Row]:
    for name in MEMORY:
        values = [getattr(row, f"{name}_bytes") for row in memory_rows(view)]
        for stat, value in _spread([one for one in values if one is not None]):
            yield (name, *stat), value


def _found(view: View) -> Iterator[Row]:
    for (kind, severity, ranks), number in Counter(
        (one.kind, one.severity, one.culprits) for one in findings(view)
    ).items():
        yield (kind, severity, rank_set(ranks).replace("–", "-")), number


def _severities(view: View) -> Iterator[Row]:
    count = Counter(one.severity for one in findings(view))
    yield from (((severity,), count[severity]) for severity in SEVERITIES)


@per_view
def _devices(view: View) -> tuple[DeviceNews, ...]:
    """Return the newest reading of each device, devices in use first."""
    news = (reading for _, reading in readings(view).values())
    return tuple(sorted(news, key=lambda one: (not one.ranks, one.host, one.index)))


def _of_devices(value: Callable[[DeviceNews], float], kind: str = "gpu") -> Rows:
    """Return rows of a figure of each device; 0 (not readable) has no row."""

    def rows(view: View) -> Iterator[Row]:
        for one in _devices(view):
            if figure := value(one):
                yield (one.host, str(one.index), one.name, kind), figure

    return rows


def _utilization(view: View) -> Iterator[Row]:
    for one in _devices(view):
        yield (one.host, str(one.index), one.name, "gpu", "general"), one.percent / 100


def _errors(view: View) -> Iterator[Row]:
    for one in _devices(view):
        labels = (one.host, str(one.index), one.name, "gpu", "ecc_uncorrected")
        yield labels, one.ecc_errors


_DEVICE: Final = ("host_name", "hw_id", "hw_name", "hw_type")
_TEMPERATURE: Final = _of_devices(lambda one: one.celsius, kind="temperature")
_POWER: Final = _of_devices(lambda one: one.milliwatts / 1000)
FAMILIES: Final = (
    Family("pardbg_run_info", "gauge", ("name", "run", "backend", "world_size", "clock"), 1,
           "The run, always 1.", _run),
    Family("pardbg_ranks", "gauge", ("state",), len(STATES), "Ranks in each state.", _states),
    Family("pardbg_rank_stalled_seconds", "gauge", ("rank", "host"), MAX_RANKS,
           "How long a rank has waited inside its current op; 0: it makes progress. Of more than "
           "64 ranks, those that wait longest.", _stalled),
    Family("pardbg_rank_wait_ratio", "gauge", ("stat",), 2,
           "Share of a rank's last step spent waiting for others, over ranks.",
           _over_ranks(lambda row: row.wait_fraction), True),
    Family("pardbg_step", "gauge", (), 1, "Newest training step that ended on every rank.",
           _one(lambda view: step.step if (step := _step(view)) else None)),
    Family("pardbg_step_seconds", "gauge", ("clock",), 1,
           "Its duration on the slowest rank, without holds of the debugger.", _step_seconds, True),
    Family("pardbg_step_phase_seconds", "gauge", ("phase", "clock"), 8,
           "Time of each phase in it, mean over ranks, the longest first.", _phases, True),
    Family("pardbg_loss", "gauge", (), 1, "Its loss, also NaN.",
           _one(lambda view: step.loss if (step := _step(view)) else None)),
    Family("pardbg_bubble_ratio", "gauge", ("schedule", "kind", "clock"), 3,
           "Idle share of the first pipeline's newest complete step: measured, implied by the "
           "schedule at these durations, and its bound.", _bubbles, True),
    Family("pardbg_collective_skew_seconds", "gauge", ("group", "op", "stat", "clock"), 12,
           "Last arrival minus first, over the newest 256 collectives; the group and op that cost "
           "most waiting first.", _skew, True),
    Family("nccl_bus_bandwidth_gbs", "gauge",
           ("comm_name", "n_nodes", "nranks", "collective", "message_size"), 12,
           "NCCL bus bandwidth in GB/s by size class, median over the newest 256 collectives, by "
           "the device's clock.", _nccl, True),
    Family("pardbg_bus_bandwidth_gbs", "gauge",
           ("group", "nranks", "op", "message_size", "clock"), 12,
           "The same of other backends.", _other_bandwidth, True),
    Family("pardbg_memory_bytes", "gauge", ("category", "stat"), 2 * len(MEMORY),
           "Memory by category, over ranks.", _memory),
    Family("pardbg_finding", "gauge", ("kind", "severity", "culprit"), 16,
           "Findings of a kind that stand; culprit: ranks at fault, as in 0-3,5; empty: none is. "
           "The worst first.", _found),
    Family("pardbg_findings", "gauge", ("severity",), len(SEVERITIES),
           "Findings that stand, all of them.", _severities),
    Family("hw_gpu_utilization_ratio", "gauge", (*_DEVICE, "hw_gpu_task"), MAX_DEVICES,
           "Share of the time in which a device ran a kernel, of those in use first.",
           _utilization, otel="hw.gpu.utilization", unit="1"),
    Family("hw_temperature_celsius", "gauge", _DEVICE, MAX_DEVICES, "Temperature of a device.",
           _TEMPERATURE, otel="hw.temperature", unit="Cel"),
    Family("hw_power_watts", "gauge", _DEVICE, MAX_DEVICES, "Power that a device draws.", _POWER,
           otel="hw.power", unit="W"),
    Family("hw_errors_total", "counter", (*_DEVICE, "error_type"), MAX_DEVICES,
           "Uncorrected ECC errors of a device since the run began.", _errors, otel="hw.errors",
           unit="{error}"),
    Family("pardbg_records_total", "counter", (), 1, "Records that have come.",
           _one(lambda view: view.num_records)),
    Family("pardbg_records_lost_total", "counter", (), 1, "Records known to be lost.",
           _one(lambda view: view.store.lost(None))),
    Family("pardbg_agent_overhead_ratio", "gauge", ("stat",), 2,
           "Share of the last 32 steps spent in the agent's hooks, over ranks.",
           _over_ranks(lambda row: row.agent_overhead)),
    Family("pardbg_behind_seconds", "gauge", (), 1,
           "How far the figures lie behind the newest time known: up to there the records of all "
           "ranks have come.", _one(lambda view: max(0, view.now_ns - view.t_ns) / 1e9)),
)  # fmt: skip
"""All families; their ``most`` and the exporter's own add up to less than MAX_SERIES."""
OWN: Final = (
    Family("pardbg_exporter_cpu_seconds_total", "counter", (), 1,
           "CPU time of the process that exports.", lambda _: iter(())),
    Family("pardbg_exporter_age_seconds", "gauge", (), 1,
           "Time since the figures were made.", lambda _: iter(())),
)  # fmt: skip
