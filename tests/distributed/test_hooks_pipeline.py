"""All seven schedules of torch.distributed.pipelining on four real ranks, in one run."""

from __future__ import annotations

from functools import cache

import pytest
from torch.distributed.pipelining.schedules import _Action

from pardbg_agent.hooks.training.pipeline import texts
from pardbg_agent.schedule_orders import one_by_one, one_f_one_b
from pardbg_agent.wire import Flag, Kind
from tests.distributed.programs.watched import Rank, Record, assert_same_ops, run_watched
from tests.forked import Ended, Job, run_jobs
from tests.processes import Finished

# All jobs run one after the other in the first test that asks.
pytestmark = [pytest.mark.usefixtures("way"), pytest.mark.timeout(150)]
PROGRAM = "tests.distributed.programs.pipelines"
SCHEDULES = (
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
    "DualPipeV",
)  # fmt: skip


def ran(rank: Rank, step: int) -> list[str]:
    """Compute actions of a step in the order in which they began."""
    found = [r for r in rank.of(Kind.ACTION) if r.step == step and r.name in "FBIW"]
    return [r.text for r in sorted(found, key=lambda r: r.t0)]


def actions(rank: Rank) -> list[tuple[object, ...]]:
    """All of each action but its times."""
    found = sorted(rank.of(Kind.ACTION), key=lambda r: r.t0)
    return [(r.text, r.step, r.flags, r.group, r.seq, r.peer, r.a, r.b) for r in found]


ALL = Job("all", 4, (PROGRAM, ",".join(SCHEDULES), "2"))
JOBS = (
    ALL,
    Job("1F1B", 4, (PROGRAM, "1F1B", "2")),
    Job("no-optimizer", 4, (PROGRAM, "GPipe", "3"), {"OPTIMIZER": "0"}),
)


@cache
def watched(way: str) -> dict[str, tuple[Ended, dict[int, Rank]]]:
    return run_watched(JOBS)


def watched_run(way: str, name: str) -> tuple[Finished, dict[int, Rank]]:
    ended, ranks = watched(way)[name]
    assert ended.whole.code == 0, ended.err
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank in ranks.values():
        assert rank.defined("error") == []
    return ended.whole, ranks


def test_schedules_run_as_planned_with_the_same_losses(way: str) -> None:
    done, ranks = watched_run(way, "all")
    assert done.out == run_jobs([ALL])["all"].whole.out
    for number, rank in ranks.items():
        plans = rank.defined("plan")
        assert [plan["schedule"] for plan in plans] == [
            "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS",
            "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV",
        ]  # fmt: skip
        for turn, plan in enumerate(plans):
            for step in (2 * turn, 2 * turn + 1):
                assert ran(rank, step) == one_by_one(plan["order"][str(number)])
        assert [r.step for r in rank.of(Kind.PHASE, "pipeline")] == list(range(14))
        assert [r.step for r in rank.of(Kind.STEP)] == list(range(14))
        stages = {d["stage"] for d in rank.defined("stage")}
        assert {r.stage for r in rank.of(Kind.ACTION, "REDUCE_GRAD")} == stages


def test_a_pair_stays_one_entry_of_the_plan() -> None:
    """DualPipeV's OVERLAP_F_B: two actions that torch runs one after the other."""
    try:
        pair = _Action.from_str("(0F7;7B3)OVERLAP_F_B")
    except RuntimeError:
        pytest.skip("pairs came with torch 2.9")
    plan = texts([_Action.from_str("7F3"), pair, None, _Action.from_str("7SEND_B3")])
    assert plan == ["7F3", "(0F7;7B3)OVERLAP_F_B"]
    assert one_by_one(plan) == ["7F3", "0F7", "7B3"]


def test_one_f_one_b_by_hand(way: str) -> None:
    """p = 4, m = 8, activations of 2 x 16 float32 = 128 bytes per microbatch."""
    done, ranks = watched_run(way, "1F1B")
    for number, rank in ranks.items():
        (plan,) = rank.defined("plan")
        assert plan["source"] == "corrected"  # torch's own table has F1..F8 on the last stage
        assert (plan["num_stages"], plan["num_microbatches"], plan["num_virtual"]) == (4, 8, 1)
        assert ran(rank, 1) == one_f_one_b(number, 4, 8)
        _check_messages(number, rank)
        # sampled in step 1: the linear's input and tanh's output, 128 bytes each
        saved = [r.a for r in rank.of(Kind.ACTION, "F")]
        assert saved == [0] * 8 + [256] * 8
    printed = [float.fromhex(x.strip(" '")) for x in _losses(done)[0]]
    (first, _) = ranks[3].of(Kind.METRIC, "loss")
    assert first.a == pytest.approx(sum(printed) / 8)
    assert not ranks[0].of(Kind.METRIC, "loss")


def _losses(done: Finished) -> list[list[str]]:
    lines = [x for x in done.lines(3) if x.startswith("losses")]
    return [line.split("[")[1].rstrip("]").split(",") for line in lines]


def _check_messages(number: int, rank: Rank) -> None:
    """Each microbatch's activation comes from below and goes up, its gradient the other way."""
    labelled = [r for r in rank.of(Kind.OP_ISSUE) if r.mb >= 0 and r.step == 1]
    for send, below in ((False, True), (True, False), (True, True), (False, False)):
        peer = number - 1 if below else number + 1
        found = [r for r in labelled if _is(r, send, peer)]
        expected = list(range(8)) if 0 <= peer <= 3 else []
        assert [r.mb for r in found] == expected
        assert all(r.stage == number and r.a == r.b == 128 for r in found)
    waits = {(r.seq, r.flags & Flag.SEND) for r in rank.of(Kind.OP_DONE)}
    assert {(r.seq, r.flags & Flag.SEND) for r in labelled} <= waits


def _is(record: Record, send: bool, peer: int) -> bool:
    return bool(record.flags & Flag.SEND) == send and record.peer == peer


def test_without_an_optimizer_the_schedules_step_is_the_step(way: str) -> None:
    for rank in watched_run(way, "no-optimizer")[1].values():
        assert [r.step for r in rank.of(Kind.PHASE, "pipeline")] == [0, 1, 2]
        assert [r.step for r in rank.of(Kind.STEP)] == [0, 1]


def test_both_ways_hold_the_same_ops(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op for op, of each program: numbers, bytes, peers, steps, labels, and that they ended."""
    if way != "native":
        pytest.skip("compares with the native way")
    ways = [watched("native")]
    monkeypatch.setenv("PARDBG_HOOKS", "dispatcher")
    ways.insert(0, watched("dispatcher"))
    for name, (_, ranks) in ways[0].items():
        for rank, seen in ranks.items():
            other = ways[1][name][1][rank]
            assert_same_ops(other, seen)
            assert actions(other) == actions(seen), (name, rank)
            assert {r.name for r in other.records} == {r.name for r in seen.records}
            assert other.defined("process")[-1]["hooks"] == "native"
