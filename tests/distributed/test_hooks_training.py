"""DDP, FSDP2, tensor parallelism, ZeRO and more on two real ranks: the same losses, and what the
rings hold beside what was worked out by hand."""

from __future__ import annotations

from functools import cache

import pytest

from pardbg_agent.wire import Flag, Kind
from tests.distributed.programs.watched import Rank, assert_same_ops, run_watched
from tests.forked import Ended, Job, run_jobs

# All programs run one after the other in the first test that asks, watched and plain.
pytestmark = [pytest.mark.usefixtures("way"), pytest.mark.timeout(150)]
PROGRAMS = "tests.distributed.programs"
STRANGE = {
    "backwards": 2, "mode": 9, "kernel": 8, "transforms": 12, "inference": 6, "recomputed": 6,
    "comm hooks": 8, "caught": 4,
}  # fmt: skip
"""Kinds of programs, and how many ops each one's ranks issue."""
JOBS = (
    Job("ddp", 2, (f"{PROGRAMS}.ddp",)),
    *(Job(name, 2, (f"{PROGRAMS}.sharded", name))
      for name in ("fsdp", "tp", "zero", "accumulate", "mixed", "join")),
    *(Job(name, 2, (f"{PROGRAMS}.strange", name)) for name in STRANGE),
)  # fmt: skip
SECOND_NS = 1_000_000_000


@cache
def plain() -> dict[str, Ended]:
    return run_jobs(JOBS)


@cache
def watched(way: str) -> dict[str, tuple[Ended, dict[int, Rank]]]:
    return run_watched(JOBS)


def both(way: str, name: str) -> dict[int, Rank]:
    """What the rings of a program hold; its output is to the bit that of the plain program."""
    seen, ranks = watched(way)[name]
    assert (seen.whole.code, plain()[name].whole.code) == (0, 0), seen.err
    assert seen.out == plain()[name].out and all(seen.out)
    assert sorted(ranks) == [0, 1]
    for rank in ranks.values():
        assert rank.defined("error") == []
        _numbers_have_no_gap(rank)
    return ranks


def _numbers_have_no_gap(rank: Rank) -> None:
    issued = rank.of(Kind.OP_ISSUE)
    for kind in {(r.group, r.flags & Flag.P2P) for r in issued}:
        found = [r.seq for r in issued if (r.group, r.flags & Flag.P2P) == kind]
        assert sorted(found) == list(range(len(found)))


def test_ddp(way: str) -> None:
    """577 float32 parameters are 2308 bytes: DDP reduces them in one bucket, from C++."""
    for rank in both(way, "ddp").values():
        reduces = rank.of(Kind.OP_ISSUE, "all_reduce")
        assert [(r.step, r.a, r.b) for r in reduces] == [(s, 2308, 2308) for s in range(4)]
        done = rank.of(Kind.OP_DONE, "all_reduce")
        assert [r.seq for r in done] == [r.seq for r in reduces]
        backwards = {r.step: r for r in rank.of(Kind.PHASE, "backward")}
        for r in done:  # the reducer waits for its buckets inside the backward
            span = backwards[r.step]
            assert span.t0 < r.t0 < span.t1 and r.t0 < r.t1 <= span.t1 + SECOND_NS
            assert r.flags & (Flag.DONE_COMPLETED | Flag.DONE_WAITED)
        for step in range(4):
            order = sorted((r for r in rank.of(Kind.PHASE) if r.step == step), key=lambda r: r.t0)
            assert [r.name for r in order] == ["data", "forward", "backward", "optimizer"]
        assert [r.step for r in rank.of(Kind.STEP)] == [0, 1, 2, 3]
        assert [r.step for r in rank.of(Kind.METRIC, "loss")] == [0, 1, 2, 3]
        # x 8x16 (512 bytes) and relu's output 8x32 (1024), sampled in steps 1 and 2
        kept = [(r.step, r.a) for r in rank.of(Kind.MEMORY, "activations")]
        assert kept == [(1, 1536), (2, 1536)]


