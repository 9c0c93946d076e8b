"""Hooks into torch: the only part of the agent that imports it.

``install`` puts them in place, ``uninstall`` restores everything, ``quiesce`` is for the end of the
process. A hook that fails is switched off and reported; nothing of it reaches the training.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns

_installed: Any = None
OUTLIVE_NS: Final = 60_000_000_000
QUIET_S = 0.05
"""Maximum time gloo's worker needs, after the last completion, to drop what it holds."""


def install() -> None:
    """Put all hooks in place. Call when ``import torch`` has ended; again: does nothing."""
    global _installed
    if _installed is not None:
        return
    from pardbg_agent.hooks.installed import Installed

    _installed = Installed()
    _installed.install()


def uninstall() -> None:
    """Restore everything that was patched."""
    global _installed
    installed, _installed = _installed, None
    if installed is not None:
        installed.uninstall()


def quiesce(deadline_s: float) -> None:
    """At exit, while the interpreter lives: take the kernels off, then wait, the GIL released,
    until every issued op is complete, and a little longer for the worker to drop what it holds. A
    Python kernel gives each tensor a Python object, so whoever drops it needs the GIL; in a process
    that is already finalizing gloo's worker would not get it, and the process would abort."""
    until = now_ns() + int(deadline_s * 1e9)
    core = _core.CURRENT
    uninstall()
    if core is None or (core.run is not None and not core.ops.num_ever):
        return  # no op was hooked
    quiet = int(QUIET_S * 1e9)
    while core.ops.num_open and now_ns() < until - quiet:
        time.sleep(0.002)
    time.sleep(max(0.0, min(quiet, until - now_ns()) / 1e9))


def left(core: _core.Core) -> set[int]:
    """Return the ops that are under way, as a set that empties as they complete."""
    return core.context.works.followed if core.context is not None else set()


def outlive(followed: set[int]) -> None:
    """At exit, the rest sent: wait for ops that were left under way, as their process group's
    destructor would (gloo). But in there the interpreter is finalizing, and a future that calls
    into Python then ends the process by SIGABRT in place of its own exit code."""
    begun = now_ns()
    while followed and (waited := now_ns() - begun) < OUTLIVE_NS:
        time.sleep(0.002 if waited < 1_000_000_000 else 0.05)
    if now_ns() - begun > QUIET_S * 1e9:
        time.sleep(QUIET_S)
