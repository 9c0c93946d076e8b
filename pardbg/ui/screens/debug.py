"""7 Debug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.debug.page import DebugPageState, debug
from pardbg.render.pages.debug.stacks import Stack, stacks_of
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Page, Shared

_CONSOLE = 100


class DebugPage(Page):
    """Held ranks, stacks, audit trail, console."""

    name_ = "debug"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._stacks: dict[int, Stack] = {}
        self._stacks_ns: int | None = None
        self._typed: tuple[tuple[str, str], ...] = ()

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        look = DebugPageState(self.shared.rank, self._stacks, self._stacks_ns, self._typed,
                    self.shared.can_control)  # fmt: skip
        return debug(frame.snapshot, cells, rows, look)

    def stacks(self, data: Mapping[str, Any]) -> int:
        """Take the answer to ``where``; the number of ranks it holds."""
        self._stacks = stacks_of(data)
        frame = self.shared.frame
        self._stacks_ns = frame.snapshot.t_ns if frame else None
        self.redraw()
        return len(self._stacks)

    def say(self, text: str, style: str = "dim") -> None:
        """A line of the console."""
        self._typed = (*self._typed[-_CONSOLE:], (text, style))
        self.redraw()
