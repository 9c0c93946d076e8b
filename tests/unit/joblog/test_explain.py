"""Incidents of every kind, in every style of log."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from pardbg.errors import UserError
from pardbg.joblog.patterns import NEEDLES, PATTERNS
from pardbg.joblog.scan import read
from pardbg.joblog.verdict import judge
from pardbg.joblog.words import KINDS
from tests.unit.joblog.incidents import ALL, STYLES, written

CASES = [(make, style, seed) for make in ALL for seed, style in enumerate(STYLES)]


@pytest.mark.parametrize(("make", "style", "seed"), CASES,
                         ids=[f"{m.__name__}-{s}" for m, s, _ in CASES])  # fmt: skip
def test_incident(make, style: str, seed: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(f"{make.__name__}{seed}")
    made = make(rng, rng.choice((3, 4, 8)))
    (tmp_path / "job.log").write_text(written(made, style, rng))
    verdict = judge(read([str(tmp_path / "job.log")]))
    causes = [one for one in verdict.conclusions if not one.follows]
    assert [(one.kind, one.culprits) for one in causes] == [(made.kind, made.culprits)]
    assert not verdict.unknown


def _printed() -> list[tuple[str, str]]:
    rows = (Path(__file__).parent / "lines.txt").read_text().splitlines()[1:]
    return [(row.split("\t")[0], row.split("\t", 2)[2]) for row in rows]


@pytest.mark.parametrize(("name", "line"), _printed())
def test_a_line_is_known_by_its_pattern(name: str, line: str) -> None:
    """A needle is in it, so that the scanner stops there, and no row before knows it."""
    matching = [one for one in PATTERNS if one.regex.search(line)]
    assert matching and matching[0].name == name
    assert any(needle in line.encode() for needle in NEEDLES)


def test_every_pattern_has_a_line() -> None:
    assert {name for name, _ in _printed()} == {one.name for one in PATTERNS}


HEALTHY = """[default0]:step 1 loss 6.52 lr 3e-4 Error: 0 errors
[default1]:UserWarning: the collective API is deprecated
[rank0]:[W1125 03:44:59.1 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0
[default0]:watchdog interval 100 ms
host:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 commId 0x1 - Init START
host:1:3 [1] NCCL INFO comm 0x6 rank 1 nranks 2 cudaDev 1 commId 0x1 - Init START
host:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 commId 0x1 - Init COMPLETE
host:1:3 [1] NCCL INFO comm 0x6 rank 1 nranks 2 cudaDev 1 commId 0x1 - Init COMPLETE
INFO: retry 3: connection timed out, will try again
training done
"""


def test_warnings_of_nccl_are_noted(tmp_path: Path) -> None:
    said = "graph/xml.h:85 NCCL WARN Attribute busid of node nic not found"
    lines = [f"n0:98{rank}:12 [{rank}] {said}" for rank in (0, 1)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    [noted] = judge(read([str(tmp_path / "job.log")])).conclusions
    assert (noted.kind, noted.follows, noted.fact("num")) == ("nccl-warning", True, 2)


def test_an_xid_of_a_program_that_ends_follows_from_its_exception(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "KeyError: 'x'",
             "NVRM: Xid (PCI:0000:3b:00): 45, pid=99, Ch 00000010"]  # fmt: skip
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    first, then = judge(read([str(tmp_path / "job.log")])).conclusions
    assert (first.kind, then.kind, then.follows) == ("exception", "program-fault", True)


CAUGHT = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "KeyError: 'x'"]


@pytest.mark.parametrize(("later", "kind"), [
    (["step 2"] * 60, "exception-logged"),
    (["step 2"] * 9, "exception"),  # other ranks' output until they wait
    (["srun: error: n1: task 3: Exited with exit code 1"] + ["step 2"] * 60, "exception"),
])  # fmt: skip
def test_an_exception_behind_which_the_log_goes_on(
    later: list[str], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("\n".join([*CAUGHT, *later]) + "\n")
    first = judge(read([str(tmp_path / "job.log")])).conclusions[0]
    assert (first.kind, first.fact("type")) == (kind, "KeyError")


@pytest.mark.parametrize("prefix", [
    "2026-11-30T05:44:01.123456789Z ", "[2026-11-30 05:44:01,123] ", "2026-11-30 05:44:01,123 - ",
    "2026-11-30 05:44:01 ", "Nov 30 05:44:01 node7 torchrun[42]: ",
])  # fmt: skip
def test_times_leave_a_traceback_its_indentation(prefix: str, tmp_path: Path) -> None:
    frame = '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/m.py", line 9, in f'
    whole = [CAUGHT[0], frame, "    x = y[", *[frame, "    return f("] * 6, *CAUGHT[1:]]
    (tmp_path / "job.log").write_text("".join(f"{prefix}{line}\n" for line in whole))
    [one] = judge(read([str(tmp_path / "job.log")])).conclusions
    assert (one.fact("type"), one.fact("text"), one.fact("line")) == ("KeyError", "'x'", 3)


@pytest.mark.parametrize(("line", "kinds"), [
    ("WARNING s3: ('Connection aborted.', 104, 'Connection reset by peer'), retrying", []),
    ("[c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe", ["peers-lost"]),
    ("RuntimeError: Connection reset by peer", ["peers-lost"]),
])  # fmt: skip
def test_connections_of_the_job_and_of_its_program(
    line: str, kinds: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(line + "\n")
    assert [one.kind for one in judge(read([str(tmp_path / "job.log")])).conclusions] == kinds


def _detail(rank: int, shape: int, peer: int, other: int) -> str:
    mine, its = (f"CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{n}], "
                 "TensorDtypes=Float)" for n in (shape, other))  # fmt: skip
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/a/t.py", line {rank + 5}, in f\n'
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} "
        f"is running collective: {mine}, but Rank {peer} is running collective: {its}.\n"
    )


def test_ranks_that_disagree_by_reports_of_all(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank names the first that differs from it."""
    path = tmp_path / "job.log"
    reports = [_detail(2, 100, 1, 120), _detail(0, 100, 1, 120), _detail(1, 120, 0, 100)]
    path.write_text("".join(reports))
    [one] = judge(read([str(path)])).conclusions
    assert (one.kind, one.culprits, one.place) == ("mismatch", (1,), ("/a/t.py", 6, "f"))
    path.write_text(_detail(0, 100, 4, 120) + _detail(1, 100, 4, 120))  # nothing of 2 and 3
    [one] = judge(read([str(path)])).conclusions
    assert (one.kind, one.culprits) == ("mismatch", ())


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    """It is an exception of the network, and nothing came before it."""
    text = CAUGHT[0] + "\ntorch.distributed.DistNetworkError: failed to listen, name: EADDRINUSE\n"
    (tmp_path / "job.log").write_text(text)
    [one] = judge(read([str(tmp_path / "job.log")])).conclusions
    assert (one.kind, one.fact("type")) == ("exception", "DistNetworkError")


@pytest.mark.parametrize(("line", "told"), [
    ("[launch.py:325:sigkill_handler] ['/usr/bin/python3', 'main.py', '--local_rank=1'] exits with "
     "return code = -9", "Local rank 1 ended by SIGKILL."),
    ("[launch.py:325:sigkill_handler] ['bash', 'main.sh'] exits with return code = 3",
     "A process ended with exit code 3."),
    ("Child process with PID 4410 terminated with code -9. Forcefully terminating all other "
     "processes to avoid zombies", "Process 4410 ended by SIGKILL."),
])  # fmt: skip
def test_the_process_that_a_launcher_names(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"step 1 loss 2.5\n{line}\n")
    (one,) = judge(read([str(tmp_path / "job.log")])).conclusions
    assert KINDS[one.kind].sentence(one) == told


def test_a_session_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "s.mcap").write_bytes(b"\x89MCAP0\r\n")
    with pytest.raises(UserError, match="is a session"):
        read([str(tmp_path / "s.mcap")])


