"""Lives and roles: ranks that were started together, and what they are for."""

from __future__ import annotations

import json
import time

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.render.reports.text import text
from pardbg.store import Limits, Store, lives
from pardbg.store import store as stores
from pardbg.store.process import Process
from pardbg_agent import wire
from tests.unit.trace_builder import Proc, Trace, ns


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


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 0, 2, 1), (2, 1, 3, 0)])
def test_worlds_beside_each_other_are_lives_in_whatever_order_ranks_come(
    order: tuple[int, ...],
) -> None:
    """Two of two ranks each, told apart by their ports alone, that have begun to make groups."""
    trace = Trace(0, {"default": (0, 1)})
    procs = []
    for number in order:
        world, rank = divmod(number, 2)
        procs.append(started(trace, rank, f":host:{29500 + world}", 2, start=number))
        procs[-1].define(wire.DefKind.GROUP, id=9, key="calls.2", name="set-up", axis=None,
                         ranks=[0, 1], backend=wire.CALLS)  # fmt: skip
    store = trace.store()
    at = {number: store.procs[proc.proc].epoch for number, proc in zip(order, procs, strict=True)}
    assert at[0] == at[1] != at[2] == at[3]
    assert {g.epoch for p in store.procs.values() for g in p.groups.values()} == {*at.values()}


def test_ranks_that_call_their_meeting_place_by_several_names_are_one_life() -> None:
    """Of a job without torchrun, whose operator gives rank 0 ``localhost`` and others its name; an
    IPv6 address has colons of its own."""
    trace = Trace(0)
    for rank, at in enumerate(("localhost:2222", ":job-master-0:2222", ":fd00::7:2222")):
        steps_of(started(trace, rank, at, 3), 0, 2)
    assert rows(trace.store()) == []


@pytest.mark.parametrize("steps", [0, 2])
def test_what_ranks_run_beside_themselves_hides_none_of_them(steps: int) -> None:
    """Each runs a tool with its own environment, which looks like the rank started once more: with
    the rank in its first steps, or in a standstill before them."""
    trace = Trace(0)
    procs = [started(trace, rank, "none:host:29500", 2) for rank in range(2)]
    for proc in procs:
        proc.collective("world", "all_reduce", 1, 2)
        steps_of(proc, 2, steps)
    for rank in range(2):
        started(trace, rank, "none:host:29500", 2, start=3, program="tool.py")
    for proc in procs:
        proc.phase("forward", 8, 9)
        proc.flush()
    store = trace.store()
    assert {p.proc for p in View(store, None).ranks.values()} == {proc.proc for proc in procs}


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


def restarted(lives: int, *, ended: bool = True) -> Trace:
    """2 ranks, each life 3 steps; life 0 lost a record of each rank, all have their group."""
    trace = Trace(0, groups={"world": (0, 1)})
    for number in range(lives):
        begin = 10 * number
        for rank in range(2):
            proc = started(trace, rank, "id:host:1", 2, start=begin)
            proc.index += number == 0 and rank
            proc.group("world")
            steps_of(proc, begin, 1)
            proc.index += number == 0
            steps_of(proc, begin + 1, 2)
            if ended:
                trace.define_end(proc, begin + 5, "exit")
    return trace


def test_lives_that_have_ended_are_forgotten_but_for_their_ends() -> None:
    """40 lives of 2 ranks where 8 processes are kept: the newest 4 whole, of 36 their ends."""
    store = restarted(40).store(limits=Limits(None, 10**6, 10, 10, 10, processes=8))
    assert len(store.procs) == 8 and not store.refused and not store.malformed
    assert store.past.num_lives == 36
    assert {epoch for epoch, _ in store.groups} == {36, 37, 38, 39}
    assert rows(store) == [(f"life {n + 1}", (0, 1), 3) for n in range(40)]
    assert store.parts()[0].end_ns == ns(5)
    assert store.lost(None) == 2
    assert store.look_at(1) is False and store.look_at(37) is True
    found = {finding.kind for finding in findings(View(store, None))}
    assert "lives-forgotten" in found and "limit-reached" not in found


def test_what_a_forgotten_life_defined_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_GROUPS", 3)
    store = restarted(9).store()
    assert not store.refused and store.past.num_lives == 6
    assert {epoch for epoch, _ in store.groups} == {6, 7, 8}


def test_lives_that_have_not_ended_stay_and_the_limit_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "MAX_PROCS", 8)
    trace = restarted(6, ended=False)
    store = trace.store(limits=Limits(None, 10**6, 10, 10, 10, processes=8))
    assert len(store.procs) == 8 and store.refused["processes"] > 0
    assert "limit-reached" in {finding.kind for finding in findings(View(store, None))}


