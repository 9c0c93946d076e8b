"""Several nodes: one hub, a relay on each other node; whoever of them dies, the job and the
recording go on. Nodes here are run directories of their own on one machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.hub.ctrl_messages import pack
from pardbg.hub.run.config import NOTICES_FILE, Place
from pardbg.hub.run.start import RunHandle
from pardbg.hub.serve.sockets import load_keys, make_keys, secure_client
from tests.distributed.programs import disagreeing as program
from tests.distributed.runs import (
    coverage,
    events,
    fake_job,
    hub_pid,
    maps,
    session_of,
    started,
    wait_ranks,
)
from tests.distributed.test_watch_board import Watching
from tests.forked import PROGRAM
from tests.processes import rank_env, wait_until

STEPS = 60


@pytest.fixture
def ports(free_port: Callable[..., int]) -> tuple[int, int]:
    """Of the hub (three in a row), and where the ranks meet."""
    return free_port(3), free_port()


def ddp(node: int, meet: int, steps: int = STEPS) -> tuple[list[str], dict[str, str]]:
    """One rank of two, as torchrun would start it on that node."""
    argv = [sys.executable, "-m", "pardbg.lab.recipes.ddp", "--steps", str(steps)]
    env = {
        "RANK": str(node), "LOCAL_RANK": "0", "GROUP_RANK": str(node), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meet), "PARDBG_HOST": f"n{node}",
    }  # fmt: skip
    return argv, rank_env(env)


@contextmanager
def two_nodes(tmp_path: Path, ports: tuple[int, int]) -> Iterator[tuple[RunHandle, RunHandle]]:
    """A DDP job of two nodes; the second one comes first and waits for the hub."""
    hub, keys = f"tcp://127.0.0.1:{ports[0]}", make_keys()

    def start(node: int) -> Any:
        argv, env = ddp(node, ports[1])
        return started(argv, tmp_path / f"n{node}.mcap", env=env, place=Place(hub, node, 2, keys))

    with start(1) as second, start(0) as first:
        yield first, second


def steps_of(control: HubControl) -> int:
    """How far both ranks are."""
    rows = rows_of(control)
    return min(row["step"] for row in rows) if len(rows) == 2 else -1


def rows_of(control: HubControl) -> list[dict[str, Any]]:
    return list((control.command("ranks").data or {}).get("ranks", {}).values())


@contextmanager
def lookers_in_others_names(handle: RunHandle, names: list[str]) -> Iterator[None]:
    """Clients with a view-only key that claim these identities, and say what their owners would."""
    endpoint, keys = handle.config.upstream.ctrl, load_keys(handle.run_dir)
    with zmq.Context() as context, ExitStack() as stack:
        for name in names * 10:
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IDENTITY, name.encode())
            secure_client(dealer, keys, "viewer")
            dealer.connect(endpoint)
            dealer.send(pack({"t": "hello", "rank": 0}))
        yield


def kill(handle: RunHandle) -> None:
    """The node's hub or relay; waits for its successor."""
    before = hub_pid(handle)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: hub_pid(handle) != before, 30, "another one")


