"""The main screen: chrome around nine pages, and what every action does.

Keys and commands reach ``do_<action id>``; the registry in ``pardbg.ui.actions`` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from pardbg.control.model import Reply, Verb
from pardbg.render import chrome
from pardbg.render.cells import Line, Picture, Run, fit, line
from pardbg.render.timebar import Playing, time_bar
from pardbg.ui import commands
from pardbg.ui.actions import ACTIONS, SCREENS, Action, for_mode, hints
from pardbg.ui.desk import Desk
from pardbg.ui.engine import Frame, Want
from pardbg.ui.messages import Answered, Trouble
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.collectives import CollectivesPage
from pardbg.ui.screens.debug import DebugPage
from pardbg.ui.screens.findings import FindingsPage
from pardbg.ui.screens.memory import MemoryPage
from pardbg.ui.screens.output import OutputPage
from pardbg.ui.screens.overview import OverviewPage
from pardbg.ui.screens.panel import Panel, help_panel
from pardbg.ui.screens.pipeline import PipelinePage
from pardbg.ui.screens.timeline import TimelinePage
from pardbg.ui.screens.traffic import TrafficPage
from pardbg.ui.widgets.chrome import Tabs
from pardbg.ui.widgets.lines import Lines
from pardbg.ui.widgets.picture import PicturePane
from pardbg.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from pardbg.ui.cursor import TimeCursor

LEAST_CELLS, LEAST_ROWS = 60, 15
_MESSAGE_S = 8.0
_PAGES: tuple[type[Page], ...] = (
    OverviewPage, PipelinePage, TimelinePage, CollectivesPage, TrafficPage, MemoryPage, DebugPage,
    FindingsPage, OutputPage,
)  # fmt: skip
_VERBS = frozenset(verb.value for verb in Verb)


class MainScreen(Screen[None]):
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
        desk: Desk,
        start_screen: str,
        want: Callable[[Want], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self._title, self._cursor, self._desk = title, cursor, desk
        self._want, self._wake = want, wake
        self._live = not cursor.replay
        self._by_key = {key: a for a in for_mode(self._live) for key in a.keys}
        self._message = ("", "")
        self._message_number = 0
        self._small = False
        self._cells = 0
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
        self._prompt = Prompt(lambda text: commands.complete(text, self._live), id="prompt")
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

    def take_loading(self, messages: int) -> None:
        self.shared.loading = f"reading the recording … {messages} messages"
        self.page.redraw()

    def on_resize(self, event: events.Resize) -> None:
        size = event.size
        self._small = size.width < LEAST_CELLS or size.height < LEAST_ROWS
        self.set_class(self._small, "small")
        if self._small:
            text = f"pardbg needs {LEAST_CELLS}×{LEAST_ROWS}; this is {size.width}×{size.height}"
            self._too_small.show((line(Run(text, "warn")),))
        self._cells = size.width
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
            frame.finished if frame else False,
        )  # fmt: skip
        header = chrome.header(self._title, snapshot, mode, cells)
        self._header.show((header,))
        self._status.show((self._status_line(cells),))
        if not self._prompting:
            items = [a.hinted or (a.shown, self._label(a)) for a in hints(self._live)]
            self._hints.show((chrome.hints(items, cells),))

    def _label(self, action: Action) -> str:
        frame = self.shared.frame
        if action.id == "toggle" and frame is not None:
            control = frame.snapshot.control
            return "pause" if control.mode == "running" and not control.held else "continue"
        if action.id == "play" and frame is not None and frame.playing:
            return "stop"
        return action.label

    def _status_line(self, cells: int) -> Line:
        frame = self.shared.frame
        if self._message[0] or frame is None:
            text, style = self._message
            return fit(line(" ", Run(text, style)), cells)
        if (not self._live or not frame.following) and not self._desk.under_way:
            state = Playing(frame.playing, frame.speed, not self._live)
            return time_bar(frame.snapshot, state, cells)
        return chrome.control_line(frame.snapshot.control, self._desk.under_way, ("", ""), cells)

    def say(self, text: str, style: str = "dim") -> None:
        """One line at the bottom, for a while or until the next key."""
        self._message = (text, style)
        self._message_number += 1
        number = self._message_number
        self.paint()
        if text:
            self.set_timer(_MESSAGE_S, lambda: self._unsay(number))

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
        try:
            if action.verb is not None:
                self._verb(action.verb, argument)
            elif action.id.startswith("show_"):
                self.show_page(action.id.removeprefix("show_"))
            else:
                getattr(self, f"do_{action.id}")(argument)
        except commands.CommandError as error:
            self.say(str(error), "bad")

    def on_prompt_done(self, event: Prompt.Done) -> None:
        self._asking(False)
        if event.kind == "/":
            self.do_filter(event.text or "", asked=True)
        elif event.text:
            self.pages["debug"].say(f"(pardbg) {event.text}", "strong")  # type: ignore[attr-defined]
            try:
                found = commands.parse(event.text, self._live)
            except commands.CommandError as error:
                self.say(str(error), "bad")
                return
            self.perform(found.action, found.argument)

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        if not self._prompting:
            return
        if event.kind == "/":
            self._filter(event.text)
            return
        found = commands.candidates(event.text, self._live)
        cells = self._cells
        if len(found) == 1:
            shown = fit(line(" ", Run(found[0][0], "key"), Run(f"  {found[0][1]}", "dim")), cells)
        else:
            shown = fit(line(" ", *(Run(f"{usage}  ", "key") for usage, _ in found)), cells)
        self._hints.show((shown,))

    def _asking(self, on: bool, kind: str = ":", text: str = "") -> None:
        self._prompting = on
        self.query_one("#asking").display = on
        self._status.display = not on
        prompt = self._prompt
        if on:
            sign = Run(" (pardbg) " if kind == ":" else " filter / ", "prompt")
            self._sign.show((line(sign),))
            prompt.ask(kind, text)
            self.on_prompt_edited(Prompt.Edited(kind, text))
        else:
            prompt.value = ""
            self.set_focus(None)
            self.paint()

    # ---------------------------------------------------------------- control

    def _verb(self, verb: Verb, argument: str) -> None:
        ranks = argument or None
        if verb is Verb.STEP and ranks is None:
            ranks = str(self.shared.rank)
        if verb is Verb.WHERE:
            self.show_page("debug")
        self._refused(self._desk.send(verb, ranks))

    def do_toggle(self, _argument: str) -> None:
        frame = self.shared.frame
        if frame is not None:
            self._refused(self._desk.toggle(frame.snapshot.control))

    def do_take(self, _argument: str) -> None:
        self._refused(self._desk.take())

    def do_leave(self, _argument: str) -> None:
        self._refused(self._desk.leave())

    def _refused(self, reply: Reply | None) -> None:
        if reply is not None and reply.error:
            self.say(reply.error, "bad")
        self.paint()

    def on_answered(self, event: Answered) -> None:
        """The hub's answer: an error is said; stacks and lists go to the debug page."""
        debug = self.pages["debug"]
        assert isinstance(debug, DebugPage)
        name = event.verb.value if event.verb else "control"
        if not event.reply.ok:
            text = event.reply.error or f"{name}: the hub refused"
            debug.say(text, "bad")
            self.say(text, "bad")
            return
        if event.verb is Verb.WHERE:
            if not debug.stacks(event.reply.data):
                self.say("no rank answered with a stack", "warn")
        elif event.verb in (Verb.RANKS, Verb.STATUS):
            for key, value in sorted(event.reply.data.items(), key=str):
                debug.say(f"{key}: {value}")
            self.show_page("debug")
        else:
            debug.say(f"{name}: ok")
        self.paint()

    def on_trouble(self, event: Trouble) -> None:
        self.say(event.text, "bad")

    # ---------------------------------------------------------------- time

    def do_play(self, _argument: str) -> None:
        self._cursor.toggle()
        self._wake()

    def _move(self, by_ns: int) -> None:
        frame = self.shared.frame
        if frame is not None:
            self._cursor.stop()
            self._cursor.move(by_ns, frame.snapshot.t_ns)
            self._wake()

    def _one(self, whole_step: bool) -> int:
        frame = self.shared.frame
        if frame is None:
            return 0
        if whole_step:
            return frame.snapshot.step_ns or 1_000_000_000
        return self.page.time_step_ns(frame.snapshot)

    def do_back(self, _argument: str) -> None:
        self._move(-self._one(False))

    def do_forward(self, _argument: str) -> None:
        self._move(self._one(False))

    def do_step_back(self, _argument: str) -> None:
        self._move(-self._one(True))

    def do_step_forward(self, _argument: str) -> None:
        self._move(self._one(True))

    def do_begin(self, _argument: str) -> None:
        frame = self.shared.frame
        if frame is not None:
            self._cursor.stop()
            self._cursor.seek(frame.snapshot.t_begin_ns)
            self._wake()

    def do_end(self, _argument: str) -> None:
        self.do_follow("")

    def do_follow(self, _argument: str) -> None:
        self._cursor.follow()
        self.page.follow()
        self._wake()

    def do_slower(self, _argument: str) -> None:
        self._cursor.change_speed(-1)
        self._wake()

    def do_faster(self, _argument: str) -> None:
        self._cursor.change_speed(1)
        self._wake()

    def do_reverse(self, _argument: str) -> None:
        self._cursor.set_speed(-self._cursor.speed)
        self._wake()

    def do_speed(self, argument: str) -> None:
        self._cursor.set_speed(commands.factor(argument))
        self._wake()

    def do_seek(self, argument: str) -> None:
        frame = self.shared.frame
        if frame is None:
            return
        snapshot = frame.snapshot
        total = snapshot.t_end_ns - snapshot.t_begin_ns
        self._cursor.stop()
        self._cursor.seek(snapshot.t_begin_ns + commands.time_ns(argument, total))
        self._wake()

    def do_zoom_in(self, argument: str) -> None:
        by = {"": 1, "in": 1, "out": -1, "all": 0}.get(argument)
        if by is None:
            raise commands.CommandError("zoom in, zoom out or zoom all")
        if not self.page.zoom(by):
            self.say("zoom works on 3 Timeline")
        self._want(self.page.want())

    def do_zoom_out(self, _argument: str) -> None:
        self.do_zoom_in("out")

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
        found = self.page.detail(frame, 80, 20) if frame else None
        if found is None:
            return
        page = self.page

        def draw(cells: int, rows: int) -> Picture:
            now = self.shared.frame
            made = page.detail(now, cells, rows) if now else None
            return made[1] if made else Picture()

        self.app.push_screen(Panel(found[0], draw))

    def do_escape(self, _argument: str) -> None:
        if self.page.contains:
            self._filter("")
        else:
            self.page.follow()
            self.page.redraw()

    def do_other(self, _argument: str) -> None:
        if not self.page.other():
            self.say("p switches on 4 Collectives and 5 Traffic")

    def do_filter(self, argument: str, asked: bool = False) -> None:
        if argument or asked:
            self._filter(argument)
        else:
            self._asking(True, "/", self.page.contains)

    def _filter(self, text: str) -> None:
        self.page.filter(text)
        self._want(self.page.want())

    def do_rank(self, argument: str) -> None:
        if not argument.isdigit() or int(argument) not in self.page.ranks():
            raise commands.CommandError(f"no rank {argument!r} in this run")
        self.shared.rank = int(argument)
        self.page.redraw()

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        self.page.choose(event.index)

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        self.show_page(SCREENS[event.number - 1][1])

    # ---------------------------------------------------------------- pardbg itself

    def do_command(self, _argument: str) -> None:
        self._asking(True)

    def do_help(self, _argument: str) -> None:
        self.app.push_screen(help_panel(self._live))

    def do_theme(self, argument: str) -> None:
        if argument not in ("dark", "light", "16"):
            raise commands.CommandError("theme dark, theme light or theme 16")
        self.app.theme = f"pardbg-{argument}"

    def do_quit(self, _argument: str) -> None:
        self.app.exit()
