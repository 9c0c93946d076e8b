"""Programs rehearsed as every rank of a job: what each planted fault is called, and where."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pardbg.analysis.answers.report import report
from pardbg.render.reports.text import text
from pardbg.session.reader import load

PROGRAM = Path(__file__).parent / "programs" / "rehearsed.py"
SOURCE = PROGRAM.read_text(encoding="utf-8").splitlines()
FAULTS = {
    # kind, culprits, the line of the program it names
    "none": ("", (), ""),
    "op": ("op-mismatch", (2,), "dist.broadcast(grad, 0)"),
    "dtype": ("dtype-mismatch", (2,), "dist.all_reduce(grad.to(torch.int32))"),
    "reduce": ("op-mismatch", (2,), "dist.all_reduce(grad, op=dist.ReduceOp.MAX)"),
    "value": ("exception", (), "assert ranks == size"),
    "skip": ("skipped-op", (2,), "dist.all_reduce(grad)"),
    "order": ("op-order", (2,), "dist.all_reduce(torch.ones(4), group=group)"),
    "unsent": ("skipped-op", (2,), "dist.isend(mine, after)"),
}

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(240)]


def command(path: Path, *words: str, world: int = 4) -> list[str]:
    return [sys.executable, "-m", "pardbg.cli", "rehearse", "--world-size", str(world), "--json",
            "-o", str(path), "--", "python", str(PROGRAM), *words]  # fmt: skip


Rehearse = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rehearsed")


@pytest.fixture(scope="module")
def rehearsed(folder: Path) -> Rehearse:
    """The program with a fault, rehearsed once."""

    @functools.cache
    def run(fault: str) -> subprocess.CompletedProcess[str]:
        argv = command(folder / f"{fault}.mcap", fault, "2")
        return subprocess.run(argv, capture_output=True, text=True, timeout=220)

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_rank_and_place(fault: str, rehearsed: Rehearse) -> None:
    done, (kind, culprits, line) = rehearsed(fault), FAULTS[fault]
    assert done.returncode == (1 if kind else 0), done.stderr
    found = [f for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"]
    assert [f["kind"] for f in found] == ([kind] if kind else [])
    for one in found:
        assert not culprits or tuple(one["culprits"]) == culprits
        at = re.match(r"rehearsed\.py:(\d+) in ", one["where"])
        assert at is not None and line in SOURCE[int(at[1]) - 1]
        assert one["facts"].get("made_up_input", False) == (fault == "value")


def test_a_rehearsal_is_a_session_like_any_other(rehearsed: Rehearse, folder: Path) -> None:
    assert rehearsed("none").returncode == 0
    store = load(folder / "none.mcap")
    ranks = store.rank_procs(None)
    assert sorted(ranks) == [0, 1, 2, 3]
    assert [ranks[r].table("step").col("step").tolist() for r in range(4)] == [[0, 1, 2, 3]] * 4
    said = str(store.output.last(None, 20))
    assert "they measure nothing" in said and "trained" in said
    told = text(report(store))
    assert "A rehearsal: times count events" in told and "loss none known" in told
    assert told.splitlines()[0] == "rehearsal  4 ranks  fake  4 steps  exit code 0"


@pytest.mark.parametrize(
    ("fault", "says"),
    [("gpu", "the program needs a GPU: rank 0: "), ("world", "another world size: rank 0: ")],
)
def test_what_a_program_needs_is_said_in_a_line(fault: str, says: str, tmp_path: Path) -> None:
    argv = command(tmp_path / "S.mcap", fault, "0")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pardbg: ") and says in last and "rehearsed.py:" in last
    assert not (tmp_path / "S.mcap").exists()


def test_ddp_stages_with_all_forwards_first_go_on_after_their_first_step(tmp_path: Path) -> None:
    """Four stages, four microbatches: the first has no backward before its last forward, where
    torch's search for shapes would leave DDP waiting for a backward (`rebuilt params size`)."""
    argv = command(tmp_path / "S.mcap", world=8)
    argv[-1:] = ["-m", "pardbg.lab.recipes.on_mesh", "dp-pp", "--steps", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["ranks"], answer["findings"]) == (8, [])


def test_ranks_that_cut_a_pipeline_run_its_other_stages_too(tmp_path: Path) -> None:
    """Two pipelines of four stages; each stage waits for the shapes of the next one's gradients."""
    argv = command(tmp_path / "S.mcap", world=8)
    argv[-1] = str(PROGRAM.with_name("mesh_gpt.py"))
    argv += ["--pp", "4", "--tp", "1", "--microbatches", "4", "--steps", "1"]
    argv[argv.index("--json") : argv.index("--json")] = ["--ranks", "0-1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    assert (answer := json.loads(done.stdout))["findings"] == [] and answer["ranks"] == 4
    assert "ranks 2,3 ran too: others wait for their integers" in done.stderr
    assert sorted(load(tmp_path / "S.mcap").rank_procs(None)) == [0, 1, 2, 3]


def test_ctrl_c_leaves_a_session_of_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "S.mcap"
    argv = command(path, "none", "0", world=2048)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stderr=pipe, stdout=pipe, text=True) as job:
        assert job.stderr is not None
        try:
            assert any("of 2,048 ranks" in line for line in job.stderr)
            job.send_signal(signal.SIGINT)
            out, _ = job.communicate(timeout=120)
        finally:
            job.kill()
    assert job.returncode == 130
    ran = json.loads(out)["ranks"]
    assert 1 <= ran < 2048 and len(load(path).rank_procs(None)) == ran
