"""What a program says of its own places (warnings, log lines, tracebacks, the exception that ends
it) is the same with the agent's wrappers around it as without, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.session.reader import load
from tests.distributed.owned import PARDBG
from tests.distributed.programs import says_where
from tests.processes import rank_env


def said(argv: list[str], port: int) -> tuple[int, list[str]]:
    """(exit code, all that it printed but pardbg's lines and those with torch's times and ports)"""
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(port)}  # fmt: skip
    done = subprocess.run(
        argv, env=rank_env(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=50, check=False,
    )  # fmt: skip
    kept = [line for line in done.stdout.splitlines()
            if not line.startswith("pardbg: ") and "socket.cpp" not in line]  # fmt: skip
    return done.returncode, kept


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, list[str]]]:
    """What it prints without pardbg, once the first way has asked."""
    return []


def test_warnings_logs_and_tracebacks_name_the_programs_places(
    tmp_path: Path, way: str, free_port: Callable[..., int], plain: list[tuple[int, list[str]]]
) -> None:
    program = [sys.executable, str(says_where.__file__)]
    session = tmp_path / "s.mcap"
    plain[:] = plain or [said(program, free_port())]
    watched = said([*PARDBG, "run", "-o", str(session), "--", *program], free_port())
    ((code, lines),) = plain
    assert len(lines) > 1000 and "LookupError: not four" in lines
    assert watched == (code, lines)
    (process,) = View(load(session), None).ranks.values()
    assert [ended.type for ended in process.failures] == ["LookupError"]
