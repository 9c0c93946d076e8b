"""The main screen: chrome around nine pages, and what every action does.

Keys and commands reach ``do_<action id>``; ``pardbg.ui.commands.actions`` says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from pardbg.control.language.verbs import Verb
from pardbg.render.draw.cells import Line, Picture, Segment, fit, line
from pardbg.render.frame import chrome
from pardbg.render.frame.timebar import Playing, legend, time_bar
from pardbg.ui import screenshot
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import ACTIONS, SCREENS, Action, for_mode, hints
from pardbg.ui.commands.completion import complete
from pardbg.ui.commands.explain import explain
from pardbg.ui.commands.prompt_history import History
from pardbg.ui.engine.controller import Controller
from pardbg.ui.engine.feed import Frame
from pardbg.ui.engine.messages import Trouble
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.collectives import CollectivesPage
from pardbg.ui.screens.control_keys import ControlKeys
from pardbg.ui.screens.debug import DebugPage
from pardbg.ui.screens.findings import FindingsPage
from pardbg.ui.screens.memory import MemoryPage
from pardbg.ui.screens.output import OutputPage
from pardbg.ui.screens.overview import OverviewPage
from pardbg.ui.screens.panel import Draw, Panel, help_panel, word_panel
from pardbg.ui.screens.pipeline import PipelinePage
from pardbg.ui.screens.time_keys import NOTE, Callbacks, TimeKeys
from pardbg.ui.screens.timeline import TimelinePage
from pardbg.ui.screens.traffic import TrafficPage
from pardbg.ui.widgets.chrome import Tabs
from pardbg.ui.widgets.lines import Lines
from pardbg.ui.widgets.picture import PicturePane
from pardbg.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from pardbg.ui.engine.cursor import TimeCursor

LEAST_CELLS, LEAST_ROWS = 60, 15
LEGEND_ROWS = 30
"""From so many rows on the time bar has a legend below it."""
_MESSAGE_S = 8.0
_PAGES: tuple[type[Page], ...] = (
    OverviewPage, PipelinePage, TimelinePage, CollectivesPage, TrafficPage, MemoryPage, DebugPage,
    FindingsPage, OutputPage,
)  # fmt: skip
_VERBS = frozenset(verb.value for verb in Verb)


class MainScreen(TimeKeys, ControlKeys, Screen[None]):
    """Header, tabs, one page, control line or time bar, key hints."""

    AUTO_FOCUS = ""
    """The prompt takes keys only when it was asked for."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False)
        for key in dict.fromkeys(key for action in ACTIONS for key in action.keys)
    ]

    def __init__(
        self,
        title: str,
        cursor: TimeCursor,
        desk: Controller,
        start_screen: str,
        links: Callbacks,
        history: History | None = None,
    ) -> None:
        super().__init__()
        self._history = history
        self._title, self._cursor, self._desk = title, cursor, desk
        self._links, self._want, self._wake = links, links.want, links.wake
        self._live = not cursor.replay
        self._by_key = {key: a for a in for_mode(self._live) for key in a.keys}
        self._message = ("", "")
        self._message_number = 0
        self._small = False
        self._cells = self._rows = 0
        self.shared = Shared(can_control=desk.present)
        self.pages = {page.name_: page(self.shared) for page in _PAGES}
        self._active = start_screen if start_screen in self.pages else "overview"
        self._make_widgets()

    def _make_widgets(self) -> None:
        """Held by name: a frame may come before they are on the screen."""
        self._ready = self._prompting = False
        self._too_small = Lines(id="small")
        self._header = Lines(id="header", ground="bar.header")
        self._tabs = Tabs([(number, name) for number, name, _ in SCREENS], id="tabs")
        self._switcher = ContentSwitcher(*self.pages.values(), initial=self._active, id="pages")
        self._status, self._sign = Lines(id="status"), Lines(id="sign")
        self._prompt = Prompt(self._complete, self._history, id="prompt")
        self._hints = Lines(id="hints")

    def compose(self) -> ComposeResult:
        yield self._too_small
        yield self._header
        yield self._tabs
        yield self._switcher
        yield self._status
        with Horizontal(id="asking"):
            yield self._sign
            yield self._prompt
        yield self._hints

    def on_mount(self) -> None:
        self._ready = True
        self._asking(False)
        self._tabs.activate(self._active)

    # ---------------------------------------------------------------- what is shown

    @property
    def page(self) -> Page:
        return self.pages[self._active]

    def take_frame(self, frame: Frame) -> None:
        """A new frame: draw the chrome and the page that is visible."""
        first = self.shared.frame is None
        self.shared.frame = frame
        ranks = [row.rank for row in frame.snapshot.ranks]
        if first and ranks and self.shared.rank not in ranks:
            self.shared.rank = ranks[0]
        self.page.redraw()
        self.paint()
        for screen in self.app.screen_stack[-1:]:
            if isinstance(screen, Panel):
                screen.redraw()

    def take_loading(self, share: float) -> None:
        self.shared.loading = f"reading the recording … {share:.0%}"
        self.page.redraw()

    def on_resize(self, event: events.Resize) -> None:
        size = event.size
        self._small = size.width < LEAST_CELLS or size.height < LEAST_ROWS
        self.set_class(self._small, "small")
        if self._small:
            text = f"pardbg needs {LEAST_CELLS}×{LEAST_ROWS}; this is {size.width}×{size.height}"
            self._too_small.show((line(Segment(text, "warn")),))
        self._cells, self._rows = size.width, size.height
        self.paint()
        self.call_after_refresh(lambda: self._want(self.page.want()))

    def paint(self) -> None:
        """Header, status and hints; the pages paint themselves."""
        if not self._ready or self._small or not self._cells:
            return
        cells, frame = self._cells, self.shared.frame
        snapshot = frame.snapshot if frame else None
        mode = chrome.Mode(
            not self._live, frame.following if frame else True, frame.playing if frame else False,
            frame.finished if frame else False, frame is not None and not frame.whole,
        )  # fmt: skip
        header = chrome.header(self._title, snapshot, mode, cells)
        self._header.show((header,))
        status = self._status_lines(cells)
        self._status.styles.height = len(status)
        self._status.show(status)
        if not self._prompting:
            items = [self._hint(action) for action in hints(self._live)]
            self._hints.show((chrome.hints(items, cells),))

    def _hint(self, action: Action) -> tuple[str, str]:
        keys, label = action.hinted or (action.shown, "")
        return keys, label or self._label(action)

    def _label(self, action: Action) -> str:
        frame = self.shared.frame
        if action.id == "toggle" and frame is not None:
            control = frame.snapshot.control
            return "pause" if control.mode == "running" and not control.held else "continue"
        if action.id == "play" and frame is not None and frame.playing:
            return "stop"
        if action.id == "last":
            return self.unit
        return action.label

    def _status_lines(self, cells: int) -> tuple[Line, ...]:
        """What is said, else the time bar (with its legend where there is room), else control."""
        frame = self.shared.frame
        if frame is not None and (not self._live or not frame.following):
            state = Playing(
                frame.playing, frame.speed, not self._live, frame.begin_ns, frame.end_ns,
                frame.marks, self.unit, frame.loaded, frame.awaited_ns,
            )  # fmt: skip
            bar = [time_bar(frame.snapshot, state, cells)]
            if self._rows >= LEGEND_ROWS:
                bar.append(legend(frame.snapshot, state, cells))
            words = self._message if self._message[0] else (self._desk.under_way, "held")
            if words[0]:
                bar[-1] = fit(line(" ", Segment(*words)), cells)
            return tuple(bar)
        if self._message[0] or frame is None:
            text, style = self._message
            return (fit(line(" ", Segment(text, style)), cells),)
        control = frame.snapshot.control
        return (chrome.control_line(control, self._desk.under_way, ("", ""), cells),)

    def say(self, text: str, style: str = "dim", seconds: float = _MESSAGE_S) -> None:
        """One line at the bottom, for a while or until the next key."""
        self._message = (text, style)
        self._message_number += 1
        number = self._message_number
        self.paint()
        if text:
            self.set_timer(seconds, lambda: self._unsay(number))

    def _unsay(self, number: int) -> None:
        if number == self._message_number:
            self.say("")

    def show_page(self, name: str) -> None:
        """Switch; the engine is told what the page needs."""
        self._active = name
        self._switcher.current = name
        self._tabs.activate(name)
        self._want(self.page.want())
        self.page.redraw()
        self.paint()

    # ---------------------------------------------------------------- keys and commands

    def action_press(self, key: str) -> None:
        """A key of the registry."""
        if self._message[0]:
            self.say("")
        action = self._by_key.get(key)
        if action is not None:
            self.perform(action, "")

    def perform(self, action: Action, argument: str) -> None:
        """Do it; a wrong argument is answered in one line."""
        wrong = self.attempt(action, argument)
        if wrong:
            self.say(wrong, "bad")

    def attempt(self, action: Action, argument: str) -> str:
        """Do it; what is wrong with the argument, in one line, or nothing."""
        try:
            if action.verb is not None:
                self._verb(action.verb, argument)
            elif action.id.startswith("inspect_"):
                self.inspect(action.id.removeprefix("inspect_"), argument)
            elif action.id.startswith("show_"):
                self.show_page(action.id.removeprefix("show_"))
            else:
                getattr(self, f"do_{action.id}")(argument)
        except command_line.CommandError as error:
            return str(error)
        return ""

    def on_prompt_done(self, event: Prompt.Done) -> None:
        self._asking(False)
        if event.kind == "/":
            self.do_filter(event.text or "", asked=True)
        elif event.kind == NOTE:
            if event.text is not None:
                self.bookmark(event.text)
        elif event.text:
            self.pages["debug"].say(f"(pardbg) {event.text}", "strong")  # type: ignore[attr-defined]
            try:
                found = command_line.parse(event.text, self._live)
            except command_line.CommandError as error:
                self.say(str(error), "bad")
                return
            self.perform(found.action, found.argument)

    def typed_ahead(self, event: events.Key) -> bool:
        """A character typed before the prompt had the focus is meant for it. (The prompt itself
        lets no character pass, so none comes here twice; enter finds it by its bindings.)"""
        meant = self._prompting and event.is_printable
        if meant:
            self._prompt.post_message(events.Key(event.key, event.character))
        return meant

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        if not self._prompting:
            return
        if event.kind == "/":
            self._filter(event.text)
            return
        if event.kind == NOTE:
            self._hints.show(
                (
                    fit(
                        line(
                            " ", Segment("enter", "key"), " keep   ", Segment("esc", "key"), " not"
                        ),
                        self._cells,
                    ),
                )
            )
            return
        found = command_line.candidates(event.text, self._live)
        cells = self._cells
        coming = [text.rstrip().rpartition(" ")[2] for text in self._complete(event.text)]
        if len(found) == 1 and " " in event.text and coming:
            shown = fit(
                line(" ", Segment(found[0][0], "key"), Segment(f"  {'  '.join(coming)}", "dim")),
                cells,
            )
        elif len(found) == 1:
            shown = fit(
                line(" ", Segment(found[0][0], "key"), Segment(f"  {found[0][1]}", "dim")), cells
            )
        else:
            shown = fit(line(" ", *(Segment(f"{usage}  ", "key") for usage, _ in found)), cells)
        self._hints.show((shown,))

    def _complete(self, text: str) -> list[str]:
        frame = self.shared.frame
        ranks = [row.rank for row in frame.snapshot.ranks] if frame else []
        return complete(text, self._live, ranks)

    def ask(self, kind: str, text: str = "") -> None:
        """Open the prompt: ``:``, ``/`` or NOTE, with ``text`` already in it."""
        self._asking(True, kind, text)

    def _asking(self, on: bool, kind: str = ":", text: str = "") -> None:
        self._prompting = on
        self.query_one("#asking").display = on
        self._status.display = not on
        prompt = self._prompt
        if on:
            sign = Segment({":": " (pardbg) ", "/": " filter / "}.get(kind, "  note ◆  "), "prompt")
            self._sign.show((line(sign),))
            prompt.ask(kind, text)
            self.on_prompt_edited(Prompt.Edited(kind, text))
        else:
            prompt.value = ""
            self.set_focus(None)
            self.paint()

    def on_trouble(self, event: Trouble) -> None:
        self.say(event.text, "bad")

    # ---------------------------------------------------------------- looking around

    def _turn_page(self, by: int) -> None:
        names = list(self.pages)
        self.show_page(names[(names.index(self._active) + by) % len(names)])

    def do_next_screen(self, _argument: str) -> None:
        self._turn_page(1)

    def do_previous_screen(self, _argument: str) -> None:
        self._turn_page(-1)

    def do_up(self, _argument: str) -> None:
        self.page.move(-1)

    def do_down(self, _argument: str) -> None:
        self.page.move(1)

    def do_page_up(self, _argument: str) -> None:
        self.page.scroll_rows(-self.page.room)

    def do_page_down(self, _argument: str) -> None:
        self.page.scroll_rows(self.page.room)

    def do_detail(self, _argument: str) -> None:
        frame = self.shared.frame
        evidence = self.page.jump(frame) if frame else None
        if evidence is not None:
            self.jump_to(evidence)
            return
        found = self.page.detail(frame, 80, 20) if frame else None
        if found is None:
            return
        page = self.page

        def draw(cells: int, rows: int) -> Picture:
            now = self.shared.frame
            made = page.detail(now, cells, rows) if now else None
            return made[1] if made else Picture()

        self.open_panel(found[0], draw)

    def open_panel(self, title: str, draw: Draw) -> None:
        """Show a framed picture over the page."""
        self.app.push_screen(Panel(title, draw))

    def do_escape(self, _argument: str) -> None:
        if self.page.contains:
            self._filter("")
        else:
            self.page.follow()
            self.page.redraw()

    def do_other(self, _argument: str) -> None:
        if self.page.other():
            self._want(self.page.want())
        else:
            self.say("p switches on 2 Pipeline, 4 Collectives and 5 Traffic")

    def do_filter(self, argument: str, asked: bool = False) -> None:
        if argument or asked:
            self._filter(argument)
        else:
            self._asking(True, "/", self.page.contains)

    def _filter(self, text: str) -> None:
        self.page.filter(text)
        self._want(self.page.want())

    def do_rank(self, argument: str) -> None:
        frame = self.shared.frame
        known = {row.rank for row in frame.snapshot.ranks} if frame else set()
        if not argument.isdigit() or int(argument) not in known:
            raise command_line.CommandError(f"no rank {argument!r} in this run")
        self.shared.rank = int(argument)
        self._want(self.page.want())
        self.page.redraw()

    def do_turn_back(self, _argument: str) -> None:
        self.do_turn_on("", -1)

    def do_turn_on(self, _argument: str, by: int = 1) -> None:
        if not self.page.turn(by):
            self.say("[ and ] go through the pipelines of a run that has several, on 2 Pipeline")
        self._want(self.page.want())

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        self.page.choose(event.index)

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self.show_page(SCREENS[event.number - 1][1])

    # ---------------------------------------------------------------- pardbg itself

    def do_command(self, _argument: str) -> None:
        self._asking(True)

    def do_help(self, argument: str) -> None:
        lines = explain(argument) if argument else []
        if argument and not lines:
            raise command_line.CommandError(f"no word {argument!r}: ? lists all")
        self.app.push_screen(word_panel(argument, lines) if lines else help_panel(self._live))

    def do_picture(self, argument: str) -> None:
        frame = self.shared.frame
        at = frame.snapshot.t_ns - frame.snapshot.t_begin_ns if frame is not None else 0
        self.say("")
        try:
            path = screenshot.save(
                self.app.export_screenshot(title=self._title), self._title, self._active, at,
                argument,
            )  # fmt: skip
        except OSError as error:
            self.say(f"no picture: {error.filename}: {error.strerror}", "bad")
        else:
            self.say(f"saved {path}")

    def do_theme(self, argument: str) -> None:
        if argument not in ("dark", "light", "16"):
            raise command_line.CommandError("theme dark, theme light or theme 16")
        self.app.theme = f"pardbg-{argument}"

    def do_quit(self, _argument: str) -> None:
        self.app.exit()
