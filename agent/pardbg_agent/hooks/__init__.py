"""Hooks into torch: the only part of the agent that imports torch.

``install`` puts the hooks in place, ``uninstall`` restores everything, ``quiesce`` is for the end
of the process. A hook that fails is switched off and reported; its error never reaches the
training."""

from __future__ import annotations

import time
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns

_installed: Any = None
OUTLIVE_NS: Final = 60_000_000_000
QUIET_S = 0.05
"""Maximum time gloo's worker needs, after the last completion, to drop the tensors it holds."""


def install() -> None:
    """Put all hooks in place, once ``import torch`` has ended; a second call does nothing."""
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
    """Remove the hooks at exit, while the interpreter lives, and wait (GIL released) until every
    issued op is complete and gloo's worker has dropped its tensors. With a Python kernel, dropping
    a tensor needs the GIL, which a finalizing process does not give: gloo's worker would abort
    it."""
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
    """Return the ops still under way, as a live set that empties as they complete."""
    return core.context.works.followed if core.context is not None else set()


def outlive(followed: set[int]) -> None:
    """Wait at exit, after the last records are sent, for ops still under way, as the destructor of
    gloo's process group would. In that destructor the interpreter is finalizing: a future that
    calls into Python would end the process by SIGABRT in place of its own exit code."""
    begun = now_ns()
    while followed and (waited := now_ns() - begun) < OUTLIVE_NS:
        time.sleep(0.002 if waited < 1_000_000_000 else 0.05)
    if now_ns() - begun > QUIET_S * 1e9:
        time.sleep(QUIET_S)
