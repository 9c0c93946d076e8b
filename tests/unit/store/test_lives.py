"""Lives and roles: ranks that were started together, and what they are for."""

from __future__ import annotations

import json

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.render.reports.text import text
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Proc, Trace


def started(
    trace: Trace, rank: int, job: str, world: int, *, start: float = 0, epoch: int = 0,
    program: str = "train.py",
) -> Proc:  # fmt: skip
    """A process that says its rank and job at once, as an agent does."""
    proc = trace.process(None, epoch=epoch, pid=100 + rank + int(10 * start), start=start)
    proc.rank = rank
    proc.define(
        wire.DefKind.PROCESS, rank=rank, job=job, world_size=world, epoch=epoch,
        argv=[f"/job/{program}", "--lr", "1"],
    )  # fmt: skip
    return proc


def life(trace: Trace, job: str, ranks: int, start: float, steps: int) -> None:
    """Ranks that each make steps of 1 ms from ``start`` on; jobs are told apart by their name."""
    for rank in range(ranks):
        steps_of(started(trace, rank, job, ranks, start=start), start, steps)


def steps_of(proc: Proc, start: float, number: int) -> None:
    for step in range(number):
        proc.step(step, start + step, start + step + 1)
    proc.flush()


def rows(store: Store) -> list[tuple[str, tuple[int, ...], int]]:
    return [(part.name, part.ranks, part.num_steps) for part in store.parts()]


def test_one_life_of_one_role_has_no_parts() -> None:
    trace = Trace(0)
    life(trace, "none:host:29500", 2, 0, 4)
    store = trace.store()
    assert store.parts() == () and store.look_at(1) is False
    assert "Parts" not in text(report(store))


def test_a_smaller_second_launch_does_not_keep_ranks_of_the_first() -> None:
    """3 ranks and 2 steps, then 2 ranks and 5 steps; torchrun gives each launch an id."""
    trace = Trace(0)
    life(trace, "id-a:host:1", 3, 0, 2)
    life(trace, "id-b:host:2", 2, 10, 5)
    store = trace.store()
    assert rows(store) == [("life 1", (0, 1, 2), 2), ("life 2", (0, 1), 5)]
    assert [row.rank for row in snapshot(store, None).ranks] == [0, 1]
    assert len(snapshot(store, None).steps) == 5
    assert store.look_at(1)
    first = report(store)
    assert [row.now.rank for row in first.ranks] == [0, 1, 2] and len(first.steps) == 2
    assert first.duration_ns == 2_000_000, "of its own begin and end"
    shown = [part["shown"] for part in json.loads(json.dumps(as_json(first)))["parts"]]
    assert shown == [True, False]
    assert store.look_at(None) and report(store).part == 2


def test_the_same_port_twice_is_two_lives() -> None:
    """Without a run id, a rank that comes again is another life."""
    trace = Trace(0)
    life(trace, "none:host:29500", 2, 0, 3)
    life(trace, "none:host:29500", 2, 10, 1)
    assert rows(trace.store()) == [("life 1", (0, 1), 3), ("life 2", (0, 1), 1)]


def test_nodes_that_count_restarts_differently_are_one_life() -> None:
    """torchelastic counts a restart only on the node that failed: rank 1's epoch stays 0."""
    trace = Trace(0)
    life(trace, "id:host:1", 2, 0, 3)
    for rank, epoch in ((0, 1), (1, 0)):
        steps_of(started(trace, rank, "id:host:1", 2, start=10, epoch=epoch), 10, 4)
    store = trace.store()
    assert rows(store) == [("life 1", (0, 1), 3), ("life 2", (0, 1), 4)]
    assert sorted(process.pid for process in store.rank_procs(None).values()) == [200, 201]


def test_processes_that_help_do_not_hide_who_trains() -> None:
    """A checkpoint's writers are ranks of a group of their own while the training goes on."""
    trace = Trace(0)
    life(trace, "none:host:1", 2, 0, 9)
    life(trace, "none:host:2", 2, 3, 0)
    assert len(snapshot(trace.store(), None).steps) == 9


def test_who_steps_and_who_serves_are_roles() -> None:
    trace = Trace(0)
    procs = [started(trace, rank, "id:host:1", 3) for rank in range(3)]
    for proc in procs:
        steps_of(proc, 0, 0 if proc.rank == 0 else 4)
    trace.groups["world"] = (0, 1, 2)
    for proc in procs:
        proc.collective("world", "all_reduce", 5, 6)
        proc.flush()
    store = trace.store()
    assert rows(store) == [("rank 0: no optimizer", (0,), 0), ("ranks 1,2: optimizer", (1, 2), 4)]
    assert [row.rank for row in snapshot(store, None).ranks] == [0, 1, 2], "all, unless one chose"
    store.look_at(2)
    chosen = snapshot(store, None)
    assert [row.rank for row in chosen.ranks] == [1, 2]
    assert [row.detail for row in chosen.collectives] == ["rank 0 of another role"]
    assert "unseen-rank" not in {finding.kind for finding in chosen.findings}


def test_programs_are_roles() -> None:
    trace = Trace(0)
    for rank, program in enumerate(("player.py", "learner.py")):
        steps_of(started(trace, rank, "id:host:1", 2, program=program), 0, 3)
    assert rows(trace.store()) == [("rank 0: player.py", (0,), 3), ("rank 1: learner.py", (1,), 3)]
