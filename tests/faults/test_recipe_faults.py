"""Each planted fault does what its file says, in the program's own words, and ends by itself."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from pardbg.lab.recipes.catalogue import RECIPES, Kind
from tests.faults.programs.plan import RANK, SIZES, STEP
from tests.forked import Ended, Job, run_jobs
from tests.processes import rank_env, run_argv

STEPS = 6
# One process imports torch and forks all ranks, in the first test that asks.
pytestmark = pytest.mark.timeout(150)

WORDS = ("--steps", str(STEPS), "--fault-step", str(STEP))
PLAIN = ("--pace", "0", "--timeout-s", "6")
"""After which gloo gives up: far beyond what a healthy op takes while so many ranks share a CPU."""
JOBS = {
    "missing-rank": (3, "1"), "mismatch-op": (3, "2"), "mismatch-shape": (3, "1"),
    "mismatch-root": (3, "2"), "group-order": (3, "0"), "p2p-cycle": (4, "1", "--fault-size", "2"),
    "unpaired-send": (3, "1"), "unpaired-recv": (3, "2"), "exception": (3, "2"), "kill": (3, "1"),
}  # fmt: skip
"""The faults that end the job: ranks, faulty rank."""
IN_TURN = Job("in-turn", 4, ("tests.faults.programs.in_turn", "--pace", "0", "--steps", str(STEPS)))


@pytest.fixture(scope="module")
def jobs() -> dict[str, Ended]:
    fatal = [
        Job(f"fault:{name}", ranks,
            ("pardbg.lab.recipes.faults", f"fault:{name}", *PLAIN, *WORDS, "--fault-rank", *words))
        for name, (ranks, *words) in JOBS.items()
    ]  # fmt: skip
    return run_jobs([IN_TURN, *fatal], at_once=1 + len(fatal))


def trained(job: Ended) -> list[float]:
    """The losses that rank 0 printed."""
    return [float(x) for x in re.findall(r"step \d+ loss (\S+)", job.out[0])]


def stood(job: Ended, rank: int) -> str:
    """The line of the recipe that the rank's traceback ends in."""
    lines = job.err[rank].splitlines()
    at = max(i for i, x in enumerate(lines) if "recipes/faults" in x and "__main__" not in x)
    return lines[at + 1].strip()


def test_no_fault_is_left_out() -> None:
    faults = {name for name, recipe in RECIPES.items() if recipe.kind is Kind.FAULT}
    assert {f"fault:{name}" for name in (*JOBS, *SIZES)} == faults


# ----------------------------------------------------------------------- those that end the job


@pytest.mark.parametrize("name", JOBS)
def test_the_job_trains_until_the_fault_and_fails(name: str, jobs: dict[str, Ended]) -> None:
    job = jobs[f"fault:{name}"]
    assert 0 not in job.codes
    assert len(trained(job)) == STEP
    assert trained(job) == pytest.approx(healthy(jobs)[:STEP], rel=0.2)  # another world size


@pytest.mark.parametrize(
    ("name", "faulty", "others"),
    [
        ("mismatch-op", "dist.reduce(mean, dst=0)", "dist.all_reduce(mean)"),
        ("group-order", "dist.all_reduce(right, group=self.guesses)", "group=self.losses)"),
        ("unpaired-send", "dist.send(", "report_mean("),
        ("unpaired-recv", "dist.recv(", "report_mean("),
        ("exception", "self.replica(tokens)", "backward()"),
    ],
)
def test_ranks_stand_where_the_fault_says(
    name: str, faulty: str, others: str, jobs: dict[str, Ended]
) -> None:
    job, rank = jobs[f"fault:{name}"], int(JOBS[name][1])
    for r in range(len(job.codes)):
        assert (faulty if r == rank else others) in stood(job, r), (r, job.err[r])


def test_the_missing_rank_waits_for_ever_and_the_others_give_up(jobs: dict[str, Ended]) -> None:
    job = jobs["fault:missing-rank"]
    assert job.codes == (1, -15, 1)  # the launcher ends the one that sleeps
    assert job.err[1] == ""
    for rank in (0, 2):
        assert "report_mean" in stood(job, rank) and "RuntimeError" in job.err[rank]


def test_a_ring_of_two_deadlocks_and_the_others_wait_for_it(jobs: dict[str, Ended]) -> None:
    job = jobs["fault:p2p-cycle"]
    for rank in (1, 2):
        assert "dist.recv(" in stood(job, rank) and "in recv" in job.err[rank], job.err[rank]
    for rank in (0, 3):
        assert "report_mean(step, total)" in stood(job, rank)


def test_what_the_rank_raises_and_how_it_is_killed(jobs: dict[str, Ended]) -> None:
    assert "IndexError: index out of range" in jobs["fault:exception"].err[2]
    assert jobs["fault:kill"].codes[1] == -9 and jobs["fault:kill"].err[1] == ""


def test_a_wrong_size_kills_a_rank_that_is_right(jobs: dict[str, Ended]) -> None:
    """Gloo aborts whoever receives more than it expects: the culprit, or whom it sends to."""
    assert -6 in jobs["fault:mismatch-shape"].codes


