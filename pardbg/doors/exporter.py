"""Exporter process, ``RUN_DIR FD otlp|-``: follows a run and exports its figures, over HTTP on a
listening socket (-1: none) and by OTLP. Like any viewer, it can fail without effect on job and hub.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pardbg.analysis.base.asof import View
from pardbg.doors.run_figures import FAMILIES, OWN, Family, Row, figures
from pardbg.errors import UserError
from pardbg.hub.client import LiveSource
from pardbg.hub.ranks.processes import give_way
from pardbg.hub.run import config as files
from pardbg.hub.run.own_process import argv as own_process
from pardbg.store.store import Store
from pardbg.store.table import KEEP_NS, Limits

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from prometheus_client.core import Metric

OTLP: Final = "otlp"
POLL_MS: Final = 250
PERIOD_S: Final = 2.0
SHARE: Final = 20
"""Inverse of the maximum share of a core for making figures."""
CLIENT_S: Final = 5.0
MAX_CLIENTS: Final = 16
_LIMITS: Final = Limits(8192, 1 << 62, 1000, 2000, 1000, keep_ns=KEEP_NS)
Made = Sequence[tuple[Family, Sequence[Row]]]


class Exporter:
    """The newest figures of a run, made on one thread and read by any thread."""

    def __init__(self, run_dir: Path) -> None:
        self._source, self._store = LiveSource(run_dir), Store(_LIMITS, live=True)
        self._made: Made = ()
        self._made_s = time.monotonic()

    def run(self) -> None:
        """Follow the run to the end."""
        due = 0.0
        while not self._source.finished and not self._store.run_ends:
            messages = self._source.poll(POLL_MS)
            while messages:
                self._store.apply_all(messages)
                messages = self._source.poll(0)
            if self._source.joined and time.monotonic() >= due:
                due = time.monotonic() + max(PERIOD_S, self._make() * SHARE)
        self._make()
        self._source.close()

    def _make(self) -> float:
        """Make the figures anew; return the CPU time taken, s."""
        begun = time.thread_time()
        self._made = tuple(figures(View(self._store, None)))
        self._made_s = time.monotonic()
        return time.thread_time() - begun

    def made(self) -> Made:
        """Return the newest figures, and the exporter's own."""
        own = time.process_time(), time.monotonic() - self._made_s
        return (*self._made, *((one, [((), value)]) for one, value in zip(OWN, own, strict=True)))

    def collect(self) -> Iterable[Metric]:
        """Yield the figures as metrics of the Prometheus client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for family, rows in self.made():
            metric = kinds[family.kind](family.name, family.meaning, labels=family.labels)
            for labels, value in rows:
                metric.add_metric(labels, value)
            yield metric

    def observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return OpenTelemetry's callback for the figures of a family."""
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for family, rows in self.made():
                if family.name == name:
                    for labels, value in rows:
                        yield Observation(value, dict(zip(family.otlp_labels, labels, strict=True)))

        return observe


class _Server(ThreadingHTTPServer):
    """Server on a socket that already listens; clients beyond MAX_CLIENTS are turned away."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[Any]) -> None:
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def process_request(self, request: Any, client_address: Any) -> None:
        if threading.active_count() > MAX_CLIENTS:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away."""


def main(argv: list[str]) -> int:
    """Export until the run has ended."""
    give_way()
    run_dir, fd = Path(argv[0]), int(argv[1])
    try:
        exporter = Exporter(run_dir)
        if fd >= 0:
            _serve(exporter, socket.socket(fileno=fd))
        ended = _push(exporter) if argv[2] == OTLP else lambda: None
        exporter.run()
        ended()
    except Exception as error:  # noqa: BLE001 - the run goes on without, and says so
        files.add_notice(run_dir, f"--metrics ended: {type(error).__name__}: {error}")
        return 1
    return 0


def _serve(exporter: Exporter, listening: socket.socket) -> None:
    from prometheus_client import CollectorRegistry, MetricsHandler

    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    handler = type("Handler", (MetricsHandler.factory(registry),), {"timeout": CLIENT_S})
    server = _Server(listening, handler)
    threading.Thread(target=server.serve_forever, name="pardbg-metrics", daemon=True).start()


def _push(exporter: Exporter) -> Callable[[], object]:
    """Export by OTLP, by OpenTelemetry's variables; return a function that sends the rest."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").startswith("grpc"):
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # type: ignore[assignment]
            OTLPMetricExporter,
        )
    os.environ.setdefault("OTEL_SERVICE_NAME", "pardbg")
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    meter = provider.get_meter("pardbg")
    for family in (*FAMILIES, *OWN):
        kinds = {"gauge": meter.create_observable_gauge, "counter": meter.create_observable_counter}
        kinds[family.kind](
            family.otlp_name, [exporter.observed(family.name)], family.unit, family.meaning,
        )  # fmt: skip
    return provider.shutdown


# ---------------------------------------------------------------- in the process that starts a run


@dataclass(frozen=True, slots=True)
class Doors:
    """Destinations of exported figures."""

    listening: socket.socket | None
    otlp: bool

    def start(self, run_dir: Path) -> None:
        """Start the exporter as a new process session: it ends with the run. Raises OSError."""
        fds = [] if self.listening is None else [self.listening.fileno()]
        fd, otlp = str(*fds or [-1]), OTLP if self.otlp else "-"
        words = own_process("pardbg.doors.exporter", str(run_dir), fd, otlp)
        with open(run_dir / files.HUB_LOG, "ab") as log:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=fds,
            )  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close the socket, which the exporter has inherited."""
        if self.listening is not None:
            self.listening.close()


def open_doors(places: Sequence[str], talk: Callable[[str], object]) -> Doors | None:
    """Open the destinations of ``--metrics``: HOST:PORT, ``otlp``. None: no destination, or a taken
    port, which is reported. Raises UserError if a package is missing."""
    (where, otlp) = [one for one in places if one != OTLP], OTLP in places
    if len(where) > 1:
        raise UserError("--metrics HOST:PORT is given once, beside it `--metrics otlp`")
    for extra, module, needed in (
        ("metrics", "prometheus_client", bool(where)), (OTLP, "opentelemetry.exporter", otlp),
    ):  # fmt: skip
        if needed and not _is_there(module):
            raise UserError(f"--metrics needs a package: pip install 'pardbg[{extra}]'")
    listening = _listen(where[0], talk) if where else None
    return Doors(listening, otlp) if listening is not None or otlp else None


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _listen(place: str, talk: Callable[[str], object]) -> socket.socket | None:
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        talk(f"no metrics: cannot listen on {place}: {error.strerror or error}")
        return None
    name = host if family == socket.AF_INET else f"[{host}]"
    talk(f"metrics at http://{name}:{made.getsockname()[1]}/metrics")
    return made
