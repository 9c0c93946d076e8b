"""A pytest fixture for training code. Without its use nothing is loaded or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pardbg.recorded_block import Recording


@pytest.fixture
def pardbg_recording(tmp_path: Path) -> Iterator[Recording]:
    """Record the test, and all processes that it starts: ``pardbg_recording.stop()`` ends the
    recording and returns the session, as ``pardbg.open`` does."""
    from pardbg import record

    with record(tmp_path / "recording.mcap") as recording:
        yield recording
