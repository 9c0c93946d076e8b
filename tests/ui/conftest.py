"""Textual's pilot waits after each key until this process has used no more than 1 ms of CPU in
20 ms: with an engine beside the screen that is up to a second, twice a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import textual._wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

import pardbg.ui.engine.pace


@pytest.fixture(autouse=True, scope="session")
def _styles_are_parsed_once() -> Iterator[None]:
    """All apps have the same; else that is a fifth of an app's start."""
    parse, parsed = Stylesheet._parse_rules, dict[tuple[Any, ...], list[RuleSet]]()

    def once(sheet: Stylesheet, *source: Any, **options: Any) -> list[RuleSet]:
        key = (*source, *options.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *source, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", once)
        yield


@pytest.fixture(autouse=True)
def _short_looks_for_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 1 ms in 4 ms. That all queued messages are handled the pilot waits for as well,
    and for what comes from other threads the tests wait themselves."""
    monkeypatch.setattr(textual._wait, "SLEEP_GRANULARITY", 0.004)


@pytest.fixture(autouse=True)
def _soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else moves about: other moments are searched for findings soon after the last key."""
    monkeypatch.setattr(pardbg.ui.engine.pace, "IDLE_S", 0.1)
