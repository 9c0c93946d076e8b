"""What runs in the UI's thread while somebody walks through a recording: drawing. No analysis, no
store, and no file is written there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import pardbg
from pardbg.session.reader import open_session
from pardbg.ui.app import PardbgApp
from tests.ui.fakes import shows, until

ROOT = Path(pardbg.__file__).parent
SESSIONS = ROOT.parent / "sessions"
HEAVY = (str(ROOT / "analysis"), str(ROOT / "store"), str(ROOT / "events"))
TEXT_ONLY = {"parse", "is_user", "causes_of"}
"""Functions of a text alone; see tests/contracts/test_pages_draw.py."""
_writing: list[str] | None = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    mine = threading.current_thread() is threading.main_thread()
    if _writing is None or event != "open" or not mine or not isinstance(args[0], str):
        return
    mode = str(args[1] or "")
    if any(letter in mode for letter in "wxa+"):
        _writing.append(args[0])


@contextmanager
def watched() -> Iterator[tuple[set[str], list[str]]]:
    """(functions of the analysis, files opened to be written) of this thread, by and by."""
    global _writing
    called: set[str] = set()
    plain: dict[CodeType, str] = {}

    def look(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code not in plain:
            plain[code] = ""
            # Methods of values (a property of a dataclass) are the values' own business.
            is_method = code.co_varnames[:1] in (("self",), ("cls",))
            named = not code.co_name.startswith("<") and code.co_name not in TEXT_ONLY
            if code.co_filename.startswith(HEAVY) and named and not is_method:
                called.add(f"{Path(code.co_filename).name}:{code.co_name}")

    _writing = []
    sys.addaudithook(_audit)  # stays, and does nothing once _writing is None
    sys.setprofile(look)
    try:
        yield called, _writing
    finally:
        sys.setprofile(None)
        _writing = None


@pytest.mark.parametrize("name", ["1f1b"])
@pytest.mark.timeout(120)  # every call is looked at
async def test_pages_draw_and_nothing_else(name: str) -> None:
    source = open_session(SESSIONS / f"{name}.mcap")
    app = PardbgApp(source, None, title=name)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: (frame := app.main.shared.frame) is not None and frame.whole, "a frame")
        with watched() as (called, written):
            for number in range(1, 10):
                await pilot.press(str(number))
                await pilot.press("down", "enter", "escape")
            await pilot.press("2", "p", "p", "6")
            await until(lambda: app.main.page.name_ == "memory", "the last page")
        assert not called
        assert not written
    source.close()


async def test_a_picture_is_written_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = open_session(SESSIONS / "1f1b.mcap")
    app = PardbgApp(source, None, title="1f1b.mcap")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "a frame")
        with watched() as (_, written):
            await pilot.press("ctrl+s")
            await shows(app, "saved ")
        assert [Path(name).suffix for name in written] == [], "not by the UI's thread"
        assert [path.suffix for path in tmp_path.iterdir()] == [".svg"]
    source.close()
