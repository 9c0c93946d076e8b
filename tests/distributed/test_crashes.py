"""Where a rank was that a signal of C code ended, with the program's own end as without pardbg."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pardbg.analysis.answers.hang import rank_stacks
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.session.reader import load
from tests.distributed.owned import PARDBG
from tests.distributed.programs import crashes
from tests.processes import rank_env, torchrun_argv
from tests.unit.facts import facts


def ended(argv: list[str], port: int) -> tuple[int, list[str]]:
    """(exit code, what it printed but pardbg's lines)"""
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(argv, env=rank_env(env), capture_output=True, text=True, timeout=50)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("pardbg: ")]
    return done.returncode, [
        line for line in lines if "socket.cpp" not in line and "0x" not in line
    ]


@pytest.mark.parametrize(
    ("how", "code", "function", "told"),
    [
        ("here", -11, "crash", True),
        ("elsewhere", -6, "abort_elsewhere", True),
        ("told", -11, "crash", False),
        ("forked", 11, "crash", True),  # the parent's exit code; its child was the rank
        ("child", 0, "", False),
    ],
)
def test_the_place_of_a_crash_is_told(
    tmp_path: Path, free_port: Callable[..., int], how: str, code: int, function: str, told: bool
) -> None:
    session, program = tmp_path / "s.mcap", [sys.executable, str(crashes.__file__), how]
    plain = ended(program, free_port())
    watched = ended([*PARDBG, "run", "-o", str(session), "--", *program], free_port())
    assert watched[0] == plain[0] == code
    assert how == "told" or watched == plain  # a dump lists the agent's thread, too
    store = load(session)
    (process,) = store.rank_procs(None).values()
    assert bool(process.crashes) == told
    assert all(one.beside == (how == "elsewhere") for one in process.crashes)
    stacks = [[frame[2] for frame in one.frames] for one in rank_stacks(View(store, None))]
    assert [function in stack for stack in stacks] == [True] * bool(code)
    found = [one for one in snapshot(store, None).findings if one.kind == "rank-lost"]
    assert [one.where and one.where.rpartition(" in ")[2] for one in found] == [function] * bool(
        code
    )


@pytest.mark.timeout(120)
def test_ranks_that_crash_at_once_each_have_their_own_signal(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    argv = torchrun_argv(str(crashes.__file__), "all", nproc=2)
    done = subprocess.run(
        [*PARDBG, "run", "-o", str(session), "--", *argv],
        env=rank_env(), capture_output=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    shot = snapshot(load(session), None)
    found = [one for one in shot.findings if one.kind == "rank-lost"]
    told = {one.ranks: facts(one, "code", "beside") for one in found if one.severity == "error"}
    assert told == {(0,): (-11, (1,)), (1,): (-7, (0,))} and len(found) == 2
    assert [row.state for row in shot.ranks] == ["lost"] * 2
