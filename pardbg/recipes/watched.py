"""What a recipe tells pardbg, if pardbg is there. Without it every call does nothing."""

from __future__ import annotations

from functools import partial

try:
    import pardbg_agent
except ImportError:  # a recipe runs anywhere torch does
    pardbg_agent = None  # type: ignore[assignment]


def log(**numbers: float) -> None:
    """Numbers of this step, for the screen: ``log(loss=2.5)``."""
    if pardbg_agent is not None:
        pardbg_agent.log(**numbers)


def note(key: str, value: str) -> None:
    """A fact of this program that belongs beside its figures. Call it after the process group is
    there."""
    core = getattr(pardbg_agent, "_core", None)
    if core is not None:
        from pardbg_agent.wire import DefKind

        core.guard.call("note", partial(core.defs.put, DefKind.NOTE, key=key, value=value))
