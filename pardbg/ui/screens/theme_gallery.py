"""The gallery of themes: a list over the page, which wears each theme as the cursor comes to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pardbg.ui.palette import NAMES, base_of


class ThemeGallery(ModalScreen[None]):
    """``keep(name)`` is called with the theme that enter chooses; esc leaves the one before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back"), Binding("j", "app.simulate_key('down')"),
        Binding("k", "app.simulate_key('up')"),
    ]  # fmt: skip

    def __init__(self, keep: Callable[[str], None]) -> None:
        super().__init__()
        self._keep = keep
        self._list = OptionList(*(Option(f"{n:<21}{_sign(n)}", id=n) for n in NAMES))

    def compose(self) -> ComposeResult:
        self._list.border_title = " theme "
        self._list.border_subtitle = " enter keeps   esc back "
        yield self._list

    def on_mount(self) -> None:
        self._before = self.app.theme
        self._list.highlighted = [*NAMES.values()].index(self._before)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.app.theme = NAMES[event.option_id or ""]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._keep(event.option_id or "")
        self.dismiss()

    def action_back(self) -> None:
        self.app.theme = self._before
        self.dismiss()


def _sign(name: str) -> str:
    base = base_of(name)
    return "16 colours" if base == "16" else base
