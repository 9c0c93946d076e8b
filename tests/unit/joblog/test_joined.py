"""A log and Flight Recorder dumps of one job, explained together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pardbg.analysis.answers.report import report
from pardbg.analysis.findings.kinds.end_kinds import LOGGED
from pardbg.doors.explained import explained
from pardbg.joblog.conclusion import Conclusion
from pardbg.joblog.words import KINDS
from pardbg.session.reader import load
from tests.unit.joblog.dumps import START_NS, write

SUM, LARGER, SHARE = ("all_reduce", 64), ("all_reduce", 65), ("broadcast", 64)


def timeout(rank: int, seq: int = 6, op: str = "ALLREDUCE", numel: int = 64) -> str:
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}"
    return (
        f"[rank{rank}]:[Rank {rank}] Watchdog caught collective operation timeout: {work}, "
        "Timeout(ms)=12000) ran for 12082 milliseconds before timing out.\n"
        f"[rank{rank}]:[PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at "
        f"work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: "
        f"{seq - 1}\n"
    )


def judged(folder: Path, text: str) -> tuple[Conclusion, ...]:
    (folder / "job.log").write_text(text)
    return explained([str(folder)]).verdict.conclusions


def test_a_silent_rank_is_behind_by_its_dump(tmp_path: Path) -> None:
    """The log alone: rank 1 says nothing. Its dump ends at #5, issued at line 15."""
    write(tmp_path, 0, [SUM] * 6, 5)
    write(tmp_path, 1, [SUM] * 5, 5)
    [one] = judged(tmp_path, timeout(0))
    assert (one.kind, one.culprits, one.ranks) == ("missing-rank", (1,), (0,))
    assert (one.fact("last"), one.fact("line"), one.place) == (5, 15, ("/home/u/bad.py", 16,
                                                                      "forward_pass"))  # fmt: skip


@pytest.mark.parametrize(("odd", "culprits"), [(LARGER, (2,)), (SHARE, (2,))])
def test_ranks_that_disagree_are_told_by_dumps(
    tmp_path: Path, odd: tuple[str, int], culprits: tuple[int, ...]
) -> None:
    for rank in range(3):
        write(tmp_path, rank, [SUM] * 5 + [odd if rank == 2 else SUM], 5, "[0, 1, 2]")
    [one] = judged(tmp_path, timeout(0) + timeout(1))
    assert (one.kind, one.culprits, one.ranks) == ("mismatch", culprits, (0, 1, 2))


def test_what_dumps_leave_open_stands(tmp_path: Path) -> None:
    """By the log rank 2 disagrees with two others; dumps of one of each side cannot tell."""
    for rank, last in ((0, SUM), (2, LARGER)):
        write(tmp_path, rank, [SUM] * 5 + [last], 5, "[0, 1, 2]")
    [one] = judged(tmp_path, timeout(0) + timeout(1) + timeout(2, numel=65))
    assert (one.kind, one.culprits) == ("mismatch", (2,))


def test_a_log_in_json_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text('{"msg": "' + "x" * 400 + '", "entries": []}\n')
    assert explained([str(tmp_path)]).dumps == {}


def test_all_ranks_are_in_the_op(tmp_path: Path) -> None:
    write(tmp_path, 0, [SUM] * 6, 5)
    write(tmp_path, 1, [SUM] * 7, 5)
    [one] = judged(tmp_path, timeout(0))
    assert (one.kind, one.culprits, one.ranks) == ("stuck-op", (), (0, 1))


@pytest.mark.parametrize("ops", [[SUM] * 4, [SUM] * 5 + [SHARE]])
def test_a_dump_of_another_attempt_is_not_used(tmp_path: Path, ops: list[tuple[str, int]]) -> None:
    write(tmp_path, 0, ops, 4)
    write(tmp_path, 1, [SUM] * 5, 5)
    wait, note = judged(tmp_path, timeout(0))
    assert (wait.kind, wait.culprits) == ("stuck-op", ())
    assert (note.kind, note.ranks) == ("dump-unfit", (0,))


def test_a_log_that_dumps_contradict(tmp_path: Path) -> None:
    """By the log rank 1 had issued #5; by its dump, #6."""
    for rank in (0, 1):
        write(tmp_path, rank, [SUM] * 6, 5)
    dump = (
        "[rank1]:[PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective "
        "timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL "
        "work: 5, last completed NCCL work: 5.\n"
    )
    wait, note = judged(tmp_path, timeout(0) + dump)
    assert (wait.kind, wait.culprits) == ("missing-rank", (1,))
    assert (note.kind, note.culprits, note.ranks, note.seq) == ("dump-disagrees", (), (1,), 6)


def test_a_session_of_log_and_dumps(tmp_path: Path) -> None:
    """The log says which rank raised; the dumps' ops, what the other one waits in."""
    for path in (write(tmp_path, 0, [SUM] * 6, 5), write(tmp_path, 1, [SUM] * 5, 5)):
        os.utime(path, ns=(START_NS, START_NS + 60 * 10**9))
    raised = '[rank1]:Traceback (most recent call last):\n[rank1]:  File "t.py", line 3, in f\n'
    (tmp_path / "job.log").write_text(f"{raised}[rank1]:KeyError: 'x'\n" + timeout(0))
    found = explained([str(tmp_path)])
    found.write(tmp_path.parent / "s.mcap")
    told = report(load(tmp_path.parent / "s.mcap"))
    assert {(one.kind, one.severity, one.culprits) for one in told.findings[:3]} == {
        ("log-exception", "error", (1,)),
        ("missing-rank", "info", (1,)),
        ("log-missing-rank", "info", (1,)),
    }
    assert len(told.ranks) == 2


def test_each_conclusion_is_a_kind_of_finding() -> None:
    assert set(LOGGED) == KINDS.keys()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pardbg", "explain", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_command_line(tmp_path: Path) -> None:
    log, output = tmp_path / "job.log", tmp_path / "s.mcap"
    log.write_text(timeout(0))
    dump = write(tmp_path, 1, [SUM] * 5, 5)
    made = run(str(log), str(dump), "-o", str(output), "--json")
    told = json.loads(made.stdout)
    assert (made.returncode, told["dumps"], told["findings"][0]["culprits"]) == (0, [1], [1])
    assert output.exists()
    dump.write_bytes(dump.read_bytes()[:200])
    healthy = tmp_path / "healthy.log"
    healthy.write_text("step 1\n")
    wrong = ([str(log), str(dump)], [str(log), "-o", str(output)], [str(log), "--show"],
             [str(healthy), "-o", str(tmp_path / "none.mcap")])  # fmt: skip
    for words in wrong:
        refused = run(*words)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), words
    assert not (tmp_path / "none.mcap").exists()
