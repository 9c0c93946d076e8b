"""When the hub takes stacks by itself: once per standstill, rarely of ranks that run on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pardbg.events.control_facts import Stall, StallPart
from pardbg.hub.backlog import Definitions
from pardbg.hub.ranks.processes import exit_code, start_time
from pardbg.hub.ranks.rings import Rings
from pardbg.hub.ranks.stack_requests import StackRequests, speaking
from pardbg.hub.serve.state_feed import RowNews, Standstill, ask, longest_wait_ns, silent
from pardbg_agent.ctrl.agent_messages import Stacks, Thread
from pardbg_agent.ring import Ring
from tests.processes import wait_until

S = 10**9


def row(rank: int, **more: Any) -> dict[str, Any]:
    """A rank that computes, its last change at 0 s."""
    base = {"rank": rank, "alive": True, "held": 0, "step": 3, "phase": "forward", "action": "",
            "stage": -1, "mb": -1, "since_ns": 0, "open": 0, "open_op": None, "open_since_ns": 0,
            "heartbeat_ns": 0, "os": "S"}  # fmt: skip
    return {**base, **more}


def in_op(rank: int, since_s: float = 0, **more: Any) -> dict[str, Any]:
    since = int(since_s * S)
    return row(rank, open=1, open_op="all_reduce world #4", open_since_ns=since, **more)


def test_stacks_are_wanted_once_somebody_has_waited_two_seconds() -> None:
    still, rows = Standstill(), {"a": in_op(0), "b": row(1)}
    assert still.due(rows, 0) == []
    assert still.due(rows, int(1.9 * S)) == []
    assert still.due(rows, 2 * S) == ["a", "b"]
    assert still.due(rows, 9 * S) == []  # once


def test_nobody_waits_so_nobody_is_asked() -> None:
    still, rows = Standstill(), {"a": row(0), "b": row(1)}  # a long compute on all ranks
    for t in range(30):
        assert still.due(rows, t * S) == []


def test_who_runs_alone_for_long_without_a_record_is_asked_once() -> None:
    still, rows = Standstill(), {"a": row(0), "b": row(1)}
    assert still.due(rows, 0) == []
    del rows["a"]  # it has ended
    assert [t for t in range(90) if still.due(rows, t * S)] == [30]


def asked_of(began_s: Callable[[float], float], seconds: int) -> list[tuple[float, str]]:
    """(when, who) of a, which waits in an op since ``began_s(now)``, and of b, which goes on to
    another phase each half second: looked at as often."""
    still, found = Standstill(), []
    for t in (half / 2 for half in range(2 * seconds)):
        rows = {"a": in_op(0, began_s(t)), "b": row(1, since_ns=int(t * S))}
        found += [(t, proc) for proc in still.due(rows, int(t * S))]
    return found


def test_ranks_that_run_on_are_asked_ever_more_rarely() -> None:
    """After 5 s of a wait, and each time that it has lasted twice as long."""
    assert asked_of(lambda t: 0, 60) == [(2, "a"), (5, "b"), (10, "b"), (20, "b"), (40, "b")]


def test_ranks_that_run_on_are_not_asked_where_others_wait_a_while() -> None:
    """A slow rank of a healthy job: each 4 s a new wait. Where each lasts 8 s: once in each."""
    assert {who for _, who in asked_of(lambda t: t // 4 * 4, 60)} == {"a"}
    found = asked_of(lambda t: t // 8 * 8, 24)
    assert [t for t, who in found if who == "b"] == [5, 13, 21]


def test_a_new_standstill_is_asked_anew() -> None:
    still = Standstill()
    still.due({"a": in_op(0), "b": row(1)}, 0)
    assert still.due({"a": in_op(0), "b": row(1)}, 3 * S) == ["a", "b"]
    moved = {"a": in_op(0), "b": row(1, step=4)}
    assert still.due(moved, 4 * S) == []
    assert still.due(moved, 5 * S) == ["b"]


def test_a_clock_told_anew_is_no_progress() -> None:
    """a's clock is 60 s behind ours; what is known of that changes by 20 ms each second."""
    still, rows = Standstill(), {"a": in_op(0), "b": row(1)}
    asked = [still.due(rows, (60 + t) * S, {"a": 60 * S + t * S // 50}) for t in range(8)]
    assert asked == [[], [], [], ["a", "b"], [], [], [], []]


def test_nothing_is_asked_while_the_debugger_holds_a_rank() -> None:
    still, rows = Standstill(), {"a": in_op(0), "b": row(1, held=4)}
    still.due(rows, 0)
    assert still.due(rows, 60 * S) == []


def test_that_nothing_changes_is_said_at_the_full_rate_when_it_is_news() -> None:
    """A wait from 0 on; rows that do not change are said each second, but not around 2 s: said in
    tenths of seconds."""
    news, rows = RowNews(), {"a": in_op(0), "b": row(1)}
    said = [
        t for t in range(52) if news.take(rows, t * S // 10, longest_wait_ns(rows, t * S // 10))
    ]
    assert said == [0, 10, *range(15, 30), 39, 49]


def test_each_of_many_nodes_says_its_rows_less_often() -> None:
    """Half a millisecond for each process of the run, a tenth of a second at least: of 128 nodes
    with two processes each 128 ms."""
    news, ms = RowNews(), S // 1000
    assert news.due(0, nodes=128) and news.take({"a": row(0), "b": row(1)}, 0, 0)
    assert [news.due(t * ms, nodes=128) for t in (99, 127, 128)] == [False, False, True]
    assert [news.due(t * ms) for t in (99, 100)] == [False, True]
    news.force = True
    assert news.due(1, nodes=128)


def test_who_has_waited_longest() -> None:
    rows = {"a": in_op(0), "b": row(1), "gone": {**in_op(2), "alive": False}}
    rows["a"]["open_since_ns"] = 3 * S
    assert longest_wait_ns(rows, 5 * S) == 2 * S
    assert longest_wait_ns({"b": row(1)}, 5 * S) == 0


def test_the_dead_are_forgotten() -> None:
    still = Standstill()
    still.due({"a": in_op(0), "b": row(1)}, 0)
    assert still.due({"a": in_op(0), "b": row(1, alive=False)}, 3 * S) == ["a"]


def test_who_cannot_answer_is_looked_at_from_outside_at_once() -> None:
    now = 10 * S
    rows = {
        "a": row(0, heartbeat_ns=now), "gil": row(1, heartbeat_ns=now - S),
        "stopped": row(2, heartbeat_ns=now, os="T"),
    }  # fmt: skip
    assert silent(rows, list(rows), now) == ["gil", "stopped"]


def test_what_is_said_has_equal_stacks_together() -> None:
    said: list[Stall] = []
    outside = Thread("MainThread", True, (("c.py", 9, "hold"),), "gil")
    where = StackRequests(dump=lambda pid: (outside,))
    rows = {"a": row(0, heartbeat_ns=S), "b": row(1, heartbeat_ns=S), "c": row(2)}
    ask(where, -1, rows, {"a": 1, "b": 2, "c": 3}, said.append, S)
    frames = (("train.py", 5, "step"),)
    writes = (("save.py", 7, "run"),)
    for proc in ("a", "b"):
        threads = [Thread("MainThread", True, frames, "wait")]
        if proc == "b":
            idle = (("/usr/lib/python3.11/queue.py", 1, "get"),)
            threads += [Thread("writer", frames=writes), Thread("x", frames=idle)]
        where.answered(proc, Stacks(-1, tuple(threads)))
    wait_until(lambda: where.tick(S) or bool(said), 5, "the look from outside")
    (one,) = said
    assert one == Stall(
        S,
        (
            StallPart((0, 1), frames, {0: "wait", 1: "wait"},
                      {1: (threads[0], threads[1])}),
            StallPart((2,), outside.frames, {2: "gil"}),
        ),
        {0: "agent", 1: "agent", 2: "py-spy"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "waits"),
    [(("train.py", "/lib/asyncio/base_events.py", "/lib/selectors.py", "train.py"), True),
     (("train.py", "/lib/asyncio/runners.py", "train.py", "/lib/asyncio/threads.py"), True),
     (("train.py", "/lib/trio/_core/_io_epoll.py", "train.py"), True),
     (("train.py", "/lib/asyncio/base_events.py", "train.py"), False)],
)  # fmt: skip
@pytest.mark.parametrize("inside", ["op", ""])
def test_a_thread_in_an_op_speaks_where_the_main_threads_event_loop_waits(
    files: tuple[str, ...], waits: bool, inside: str
) -> None:
    """As one of asyncio.to_thread, in a backward too; not where a coroutine blocks the loop."""
    main = Thread("MainThread", True, tuple((file, 1, "f") for file in files))
    line = ("/torch/autograd/graph.py", 9, "_engine_run_backward")
    sums = Thread("asyncio_0", frames=(line if not inside else ("train.py", 9, "sums"),),
                  inside=inside)  # fmt: skip
    assert speaking([main, sums]) is (sums if waits else main)


def test_a_process_that_ends_is_seen_at_once_with_its_exit_code(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"],
                             stdin=subprocess.PIPE)  # fmt: skip
    ring = Ring.create(str(tmp_path / f"0.n0.{child.pid}.ring"), 64)
    ring.header(start_ns=1, wall_ns=1, rank=0, world_size=1, pid=child.pid, epoch=0)
    rings = Rings(tmp_path, Definitions())
    (proc,) = rings.scan()
    assert rings.left(5) == []
    assert child.stdin is not None
    child.stdin.close()
    found: list[str] = []
    wait_until(lambda: bool(found) or bool(found.extend(rings.left(5))), 10, "its end")
    assert found == [proc]
    assert (rings.mapped[proc].code, rings.mapped[proc].dead_ns) == (7, 5)
    assert child.wait() == 7
    rings.close(remove=False)


def test_the_exit_code_of_a_killed_child_is_its_signal() -> None:
    child = subprocess.Popen(["sleep", "60"])
    started = start_time(child.pid)
    assert exit_code(child.pid, started) is None  # it lives
    child.kill()
    wait_until(lambda: exit_code(child.pid, started) is not None, 10, "a zombie")
    assert exit_code(child.pid, started) == -9
    child.wait()
    assert exit_code(child.pid, started) is None  # reaped: too late


def test_the_kernels_letter_says_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    ring = Ring.create(str(tmp_path / f"0.n0.{child.pid}.ring"), 64)
    ring.header(start_ns=1, wall_ns=1, rank=0, world_size=1, pid=child.pid, epoch=0)
    rings = Rings(tmp_path, Definitions())
    (proc,) = rings.scan()
    os.kill(child.pid, 19)
    wait_until(
        lambda: not rings.died(time.monotonic_ns()) and rings.mapped[proc].os_state == "T",
        10, "the kernel's letter",
    )  # fmt: skip
    assert rings.rows(1)[proc]["os"] == "T"
    child.kill()
    child.wait()
    rings.close(remove=False)