# --------------------------------------------------------------- those that let the training go on


def part(jobs: dict[str, Ended], name: str, rank: int) -> str:
    """What a rank printed during one of the programs that ran in turn."""
    job = jobs["in-turn"]
    assert job.codes == (0, 0, 0, 0), "\n".join(job.err)
    parts = re.split(r"\[rank\d\] begins (\S+)\n", job.out[rank])
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


def losses(jobs: dict[str, Ended], name: str) -> list[float]:
    found = [re.findall(r"step \d+ loss (\S+)", part(jobs, name, rank)) for rank in range(4)]
    assert len(max(found, key=len)) == STEPS
    return [float(text) for text in max(found, key=len)]


def healthy(jobs: dict[str, Ended]) -> list[float]:
    return losses(jobs, "ddp")


def said(jobs: dict[str, Ended], name: str, pattern: str) -> list[int]:
    """The number each rank says."""
    found = [re.search(pattern, part(jobs, name, rank)) for rank in range(4)]
    assert all(found), pattern
    return [int(match[1]) for match in found if match is not None]


@pytest.mark.parametrize(
    "name",
    ["straggler", "slow-loader", "slow-link", "gil-hold", "memory-creep", "memory-imbalance",
     "exposed-comm", "small-messages", "stage-imbalance"],
)  # fmt: skip
def test_what_only_costs_time_or_memory_trains_as_ever(name: str, jobs: dict[str, Ended]) -> None:
    assert losses(jobs, f"fault:{name}") == pytest.approx(healthy(jobs), rel=1e-5)


def test_one_ranks_nan_becomes_everybodys(jobs: dict[str, Ended]) -> None:
    found = losses(jobs, "fault:nan")
    assert found[:STEP] == pytest.approx(healthy(jobs)[:STEP], rel=1e-5)
    assert all(math.isnan(loss) for loss in found[STEP:])


def test_a_replica_that_drifts_changes_the_losses_from_the_next_step_on(
    jobs: dict[str, Ended],
) -> None:
    found, right = losses(jobs, "fault:diverge"), healthy(jobs)
    assert found[: STEP + 1] == right[: STEP + 1]
    assert all(a != b for a, b in zip(found[STEP + 1 :], right[STEP + 1 :], strict=True))


def test_a_wrong_dtype_is_silent_and_makes_the_mean_a_third_too_large(
    jobs: dict[str, Ended],
) -> None:
    # 3 of 4 ranks' tokens are counted: 256 as int32 is next to nothing as float32. Not exactly
    # nothing: added as an integer to the bits of 256.0 it makes 256.008.
    found, right = losses(jobs, "fault:mismatch-dtype"), healthy(jobs)
    assert found[:STEP] == pytest.approx(right[:STEP], rel=1e-5)
    assert found[STEP:] == pytest.approx([4 / 3 * loss for loss in right[STEP:]], rel=1e-4)


def test_one_rank_is_slow(jobs: dict[str, Ended]) -> None:
    """What is asked of sleep: three steps of 30 ms more; three batches of 20 ms more."""
    assert said(jobs, "fault:straggler", r"slept (\d+) ms") == [0, 90, 0, 0]
    assert said(jobs, "fault:slow-loader", r"slept (\d+) ms") == [0, 60, 0, 0]
    assert said(jobs, "ddp", r"slept (\d+) ms") == [0, 0, 0, 0]


def test_a_held_gil_stops_every_other_thread_of_the_rank(jobs: dict[str, Ended]) -> None:
    assert said(jobs, "fault:gil-hold", r"silent (\d+) ms")[RANK] >= 300


def test_one_rank_keeps_what_it_does_not_need(jobs: dict[str, Ended]) -> None:
    # Three steps' outputs, [4, 64, 256] float32 each, and 8 MiB beside them.
    mib = 2**20
    creep = 3 * (4 * 64 * 256 * 4 + 8 * mib)
    assert said(jobs, "fault:memory-creep", r"kept (\d+) bytes") == [0, creep, 0, 0]
    assert said(jobs, "fault:memory-imbalance", r"kept (\d+) bytes") == [0, 64 * mib, 0, 0]


def test_one_connection_is_paced(jobs: dict[str, Ended]) -> None:
    paced = [re.search(r"paced (.*)", part(jobs, "fault:slow-link", rank)) for rank in range(4)]
    assert [match and match[1] for match in paced] == ["[]", "[500000000]", "[]", "[]"]


# ------------------------------------------------------------------------------- as a user runs it


def test_a_hanging_demo_ends_by_itself(tmp_path: Path) -> None:
    """The autouse fixture of this directory looks for processes that are left."""
    words = ["fault:missing-rank", "--nproc", "2", *WORDS, "--timeout-s", "3", "--fault-rank", "1"]
    argv = [sys.executable, "-m", "pardbg.cli", "demo", *words, "-o", str(tmp_path / "s.mcap")]
    seen = run_argv(argv, env=rank_env(), timeout_s=60)
    assert not seen.timed_out
    assert seen.code == 1
    assert "exit code 1" in seen.out and "rank 1" in seen.out
