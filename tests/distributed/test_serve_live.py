"""``pardbg serve`` of a live run: the browser holds it with --control alone, and while its page is
open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.distributed.runs import fake_job, maps, started
from tests.harness import whole_messages
from tests.processes import rank_env

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
from tests.unit.cli.test_serve import client, get, seen  # noqa: E402

pytestmark = pytest.mark.timeout(240)


@contextmanager
def page_of(run: str, *options: str) -> Iterator[str]:
    words = [sys.executable, "-m", "pardbg", "serve", run, *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield server.stderr.readline().split()[3]
        finally:
            server.terminate()


async def test_a_browser_holds_a_run_only_with_control_and_while_its_page_is_open(
    tmp_path: Path,
) -> None:
    session = tmp_path / "s.mcap"
    with started(fake_job(2, 4000, 0.01), session, env=rank_env()) as handle:
        run = handle.run_dir.name
        for options, said in (((), b"may only watch"), (("--control",), b"held at a cut")):
            with page_of(run, *options) as address:
                base = address.partition("/?")[0]
                async with client() as browser:
                    assert await get(browser, address) == 200
                    where = f"{base}/ws?width=120&height=40"
                    async with browser.ws_connect(where, headers={"Origin": base}) as socket:
                        await seen(socket, b"1 Overview", b"live")
                        await socket.send_json(["stdin", " "])
                        await seen(socket, said)
        handle.kill()
        handle.wait(30)
    told = maps(list(whole_messages(session)), b"C")
    (paused,) = [event for event in told if event["event"] == "verb" and event["verb"] == "pause"]
    assert paused["by"].startswith("view-"), "in the audit trail by the viewer's name"
    after = [(event["event"], event["mode"]) for event in told if event["t_ns"] > paused["t_ns"]]
    assert after[:2] == [("cut", "held"), ("leave", "running")]
