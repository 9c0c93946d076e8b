"""The main screen: chrome around nine pages, the prompt, and the registry of handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from pardbg.analysis.answers.snapshot import SECTIONS, Viewport
from pardbg.analysis.findings.finding import Finding
from pardbg.control.language.arguments import MOVES
from pardbg.errors import UserError
from pardbg.render.draw.cells import Segment, line
from pardbg.render.pages.findings import told
from pardbg.store.history import Bookmark
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import ACTIONS, SCREENS, Action, Handlers, for_mode
from pardbg.ui.commands.command_line import MODE_ONLY, candidates_line, complete, note_line
from pardbg.ui.commands.startup import History
from pardbg.ui.engine.controller import Controller
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.engine import Engine
from pardbg.ui.engine.feed import Frame
from pardbg.ui.main.chrome_bars import ChromeBars
from pardbg.ui.main.control_actions import ControlActions
from pardbg.ui.main.own_keys import OwnKeys
from pardbg.ui.main.panel_actions import PanelActions
from pardbg.ui.main.time_actions import TimeActions
from pardbg.ui.main.view_actions import AppActions, SelectionActions
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.debug import DebugPage
from pardbg.ui.screens.numbers_page import NumbersPage
from pardbg.ui.screens.panel import Panel
from pardbg.ui.screens.pipeline import PipelinePage
from pardbg.ui.screens.row_pages import (
    CollectivesPage,
    FindingsPage,
    MemoryPage,
    OutputPage,
    OverviewPage,
    TrafficPage,
)
from pardbg.ui.screens.timeline import TimelinePage
from pardbg.ui.widgets.lines import ClickedLines, Lines, PicturePane, Tabs
from pardbg.ui.widgets.prompt import NOTE, Prompt
from pardbg.words import percent

LEAST_CELLS, LEAST_ROWS = 60, 15
_MESSAGE_S = 8.0
_MATCH = {"n": 1, "N": -1}
"""Keys of a page while it searches: to the next match, or the previous one."""
_PAGES: tuple[type[Page], ...] = (
    OverviewPage, PipelinePage, TimelinePage, CollectivesPage, TrafficPage, MemoryPage, DebugPage,
    FindingsPage, OutputPage, NumbersPage,
)  # fmt: skip


class _Pages(ContentSwitcher):
    """Switcher of pages. Mounting shows the initial page; the chosen one is set after that."""

    def __init__(self, chosen: Callable[[], str], *pages: Page) -> None:
        super().__init__(*pages, initial=chosen(), id="pages")
        self._chosen = chosen

    def on_mount(self) -> None:
        self.call_later(lambda: setattr(self, "current", self._chosen()))


class MainScreen(Screen[None]):
    """Header, tabs, one page, control line or time bar, key hints.

    The parts that handle keys and commands register by action id (``handlers``).
    """

    AUTO_FOCUS = ""
    """Widget with the initial focus: none, as the prompt takes keys only while it is open."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False)
        for key in dict.fromkeys([*_MATCH, *(key for action in ACTIONS for key in action.keys)])
    ]

    def __init__(
        self,
        app: App[Any],
        title: str,
        cursor: TimeCursor,
        controller: Controller,
        engine: Engine,
        keep: Callable[[Bookmark], None],
        start_screen: str,
        history: History | None = None,
    ) -> None:
        super().__init__()
        self._history = history
        self._want = engine.want
        self.live = not cursor.replay
        self.own_keys = OwnKeys(self._bindings)
        self._by_key = {key: a for a in for_mode(self.live) for key in a.keys}
        self._message_number = 0
        self._small = False
        self._pointed_at: tuple[tuple[int, ...], int] = (), 0
        """The culprits whose first was selected, and the rank selected then: the user's is kept."""
        self._cells = self._rows = 0
        self.shared = Shared(can_control=controller.present)
        self.pages: Mapping[str, Page] = {page.name_: page(self.shared) for page in _PAGES}
        self._active = start_screen if start_screen in self.pages else "overview"
        self.control = ControlActions(self, controller)
        self._time = TimeActions(self, cursor, engine, keep)
        self._selection = SelectionActions(self, self._time.jump_to)
        self._app_actions = AppActions(self, app, title)
        self._panels = PanelActions(self)
        self._bars = ChromeBars(title, self.live, controller, lambda: self._time.moves_by)
        self.handlers: Handlers = {
            **self.control.handlers(),
            **self._time.handlers(),
            **self._selection.handlers(),
            **self._app_actions.handlers(),
            **self._panels.handlers(),
        }
        """Action id -> its handler."""
        self._make_widgets()

    def _make_widgets(self) -> None:
        """Make the widgets as attributes: a frame may come before the widgets are mounted."""
        self._ready = self._prompting = False
        self._too_small = Lines(id="small")
        self._tabs = Tabs([(number, name) for number, name, _ in SCREENS], id="tabs")
        self._switcher = _Pages(lambda: self._active, *self.pages.values())
        self._sign = Lines(id="sign")
        self._prompt = Prompt(self._complete, self._history, id="prompt")

    def compose(self) -> ComposeResult:
        yield self._too_small
        yield self._bars.header
        yield self._tabs
        yield self._bars.banner
        yield from self._middle()
        yield self._bars.status
        with Horizontal(id="asking"):
            yield self._sign
            yield self._prompt
        yield self._bars.hints

    def _middle(self) -> ComposeResult:
        yield self._switcher

    def on_mount(self) -> None:
        self._ready = True
        self._asking(False)
        self._tabs.activate(self._active)

    # ---------------------------------------------------------------- what is shown

    @property
    def page(self) -> Page:
        """Return the visible page."""
        return self.pages[self._active]

    @property
    def active(self) -> str:
        """Return the visible page's name."""
        return self._active

    def take_frame(self, frame: Frame) -> None:
        """Take a new frame: draw the chrome and the visible page."""
        last, self.shared.frame = self.shared.frame, frame
        ranks = [row.rank for row in frame.snapshot.ranks]
        if last is None and ranks and self.shared.rank not in ranks:
            self._pointed_at = (), ranks[0]
            self.shared.rank = ranks[0]
        trouble, (culprits, rank) = frame.snapshot.trouble, self._pointed_at
        if trouble is not None and trouble.culprits not in ((), culprits):
            if self.shared.rank == rank:
                self.shared.rank = rank = min(trouble.culprits)  # the rank to look at
            self._pointed_at = trouble.culprits, rank
        if self.live and frame.following:
            self._app_actions.alert_of(frame.snapshot)
        self.page.redraw()
        self.paint()
        self.want_page(by_frame=True)  # a frame may have a new stack, whose source is wanted
        self.control.on_frame(frame)
        for screen in self.app.screen_stack[-1:]:
            if isinstance(screen, Panel):
                screen.redraw()

    def take_loading(self, share: float) -> None:
        self.shared.loading = f"reading the recording … {percent(share, 0)}"
        self.page.redraw()

    def on_resize(self, event: events.Resize) -> None:
        size = event.size
        self._small = size.width < LEAST_CELLS or size.height < LEAST_ROWS
        self.set_class(self._small, "small")
        self._bars.status.display = not (self._small or self._prompting)
        self.query_one("#asking").display = self._prompting and not self._small
        self._bars.banner.display = self._bars.banner.display and not self._small
        self._cells, self._rows = size.width, size.height
        self.paint()
        self.call_after_refresh(self.want_page)

    def paint(self) -> None:
        """Draw header, status and hints, or what is wrong if there is no room for more."""
        cells, rows, frame = self._cells, self._rows, self.shared.frame
        if self._small:
            size = f"pardbg needs {LEAST_CELLS}×{LEAST_ROWS}; this is {cells}×{rows}"
            wrong = [f for f in frame.snapshot.findings if f.severity != "info"] if frame else []
            self._too_small.show((line(Segment(size, "warn")), *told(wrong, cells, None, rows - 1)))
        elif self._ready and cells:
            self._bars.paint(frame, cells, rows, "" if self._prompting else self._active)

    def say(self, text: str, style: str = "dim", seconds: float = _MESSAGE_S) -> None:
        """Show one line at the bottom for some seconds, or until the next key; what went wrong is
        not replaced by what did not."""
        if text and style == "dim" and self._bars.message[1] == "bad":
            return
        self._bars.message = (text, style)
        self._message_number += 1
        number = self._message_number
        self.paint()
        if text:
            self.set_timer(seconds, lambda: self._unsay(number))

    def _unsay(self, number: int) -> None:
        if number == self._message_number:
            self.say("")

    def show_page(self, name: str) -> None:
        """Switch to a page, and tell the engine what it needs."""
        if not self._ready:
            self._active = name
            return
        if self.page.panels.jumping:
            self.jump(False)
        self._active, self.shared.console_rows = name, 0
        self._switcher.current = name
        self._tabs.activate(name)
        self.want_page()
        self.page.redraw()
        self.paint()

    def show_finding(self, finding: Finding) -> None:
        """Switch to the findings page, with this finding selected."""
        page = self.pages["findings"]
        assert isinstance(page, FindingsPage)
        page.point_at(finding)
        self.show_page("findings")

    def want_page(self, by_frame: bool = False) -> None:
        """Tell the engine which data the visible page needs; ``by_frame``: for a new frame."""
        page, over = self.page, isinstance(self.app.screen, Panel)
        viewport = Viewport(page.ranks_drawn(), SECTIONS if over else frozenset(page.sections))
        self._want(replace(page.wanted(), part=self.shared.part, viewport=viewport), by_frame)

    def push_panel(self, panel: Panel) -> None:
        """Open a panel over the page; ``:`` or ``/`` typed in it closes it and opens the prompt."""
        self.app.push_screen(panel, lambda kind: self.ask(kind) if kind else None)
        self.want_page()  # a panel may draw any section

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        self.page.pick(event.index, event.x)
        self.want_page()

    def on_clicked_lines_clicked(self, event: ClickedLines.Clicked) -> None:
        """Go to the time under a click on the time bar."""
        frame = self.shared.frame
        t_ns = self._bars.time_at(frame, self._cells, event.x) if frame and not event.y else None
        if t_ns is not None:
            self._time.seek(t_ns)

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self.show_page(SCREENS[event.number - 1][1])

    # ---------------------------------------------------------------- keys and commands

    def action_press(self, key: str) -> None:
        """Handle a key of the registry."""
        if self._bars.message[0]:
            self.say("")
        if key in _MATCH and self.page.match(_MATCH[key]):
            self.want_page()
            return
        action, own = self._by_key.get(key), self.own_keys.line_of(key)
        if own:
            self.say(self._attempt_line(own), "bad")
            return
        if action is not None:
            self.perform(action, "")
            return
        other = next((a for a in ACTIONS if key in a.keys), None)
        if other is not None:
            self.say(f"{other.shown} ({other.label}) works only in {MODE_ONLY[other.context]}")

    def perform(self, action: Action, argument: str) -> None:
        """Perform an action; show an error of its argument in one line."""
        wrong = self.attempt(action, argument)
        if wrong:
            self.say(wrong, "bad")

    def attempt(self, action: Action, argument: str) -> str:
        """Perform an action; return the error of the argument in one line, or an empty text."""
        frame = self.shared.frame
        if action.group == "control" and action.context == "live" and frame and frame.finished:
            return f"the job has ended: nothing is left to {action.label}"
        acts = action.verb in MOVES or action.id == "toggle"
        if acts and frame is not None and self.live and not frame.following:
            self.handlers["follow"]("")  # what is shown is not what would move
            label = "pause or continue" if action.id == "toggle" else action.label
            return f"back to now: once more for {label}"
        try:
            self.handlers[action.id](argument)
        except UserError as error:
            return str(error)
        return ""

    def jump(self, on: bool) -> None:
        """Show letters over the page's panels and rows, all else dim; or remove them."""
        self.page.panels.jumping = self._bars.jumping = on
        for lines in self.query(Lines):
            lines.dim(on and lines is not self._bars.hints)
        self.page.redraw()
        self.paint()

    # ---------------------------------------------------------------- the prompt

    def ask(self, kind: str, text: str = "") -> None:
        """Open the prompt: ``:``, ``/`` or NOTE, with ``text`` as its initial content."""
        self._asking(True, kind, text)

    def _asking(self, on: bool, kind: str = ":", text: str = "") -> None:
        self._prompting = on
        self.query_one("#asking").display = on
        self._bars.status.display = not on
        prompt = self._prompt
        if on:
            asks = {":": f" {self.shared.place} ", "/": " filter / "}.get(kind, "  note ◆  ")
            self._sign.styles.width = len(asks)
            self._sign.show((line(Segment(asks, "prompt")),))
            prompt.ask(kind, text)
            self.on_prompt_edited(Prompt.Edited(kind, text))
        else:
            prompt.value = ""
            self.set_focus(None)
            self.paint()

    def on_prompt_done(self, event: Prompt.Done) -> None:
        self._asking(False)
        if event.kind == "/":
            self._selection.filter(event.text or "")
        elif event.kind == NOTE:
            if event.text is not None:
                self._time.bookmark(event.text)
        elif event.text:
            self.run_line(event.text)

    def run_line(self, text: str) -> None:
        """Carry out a line of the prompt; errors in the line appear in the console."""
        self.say("")
        self.control.typed(text)
        if wrong := self._attempt_line(text):
            self.control.show_result(wrong, True)

    def _attempt_line(self, text: str) -> str:
        try:
            found = command_line.parse(text, self.live)
        except UserError as error:
            return str(error)
        return self.attempt(found.action, found.argument)

    def typed_ahead(self, event: events.Key) -> bool:
        """Take a key of a jump, or pass a character typed before the prompt had the focus on to the
        prompt. (The prompt consumes its characters, so none comes here twice; enter is found by its
        bindings.)"""
        if self.page.panels.jumping:
            self._panels.take(event.character or "")
            return True
        meant = self._prompting and event.is_printable
        if meant:
            self._prompt.post_message(events.Key(event.key, event.character))
        elif event.is_printable and event.key not in self.active_bindings:
            self.say(f"{event.character} does nothing here: ? lists the keys")
        return meant

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        if not self._prompting:
            return
        if event.kind == "/":
            self._selection.filter(event.text)
        elif event.kind == NOTE:
            self._bars.hints.show((note_line(self._cells),))
        else:
            completions = self._complete(event.text)
            shown = candidates_line(event.text, self.live, completions, self._cells)
            self._bars.hints.show((shown,))

    def _complete(self, text: str) -> list[str]:
        frame = self.shared.frame
        ranks = [row.rank for row in frame.snapshot.ranks] if frame else []
        return complete(text, self.live, ranks)
