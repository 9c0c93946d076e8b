"""Every page and the main dialogs at three sizes, as SVG, beside how they looked when accepted.

``make snapshots`` accepts how they look now. A failure writes ``snapshot_report.html`` with both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import textual._wait

from tests.ui.recorded import SIZES, VIEWS, app_of, drive, fixed_surroundings

plugin = pytest.importorskip("pytest_textual_snapshot")
plugin.SVGImageExtension.file_extension = "svg"
"""syrupy from version 5 on does not know the plugin's own name for it."""
VIEW_OF = {view.name: view for view in VIEWS}
ACCEPTED = Path(__file__).parent / "__snapshots__" / "test_screens"


@pytest.fixture(autouse=True)
def _the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fixed_surroundings(monkeypatch.setenv, monkeypatch.setattr)
    monkeypatch.setattr(textual._wait, "SLEEP_GRANULARITY", 0.004)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", VIEW_OF)
@pytest.mark.parametrize(
    "size",
    [size if size[0] < 200 else pytest.param(size, marks=pytest.mark.long) for size in SIZES],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
def test_screen(
    name: str,
    size: tuple[int, int],
    snap_compare: Callable[..., bool],
    request: pytest.FixtureRequest,
) -> None:
    if not (ACCEPTED.exists() or request.config.getoption("update_snapshots")):
        pytest.skip("no screen is accepted yet: make snapshots")
    view = VIEW_OF[name]
    with app_of(view.session) as app:
        assert snap_compare(app, terminal_size=size, run_before=lambda pilot: drive(pilot, view))
