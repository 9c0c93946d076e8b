"""Functions that run when a module has been imported."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pardbg_agent.life.late_imports import LateImports


def test_two_that_wait_for_one_module_both_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DeepSpeed's ZeRO is waited for by its memory and by its steps: the first was forgotten."""
    (tmp_path / "late_module_of_two.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []
    late = LateImports(said.append)
    for word in ("memory", "steps"):
        late.when_imported("late_module_of_two", lambda m, w=word: said.append(w))  # type: ignore[misc]
    importlib.import_module("late_module_of_two")
    assert said == ["memory", "steps"]
