"""The controller: sends commands to the hub on worker threads.

Whether ranks are held is `Snapshot.control`, as the agents report it. The controller only knows
which commands are under way, and passes on errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from textual.message import Message

from pardbg.analysis.base.control import ControlView
from pardbg.control.language.arguments import MOVES
from pardbg.events.commands import ControlPort, Reply
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Refusal
from pardbg.ui.engine.messages import Answered

_UNDER_WAY = {
    Verb.PAUSE: "pausing…", Verb.CONTINUE: "letting every rank run on…", Verb.STEP: "stepping…",
    Verb.TICK: "one tick…", Verb.NEXT: "to the next training step…",
    Verb.OP: "to the next collective…", Verb.WHERE: "asking every rank for its stack…",
}  # fmt: skip
MOST_MOVES = 2
"""Maximum number of moving verbs under way: one running, and one that waits for its cut."""


class Controller:
    """Sender of commands, one at a time; answers are posted from a worker thread."""

    def __init__(
        self,
        port: ControlPort | None,
        start: Callable[[Callable[[], None]], object],
        post: Callable[[Message], object],
        live: bool = False,
    ) -> None:
        """Set up the controller; without a ``port`` every command is refused: a ``live`` run is
        view-only, a recording has no ranks to control."""
        self._port, self._start, self._post = port, start, post
        self._nobody = Reply(refusal=Refusal(Why.VIEW_ONLY if live else Why.RECORDING))
        self._lock = threading.Lock()
        self._sent: list[tuple[Verb | None, str]] = []
        """Commands sent and not answered yet, each with the text that the screen shows for it."""
        self.used = False
        """Whether this viewer has sent a command that changes the run."""

    @property
    def present(self) -> bool:
        return self._port is not None

    @property
    def you(self) -> str:
        """Return this viewer's name in the audit trail; empty if it cannot have control."""
        return self._port.name if self._port is not None else ""

    @property
    def under_way(self) -> str:
        """Return the text of the newest command without an answer; empty if there is none."""
        with self._lock:
            return self._sent[-1][1] if self._sent else ""

    def toggle(self, control: ControlView) -> Reply | None:
        """Pause a running job, or continue a held one; return None if the command was sent."""
        runs = control.mode == "running" and not control.held
        return self.send(Verb.PAUSE if runs else Verb.CONTINUE)

    def send(self, verb: Verb, ranks: str | None = None, **args: Any) -> Reply | None:
        """Send a command. Return a Reply only if the command is refused at once."""
        if self._port is None:
            return self._nobody
        if verb is Verb.KILL:  # asked for in so many words
            if ranks != "yes":
                return Reply(refusal=Refusal(Why.SAY_YES))
            ranks, args = None, {"confirm": True}
        with self._lock:
            moves = sum(sent in MOVES for sent, _ in self._sent)
        if verb in MOVES and moves >= MOST_MOVES:
            return None  # a key held down: what it asked for so far is enough
        words = _UNDER_WAY.get(verb, f"{verb.value}…")
        if verb is Verb.UNTIL:
            words = f"until {args.get('expr', '')}…"
        if args.get("count", 1) > 1:
            words = f"{verb.value} x{args['count']}…"
        if verb is Verb.STEP and ranks:
            words = f"stepping rank {ranks}…"
        self.used = self.used or verb not in (Verb.WHERE, Verb.RANKS, Verb.STATUS, Verb.LEVEL)
        call = partial(self._port.command, verb, ranks, **args)
        return self._run(verb, words, call, str(args.get("expr", "")))

    def ask(self, verb: Verb, ranks: str | None = None, **args: Any) -> Reply:
        """Send a command and wait for the hub's answer; not on the UI's thread."""
        if self._port is None:
            return self._nobody
        self.used = True
        return self._port.command(verb, ranks, **args)

    def mark(self, t_ns: int, text: str) -> Reply | None:
        """Set a bookmark in the run's recording; without text, remove it."""
        if self._port is None:
            return Reply(refusal=Refusal(Why.NO_BOOKMARK))
        call = partial(self._port.command, Verb.MARK, at_ns=t_ns, text=text)
        return self._run(Verb.MARK, "keeping the bookmark…", call)

    def take(self, back: bool = False) -> Reply | None:
        """Take control over from another viewer, or give control ``back``: every rank runs on."""
        if self._port is None:
            return self._nobody
        self.used = not back
        words = "giving control up…" if back else "taking control…"
        return self._run(None, words, self._port.leave if back else self._port.take)

    def farewell(self, timeout_s: float = 1.0) -> None:
        """Let every rank run on when the viewer leaves, without waiting long for a dead hub."""
        port = self._port
        if port is None or not self.used:
            return
        thread = threading.Thread(target=port.leave, name="pardbg-farewell", daemon=True)
        thread.start()
        thread.join(timeout_s)

    def _run(
        self, verb: Verb | None, words: str, call: Callable[[], Reply | None], expr: str = ""
    ) -> Reply | None:
        """Send a command on a worker thread; return None while it is under way."""

        def work() -> None:
            try:
                reply = call() or Reply()
            except Exception as error:  # noqa: BLE001 - the port is another process's other end
                reply = Reply(refusal=Refusal(Why.FAILED, str(error)))
            with self._lock:
                self._sent.remove((verb, words))
            self._post(Answered(verb, reply, expr))

        with self._lock:
            self._sent.append((verb, words))
        self._start(work)
        return None
