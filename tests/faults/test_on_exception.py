"""A rank that raises is held with its frames, its peer waits alive, and then it dies as it would
have; a job that is ended meanwhile leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pardbg.control.machine.holding import RUN
from pardbg.events.control_codes import Verb
from pardbg.events.control_facts import Asked, Raised
from pardbg.hub.client import HubControl
from pardbg.hub.run.config import Place
from pardbg.hub.run.start import RunHandle
from pardbg.hub.serve.sockets import make_keys
from pardbg.session.reader import load
from tests.distributed.runs import started
from tests.forked import PROGRAM
from tests.processes import rank_env, run_argv, wait_until

ARGV = [sys.executable, "-m", PROGRAM, "2", "tests.distributed.programs.raises"]


@contextmanager
def held(session: Path) -> Iterator[tuple[RunHandle, HubControl, dict[str, Any]]]:
    """The job, once its rank 1 is held at its exception and rank 0 waits for it."""
    with started(
        ARGV, session, env=rank_env(), allow_eval=True, on_exception_s=600.0
    ) as handle:  # fmt: skip
        control = HubControl(handle.run_dir)
        found: dict[str, Any] = {}

        def stands() -> bool:
            found.update(control.command(Verb.STATUS).data)
            return found.get("mode") == "held" and bool(found["waiting"])

        wait_until(stands, 80, "rank 1 at its exception, rank 0 waiting")
        try:
            yield handle, control, found
        finally:
            control.close()


def of_rank(text: str, rank: int) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"[rank{rank}]:")]


@pytest.mark.timeout(200)
def test_a_rank_that_raises_is_held_looked_into_and_dies_as_it_would_have(tmp_path: Path) -> None:
    plain = run_argv(ARGV, env=rank_env(), timeout_s=40)
    with held(tmp_path / "s.mcap") as (handle, control, status):
        assert list(status["held"].values()) == ["exception ValueError: no labels in batch 301"]
        assert status["controller"] == RUN and 590e9 < status["lease_ns"] <= 600e9
        [why] = status["why"]
        assert (why["t"], why["rank"], why["error"]) == (
            "exception", 1, "ValueError: no labels in batch 301",
        )  # fmt: skip
        assert status["waiting"][0]["op"]["op"] == "all_reduce"
        assert status["timeout_ns"] > 1500e9, "gloo's half an hour is counted down"

        said = control.command(Verb.INSPECT, "1", kind="locals", frame=0).data["answers"][1]
        assert said["text"].splitlines() == ["batch = 301", "rank = 1", "step = 3"]
        caller = control.command(Verb.INSPECT, "1", kind="p", expr="step, loss.shape", frame=1)
        assert caller.data["answers"][1]["text"] == "(3, torch.Size([]))"
        assert caller.data["answers"][1]["frame"][2] == "train"
        stack = control.command(Verb.WHERE, "1").data["stacks"][1][0]
        assert [frame[2] for frame in stack["frames"]][-2:] == ["train", "check"]
        assert not control.command(Verb.NEXT).ok, "no step leads on from there"
        assert control.command(Verb.STATUS).data["controller"] == RUN

        assert control.command(Verb.CONTINUE).ok
        assert handle.wait(30) == plain.code == 1
        err = (handle.run_dir / "job.err").read_text()
        notices = (handle.run_dir / "notices").read_text()
    assert of_rank(err, 1) == of_rank(plain.err, 1)
    assert of_rank(err, 1)[-1] == "[rank1]: ValueError: no labels in batch 301"
    assert notices.startswith("pardbg: rank 1 raised ValueError") and "ctl" in notices
    events = load(tmp_path / "s.mcap").controls.last(None, 100)
    facts = [event.fact for _, event in events if event.fact is not None]
    trail = [fact.verb.value if isinstance(fact, Asked) else fact.TAG for fact in facts]
    told = ("exception", "cut", "inspect", "refused", "continue")
    assert [name for name in dict.fromkeys(trail) if name in told] == list(told)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rank_of_another_node_that_raises_is_held_there(
    tmp_path: Path, free_port: Callable[..., int]
) -> None:
    """It is the second node's only rank: the first node's hub and viewers hold it by its relay.
    Rank 0 waits for it, or is held before it would."""
    hub, meet, keys = f"tcp://127.0.0.1:{free_port(3)}", free_port(), make_keys()

    def start(node: int) -> Any:
        env = {
            "RANK": str(node), "LOCAL_RANK": "0", "GROUP_RANK": str(node), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meet), "PARDBG_HOST": f"n{node}",
        }  # fmt: skip
        argv = [sys.executable, "-m", "tests.distributed.programs.raises"]
        return started(
            argv, tmp_path / f"n{node}.mcap", env=rank_env(env), allow_eval=True,
            on_exception_s=600.0, place=Place(hub, node, 2, keys),
        )  # fmt: skip

    with start(1) as second, start(0) as first, closing(HubControl(first.run_dir)) as control:

        def of_rank_1() -> str:
            return str((control.command(Verb.STATUS).data or {}).get("held", {}).get(1))

        wait_until(lambda: of_rank_1().startswith("exception"), 90, "rank 1 at its exception")
        assert of_rank_1() == "exception ValueError: no labels in batch 301"
        said = control.command(Verb.INSPECT, "1", kind="p", expr="batch, step", frame=0)
        assert said.data["answers"][1]["text"] == "(301, 3)"
        stack = control.command(Verb.WHERE, "1").data["stacks"][1][0]
        assert [frame[2] for frame in stack["frames"]][-2:] == ["train", "check"]
        assert second.job_alive(), "it is held, not gone"
        assert control.command(Verb.CONTINUE).ok
        assert (second.wait(60), first.wait(60)) == (1, 1)
        err = (second.run_dir / "job.err").read_text()
    assert of_rank(err, 1)[-1] == "[rank1]: ValueError: no labels in batch 301"
    events = load(tmp_path / "n0.mcap").controls.last(None, 100)
    facts = [event.fact for _, event in events]
    raised = next(at for at, fact in enumerate(facts) if isinstance(fact, Raised))
    let_on = [isinstance(fact, Asked) and fact.verb == Verb.CONTINUE for fact in facts]
    assert raised < let_on.index(True)


@pytest.mark.timeout(150)
def test_a_job_that_is_ended_while_held_is_gone_at_once(tmp_path: Path) -> None:
    with held(tmp_path / "s.mcap") as (handle, control, _):
        ranks = control.command(Verb.RANKS).data["ranks"]
        pids = [int(proc.rpartition(".")[2]) for proc in ranks]
        os.kill(next(p for p in pids if ranks_of(ranks, p) == 1), signal.SIGTERM)  # as torchrun
        assert handle.wait(20) == 1  # the hold would last longer
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def ranks_of(ranks: dict[str, Any], pid: int) -> int:
    """The rank of a process."""
    return next(row["rank"] for proc, row in ranks.items() if proc.endswith(f".{pid}"))
