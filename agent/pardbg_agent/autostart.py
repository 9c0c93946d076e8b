"""Zero-code start: let ``import torch`` end completely, then put the hooks in place.

Loaded by pardbg.pth and by boot/sitecustomize.py, in every interpreter started while PARDBG is
set; whichever comes second finds it loaded. It must cost next to nothing and never fail.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from pardbg_agent.life.late_imports import LateImports

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder

    from pardbg_agent.life.failures import Children
else:
    from pardbg_agent.life.late_imports import MetaPathFinder

SITE_ENDS = "sitecustomize"
"""``site`` looks for it when it has done all else."""
_hooked = False
"""The hooks are in place."""
_children: list[Children] = []


def start() -> None:
    """Watch for ``import torch``. Does nothing without PARDBG, or a second time."""
    if not _hooked and os.environ.get("PARDBG"):
        _late.when_imported("torch", lambda _: install_hooks())
        _late.when_imported("multiprocessing.process", _watch_children)
        if "RANK" not in os.environ:
            return
        if SITE_ENDS in sys.modules:
            _report()
        else:
            sys.meta_path.insert(0, _SiteEnds())


class _SiteEnds(MetaPathFinder):
    """Finds nothing; sees that all .pth files are read. Before that, packages that ours needs may
    not be found yet."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == SITE_ENDS:
            sys.meta_path.remove(self)
            _report()


def _report() -> None:
    """A rank is seen from here on, whatever becomes of it."""
    try:
        from pardbg_agent import core
        from pardbg_agent.life import early, moments

        if early.claims():
            moments.start_up(core.ensure())
    except Exception as error:  # noqa: BLE001 - the training goes on without us
        _complain(f"not seen before its group: {type(error).__name__}: {error}")


def install_hooks() -> bool:
    """Put the hooks in place now (this may import torch). True if they are."""
    global _hooked
    _late.forget("torch")
    try:
        from pardbg_agent import core, hooks

        core.at_exit()
        hooks.install()
    except Exception as error:  # noqa: BLE001 - the training goes on without us
        _complain(f"agent is off: {type(error).__name__}: {error}")
        return False
    _hooked = True
    return True


def remove_hooks() -> None:
    """Restore what the hooks patched and end the agent in this process."""
    global _hooked
    _hooked = False
    from pardbg_agent import core

    hooks = sys.modules.get("pardbg_agent.hooks")
    if hooks is not None:
        try:
            hooks.uninstall()
        except Exception as error:  # noqa: BLE001 - the training goes on
            _complain(f"detach: {type(error).__name__}: {error}")
    _late.stop()
    while _children:
        _children.pop().leave()
    core.UNCAUGHT.uninstall()
    core.shutdown()


def _watch_children(process: ModuleType) -> None:
    from pardbg_agent.life.failures import Children

    _children.append(Children(_child_fails))
    _children[-1].watch(process)


def _child_fails(error: BaseException) -> None:
    core = sys.modules.get("pardbg_agent.core")
    if core is not None:  # else no rank
        core.UNCAUGHT.child_fails(error)


def _complain(text: str) -> None:
    """One line on stderr. Not core's: an installation with parts missing may have no core."""
    if sys.stderr is not None:
        sys.stderr.write(f"pardbg: {text}"[:300].splitlines()[0] + "\n")


_late = LateImports(_complain)
start()
