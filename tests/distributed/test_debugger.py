"""A DAP client in a held rank: it steps lines while others follow, and leaves the job as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pardbg.events.commands import Answers
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import InDebugger
from pardbg.hub.client import HubControl
from pardbg.hub.run.start import RunHandle
from pardbg.hub.target import local
from pardbg.session.reader import load
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer
from tests.dap_client import DapClient
from tests.distributed.runs import started
from tests.processes import rank_env, run_ranks, torchrun_argv, wait_until

pytest.importorskip("debugpy")
PROGRAM = Path(__file__).parent / "programs" / "line_by_line.py"
LOOP = range(16, 29)
"""Lines of the loop."""


class Job:
    """Three ranks of the program, and control of them."""

    def __init__(self, handle: RunHandle) -> None:
        self.handle = handle
        self.port = HubControl(local(handle.run_dir))
        wait_until(lambda: len(self.held("pause")) == 3, 60, "ranks")

    def held(self, verb: str = "status") -> dict[int, str]:
        reply = self.port.command(Verb(verb))
        return dict(reply.status.held) if reply.status is not None else {}

    def all_held(self) -> None:
        wait_until(lambda: len(self.held()) == 3, 30, "all ranks held")

    def dap(self, rank: int, kind: str = "dap", expr: str = "") -> Evaluated:
        answer = self.port.command(Verb.INSPECT, str(rank), kind=kind, expr=expr).answer
        assert isinstance(answer, Answers)
        return answer.answers[rank]

    @contextmanager
    def client(self, rank: int) -> Iterator[DapClient]:
        with DapClient(self.dap(rank).port) as client:
            client.attach()
            yield client

    def losses(self) -> list[str]:
        """Run on to the end."""
        self.port.command(Verb.CONTINUE)
        assert self.handle.wait(60) == 0
        self.port.close()
        return (self.handle.run_dir / "job.out").read_text().splitlines()


@contextmanager
def job(tmp_path: Path, steps: int, allow_eval: bool = True, timeout_s: int = 600) -> Iterator[Job]:
    argv = torchrun_argv(str(PROGRAM), str(steps), str(timeout_s), nproc=3)
    env = rank_env()
    with started(argv, tmp_path / "s.mcap", env=env, allow_eval=allow_eval) as handle:
        yield Job(handle)


@pytest.fixture(scope="module")
def plain() -> list[str]:
    """What 400 steps print without pardbg."""
    done = run_ranks(str(PROGRAM), "400", nproc=3)
    assert done.code == 0
    return done.out.splitlines()


@pytest.mark.timeout(180)
def test_a_client_steps_evaluates_and_detaches(tmp_path: Path, plain: list[str]) -> None:
    with job(tmp_path, 400) as run:
        before = run.held()
        with run.client(1) as client:
            (place, *_) = client.frames()
            assert (place["name"], place["line"]) == ("train", 21)  # it is held before its op
            assert run.held() == {**before, 1: "debugger"}  # and nothing has moved
            lines = [client.step()["line"] for _ in range(10)]
            assert lines == [22, 23, 24, 25, 26, 25, 27, 28, 16, 17]  # 25: the end of ``with``
            assert client.value("step * 10 + rank") == "11"
            assert client.value("dist.get_world_size()") == "3"
            client.detach()
        run.all_held()
        assert "debugger" not in run.held().values()
        assert run.losses() == plain
    facts = [event.fact for _, event in load(tmp_path / "s.mcap").controls.last(None, 500)]
    assert [f for f in facts if isinstance(f, InDebugger)] == [
        InDebugger(1, True), InDebugger(1, False),
    ]  # fmt: skip


@pytest.mark.timeout(180)
def test_breakpoints_pass_gates_and_a_second_client_may_come(
    tmp_path: Path, plain: list[str]
) -> None:
    with job(tmp_path, 400) as run:
        with run.client(2) as client:
            found = client.ask("setBreakpoints", source={"path": str(PROGRAM)},
                               breakpoints=[{"line": 27, "condition": "step >= 5"}])  # fmt: skip
            assert found["breakpoints"][0]["verified"]
            client.ask("continue", threadId=client.thread)
            assert client.stopped()["line"] == 27  # past ten collectives, with all others
            assert client.value("step") == "5"
            client.detach()
        run.all_held()
        with run.client(2) as again:
            assert again.step()["line"] in LOOP
            again.detach()
        assert run.losses() == plain


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["dies", "terminates", "continue", "lease"])
def test_whatever_ends_it_the_job_goes_on(tmp_path: Path, plain: list[str], how: str) -> None:
    with job(tmp_path, 400) as run, run.client(0) as client:
        client.step()
        if how == "dies":
            client.close()
        elif how == "terminates":
            client.send("terminate")
        elif how == "lease":
            run.port.leave()
        assert run.losses() == plain


@pytest.mark.timeout(180)
def test_a_rank_is_let_go_before_its_peers_time_out(tmp_path: Path, plain: list[str]) -> None:
    """It alone was held; the others wait for it in an op of 10 s."""
    with job(tmp_path, 400, timeout_s=10) as run:
        run.port.command(Verb.CONTINUE)
        run.port.command(Verb.PAUSE, "1")
        with run.client(1) as client:
            client.step()
            status = run.port.command(Verb.STATUS).status
            assert status is not None and 0 < (status.timeout_ns or 0) < 10e9
            with pytest.raises(AssertionError, match="closed the connection"):
                client.event("terminated of no client")
        assert run.losses() == plain


@pytest.mark.timeout(120)
def test_nothing_of_it_stays_in_the_rank(tmp_path: Path) -> None:
    """Trace functions slow every call down, on whatever thread they stay."""
    left = (
        "(lambda sys, threading: (sys.gettrace(), threading.gettrace(), sys.settrace.__module__,"
        " threading._start_new_thread.__module__, 'PYDEVD_DISABLE_FILE_VALIDATION' in"
        " __import__('os').environ, len(sys._current_frames()), len(threading.enumerate())))"
        "(__import__('sys'), __import__('threading'))"
    )
    with job(tmp_path, 4000) as run:
        clean = run.dap(1, "p", left).text
        assert clean == "(None, None, 'sys', '_thread', False, 2, 2)"  # its own and the agent's
        with run.client(1) as client:
            client.step()
            traced = client.value("__import__('sys').gettrace() is None")
            client.detach()
        run.all_held()
        wait_until(lambda: run.dap(1, "p", left).text == clean, 20, run.dap(1, "p", left).text)
        assert traced == "False"
        run.port.close()


@pytest.mark.timeout(120)
def test_who_may_not_is_told_why(tmp_path: Path) -> None:
    with job(tmp_path, 4000, allow_eval=False) as run:
        assert run.dap(1).refusal is NoAnswer.EVAL_OFF
        run.port.close()


@pytest.mark.timeout(120)
def test_only_its_client_moves_a_led_rank(tmp_path: Path) -> None:
    with job(tmp_path, 4000) as run:
        with run.client(1) as client:
            refusal = run.port.command(Verb.STEP, "1").refusal
            assert refusal is not None and refusal.why is Why.IN_DEBUGGER
            client.detach()
        run.port.command(Verb.CONTINUE)
        assert run.dap(1).refusal is NoAnswer.NOT_HELD
        run.port.close()
