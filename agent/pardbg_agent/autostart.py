"""Zero-code start: let ``import torch`` end completely, then put the hooks in place.

Loaded by pardbg.pth and by boot/sitecustomize.py, in every interpreter started while PARDBG is
set; whichever comes second finds it loaded. It must cost next to nothing and never fail.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_hooked = False
"""The hooks are in place."""


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as everybody does, and has the hooks installed when its module has run."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            _then_install(spec.loader, self)
        return spec


def _then_install(loader: Any, finder: _TorchFinder) -> None:
    """Have ``loader`` install the hooks after it has run the module.

    The loader instance is torch's own and stays what it is: its exec_module is shadowed for one
    call, so that torch.__loader__ and its specs look as always afterwards.
    """
    run_module = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run_module(module)  # an ImportError is the program's; the finder stays for another try
        if finder in sys.meta_path:  # else attach() is doing it
            install_hooks()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return


def start() -> None:
    """Watch for ``import torch``. Does nothing without PARDBG, or a second time."""
    if _hooked or not os.environ.get("PARDBG"):
        return
    if any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        return
    if "torch" in sys.modules:
        install_hooks()
        return
    sys.meta_path.insert(0, _TorchFinder())


def install_hooks() -> bool:
    """Put the hooks in place now (this may import torch). True if they are."""
    global _hooked
    for finder in [f for f in sys.meta_path if isinstance(f, _TorchFinder)]:
        sys.meta_path.remove(finder)
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
            core.complain(f"detach: {type(error).__name__}: {error}")
    core.UNCAUGHT.uninstall()
    core.shutdown()


def _complain(text: str) -> None:
    """One line on stderr. Not core's: an installation with parts missing may have no core."""
    if sys.stderr is not None:
        sys.stderr.write(f"pardbg: {text}"[:300].splitlines()[0] + "\n")


start()
