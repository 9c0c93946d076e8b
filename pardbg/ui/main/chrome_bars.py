"""The lines around a page: header, status (message, time bar or control), key hints."""

from __future__ import annotations

from collections.abc import Callable

from pardbg.render.draw.cells import Line, Segment, clip, fit, line
from pardbg.render.draw.signs import keys_text
from pardbg.render.frame import chrome
from pardbg.render.frame.panels import is_starting
from pardbg.render.frame.timebar import Playing, legend, time_at, time_bar
from pardbg.ui.commands.actions import Action, footer
from pardbg.ui.engine.controller import Controller
from pardbg.ui.engine.feed import Frame
from pardbg.ui.widgets.lines import ClickedLines, Lines

LEGEND_ROWS = 30
"""Number of rows from which on the time bar has a legend below it."""


class ChromeBars:
    """Paints the lines around a page from a frame and the current message."""

    def __init__(
        self, title: str, live: bool, controller: Controller, unit: Callable[[], str]
    ) -> None:
        """Set up the bars; ``unit`` returns the name of the unit that ``,`` and ``.`` move by."""
        self._title, self._live, self._controller, self._unit = title, live, controller, unit
        self.header = Lines(id="header", ground="bar.header")
        self.banner = Lines(id="banner")
        """Line with the reason why ranks are stuck; hidden while there is none."""
        self.status = ClickedLines(id="status")
        self.hints = Lines(id="hints")
        self.message: tuple[str, str] = ("", "")
        """Text and style."""
        self.jumping = False

    def paint(self, frame: Frame | None, cells: int, rows: int, screen: str) -> None:
        """Paint all bars at this size, with the hints of ``screen`` (empty: none, as the prompt is
        there)."""
        snapshot = frame.snapshot if frame else None
        mode = chrome.Mode(
            not self._live, frame.following if frame else True, frame.playing if frame else False,
            frame.finished if frame else False, frame is not None and not frame.whole,
        )  # fmt: skip
        self.header.show((chrome.header(self._title, snapshot, mode, cells),))
        alarm = chrome.banner(snapshot, cells)
        self.banner.display = bool(alarm)
        self.banner.show((alarm,) if alarm else ())
        status = self._status_lines(frame, cells, rows)
        self.status.styles.height = len(status)
        self.status.show(status)
        if self.jumping:
            self.hints.show((chrome.jump_hints(cells),))
        elif screen:
            lists = frame is not None and _lists(screen, frame)
            offered, controls = footer(screen, self._live, lists), self._controller.present
            ended = mode.ended or (snapshot is not None and snapshot.run.exit_code is not None)
            items = [self._hint(action, label, frame) for action, label in offered
                     if action.group != "control" or (controls and not ended)]  # fmt: skip
            self.hints.show((chrome.hints(items, cells),))

    def _hint(self, action: Action, label: str, frame: Frame | None) -> tuple[str, str]:
        if label:
            return keys_text(action.shown), label
        keys, label = action.hinted or (action.shown, "")
        return keys_text(keys), label or self._label(action, frame)

    def _label(self, action: Action, frame: Frame | None) -> str:
        if action.id == "toggle" and frame is not None:
            control = frame.snapshot.control
            return "pause" if control.mode == "running" and not control.held else "continue"
        if action.id == "play" and frame is not None and frame.playing:
            return "stop"
        if action.id == "last":
            return self._unit()
        return action.label

    def _status_lines(self, frame: Frame | None, cells: int, rows: int) -> tuple[Line, ...]:
        """Return the lines of the message, else of the time bar (with a legend if there is room),
        else of control."""
        if frame is not None and (not self._live or not frame.following):
            return self._time_lines(frame, cells, rows)
        if self.message[0] or frame is None:
            text, style = self.message
            return (fit(line(" ", Segment(clip(text, cells - 2), style)), cells),)
        control, under_way = frame.snapshot.control, self._controller.under_way
        if under_way.startswith("until ") and control.mode == "held":
            under_way = ""  # paused on the way: what is held counts
        elif under_way.startswith("until ") and frame.snapshot.step is not None:
            under_way += f" now in step {frame.snapshot.step} (space: pause here)"
        return (chrome.control_line(control, under_way, ("", ""), cells),)

    def time_at(self, frame: Frame, cells: int, x: int) -> int | None:
        """Return the time at a column of the time bar, ns; None: the column has none."""
        if self._live and frame.following:
            return None
        return time_at(frame.snapshot, self._playing(frame), cells, x)

    def _time_lines(self, frame: Frame, cells: int, rows: int) -> tuple[Line, ...]:
        state = self._playing(frame)
        bar = [time_bar(frame.snapshot, state, cells)]
        if rows >= LEGEND_ROWS:
            bar.append(legend(frame.snapshot, state, cells))
        words = self.message if self.message[0] else (self._controller.under_way, "held")
        if words[0]:
            bar[-1] = fit(line(" ", Segment(clip(words[0], cells - 2), words[1])), cells)
        return tuple(bar)

    def _playing(self, frame: Frame) -> Playing:
        return Playing(
            frame.playing, frame.speed, not self._live, frame.begin_ns, frame.end_ns,
            frame.marks, self._unit(), frame.loaded, frame.awaited_ns, frame.active_ns,
            frame.searched,
        )  # fmt: skip


def _lists(screen: str, frame: Frame) -> bool:
    """Return whether the screen has something for its own keys to act on."""
    shown, same = frame.snapshot, frame.sameness
    worse = any(found.severity != "info" for found in shown.findings)
    return {
        "numbers": same is not None and bool(same.modules), "output": bool(frame.output),
        "pipeline": shown.pipeline is not None,
        "findings": bool(shown.findings) and (worse or not is_starting(shown)),
    }.get(screen, True)  # fmt: skip