def test_a_healthy_log_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY)
    verdict = judge(read([str(tmp_path / "job.log")]))
    assert verdict.conclusions == () and verdict.unknown == ()


def test_packed_logs_of_a_directory(tmp_path: Path) -> None:
    """Ranks' own files: torchrun's names give local ranks, other names give ranks."""
    text = b"Traceback (most recent call last):\n  File \"t.py\", line 3, in f\nKeyError: 'x'\n"
    (tmp_path / "rank_5.log.gz").write_bytes(gzip.compress(text))
    (tmp_path / "rank_6.log.zst").write_bytes(zstandard.compress(b"healthy\n"))
    [one] = judge(read([str(tmp_path)])).conclusions
    assert (one.kind, one.culprits) == ("exception", (5,))
    assert (one.fact("type"), one.fact("file"), one.fact("line")) == ("KeyError", "t.py", 3)


def test_all_frames_of_zstd_are_read(tmp_path: Path) -> None:
    """`zstd -c more >> job.zst`, pzstd. A cut one is not taken for an empty one."""
    line = b"srun: error: node17: task 3: Out Of Memory\n"
    frames = zstandard.compress(b"healthy\n" * 9999), zstandard.compress(line)
    (tmp_path / "job.zst").write_bytes(b"".join(frames))
    [one] = judge(read([str(tmp_path / "job.zst")])).conclusions
    assert (one.culprits, one.lines[0].number) == ((3,), 10_000)
    for damaged in (frames[1][:5], frames[1][:-1], frames[0] + frames[1][:9], frames[0] + b"no"):
        (tmp_path / "job.zst").write_bytes(damaged)
        with pytest.raises(UserError):
            read([str(tmp_path / "job.zst")])


