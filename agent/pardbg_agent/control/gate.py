"""Gates: points where a rank can be held, and never for longer than the lease.

Hooks do ``if gate.closed: gate.wait(Gate.X, describe, facts)``: open, that is one attribute read.
``closed`` means *look here*: ranks are being held, or a breakpoint, a delay or a watch that checks
an op before its issue is set. Only ``holding`` keeps a thread.

All decisions are made under one lock and at once: a PERMIT that lets a held thread go marks it
released inside ``permit()``, so a state that follows permit 5 never shows the hold that permit 5
ended. The lease is enforced by the first thread to check it, the waiting one or the agent's."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Final, Protocol

from pardbg_agent import clock
from pardbg_agent.control.breaks import Breaks, Facts
from pardbg_agent.control.watches import MAX_TEXT, NO_WATCHES, Watches
from pardbg_agent.wire import GATE_ALL, GATE_OPS, LEASE_NS, NO_GROUP, NONE, Gate, Kind, Lane

Describe = str | Callable[[], str]
AskFacts = Callable[[], Facts]
"""Returns the fields of the next op or action (wire.EXPR_NUMBERS, EXPR_TEXTS), for breakpoints."""
_NO_BREAKS: Final = Breaks([])
_LONGEST_WAIT_S: Final = 1.0
_MOST_ASKED: Final = 16
"""Maximum number of questions that wait for a held thread."""
_LED: Final = "debugger"
"""Text of the next event while a debugger leads the thread."""
_EXCEPTION, _INSIDE, _OPS = int(Gate.EXCEPTION), int(Gate.INSIDE), int(GATE_OPS)

Work = Callable[[FrameType | TracebackType | None], None]
"""Question of a person; called with a frame or an exception's traceback to look from."""


class Leader(Protocol):
    """Debugger that steps a rank line by line: its led thread passes gates."""

    since_ns: int

    @property
    def leads(self) -> int:
        """Ident of the led thread."""
        ...

    def stands(self) -> bool:
        """Return whether the led thread is stopped in the debugger."""
        ...

    def end(self) -> None:
        """Let the led thread go. Returns at once."""
        ...


@dataclass(slots=True, eq=False)
class _Holder:
    gate: int
    next: str
    since_ns: int
    is_main: bool
    released: bool = False
    work: list[Work] = field(default_factory=list)
    """Questions of people, to be run by this thread while it is held, oldest first."""
    trace: TracebackType | None = None
    """Traceback of the exception that ends the thread; its own frames are gone by then."""
    ident: int = 0


@dataclass(frozen=True, slots=True)
class GateState:
    """Fields of State that describe the gate."""

    held: int
    """Gate class at which a thread is held; 0: not held."""
    next: str
    since_ns: int
    reply_to: int | None
    """Id of the newest Permit or Run that this state follows."""
    closed: bool
    """Whether threads of the rank are held at gates, or will be."""
    hit: tuple[int, str] | None = None
    """(number of the breakpoint or watch that closed the gate, its finding or the next event)."""
    led: bool = False
    """Whether a debugger leads the rank: ``held`` is then set while the thread stands in it."""


def nothing() -> None:
    """Ignore changes; the default callback."""


