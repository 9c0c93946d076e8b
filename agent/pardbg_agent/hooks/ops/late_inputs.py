"""NaN and infinity in inputs of ops on a device, which the device finds and the agent reads late.

Looked at, by samples, are in a step each group's first sum of 16 KiB or more, and the last one, as
the step before had it (in backward NaN spreads to each gradient that is computed later; programs
that average by hand begin with the model's first), and the first MAX_SENDS messages. For more than
SHARE of the time, only every second step is looked at, every fourth, and so on: the analysis
compares ranks only in steps that all of them looked at. With ops hooked in C++, ``looks.hpp``
chooses them."""

from __future__ import annotations

import math
from functools import partial
from time import thread_time_ns
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import Op
from pardbg_agent.hooks.read_numbers import read_numbers, readable
from pardbg_agent.hooks.tensors import sampled_largest
from pardbg_agent.hooks.watch import probes
from pardbg_agent.wire import NONE, REDUCE, Kind

HOOK: Final = "device inputs"
SHARE: Final = 0.002
MAX_SENDS: Final = 32
MAX_EVERY: Final = 64
"""Maximum number of steps of which one is looked at."""
SUMS: Final = tuple(REDUCE.index(name) for name in ("sum", "avg", "premul_sum"))
"""Reductions that are looked at: a minimum's input may rightly be infinite."""


class Looks:
    """Inputs on a device that one Core looks at."""

    def __init__(self) -> None:
        self.step = self.finite = NONE
        self.every, self.num_sends, self.spent_ns, self.since_ns = 1, 0, 0, now_ns()
        self.counts: dict[str, list[int]] = {}
        """Group -> [step, its sums in that step so far, in the step with sums before]"""
        self.told = False

    def due(self, step: int, group: str, send: bool) -> bool:
        """Count an op; return whether its input is to be looked at."""
        if self.step != step:
            self.step, self.num_sends = step, 0
            allowed = probes.FREE_NS + SHARE * (now_ns() - self.since_ns)
            if step % self.every == 0 and self.spent_ns > allowed and self.every < MAX_EVERY:
                self.every *= 2
        now = step % self.every == 0
        if send:
            self.num_sends += 1
            return now and self.num_sends <= MAX_SENDS
        of = self.counts.setdefault(group, [step, 0, 0])
        if of[0] != step:
            of[:] = step, 0, of[1]
        of[1] += 1
        return now and of[1] in (1, of[2])


def looks(c: _core.Core) -> Looks | None:
    """Return which inputs a Core looks at; None if it looks at none, as at level summary."""
    known = context.of(c).part(probes.Probes)
    on = c.level > 1 and known.on and known.told < probes.MAX_TOLD
    return context.of(c).part(Looks) if on and HOOK not in c.guard.disabled else None


def look(c: _core.Core, known: Looks, op: Op, tensor: Any) -> None:
    """Have the device reduce a sample of the op's input, before it is issued."""
    t0 = thread_time_ns()
    if readable(tensor) and (largest := sampled_largest(tensor)) is not None:
        read_numbers(c, [largest], partial(_told, c, known, op))
    known.spent_ns += thread_time_ns() - t0


def _told(c: _core.Core, known: Looks, op: Op, values: list[float]) -> None:
    if math.isfinite(values[0]):
        known.finite = max(known.finite, op.step)
    else:
        probes.tell(c, op, (0, NONE))
        tell_finite(c, op.step)


def tell_finite(c: _core.Core, step: int) -> None:
    """Write the PROBE record ``inputs finite`` at the first number of a device that is not finite,
    in ``step``: a = newest step in which all inputs that were looked at are finite, b = each how
    many steps they are."""
    known = context.of(c).part(Looks)
    if not known.told:
        known.told = True
        every = known.every if c.native is None else c.native.table.looks_every()
        c.mark(Kind.PROBE, "inputs finite", now_ns(), known.finite, every, step=step)
