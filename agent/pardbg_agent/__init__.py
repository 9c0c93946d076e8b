"""pardbg's agent: the optional API for training programs.

Every function costs one look-up, and does nothing more, unless pardbg watches this rank.
Importing this package imports neither torch nor zmq.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from pardbg_agent import active

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pardbg_agent.hooks.training.program_actions import ProgramAction

__all__ = ["action", "attach", "breakpoint", "detach", "layout", "log", "plan", "span", "step"]
__version__ = "0.1.0"


def attach(run: str | os.PathLike[str] | None = None) -> bool:
    """Start watching from inside the program (``run``: the run directory; default ``$PARDBG``).
    Return True if the hooks are in place. Without a run it does nothing."""
    if run is not None:
        os.environ["PARDBG"] = os.fspath(run)
    if not os.environ.get("PARDBG"):
        return False
    from pardbg_agent import autostart, core

    core.forget_off()
    return autostart.install_hooks()


def detach() -> None:
    """Restore everything the agent patched and stop it in this process."""
    if "pardbg_agent.core" in sys.modules:
        from pardbg_agent import autostart

        autostart.remove_hooks()


class _Span:
    """Named piece of the program's time, shown on the rank's user lane."""

    __slots__ = ("_name", "_on_device", "_place", "_t0")

    def __init__(self, name: str, place: tuple[int, int, int]) -> None:
        self._name, self._place = name, place
        self._t0 = 0
        self._on_device: Any = None

    def __enter__(self) -> _Span:
        self._t0 = time.monotonic_ns()
        self._record(None, False)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._record(time.monotonic_ns(), kind is not None)

    def _record(self, t1: int | None, failed: bool) -> None:
        core = active.CORE
        if core is not None:
            self._on_device = core.guard.call(
                "span", core.span, self._name, self._place, self._t0, t1, failed, self._on_device
            )


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *details: object) -> None:
        return None


_NO_SPAN = _NoSpan()


def span(name: str, part: int = 0, parts: int = 0, chunk: int = -1) -> _Span | _NoSpan:
    """Show ``with pardbg_agent.span("tokenize"):`` in the timeline, and name the sends and receives
    inside. ``part`` of ``parts``, from 1, and ``chunk``, from 0: progress of an algorithm of many
    messages, as in ``span("reduce-scatter", part=2, parts=6, chunk=1)``."""
    return _NO_SPAN if active.CORE is None else _Span(name, (part, parts, chunk))


def action(kind: str, stage: int, mb: int = -1, module: Any = None) -> ProgramAction | _NoSpan:
    """Mark the compute of a hand-written pipeline, without the wait for its input: ``with
    pardbg_agent.action("F", stage=1, mb=3): y = net(x)``. ``kind``: F forward, B backward, I and W
    backward in two parts; ``stage`` counts over all virtual stages of the pipeline, from 0. The
    actions are drawn, measured and stepped through like those of torch's own schedules. With
    ``module``, the bytes that its forward saves are counted in sampled steps."""
    core = active.CORE
    if core is None or not core.level:
        return _NO_SPAN
    from pardbg_agent.hooks.training import program_actions

    return core.guard.call("action", program_actions.action, kind, stage, mb, module) or _NO_SPAN


def plan(
    schedule: str,
    ranks: Sequence[int],
    microbatches: int = 0,
    chunks: int = 1,
    order: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Announce the schedule that this rank's ``action`` calls follow, once or in each step:
    ``plan("1f1b", ranks=[0, 1, 2, 3], microbatches=8)``. ``ranks``: the pipeline's global ranks in
    its order; ``chunks``: stages per rank. "1f1b", "gpipe" and "interleaved" (Megatron-LM's) are
    known; for any other give ``order``, ``{rank: ["0F0", "0F1", "0B0", …]}``."""
    core = active.CORE
    if core is None or not core.level:
        return
    from pardbg_agent.hooks.training import program_actions

    core.guard.call(
        "plan", program_actions.plan, core, schedule, ranks, microbatches, chunks, order
    )


def log(**numbers: Any) -> None:
    """Record numbers of this step: ``log(loss=loss.item(), lr=lr)``. Tensors are read at once."""
    core = active.CORE
    if core is not None:
        core.guard.call("log", core.log, numbers)


def layout(tensor: Any, shape: Sequence[int], offset: Sequence[int], name: str = "") -> None:
    """Declare the part of a whole tensor that this rank has, for ``pardbg same``: the box of the
    size of ``tensor`` that begins at ``offset`` of a tensor of ``shape``, as in
    ``layout(linear.weight, shape=(4 * d, d), offset=(rank * 4 * d // size, 0))``. For parameters
    that a program cuts by hand; those of DTensors are known. Their gradients are cut alike.
    ``name``: of the parameter in the whole model, where the optimizer steps a tensor that no module
    has: a flat shard, whose shape is then ``(numel,)``, or a master weight."""
    if os.environ.get("PARDBG_TENSORS"):
        tensor._pardbg_layout = tuple(shape), tuple(offset), name


def step(n: int | None = None) -> None:
    """End a training step (number ``n``, if given). After the first call, only these calls end
    steps."""
    core = active.CORE
    if core is not None:
        core.guard.call("step", core.explicit_step, n)


def breakpoint(name: str = "") -> None:
    """Hold here while the rank is paused, or if a breakpoint names ``name``."""
    core = active.CORE
    if core is not None and core.gate.closed:
        from pardbg_agent.wire import Gate

        core.gate.wait(Gate.BREAK, f"breakpoint {name}".rstrip(), lambda: {"name": name})
