"""The command line as a user runs it: real jobs, real files, exit codes, one line for a mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pardbg.hub.client import HubControl
from tests.distributed.runs import started, wait_ranks
from tests.forked import forked, served
from tests.processes import Finished, rank_env, run_argv, torchrun_argv, wait_until
from tests.report_schema import VALIDATOR

MODULE = "tests.distributed.programs.ddp"
PROGRAM = str(Path(__file__).parent / "programs" / "ddp.py")
NO_TORCH = "import sys; sys.modules['torch'] = None; from pardbg.cli import main; main()"


def pardbg(*words: str, timeout_s: float = 90, code: str | None = None, **env: str) -> Finished:
    """Run it without a terminal; ``code`` replaces ``-m pardbg.cli``."""
    start = ["-m", "pardbg.cli"] if code is None else ["-c", code]
    return run_argv([sys.executable, *start, *words], env=rank_env(env), timeout_s=timeout_s)


@pytest.mark.timeout(150)
def test_a_job_is_recorded_and_reported_and_its_output_is_its_own(tmp_path: Path) -> None:
    """run: stdout and exit code of the job, losses to the bit; report: text and JSON, no torch."""
    session = tmp_path / "s.mcap"
    plain = run_argv(forked(torchrun_argv("-m", MODULE, nproc=2)), env=rank_env(), timeout_s=60)
    seen = pardbg("run", "-o", str(session), "--", *torchrun_argv(PROGRAM, nproc=2))
    assert (seen.code, plain.code) == (0, 0), seen.err
    assert sorted(seen.out.splitlines()) == sorted(plain.out.splitlines())
    assert f"recorded {session}" in seen.err

    text = pardbg("report", str(session), code=NO_TORCH)
    assert text.code == 0, text.err
    assert "all_reduce" in text.out
    report = json.loads(pardbg("report", str(session), "--json", code=NO_TORCH).out)
    VALIDATOR.validate(report)
    # What runs beside the tests may overload the host.
    assert {one["kind"] for one in report["findings"]} <= {"host-overloaded"}
    assert [rank["num_steps"] for rank in report["ranks"]] == [4, 4]
    reduces = [row for row in report["collectives"] if row["op"] == "all_reduce"]
    # One bucket of 577 float32 gradients per step.
    assert [row["bytes"] for row in reduces] == [2308] * 4
    assert {row["verdict"] for row in reduces} == {"matched"}
    # The loss of a step is a mean over ranks that each print theirs.
    printed = [[float.fromhex(line.split()[-1]) for line in plain.lines(r)] for r in (0, 1)]
    means = [sum(pair) / 2 for pair in zip(*printed, strict=True)]
    assert [step["loss"] for step in report["steps"]] == pytest.approx(means)


@pytest.mark.timeout(100)
def test_a_demo_without_a_terminal_ends_with_its_report(tmp_path: Path) -> None:
    session = tmp_path / "d.mcap"
    seen = pardbg("demo", "gpipe", "--nproc", "2", "--steps", "3", "-o", str(session))
    assert seen.code == 0, seen.err
    assert "Pipeline  ScheduleGPipe" in seen.out and "bubble" in seen.out
    assert "loss" not in seen.out.splitlines()[0]
    assert "[rank1] step 0 loss" in seen.err  # the job's output is talk here
    report = json.loads(pardbg("report", str(session), "--json").out)["pipeline"]
    # GPipe with 2 stages and 8 microbatches: the bound is (p-1)/(m+p-1) = 1/9.
    assert report["bound_fraction"] == pytest.approx(1 / 9)
    assert [rank["max_in_flight"] for rank in report["steps"][-1]["ranks"]] == [8, 8]


def test_a_job_that_dies_gives_its_own_code(tmp_path: Path) -> None:
    session = tmp_path / "x.mcap"
    died = pardbg("run", "-o", str(session), "--", sys.executable, "-c",
                  "import sys; print('last words'); sys.exit(7)")  # fmt: skip
    assert (died.code, died.out) == (7, "last words\n")
    assert "exit code 7" in pardbg("report", str(session)).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("replay", "/no/such.mcap"), "no such file"),
        (("report", PROGRAM), "not a session"),
        (("run",), "after `--`"),
        (("run", "-o", "/proc/x/y.mcap", "--", "true"), "choose another -o"),
        (("watch", "no-such-run"), "terminal"),
        (("ctl", "no-such-run", "pause"), "no live run"),
        (("ctl", "dance"), "not a verb"),
        (("demo", "no-such"), "demo --list"),
        (("demo", "1f1b", "--nproc", "1"), "take 2 to 8"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_and_exit_2(words: tuple[str, ...], says: str) -> None:
    seen = pardbg(*words)
    assert seen.code == 2, seen
    assert seen.out == "" and len(seen.err.splitlines()) == 1, seen.err
    assert says in seen.err


def test_a_demo_needs_torch_and_says_so() -> None:
    blocked = pardbg("demo", code=(
        "import importlib.util as u; f = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n == 'torch' else f(n, *a);"
        "from pardbg.cli import main; main()"
    ))  # fmt: skip
    assert blocked.code == 2 and "pardbg[train]" in blocked.err, blocked


@pytest.mark.timeout(100)
def test_ctl_from_a_script(tmp_path: Path) -> None:
    """pause, step, tick, next, where, continue on a live DDP job, each a process of its own."""
    torchrun = torchrun_argv(
        "-m", "pardbg.lab.recipes.ddp", "--steps", "400", "--pace", "2", nproc=2
    )
    argv = served(torchrun)
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:

        def ctl(*words: str) -> Finished:
            return pardbg("ctl", handle.run, *words, "--json")

        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        control.close()
        assert '"rank": 1' in ctl("ranks").out
        refused = ctl("step")
        assert refused.code == 1 and "pause before step" in refused.err
        assert ctl("step", "77").code == 2
        for verb in ("pause", "step", "op", "next"):
            answer = ctl(verb)
            assert answer.code == 0, (verb, answer)
            data = json.loads(answer.out)
            assert data["mode"] == "held" and set(data["held"]) == {"0", "1"}, (verb, data)
        frames = json.loads(ctl("where").out)["stacks"]
        assert {"0", "1"} == set(frames)
        assert json.loads(ctl("continue").out)["mode"] == "running"
        assert handle.run in pardbg("ls").out
        assert pardbg("ctl", "kill").code == 2  # which one?
        assert ctl("kill").code == 0
        wait_until(handle.ended, 30, "the end")
