"""``--metrics``: a real run's figures, scraped and pushed, and what happens where that fails."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.parser import text_string_to_metric_families

from pardbg.cli import main
from pardbg.hub.run.config import NOTICES_FILE
from pardbg.hub.run.own_process import argv as own_process
from pardbg.lab.recipes import catalogue
from tests.distributed.owned import handle_of
from tests.distributed.runs import fake_job
from tests.forked import forked
from tests.harness import pardbg_run
from tests.processes import end_tree, wait_until

ADDRESS = re.compile(r"metrics at (http://\S+)")
Series = dict[str, dict[tuple[tuple[str, str], ...], float]]


@contextmanager
def running(
    argv: list[str], folder: Path, *options: str, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    job = pardbg_run(argv, folder, *options, env=env)
    try:
        yield job
    finally:
        end_tree(job.pid)
        job.wait()


def address(folder: Path) -> str:
    said: list[str] = []

    def look() -> bool:
        said[:] = ADDRESS.findall((folder / "err").read_text())
        return bool(said)

    wait_until(look, 60, "the address of the metrics")
    return said[0]


def scrape(url: str) -> Series:
    """Series by name and labels; as Prometheus' own parser reads them."""
    found: Series = {}
    with urllib.request.urlopen(url, timeout=10) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in found.setdefault(sample.name, {})
                found[sample.name][labels] = sample.value
    return found


def answered(url: str) -> bool:
    with suppress(OSError):
        return bool(scrape(url))
    return False


def exporters() -> set[int]:
    """Processes that export metrics, below this test or orphaned."""
    return {
        process.pid for process in psutil.process_iter(["cmdline", "environ"])
        if "pardbg.doors.exporter" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("METRICS_TEST") == str(os.getpid())
    }  # fmt: skip


MINE = {"METRICS_TEST": str(os.getpid())}


@pytest.mark.timeout(150)
def test_a_live_pipeline_is_scraped_until_it_ends(tmp_path: Path) -> None:
    argv = forked(catalogue.command("1f1b", 2, 100_000))
    with running(argv, tmp_path, "--metrics", "127.0.0.1:0", **MINE) as job:
        url = address(tmp_path)
        seen: Series = {}

        def look() -> bool:
            seen.clear()
            seen.update(scrape(url))
            return "pardbg_step_seconds" in seen and "pardbg_bubble_ratio" in seen

        wait_until(look, 90, "a pipeline's figures")
        assert sum(map(len, seen.values())) <= 200
        assert sum(seen["pardbg_ranks"].values()) == 2
        (step,) = seen["pardbg_step_seconds"].values()
        assert 0.005 < step < 60 and len(seen["pardbg_rank_stalled_seconds"]) == 2
        kinds = {
            dict(labels)["kind"]: value for labels, value in seen["pardbg_bubble_ratio"].items()
        }
        assert 0 < kinds["measured"] < 1 and kinds["bound"] == pytest.approx(1 / 9)
        assert seen["pardbg_records_lost_total"] == {(): 0}
        assert len(exporters()) == 1
        handle_of(tmp_path / "s.mcap").kill()
        job.wait(60)
    wait_until(lambda: not exporters(), 20, "the exporter's end")
    with pytest.raises(OSError):
        scrape(url)


@pytest.mark.timeout(120)
def test_a_taken_port_and_a_killed_exporter_leave_the_run_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--metrics", f"127.0.0.1:{port}")
        with running(fake_job(2, 3), tmp_path, *words, **MINE) as job:
            assert job.wait(60) == 0
    said = [line for line in (tmp_path / "err").read_text().splitlines() if "metrics" in line]
    assert len(said) == 1 and str(port) in said[0]
    assert (tmp_path / "out").read_text().count("step") == 3
    folder = tmp_path / "killed"
    folder.mkdir()
    until = folder / "until"
    argv = [*fake_job(2, 5), str(until)]
    with running(argv, folder, "--metrics", "127.0.0.1:0", **MINE) as job:
        url = address(folder)
        wait_until(lambda: "pardbg_step" in scrape(url), 60, "a step")
        place = urlsplit(url)
        with ExitStack() as idle:  # clients that ask for nothing keep nobody out for long
            for _ in range(40):
                idle.enter_context(socket.create_connection((place.hostname, place.port)))
            wait_until(lambda: answered(url), 30, "an answer beside them")
        for pid in exporters():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not exporters(), 10, "its end")
        until.touch()
        assert job.wait(60) == 0
    assert (folder / "out").read_text().count("step") == 5


class _Sink(BaseHTTPRequestHandler):
    got: list[bytes]

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.timeout(120)
def test_figures_are_pushed_by_otlp(tmp_path: Path) -> None:
    handler = type("Sink", (_Sink,), {"got": []})
    sink = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{sink.server_address[1]}"
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "500", **MINE}
    until = tmp_path / "until"
    try:
        argv = [*fake_job(2, 5), str(until)]
        with running(argv, tmp_path, "--metrics", "otlp", **env) as job:
            wait_until(lambda: "pardbg_step" in names(handler.got), 60, "a step that is pushed")
            until.touch()
            assert job.wait(60) == 0
        wait_until(lambda: not exporters(), 30, "the exporter's end")
    finally:
        sink.shutdown()
        sink.server_close()
    assert {"pardbg_records", "pardbg_findings", "pardbg_run_info"} <= names(handler.got)


def names(bodies: list[bytes]) -> set[str]:
    """Names of the metrics in OTLP's requests."""
    return {
        metric.name
        for body in list(bodies)
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics for metric in scope.metrics
    }  # fmt: skip


@pytest.mark.parametrize("where", ["9464", "host:", ":9464", "h:70000", "h:x", ""])
def test_wrong_addresses_get_one_line(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--metrics", where, "--", "true"])
    assert end.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("where", "module", "extra"), [
    ("127.0.0.1:0", "prometheus_client", "pardbg[metrics]"),
    ("otlp", "opentelemetry.exporter", "pardbg[otlp]"),
])  # fmt: skip
def test_a_missing_package_is_one_line_before_the_job_starts(
    where: str, module: str, extra: str, tmp_path: Path
) -> None:
    code = (f"import sys; sys.modules[{module!r}] = None; from pardbg.cli import main; "
            f"main(['run', '--metrics', {where!r}, '--', 'touch', 'ran'])")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and extra in done.stderr
    assert not (tmp_path / "ran").exists()


def test_an_exporter_that_fails_says_so_to_the_runs_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        own_process("pardbg.doors.exporter", str(tmp_path), "-1", "-"), check=False
    )
    assert done.returncode == 1  # it is no run
    assert len((tmp_path / NOTICES_FILE).read_text().splitlines()) == 1
