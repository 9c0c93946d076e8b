"""Textual's pilot waits after each key until this process has used no more than 1 ms of CPU in
20 ms: with an engine beside the screen that is up to a second, twice a key."""

from __future__ import annotations

import pytest
import textual._wait

import pardbg.ui.engine.pace


@pytest.fixture(autouse=True)
def _short_looks_for_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 1 ms in 4 ms. That all queued messages are handled the pilot waits for as well,
    and for what comes from other threads the tests wait themselves."""
    monkeypatch.setattr(textual._wait, "SLEEP_GRANULARITY", 0.004)


@pytest.fixture(autouse=True)
def _soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else moves about: other moments are searched for findings soon after the last key."""
    monkeypatch.setattr(pardbg.ui.engine.pace, "IDLE_S", 0.1)
