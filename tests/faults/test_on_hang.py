"""Jobs that hang with nobody looking: the bundle, the command, the abort, and who is told; and
healthy ones, about which nothing is done."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import zstandard

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.hub.run.config import OnHang
from pardbg.session.reader import load
from tests.conftest import NIGHTLY
from tests.distributed.owned import PARDBG
from tests.distributed.runs import started
from tests.forked import served
from tests.processes import comes_true, end_tree, rank_env, torchrun_argv


def launched(folder: Path, kind: str, nproc: int, restarts: int = 0) -> list[str]:
    """Its ranks are forked where they are not to be started anew."""
    program = ["-m", "tests.faults.programs.hanging", kind, str(folder)]
    launch = torchrun_argv(f"--max-restarts={restarts}", *program, nproc=nproc)
    return launch if restarts else served(launch)


@contextmanager
def running(
    folder: Path, kind: str, *options: str, nproc: int = 4, restarts: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    launch = launched(folder, kind, nproc, restarts)
    # torch's own: with the launcher's store, gloo's second attempt finds addresses of the first.
    env = rank_env(
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "SOME_TOKEN": "hush", "NCCL_MY_KEY": "hush"}
    )
    with open(folder / "log", "wb") as log:
        job = subprocess.Popen(
            [*PARDBG, "run", *options, "-o", str(folder / "s.mcap"), "--", *launch],
            env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield job
    finally:
        end_tree(job.pid)
        job.wait()


def listing(bundle: Path) -> dict[str, bytes]:
    """What an ordinary tar makes of it."""
    with open(bundle, "rb") as file:
        raw = zstandard.ZstdDecompressor().stream_reader(file).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


CULPRITS = {"sleeper": [1], "missing": [2], "p2p": [0, 1, 2, 3]}
RANKS = {"sleeper": 2, "missing": 4, "p2p": 4}
"""Torch is imported by each of them twice, and by the launcher."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "sleeper" else NIGHTLY) for kind in CULPRITS]
)
def test_a_hang_is_bundled_told_and_aborted_and_the_job_restarts(tmp_path: Path, kind: str) -> None:
    told = tmp_path / "told"
    options = ["--on-hang", f"bundle,exec cp -t {tmp_path}/copies,abort", "--after", "3s",
               "--notify", f"tee -a {told}"]  # fmt: skip
    (tmp_path / "copies").mkdir()
    ranks = RANKS[kind]
    with running(tmp_path, kind, *options, nproc=ranks, restarts=1) as job:
        assert job.wait(150) == 0
    assert (tmp_path / "log").read_text().count("done ") == ranks
    copies = list((tmp_path / "copies").iterdir())
    assert [one.name for one in copies] == ["s.tar.zst"]
    first, _ = json.JSONDecoder().raw_decode(told.read_text())
    assert first["when"] == "hang" and first["bundle"] == str(tmp_path / "s.tar.zst")
    assert first["finding"]["culprits"] == CULPRITS[kind]
    # elsewhere, with nothing of this run in the environment
    away = tmp_path / "away"
    away.mkdir()
    os.replace(copies[0], away / "x.tar.zst")
    env = {"PATH": os.environ["PATH"], "HOME": str(away), "TERM": "dumb"}
    shown = subprocess.run(
        [*PARDBG, "report", "x.tar.zst", "--json"],
        cwd=away,
        env=env,
        capture_output=True,
        check=True,
    )
    found = {tuple(one["culprits"]): one["kind"] for one in json.loads(shown.stdout)["findings"]}
    assert found[tuple(CULPRITS[kind])] == first["finding"]["kind"]
    assert not load(away / "x.tar.zst").truncated
    parts = listing(away / "x.tar.zst")
    bundled = json.loads(parts["report.json"])["findings"]
    assert first["finding"]["kind"] in [one["kind"] for one in bundled]
    assert json.loads(parts["stacks.json"])["recorded"].keys() == {*map(str, range(ranks))}
    environment = json.loads(parts["environment.json"])
    assert "hush" not in environment.values() and environment["WORLD_SIZE"] == str(ranks)
    assert "SOME_TOKEN" not in environment and "explain.txt" in parts


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "kind", ["long", *(pytest.param(kind, marks=NIGHTLY) for kind in ("pause", "fine"))]
)
def test_nothing_is_done_about_a_healthy_job(tmp_path: Path, kind: str) -> None:
    """A rank that computes for twice as long as `--after`; a checkpoint that is shorter."""
    told = tmp_path / "told"
    options = ["--on-hang", "bundle,abort", "--after", "3s", "--notify", f"tee -a {told}"]
    with running(tmp_path, kind, *options) as job:
        assert job.wait(150) == 0
    assert (tmp_path / "log").read_text().count("done ") == 4
    assert not told.exists() and not list(tmp_path.glob("*.zst"))


@pytest.mark.timeout(120)
def test_nothing_is_done_while_somebody_holds_a_rank(tmp_path: Path) -> None:
    told, env = tmp_path / "told", rank_env()
    how = OnHang(bundle=True, abort=True, after_s=1.0, notify=f"tee -a {told}")
    job = launched(tmp_path, "held", 2)
    with started(job, tmp_path / "s.mcap", on_hang=how, env=env) as handle:
        control = HubControl(handle.run_dir, script=True)
        try:
            assert comes_true(lambda: control.command(Verb.PAUSE, "1", 10.0, lease_s=60.0).ok, 60)
            assert not comes_true(lambda: told.exists() or list(tmp_path.glob("*.zst")), 5)
            assert control.command(Verb.CONTINUE, None, 10.0).ok
        finally:
            control.close()
        (tmp_path / "go").touch()
        assert handle.wait(60) == 0
    assert not told.exists() and not list(tmp_path.glob("*.zst"))


class Sink(BaseHTTPRequestHandler):
    posts: list[Mapping[str, object]]

    def do_POST(self) -> None:
        self.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.timeout(120)
def test_errors_of_a_run_that_ended_are_posted_once_before_it_returns(tmp_path: Path) -> None:
    sink = type("Sink", (Sink,), {"posts": []})
    with HTTPServer(("127.0.0.1", 0), sink) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            notify = f"http://127.0.0.1:{server.server_port}/hook"
            with running(tmp_path, "raises", "--notify", notify, nproc=2, restarts=1) as job:
                assert job.wait(100) != 0
            posts = list(sink.posts)
        finally:
            server.shutdown()
            thread.join()
    kinds = [post["finding"]["kind"] for post in posts]  # type: ignore[index]
    assert kinds == ["exception"] and posts[0]["when"] == "end"


@pytest.mark.timeout(120)
def test_telling_that_fails_is_a_line_on_stderr(tmp_path: Path) -> None:
    with running(tmp_path, "raises", "--notify", "false", nproc=2) as job:
        assert job.wait(100) != 0
    assert "pardbg: --notify: Command '['false']' returned" in (tmp_path / "log").read_text()