class GateControl:
    """Gate of the rank: open, or closed with a number of permits."""

    def __init__(
        self,
        *,
        record: Callable[..., None],
        name: Callable[[str], int],
        status: Callable[[int, int, int], None],
        step: Callable[[], int] = lambda: 0,
        now: Callable[[], int] = clock.now_ns,
        facts: AskFacts = dict,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.changed: Callable[[], None] = nothing
        """Called when ``closed`` changed. Set by holders of a copy of it."""
        self.closed = False
        """Read by hooks: whether the gate must be checked. Everything else is under the lock."""
        self.holding = False
        """Whether permits and holds are in force."""
        self.inside = 0
        """Number of pipeline actions that have begun and not ended: ops are part of them."""
        self.inside_native: Callable[[], int] = int
        """Returns the number of such actions among those hooked in C++."""
        self.opened_ns = 0
        """Time when holds last ended: durations that began earlier do not measure the training."""
        self.breaks = _NO_BREAKS
        self.watches = NO_WATCHES
        self._due: tuple[int, str] | None = None
        """Finding of a watch: the next gate holds."""
        self._delay_ns = 0
        self._delayed_step = -1
        self._hit: tuple[int, str] | None = None
        self._working = 0
        """Ident of the held thread that runs a person's question; 0: none."""
        self._leader: Leader | None = None
        self._facts, self._sleep = facts, sleep
        self.revision = 0
        """Increases with every change that State shows."""
        self.wake: Callable[[], None] = lambda: None
        """Wakes the agent's thread after a change of state. Set by the sender."""
        self._record, self._name, self._status = record, name, status
        self._step, self._now = step, now
        self._changed = threading.Condition(threading.RLock())
        self._holders: list[_Holder] = []
        self._reply_to: int | None = None
        self._count = self._stop = self._left = 0
        self._deadline = 0
        self._ended = False

    # -- the training's side

    def wait(
        self, gate: int, describe: Describe, facts: AskFacts | None = None,
        look: Callable[[], None] | None = None,
    ) -> int:  # fmt: skip
        """Pass a gate, or be held until a permit, RUN or the lease's end. Return the ns it was held
        or delayed. ``describe`` (text or a function) describes the next event, ``facts`` returns
        its fields; they are only called when the rank is held, or a breakpoint needs them. ``look``
        is a watch's check of the next event: it may call ``stop``."""
        if self._working == threading.get_ident() or self._is_led():
            return 0  # code that a person evaluates, or steps through, passes all gates
        gate = int(gate)  # an enum's own & takes longer than all the rest here
        delayed = self._delay() if self._delay_ns else 0
        if look is not None:
            look()
        if self._due is not None:
            self._stop_here()
        elif gate & self.breaks.gates:
            self._break(gate, describe, facts)
        return delayed + self._pass(gate, describe) if self.holding else delayed

    def _delay(self) -> int:
        step, late = self._step(), self._delay_ns
        if step == self._delayed_step:
            return 0
        self._delayed_step = step
        self._sleep(late / 1e9)  # lets the GIL go
        return late

    def _break(self, gate: int, describe: Describe, facts: AskFacts | None) -> None:
        try:
            hit = self.breaks.first_hit(gate, facts, self._facts)
        except Exception:  # noqa: BLE001 - a condition must not reach the training
            hit = None
        if hit is None:
            return
        with self._changed:
            if self._ended:
                return
            self._close((hit.number, _text(describe)))

    def stop(self, number: int, text: str) -> bool:
        """Hold at the next gate that any thread of this rank reaches, after a watch's match. Counts
        the match; False: no stop (ignored, ended, deleted, or a hit waits already)."""
        with self._changed:
            if self._ended or self._hit is not None or self._due is not None:
                return False
            if not self.watches.counts(number):
                return False
            self._due = (number, text[:MAX_TEXT])
            self._look_again()
            return True

    def _stop_here(self) -> None:
        with self._changed:
            if self._due is not None and not self._ended:
                self._close(self._due)
            self._due = None

    def hold_raised(self, text: str, trace: TracebackType | None) -> None:
        """Hold this thread at its uncaught exception, and others, until RUN or the lease's end."""
        with self._changed:
            if self._ended:
                return
            self._close(None)
        self._pass(_EXCEPTION, text, trace)

    def _pass(self, gate: int, describe: Describe, trace: TracebackType | None = None) -> int:
        if gate & _OPS and (self.inside or self.inside_native()):
            gate |= _INSIDE
        with self._changed:
            if self._passes(gate):
                return 0
            holder = self._hold(gate, describe, trace)
            try:
                while not holder.released:
                    self._changed.wait(self._seconds_left())
                    self._lapse_if_due()
                    while holder.work and not holder.released:
                        self._work(holder)
            finally:
                if holder in self._holders:  # an exception (Ctrl-C) ended the wait
                    self._holders.remove(holder)
                    self._show()
        t1 = self._now()
        self._record(
            Kind.HELD, Lane.GATE, 0, self._name(holder.next), holder.since_ns, t1, self._step(),
            0, NO_GROUP, NONE, NONE, NONE, int(gate), 0,
        )  # fmt: skip
        return t1 - holder.since_ns

    def _passes(self, gate: int) -> bool:
        """Return whether a gate may be passed (lock held); uses up a permit if it counts."""
        self._lapse_if_due()
        if not self.holding:
            return True
        if gate == _EXCEPTION:
            return False
        if gate & _INSIDE and not self._stop & _INSIDE:
            return True
        if self._left > 0:
            if gate & self._count:
                self._left -= 1
                self.revision += 1
            return True
        return not gate & self._stop

    def _hold(self, gate: int, describe: Describe, trace: TracebackType | None) -> _Holder:
        main = threading.current_thread() is threading.main_thread()
        ident = threading.get_ident()
        holder = _Holder(
            int(gate), _text(describe), self._now(), main, trace=trace, ident=ident
        )  # fmt: skip
        self._holders.append(holder)
        self._show()
        return holder

    def _work(self, holder: _Holder) -> None:
        """Run a question without the lock: permits and the lease go on, and count after it."""
        work = holder.work.pop(0)
        self._working = threading.get_ident()
        self._changed.release()
        try:
            work(holder.trace or sys._getframe())
        finally:
            self._changed.acquire()
            self._working = 0
            if self._is_led() and holder in self._holders:
                self._release(holder)

    def _is_led(self) -> bool:
        leader = self._leader
        return leader is not None and leader.leads == threading.get_ident()

    def lead(self, leader: Leader) -> bool:
        """Let this held thread, from the question it runs, pass gates while ranks are held. Return
        False if they are not held any more."""
        with self._changed:
            if self.holding:
                self._leader = leader
                self._show()
            return self.holding

    def lead_no_more(self, leader: Leader) -> None:
        """End the lead of ``leader``: the next gate is an ordinary one. Any thread."""
        with self._changed:
            if self._leader is leader:
                self._part()

    # -- the agent thread's side

    def raised(self) -> dict[int, TracebackType]:
        with self._changed:
            return {one.ident: one.trace for one in self._holders if one.trace is not None}

    def ask(self, work: Work) -> bool:
        """Have the held thread run ``work`` with its innermost frame (or its exception), after the
        questions before. False: no thread is held, or very many questions wait."""
        with self._changed:
            order = self._in_order()
            if not order or len(order[0].work) >= _MOST_ASKED or self._leader is not None:
                return False
            order[0].work.append(work)
            self._changed.notify_all()
            return True

    def permit(self, message_id: int | None, count: int, n: int, stop: int, lease_ns: int) -> None:
        """Close the gate, with ``n`` permits for the classes in ``count``; n = 0 is hold."""
        with self._changed:
            if self._ended:
                return
            self._reply_to = message_id
            self._count, self._left, self._stop = count, n, stop
            self._deadline = self._now() + min(max(lease_ns, 0), LEASE_NS)
            self.holding = self.closed = True
            self.changed()
            if n:
                self._part()
            onward = [holder for holder in self._in_order() if self._passes(holder.gate)]
            for holder in onward:
                self._release(holder)
            if n or onward:  # a mere hold must not hide an unreported hit
                self._hit = None
            self._show()
            self._changed.notify_all()

    def run(self, message_id: int | None = None) -> None:
        with self._changed:
            if message_id is not None:
                self._reply_to = message_id
            self._open()

    def lease(self, lease_ns: int) -> None:
        """Renew: stay closed for another ``lease_ns`` (at most LEASE_NS)."""
        with self._changed:
            if self.holding:
                self._deadline = self._now() + min(max(lease_ns, 0), LEASE_NS)

    def set_breaks(self, breaks: Breaks, watches: Watches = NO_WATCHES) -> None:
        with self._changed:
            breaks.keep_counts(self.breaks)
            watches.keep_counts(self.watches)
            self.breaks, self.watches = breaks, watches
            if self._due is not None and not watches.has(self._due[0]):
                self._due = None
            self._look_again()

    def set_delay(self, delay_ns: int) -> None:
        """Delay each step by ``delay_ns``, a minute at most; 0 ends the delay."""
        with self._changed:
            self._delay_ns = min(max(delay_ns, 0), 60_000_000_000)
            self._look_again()

    def stands(self) -> bool:
        """Return whether a led thread stands in its debugger."""
        leader = self._leader
        return leader is not None and leader.stands()

    def free_since(self, t_ns: int) -> bool:
        """Return whether this rank has not been held since then."""
        return not self.holding and self.opened_ns <= t_ns

    def check_lease(self) -> bool:
        """Open if the lease has lapsed; True if it did just now."""
        with self._changed:
            return self._lapse_if_due()

    def begin(self) -> None:
        """Let permits count again, after ``end``."""
        with self._changed:
            self._ended = False

    def end(self) -> None:
        """Open for good (the process leaves)."""
        with self._changed:
            self._ended = True
            self._open()

    def state(self) -> GateState:
        """Return a consistent view of a thread that raised, else the main one, else the oldest."""
        with self._changed:
            order = self._in_order()
            told = (self._reply_to, self.holding, self._hit)
            if (leader := self._leader) is not None:
                gate, text = (int(Gate.BREAK), _LED) if leader.stands() else (0, "")
                return GateState(gate, text, leader.since_ns, *told, led=True)
            if not order:
                return GateState(0, "", 0, *told)
            first = order[0]
            return GateState(first.gate, first.next, first.since_ns, *told)

    # -- lock held from here on

    def _close(self, hit: tuple[int, str] | None) -> None:
        """Hold at every gate until the hub's next message, or the lease's end."""
        self._hit = hit
        self._count = self._stop = GATE_ALL
        self._left = 0
        self._deadline = self._now() + LEASE_NS
        self.holding = self.closed = True
        self.changed()

    def _part(self) -> None:
        """End the lead; all its time counts as held."""
        leader, self._leader = self._leader, None
        if leader is None:
            return
        leader.end()
        self._record(
            Kind.HELD, Lane.GATE, 0, self._name(_LED), leader.since_ns, self._now(), self._step(),
            0, NO_GROUP, NONE, NONE, NONE, int(Gate.BREAK), 0,
        )  # fmt: skip
        self._show()

    def _in_order(self) -> list[_Holder]:
        return sorted(self._holders, key=lambda one: (one.gate != _EXCEPTION, not one.is_main))

    def _release(self, holder: _Holder) -> None:
        holder.released = True
        self._holders.remove(holder)

    def _open(self) -> None:
        if self.holding:
            self.opened_ns = self._now()
        self.holding = False
        self._part()
        self._left, self._hit = 0, None
        if self._ended:
            self.breaks, self._delay_ns = _NO_BREAKS, 0
            self.watches, self._due = NO_WATCHES, None
        self._look_again()
        for holder in list(self._holders):
            self._release(holder)
        self._show()
        self._changed.notify_all()

    def _look_again(self) -> None:
        self.closed = (
            self.holding or bool(self.breaks.gates) or self._delay_ns > 0
            or self.watches.before_issue or self._due is not None
        )  # fmt: skip
        self.changed()

    def _lapse_if_due(self) -> bool:
        if self.holding and self._now() >= self._deadline:
            self._open()
            return True
        return False

    def _seconds_left(self) -> float:
        left = (self._deadline - self._now()) / 1e9
        return min(max(left, 0.001), _LONGEST_WAIT_S)

    def _show(self) -> None:
        self.revision += 1
        order = self._in_order()
        if order:
            first = order[0]
            self._status(first.gate, self._name(first.next), first.since_ns)
        else:
            self._status(0, 0, self._now())
        self.wake()


def _text(describe: Describe) -> str:
    try:
        return (describe if isinstance(describe, str) else describe())[:200]
    except Exception:  # noqa: BLE001 - a hold without a text is better than none
        return "?"
