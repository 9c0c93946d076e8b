"""What several files of hooks' tests begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hooks.fake_world import fake_world


@pytest.fixture
def watched(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 4 ranks, this one is rank 1, hooks in place; gives the ring's path."""
    yield from fake_world(tmp_path, monkeypatch)
