"""Handlers of the keys about what is shown (pages, selection, details, filters), and about pardbg
itself (prompt, help, pictures, colours, leaving)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Evidence
from pardbg.errors import UserError
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.overview.rank_table import COLUMNS
from pardbg.ui.commands.actions import FILTERED, SCREENS, Handlers, explain
from pardbg.ui.commands.startup import keep_setting
from pardbg.ui.engine.messages import Arrived, Trouble
from pardbg.ui.main.alerts import FORMS, OFF, Alerts
from pardbg.ui.main.screen_port import ScreenPort
from pardbg.ui.screens.panel import HelpPanel, Panel, word_panel
from pardbg.ui.screens.theme_gallery import ThemeGallery
from pardbg.ui.terminal_driver import TerminalApp


class SelectionActions:
    """Actions that select what is shown, without moving the cursor or the ranks."""

    def __init__(self, view: ScreenPort, jump_to: Callable[[Evidence], None]) -> None:
        """Set up the handlers; ``jump_to`` goes to a finding's evidence."""
        self._view, self._jump_to = view, jump_to

    def handlers(self) -> Handlers:
        """Return the handlers by action id."""
        shows = {f"show_{name}": partial(self._show, name) for _, name, _ in SCREENS}
        return {
            **shows,
            "next_screen": lambda _: self._turn_page(1),
            "previous_screen": lambda _: self._turn_page(-1),
            "up": lambda _: self._move(-1),
            "down": lambda _: self._move(1),
            "page_up": lambda _: self._scroll(-1),
            "page_down": lambda _: self._scroll(1),
            "detail": self._detail,
            "escape": self._escape,
            "other": self._other,
            "grid": self._grid,
            "swap_axes": self._swap_axes,
            "cell_before": lambda _: self._cell(-1),
            "cell_after": lambda _: self._cell(1),
            "turn_back": lambda _: self._turn(-1),
            "turn_on": lambda _: self._turn(1),
            "filter": self._ask_filter,
            "rank": self._rank,
            "columns": self._columns,
        }

    def filter(self, text: str) -> None:
        """Show only rows that contain ``text``; empty: all rows."""
        self._view.page.filter(text)
        self._view.want_page()

    def _show(self, name: str, _argument: str) -> None:
        self._view.show_page(name)

    def _turn_page(self, by: int) -> None:
        names = list(self._view.pages)
        self._view.show_page(names[(names.index(self._view.active) + by) % len(names)])

    def _move(self, by: int) -> None:
        self._view.page.move(by)
        self._view.want_page()

    def _scroll(self, pages: int) -> None:
        self._view.page.scroll_rows(pages * self._view.page.room)

    def _detail(self, _argument: str) -> None:
        view, page, frame = self._view, self._view.page, self._view.shared.frame
        evidence = page.jump(frame) if frame else None
        if evidence is not None:
            self._jump_to(evidence)
            return
        found = page.detail(frame, 80, 20) if frame else None
        if found is None:
            if not page.opens:
                view.say("enter opens nothing here")
            view.want_page()  # it may look at something else now
            return

        def draw(cells: int, rows: int) -> Picture:
            now = view.shared.frame
            shown = page.detail(now, cells, rows) if now else None
            return shown[1] if shown else Picture()

        view.push_panel(Panel(found[0], draw))

    def _escape(self, _argument: str) -> None:
        if self._view.page.panels.zoom(False):
            self._view.page.redraw()
        elif self._view.page.contains:
            self.filter("")
        else:
            self._view.page.follow()
            self._view.page.redraw()
            self._view.want_page()

    def _other(self, _argument: str) -> None:
        if self._view.page.other():
            self._view.want_page()
        else:
            self._view.say(
                "p switches on 1 Overview (mesh), 2 Pipeline, 4 Collectives and 5 Traffic"
            )

    def _grid(self, _argument: str) -> None:
        if not self._view.page.grid():
            self._view.say(
                "g: mesh on 1 Overview, ticks on 2 Pipeline, most waiting on 4 Collectives"
            )
        self._view.want_page()
        self._view.paint()

    def _swap_axes(self, _argument: str) -> None:
        if not self._view.page.swap_axes():
            self._view.say("x: the axes of the mesh on 1 Overview (g)")
        self._view.want_page()

    def _cell(self, by: int) -> None:
        if not self._view.page.cell(by):
            self._view.say(
                "h and l go along the mesh of 1 Overview, the actions of 2 Pipeline, the boxes of 3"
            )
        self._view.want_page()

    def _ask_filter(self, argument: str) -> None:
        if self._view.active not in FILTERED:
            self._view.say(
                "/ filters 1 Overview, 3 Timeline, 4 Collectives, 9 Output and 0 Numbers"
            )
        elif argument:
            self.filter(argument)
        else:
            self._view.ask("/", self._view.page.contains)

    def _rank(self, argument: str) -> None:
        frame = self._view.shared.frame
        known = {str(row.rank): row.rank for row in frame.snapshot.ranks} if frame else {}
        if argument not in known:
            raise UserError(f"no rank {argument!r} in this run")
        self._view.shared.rank = known[argument]
        self._view.want_page()
        self._view.page.redraw()

    def _columns(self, argument: str) -> None:
        names = tuple(name.strip() for name in argument.lower().split(",") if name.strip())
        wrong = next((name for name in names if name not in COLUMNS), None)
        if wrong is not None:
            raise UserError(f"no column {wrong[:20]!r}: {', '.join(COLUMNS)}")
        self._view.shared.columns = names
        self._view.page.redraw()

    def _turn(self, by: int) -> None:
        if not self._view.page.turn(by) and not self._turn_part(by):
            self._view.say("[ and ] go through the pipelines (on 2), lives and roles of a run")
        self._view.want_page()

    def _turn_part(self, by: int) -> bool:
        """Show the next life or role of the run, and after the last the newest life again."""
        shared = self._view.shared
        number = len(shared.frame.snapshot.parts) if shared.frame else 0
        shared.part = ((shared.part or 0) + by) % (number + 1) or None
        return number > 0


