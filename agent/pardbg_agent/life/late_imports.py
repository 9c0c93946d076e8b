"""The agent's one import hook: a function that runs when the program has imported a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:
    MetaPathFinder = object  # importlib.abc imports tempfile and random: those are the program's

Then = Callable[[ModuleType], object]


class LateImports(MetaPathFinder):
    """Runs a function when a module has been imported: now, or as soon as the program does.

    ``complain(text)`` is told what the functions raise; nothing of it gets into an import.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._wanted: dict[str, list[Then]] = {}
        self._busy: set[str] = set()

    def when_imported(self, module: str, then: Then) -> None:
        """``then(module)``, once; after those that were asked for before."""
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
            self._run(module, then, loaded)
            return
        self._wanted.setdefault(module, []).append(then)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def waits_for(self, module: str) -> bool:
        return module in self._wanted

    def stop(self) -> None:
        for module in list(self._wanted):
            self.forget(module)

    def forget(self, module: str) -> None:
        self._wanted.pop(module, None)
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module as everybody else finds it, with our function after its body."""
        if name not in self._wanted or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader, name)
        return spec

    def _follow(self, loader: Any, name: str) -> None:
        """The loader instance stays what it is: its exec_module is shadowed for one call, so that
        the module's ``__loader__`` and specs look as always afterwards."""
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            try:
                run_module(module)
            except BaseException as error:  # the program's; it may try again
                from pardbg_agent.control.inspect import hide_own

                hide_own(error)
                raise
            wanted = self._wanted.get(name, ())  # none: forgotten meanwhile
            self.forget(name)
            for then in wanted:
                self._run(name, then, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            self._wanted.pop(name, None)

    def _run(self, name: str, then: Then, module: ModuleType) -> None:
        try:
            then(module)
        except Exception as error:  # noqa: BLE001 - nothing of ours gets into an import
            self._complain(f"{name} is not watched: {type(error).__name__}: {error}")