@pytest.mark.timeout(180)
def test_two_nodes_are_held_as_one_and_nothing_is_lost_with_hub_or_relay(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    with two_nodes(tmp_path, ports) as (first, second):
        control = HubControl(first.run_dir, script=True)
        try:
            wait_until(lambda: steps_of(control) > 2, 60, "training")
            ranks = control.command("ranks").data["ranks"]
            with lookers_in_others_names(first, [*ranks, control.name]):
                held = control.command("pause", timeout_s=40)
                assert held.ok, held.refusal
                assert control.command("continue").ok
            held = control.command("pause", timeout_s=40)
            assert held.ok, held.refusal
            wait_until(lambda: all(row["held"] for row in rows_of(control)), 10, "rows that say so")
            places = control.command("where").data["stacks"]
            assert set(map(int, places)) == {0, 1}
            assert control.command("step").ok
            assert control.command("continue").ok
        finally:
            control.close()
        kill(first)
        control = HubControl(first.run_dir, script=True)
        try:
            wait_until(lambda: steps_of(control) > 5, 60, "both nodes with another hub")
            kill(second)
            before = steps_of(control)
            wait_until(lambda: steps_of(control) > before + 3, 60, "rows from another relay")
        finally:
            control.close()
        assert [first.wait(120), second.wait(60)] == [0, 0]
        messages = session_of(first)
        lines = [line["text"] for line in maps(messages, b"O")]
        assert sum("loss" in line for line in lines) == STEPS
        parts = coverage(messages)
        assert {proc.split(".")[1] for proc in parts} == {"n0", "n1"}
        assert all(len(part) == 1 and part[0][0] == 0 for part in parts.values()), parts
        ends = [d for d in maps(messages, b"D") if d["k"] == "end" and d.get("proc")]
        assert sorted((d["reason"], d["dropped"]) for d in ends) == [("exit", 0), ("exit", 0)]
        seen = events(messages)
        assert {"node", "node_new_relay", "hub_restart"} <= set(seen) and "gap" not in seen
        assert not second.session.exists()


@pytest.mark.timeout(120)
def test_ranks_that_spoke_before_there_was_a_hub_are_held_at_once(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    """They say HELLO once, to a relay without a hub; until the hub had heard it, `pause` left
    them out."""
    hub, keys = f"tcp://127.0.0.1:{ports[0]}", make_keys()
    with started(fake_job(2, 50_000, 0.001), tmp_path / "1.mcap",
                 place=Place(hub, 1, 2, keys)) as second:  # fmt: skip
        wait_until(lambda: any(rings_of(second)), 30, "ranks of the second node")
        wait_until(lambda: b"no hub at" in notices(second), 30, "a relay that has no hub")
        with started([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "0.mcap",
                     place=Place(hub, 0, 2, keys)) as first:  # fmt: skip
            control = HubControl(first.run_dir, script=True)
            try:
                wait_until(lambda: len(rows_of(control)) == 2, 20, "both ranks")
                assert control.command("status").data["ranks"] == [0, 1]
                held = control.command("pause", timeout_s=4)
                assert held.ok and set(map(int, held.data["held"])) == {0, 1}, held.refusal
            finally:
                control.close()
            second.kill()
            second.wait(30)


def rings_of(handle: RunHandle) -> Iterator[Path]:
    return Path(handle.config.ring_dir).glob("*.ring")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ranks_of_two_nodes_that_disagree_are_held(tmp_path: Path, ports: tuple[int, int]) -> None:
    """Two ranks a node; rank 2 is late, sums another dtype, drifts apart, with rank 3 beside it.
    `delay`, a breakpoint, `where` and `p` reach both nodes."""
    keys, hub = make_keys(), f"tcp://127.0.0.1:{ports[0]}"
    go, end = tmp_path / "go", tmp_path / "end"

    def start(node: int) -> Any:
        argv = [sys.executable, "-m", PROGRAM, "2", program.__name__, "fault:diverge"]
        env = {
            "GROUP_RANK": str(node), "WORLD_SIZE": "4", "MASTER_PORT": str(ports[1]),
            "PARDBG_HOST": f"n{node}", program.GO: str(go), program.END: str(end),
        }  # fmt: skip
        place = Place(hub, node, 2, keys)
        name = tmp_path / f"n{node}.mcap"
        return started(argv, name, env=rank_env(env), place=place, allow_eval=True)

    with start(0) as first, start(1) as second:
        control = HubControl(first.run_dir)
        wait_ranks(control, 4)
        job = Watching(control, 4)
        job.do(Verb.WATCH, expr="skew>500ms")
        job.do(Verb.DELAY, "2", ns=1_500_000_000)
        data = job.held("watch 1: rank 2 step 0, skew>500ms: last to broadcast int64[1] root 0 on")
        assert 2 in data["held"]
        job.do(Verb.DELAY, "2", ns=0)
        job.do(Verb.DELETE, numbers=[1])
        job.do(Verb.BREAK, expr="op==broadcast and rank==3")
        job.do(Verb.CONTINUE)
        data = job.held("rank 3 before broadcast default #")
        held = ",".join(map(str, data["held"]))
        answers = job.do(Verb.INSPECT, held, kind="p", expr="1 + 1")["answers"]
        assert set(answers) == set(data["held"]) >= {3}
        job.do(Verb.DELETE, numbers=[2])
        for watch in ("mismatch", "diverge"):
            job.do(Verb.WATCH, expr=watch)
        go.touch()
        job.do(Verb.CONTINUE)
        data = job.held("mismatch: wants all_reduce ")
        assert "reduce int32[]" in data["reason"] and "reduce float32[]" in data["reason"], data
        assert set(map(int, job.do(Verb.WHERE)["stacks"])) == {0, 1, 2, 3}
        job.do(Verb.CONTINUE)
        data = job.held("diverge: ")
        assert ": rank 2 from ranks 0,1,3 (101 of 101 differ)" in data["reason"]
        end.touch()
        job.do(Verb.CONTINUE)
        data = job.held("mismatch: wants all_gather float32[")
        job.do(Verb.CONTINUE)
        control.close()
        for handle in (first, second):
            handle.kill()
            handle.wait(30)


@pytest.mark.timeout(120)
def test_without_a_hub_and_with_a_wrong_key_the_job_runs_and_says_so(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    hub = f"tcp://127.0.0.1:{ports[0]}"
    go = tmp_path / "go"
    lone = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done"]
    place = Place(hub, 1, 2, make_keys())
    with started(lone, tmp_path / "a.mcap", env=rank_env(), place=place) as handle:
        wait_until(lambda: b"no hub at tcp://" in notices(handle), 30, "the notice")
        go.touch()
        assert handle.wait(40) == 0
    go.unlink()
    first = Place(hub, 0, 2, make_keys())
    wrong = Place(hub, 1, 2, make_keys())
    with (
        started(lone, tmp_path / "b.mcap", env=rank_env(), place=first) as one,
        started(lone, tmp_path / "c.mcap", env=rank_env(), place=wrong) as other,
    ):
        wait_until(lambda: b"it refused the key" in notices(other), 30, "the notice")
        go.touch()
        assert one.wait(40) == other.wait(40) == 0


def notices(handle: RunHandle) -> bytes:
    path = handle.run_dir / NOTICES_FILE
    return path.read_bytes() if path.exists() else b""
