"""NaN and infinity in inputs of ops on a device, which the device finds and the agent reads late.

Looked at, by samples, are in a step each group's first sum of 16 KiB or more, and the last one, as
the step before had it (in backward NaN spreads to each gradient that is computed later; programs
that average by hand begin with the model's first), and the first MAX_SENDS messages. For more than
SHARE of the time, only every second step is looked at, every fourth, and so on: the analysis
compares ranks only in steps that all of them looked at. With ops hooked in C++, ``looks.hpp``
chooses them.

An input that is chosen and cannot be read (a list of tensors, a sparse one, too many awaited) may
hold NaN: its step is told as unread, and clears no rank."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from time import thread_time_ns
from typing import Any, Final, Protocol

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import Op
from pardbg_agent.hooks.read_numbers import read_numbers, readable
from pardbg_agent.hooks.tensors import sampled_largest
from pardbg_agent.hooks.watch import probes
from pardbg_agent.tables.c10d_ops import C10dOp
from pardbg_agent.wire import NONE, REDUCE, Kind

HOOK: Final = "device inputs"
SHARE: Final = 0.002
MAX_SENDS: Final = 32
MAX_EVERY: Final = 64
"""Maximum number of steps of which one is looked at."""
MAX_UNREAD: Final = 16
"""Maximum number of steps that are remembered as unread."""
SUMS: Final = tuple(REDUCE.index(name) for name in ("sum", "avg", "premul_sum"))
"""Reductions that are looked at: a minimum's input may rightly be infinite."""


class Choice(Protocol):
    """Choice of the inputs that a rank looks at: this module's, or C++'s of the same rules."""

    captured: bool
    """Whether a graph has captured ops: its replays are seen by no hook."""

    @property
    def every(self) -> int:
        """Number of steps of which one is looked at; it only doubles."""

    def due(self, step: int, group: str, send: bool) -> bool:
        """Count an op; return whether its input is to be looked at."""

    def spend(self, ns: int) -> None:
        """Count time taken by looks."""


class Chosen:
    """The choice in Python."""

    def __init__(self) -> None:
        self.every, self._since_ns, self.captured = 1, now_ns(), False
        self._step = NONE
        self._num_sends = self._spent_ns = 0
        self._counts: dict[str, list[int]] = {}
        """Group -> [step, its sums in that step so far, in the step with sums before]"""

    def due(self, step: int, group: str, send: bool) -> bool:
        if self._step != step:
            self._step, self._num_sends = step, 0
            allowed = probes.FREE_NS + SHARE * (now_ns() - self._since_ns)
            if step % self.every == 0 and self._spent_ns > allowed and self.every < MAX_EVERY:
                self.every *= 2
        now = step % self.every == 0
        if send:
            self._num_sends += 1
            return now and self._num_sends <= MAX_SENDS
        of = self._counts.setdefault(group, [step, 0, 0])
        if of[0] != step:
            of[:] = step, 0, of[1]
        of[1] += 1
        return now and of[1] in (1, of[2])

    def spend(self, ns: int) -> None:
        self._spent_ns += ns


class Looks:
    """Inputs on a device that one Core looks at."""

    def __init__(self) -> None:
        self.chosen = Chosen()
        self.finite = NONE
        """Newest step with an input that was read and is finite."""
        self.unread: deque[int] = deque(maxlen=MAX_UNREAD)
        """Newest steps with an input that was due and not read."""
        self.told = False

    def misses(self, step: int) -> None:
        """Note an input that was due and is not read."""
        if step not in self.unread:
            self.unread.append(step)


def looks(c: _core.Core) -> Looks | None:
    """Return which inputs a Core looks at; None if it looks at none, as at level summary."""
    known = context.of(c).part(probes.Probes)
    on = c.level > 1 and known.on and known.told < probes.MAX_TOLD
    return context.of(c).part(Looks) if on and HOOK not in c.guard.disabled else None


def choice(c: _core.Core, known: Looks) -> Choice:
    """Return the choice of the inputs that a Core looks at."""
    chosen: Choice = known.chosen if c.native is None else c.native.table.choice
    return chosen


def least(spec: C10dOp) -> float:
    """Return the minimum size, in bytes, of inputs of an op that are looked at."""
    return probes.LEAST_BYTES if spec.reduce >= 0 else 1 if spec.send else math.inf


def look(c: _core.Core, known: Looks, op: Op, tensor: Any) -> bool:
    """Have the device reduce a sample of the op's input, before it is issued. Returns whether it
    will be read, or holds integers."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if not readable(tensor) or (largest := sampled_largest(tensor)) is None:
        return False
    return read_numbers(c, [largest], partial(_told, c, known, op))


def timed_look(c: _core.Core, known: Looks, op: Op, tensor: Any, counted: bool) -> None:
    """Look at an op's input that is due; without a ``tensor`` it cannot be read. ``counted``: C++
    counts the time."""
    t0 = thread_time_ns()
    if tensor is None or not c.guard.call(HOOK, look, c, known, op, tensor):
        known.misses(op.step)
    if not counted:
        choice(c, known).spend(thread_time_ns() - t0)


def _told(c: _core.Core, known: Looks, op: Op, values: list[float]) -> None:
    if math.isfinite(values[0]):
        known.finite = max(known.finite, op.step)
    else:
        probes.tell(c, op, (0, NONE))
        tell_finite(c, op.step)


def tell_finite(c: _core.Core, step: int) -> None:
    """Write the PROBE record ``inputs finite`` at the first number of a device that is not finite,
    in ``step``: a = newest step in which all inputs that were read are finite, b = each how many
    steps they are; and ``inputs unread`` for each step with one that was not, the oldest with a =
    1 if that may hold for all steps before. Inputs in a captured graph are read in no step."""
    known = context.of(c).part(Looks)
    if known.told:
        return
    known.told = True
    for number, unread in enumerate(tuple(known.unread)):
        before = number == 0 and len(known.unread) == MAX_UNREAD
        c.mark(Kind.PROBE, "inputs unread", now_ns(), int(before), step=unread)
    chosen = choice(c, known)
    finite = NONE if chosen.captured or HOOK in c.guard.disabled else known.finite
    c.mark(Kind.PROBE, "inputs finite", now_ns(), finite, chosen.every, step=step)