def test_many_lives_take_time_in_proportion() -> None:
    """A file of 16,384 processes, each a life, took minutes to draw."""

    def took(number: int) -> float:
        procs = {}
        for life in range(number):
            process = Process(f"{life}.n.1", None)
            process.rank, process.started_ns = life, life
            process.facts = {"program": f"p{life}"}
            procs[process.proc] = process
        begun = time.process_time()
        assert len(lives.parts(procs, lives.Past())) == lives.MAX_PARTS
        assert lives.shown(procs, None)[-1].rank == number - 1
        assert not lives.oldest_ended(procs)
        return time.process_time() - begun

    few, many = (min(took(number) for _ in range(3)) for number in (500, 8_000))
    assert many < 64 * few  # 16 times in proportion, 256 times by the square


def within(trace: Trace, rank: int, pid: int, *above: Proc, start: float = 0) -> Proc:
    """A rank, and the processes above it that the run knows."""
    proc = trace.process(None, pid=pid, start=start)
    proc.rank = rank
    names = [each.proc for each in above]
    proc.define(wire.DefKind.PROCESS, rank=rank, job="host:1", world_size=4, within=names)
    return proc


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (1, 3, 0, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("told_first", [True, False])
def test_a_launcher_with_ranks_environment_is_no_rank(
    told_first: bool, order: tuple[int, ...]
) -> None:
    """Two nodes' launchers, RANK 0 and 1 of 2, as pods have it; each starts two of four ranks."""
    trace = Trace(0)
    launchers = [trace.process(node, pid=10 + node) for node in range(2)]
    for launcher in launchers:
        launcher.name(wire.START_UP)
    said = [] if told_first else trace.messages[:]
    del trace.messages[: len(said)]
    for rank in order:
        proc = within(trace, rank, 100 + rank, launchers[rank // 2], start=1)
        proc.op("all_reduce")
        steps_of(proc, 1, 3)
    trace.messages += said
    store = trace.store()
    assert rows(store) == []
    assert {rank: of.pid for rank, of in store.rank_procs(None).items()} == {
        0: 100, 1: 101, 2: 102, 3: 103,
    }  # fmt: skip


def test_ranks_that_meet_again_with_other_numbers_are_no_other_life() -> None:
    """0 is gone, and the rest form a group without it, in the same processes."""
    trace = Trace(0)
    procs = [within(trace, rank, 100 + rank) for rank in range(4)]
    for proc in procs:
        proc.op("all_reduce")
        steps_of(proc, 1, 3)
    for proc in procs[1:]:
        proc.define(wire.DefKind.PROCESS, rank=(proc.rank or 0) - 1, job="host:1", world_size=3)
    store = trace.store()
    assert rows(store) == [] and len({process.epoch for process in store.procs.values()}) == 1


def test_children_that_inherited_one_rank_get_their_own() -> None:
    """mp.spawn's: RANK of the node is in each one's environment, the group says which it is."""
    trace = Trace(0)
    launcher = trace.process(0, pid=10)
    for rank in range(4):
        proc = within(trace, 0, 100 + rank, launcher, start=1)
        proc.define(wire.DefKind.PROCESS, rank=rank, job="host:1", world_size=4)
        steps_of(proc, 1, 3)
    store = trace.store()
    assert rows(store) == [] and sorted(store.rank_procs(None)) == [0, 1, 2, 3]


def test_a_process_that_started_a_rank_and_acts_as_one_is_one() -> None:
    """Its evaluation, say: it came first to a group of its own."""
    trace = Trace(1)
    (first,) = trace.ranks
    helper = within(trace, 0, 200, first, start=1)
    assert trace.store().rank_procs(None)[0].pid == 200
    first.collective("world", "all_reduce", 2, 3)
    first.flush()
    helper.flush()
    store = trace.store()
    assert store.procs[first.proc].rank == 0 and not store.procs[first.proc].launches


def test_a_rank_that_trains_stays_one_whatever_it_starts() -> None:
    trace = Trace(1)
    (first,) = trace.ranks
    first.phase("forward", 0, 1)
    first.flush()
    within(trace, 0, 200, first, start=1)
    assert trace.store().procs[first.proc].rank == 0


def test_a_restarted_job_that_ended_well_has_the_failure_of_its_first_life() -> None:
    """Both ranks of the first life raised; the second one ended well, and so did the job."""
    trace = Trace(0)
    for life_, start in enumerate((0, 100)):
        for rank in range(2):
            proc = started(trace, rank, "id:host:1", 2, start=start, epoch=life_)
            steps_of(proc, start, 3)
            if not life_:
                proc.define(
                    wire.DefKind.EXCEPTION,
                    t_ns=ns(50),
                    type="ValueError",
                    text="ValueError: no",
                    thread="MainThread",
                    frames=[],
                    step=2,
                )
            trace.define(wire.DefKind.END, proc=proc.proc, t_ns=ns(start + 60), reason="exit",
                         code=1 - life_)  # fmt: skip
    trace.end(200)
    store = trace.store()
    assert store.look_at(1)
    assert [(f.kind, f.severity) for f in snapshot(store, None).findings] == [
        ("exception", "error")
    ]
    assert store.look_at(2)
    assert [f.kind for f in snapshot(store, None).findings] == ["restarted"]