def test_fsdp(way: str) -> None:
    """1072 parameters, half of them on each rank; AdamW keeps two of each and 4 step counts."""
    for rank in both(way, "fsdp").values():
        (model,) = rank.defined("model")
        assert (model["zero"], model["shards"], model["parameters_bytes"]) == (3, 2, 4288)
        found = {r.name: r.a for r in rank.of(Kind.MEMORY) if r.step == 0}
        assert (found["parameters"], found["gradients"]) == (2144, 2144)
        assert found["optimizer"] == 2 * 2144 + 4 * 4
        # two units, unsharded in forward and again in backward: four all_gathers a step
        names = [r.name for r in rank.of(Kind.OP_ISSUE) if r.step == 1]
        assert (names.count("all_gather"), names.count("reduce_scatter")) == (4, 2)
        assert {r.a for r in rank.of(Kind.FSDP, "0 unshard")} == {(16 * 32 + 32) * 4}
        assert [r.step for r in rank.of(Kind.PHASE, "forward")] == [0, 1, 2]
        assert not any(r.flags & Flag.INFERRED for r in rank.of(Kind.PHASE, "forward"))


def test_tensor_parallel(way: str) -> None:
    """The row-parallel layer reduces its 8 x 16 output (512 bytes); DTensor waits in C++."""
    for rank in both(way, "tp").values():
        assert rank.defined("group")[-1]["axis"] == "tp"
        reduces = rank.of(Kind.OP_ISSUE, "all_reduce")
        assert [(r.step, r.group, r.a) for r in reduces] == [(s, "tp", 512) for s in range(3)]
        waited = [r.seq for r in rank.of(Kind.WAIT, "all_reduce")]
        assert set(waited) <= {r.seq for r in reduces}
        assert [r.seq for r in rank.of(Kind.OP_DONE, "all_reduce")] == [r.seq for r in reduces]


def test_zero_redundancy(way: str) -> None:
    """Each rank keeps the state of its own parameters; together 2 x 4288 and 4 step counts."""
    ranks = both(way, "zero")
    assert [r.defined("model")[0]["zero"] for r in ranks.values()] == [1, 1]
    state = [r.of(Kind.MEMORY, "optimizer")[0].a for r in ranks.values()]
    assert sum(state) == 2 * 4288 + 4 * 4
    assert all([r.step for r in rank.of(Kind.STEP)] == [0, 1, 2] for rank in ranks.values())


def test_accumulation(way: str) -> None:
    for rank in both(way, "accumulate").values():
        steps = [r.step for r in rank.of(Kind.PHASE, "backward")]
        assert steps == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_joined_rank_counts_the_steps_it_takes_part_in(way: str) -> None:
    """Rank 1 has one batch of three, twice; its own averages are those of the others' steps."""
    for rank, has in zip(both(way, "join").values(), ([0, 1, 2, 3, 4, 5], [0, 3]), strict=True):
        assert [r.step for r in rank.of(Kind.STEP)] == [0, 1, 2, 3, 4, 5]
        assert [r.step for r in rank.of(Kind.PHASE, "backward")] == has
        averages = [r.step for r in rank.of(Kind.OP_ISSUE, "all_reduce") if r.a == 4288]
        assert averages == [0, 1, 2, 3, 4, 5]


def test_threads_groups_and_two_optimizers(way: str) -> None:
    for rank in both(way, "mixed").values():
        groups = {d["name"]: d for d in rank.defined("group")}
        assert len(groups) == 2
        (side,) = [name for name in groups if name != "default"]
        assert len([r for r in rank.of(Kind.OP_ISSUE) if r.group == side]) == 5
        assert len([r for r in rank.of(Kind.OP_ISSUE) if r.group == "default"]) == 3
        done = [r for r in rank.of(Kind.OP_DONE) if r.group == "default"]
        assert [r.seq for r in sorted(done, key=lambda r: r.seq)] == [0, 1, 2]


@pytest.mark.parametrize("name", STRANGE)
def test_programs_that_reach_torch_by_ways_of_their_own(way: str, name: str) -> None:
    """DDP gathers its parameters' shapes and broadcasts them, and its buckets after the first step,
    each with the bytes before the contents; then it is a sum a step: 8 ops in three steps."""
    for rank in both(way, name).values():
        assert len(rank.of(Kind.OP_ISSUE)) == STRANGE[name]


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
            steps = name not in ("mixed", "backwards")
            assert_same_ops(other, seen, steps)
            if name != "backwards":  # which of two threads' phases are inferred is chance
                assert {r.name for r in other.records} == {r.name for r in seen.records}
            assert other.defined("process")[-1]["hooks"] == "native"
