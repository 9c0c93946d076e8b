"""A small draw of ``make siege``: kills of real runs, and programs with and without pardbg."""

from __future__ import annotations

import pytest

from tests.siege import beside, kills


@pytest.mark.timeout(120)
def test_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 3: see the table of ``python -m tests.siege kills``."""
    fake = {"fake": kills.programs()["fake"]}
    monkeypatch.setattr(kills, "programs", lambda: fake)
    assert kills.run(3, 2)[1] == []


@pytest.mark.parametrize("name", ["mixed", "raises", "shell"])
def test_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {name: beside.programs()[name]}
    monkeypatch.setattr(beside, "programs", lambda: one)
    assert beside.run(0, 1)[1] == []