def test_a_log_cut_anywhere_is_read(tmp_path: Path) -> None:
    rng = random.Random(5)
    drawn = [written(make(rng, 4), rng.choice(list(STYLES)), rng) for make in ALL]
    whole = "".join(drawn).encode()
    path = tmp_path / "job.log"
    for _ in range(100):
        path.write_bytes(whole[: rng.randrange(len(whole))])
        judge(read([str(path)]))


def test_a_traceback_that_the_end_of_the_log_cuts_tells_its_place(tmp_path: Path) -> None:
    text = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/t.py", line 3, in f\n'
    (tmp_path / "job.log").write_text(text + "[rank1]:     x = y[\n")
    [one] = judge(read([str(tmp_path / "job.log")])).conclusions
    assert (one.kind, one.culprits, one.fact("type")) == ("exception", (1,), "")
    assert (one.fact("file"), one.fact("line")) == ("/a/t.py", 3)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize("width", range(47, 100, 6))
def test_a_traceback_that_a_viewer_broke_keeps_its_place(
    prefix: str, width: int, tmp_path: Path
) -> None:
    """Every line of it is broken at a width; its rest has no prefix."""
    whole = (
        "Traceback (most recent call last):",
        f'  File "/opt/app/{"long/" * 14}train.py", line 312, in train_step',
        '    loss = self.model(batch["input_ids"], attention_mask=batch["attention_mask"])',
        "ValueError: the target has another size than the input has, " + "x" * 50,
    )  # fmt: skip
    lines = [prefix + line for line in whole]
    pieces = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    (tmp_path / "job.log").write_text("\n".join(pieces) + "\n")
    [one] = judge(read([str(tmp_path / "job.log")])).conclusions
    file = f"/opt/app/{'long/' * 14}train.py"
    assert (one.kind, one.fact("type"), one.ranks) == (
        "exception",
        "ValueError",
        (3,) if prefix else (),
    )
    assert file in repr(one.facts), one


def test_ends_of_block_and_line(tmp_path: Path) -> None:
    """A line that lies across blocks of the reader is one line, and is counted once."""
    healthy = "x" * 99 + "\n"
    for lines in (10485, 10486, 20971):  # around 1 and 2 MiB
        text = healthy * lines + "srun: error: node17: task 3: Out Of Memory\n"
        (tmp_path / "job.log").write_text(text)
        [one] = judge(read([str(tmp_path / "job.log")])).conclusions
        assert one.culprits == (3,) and one.lines[0].number == lines + 1


def test_command_line(tmp_path: Path) -> None:
    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "pardbg", "explain", *words]
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)

    found = run("-", "--json", text="srun: error: node17: task 3: Out Of Memory\n")
    [one] = json.loads(found.stdout)["findings"]
    assert (one["kind"], one["culprits"], one["facts"]["host"]) == ("host-memory", [3], "node17")
    absent = run(str(tmp_path / "none.log"))
    assert absent.returncode == 2 and len(absent.stderr.splitlines()) == 1


LOGS = Path(__file__).parent / "logs"
"""Printed by torch 2.11 with NCCL 2.28.9 under torchrun, two ranks, without pardbg."""


@pytest.mark.parametrize(("name", "kind", "culprits", "follows"), [
    ("sleep", "missing-rank", (1,), []),
    ("kill", "process-ended", (1,), [("stuck-op", "ALLREDUCE", 6)]),
    ("oom", "out-of-memory", (1,), [("stuck-op", "ALLREDUCE", 6)]),
    ("assert", "exception", (1,), [("stuck-op", "ALLREDUCE", 6), ("nccl-warning", "", None)]),
    ("kind", "stuck-op", (), []),
])  # fmt: skip
def test_what_torch_and_nccl_printed(
    name: str, kind: str, culprits: tuple[int, ...], follows: list[tuple[str, str, int | None]]
) -> None:
    verdict = judge(read([str(LOGS / f"{name}.log")]))
    first, *others = verdict.conclusions
    assert (first.kind, first.culprits) == (kind, culprits)
    assert [(one.kind, one.op, one.seq) for one in others if one.follows] == follows
    assert not verdict.unknown
    if name in ("sleep", "kind"):  # where rank 0 stood, of its C++ stack trace
        assert first.place == ("/home/u/bad.py", 17, "forward_pass")
