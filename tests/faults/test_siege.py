"""A small draw of ``make siege``: kills of real runs, and programs with and without pardbg."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.siege import beside, deaths, kills, strangers, users


@pytest.mark.timeout(120)
def test_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 3: see the table of ``python -m tests.siege kills``."""
    fake = {"fake": kills.programs()["fake"]}
    monkeypatch.setattr(kills, "programs", lambda: fake)
    assert kills.run(3, 2)[1] == []


@pytest.mark.timeout(300)
def test_deaths() -> None:
    """One of each kind, at a moment of its own: see ``python -m tests.siege kills``."""
    assert deaths.run(90, len(deaths.VICTIMS))[1] == []


@pytest.mark.parametrize("name", ["mixed", "raises", "shell"])
def test_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {name: beside.programs()[name]}
    monkeypatch.setattr(beside, "programs", lambda: one)
    assert beside.run(0, 1)[1] == []


def test_odd_frames_at_a_live_hub_cost_the_job_no_record() -> None:
    assert strangers.run(5, 1500)[1] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_another_user() -> None:
    """Seed 109: -o is a link of another user's to a file in a directory of theirs."""
    assert users.run(109, 2)[1] == []


@pytest.mark.timeout(120)
def test_exit_codes_are_the_programs_own() -> None:
    """A small draw of ``tests.bench.exit_hazard``: 2 ranks of torch, plain and watched."""
    words = ["--runs", "1", "raise in an op", "_exit"]
    argv = [sys.executable, "-m", "tests.bench.exit_hazard", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=True)
    rows = [line for line in done.stdout.splitlines() if " odd " in line]
    assert len(rows) == 4 and all(" 0 odd " in row for row in rows), done.stdout
