"""A hub in this process for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hub.hub_rig import Rig


@pytest.fixture
def rig(run_dir: Path) -> Iterator[Rig]:
    """A hub that the test turns by hand; the test may kill or finish it."""
    rig = Rig(run_dir)
    yield rig
    if not rig.context.closed:
        rig.close()