class AppActions:
    """Actions on the app as a whole; ``title`` names the app's pictures."""

    def __init__(self, view: ScreenPort, app: App[Any], title: str) -> None:
        self._view, self._app, self._title = view, app, title
        self.alerts = Alerts()

    def handlers(self) -> Handlers:
        """Return the handlers by action id."""
        return {
            "command": lambda _: self._view.ask(":"),
            "help": self._help,
            "palette": lambda _: self._app.action_command_palette(),
            "copy": self._copy,
            "picture": self._picture,
            "theme": self._theme,
            "key": self._view.own_keys.bind,
            "alert": self._alert,
            "quit": lambda _: self._app.exit(),
        }

    def _help(self, argument: str) -> None:
        lines = explain(argument) if argument else []
        if argument and not lines:
            raise UserError(f"no word {argument!r}: ? lists all")
        view = self._view
        own = [*view.own_keys.help_rows()]
        every = HelpPanel(view.live, view.active, own)
        view.push_panel(word_panel(argument, lines) if lines else every)

    def _copy(self, _argument: str) -> None:
        frame = self._view.shared.frame
        text = self._view.page.copied(frame) if frame is not None else ""
        if text:
            self._app.copy_to_clipboard(text)
        here = self._view.active == "findings"
        nothing = "nothing to copy" if here else "y copies the finding on 8 Findings"
        self._view.say("copied the finding" if text else nothing)

    def _picture(self, argument: str) -> None:
        """Save the screen as an SVG file, written on a separate thread."""
        frame = self._view.shared.frame
        at = frame.snapshot.t_ns - frame.snapshot.t_begin_ns if frame is not None else 0
        self._view.say("")
        svg, page = self._app.export_screenshot(title=self._title), self._view.active

        self._write("no picture", lambda: f"saved {save_svg(svg, self._title, page, at, argument)}")

    def _write(self, failed: str, write: Callable[[], str]) -> None:
        """Write a file on a thread of its own; say what ``write`` returns, or why it failed."""

        def work() -> None:
            try:
                self._app.post_message(Arrived(write()))
            except OSError as error:
                text = f"{failed}: {error.filename}: {error.strerror}"
                self._app.post_message(Trouble(text))

        self._app.run_worker(work, thread=True, exit_on_error=False)

    def _theme(self, argument: str) -> None:
        """Take the named theme; without a name, let the user try all."""
        if not isinstance(self._app, TerminalApp):
            return
        if argument:
            self._app.choose_theme(argument)
        else:
            self._app.push_screen(ThemeGallery(self._keep_theme))

    def _keep_theme(self, name: str) -> None:
        """Write the theme into the user's file, where there is one."""
        path: Path | None = getattr(self._app, "kept_in", None)
        if path is None:
            self._view.say(f"theme {name}, until you leave")
            return

        self._write("theme not kept", lambda: keep_setting(path, "theme", name))

    def alert_of(self, snapshot: Snapshot) -> None:
        """Alert the user if alerts are on and there is something new."""
        news = self.alerts.news(snapshot)
        if news and isinstance(self._app, TerminalApp):
            self._app.tell_terminal(news)

    def _alert(self, argument: str) -> None:
        if argument not in (OFF, *FORMS):
            raise UserError(f"alert {', '.join((OFF, *FORMS))}; got {argument[:20]!r}")
        self.alerts.form = argument


_SPACES = re.compile(r"<text (?![^>]*xml:space)")


def save_svg(svg: str, session: str, screen: str, t_ns: int, named: str = "") -> Path:
    """Write ``session-screen-12.345s.svg`` into the current directory, or to ``named``.

    ``t_ns`` counts from the run's begin. An existing file is kept. Raises OSError.
    """
    stem = re.sub(r"[^\w.-]+", "-", session.removesuffix(".mcap")).strip("-") or "pardbg"
    path = Path(named).expanduser() if named else Path(f"{stem}-{screen}-{t_ns / 1e9:.3f}s.svg")
    if path.is_dir():
        path /= f"{stem}-{screen}-{t_ns / 1e9:.3f}s.svg"
    if path.exists():
        path = path.with_stem(f"{path.stem}-{time.strftime('%H%M%S')}")
    # Renderers other than browsers squeeze runs of blanks unless they are told not to.
    with open(path, "x", encoding="utf-8") as file:
        file.write(_SPACES.sub('<text xml:space="preserve" ', svg))
    return path.absolute()
