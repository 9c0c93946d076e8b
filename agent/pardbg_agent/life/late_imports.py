"""Import hook of the agent: runs a function after the program has imported a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pardbg_agent.life.own_frames import hide_own, uncounted

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:
    MetaPathFinder = object  # importlib.abc imports tempfile and random: those are the program's

Then = Callable[[ModuleType], object]


class LateImports(MetaPathFinder):
    """Runner of functions after a module's import: now, or as soon as the program imports it.

    ``complain(text)`` gets the functions' exceptions; none of them reaches an import."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._wanted: dict[str, list[Then]] = {}
        self._busy: set[str] = set()

    def when_imported(self, module: str, then: Then) -> None:
        """Call ``then(module)`` once, after the functions registered earlier."""
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
            self._run(module, then, loaded)
            return
        self._wanted.setdefault(module, []).append(then)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    @property
    def awaited(self) -> list[str]:
        """Return the modules that have not been imported yet."""
        return list(self._wanted)

    def waits_for(self, module: str) -> bool:
        return module in self._wanted

    def stop(self) -> None:
        for module in self.awaited:
            self.forget(module)

    def forget(self, module: str) -> None:
        self._wanted.pop(module, None)
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's usual spec, with our functions to run after its body."""
        if name not in self._wanted or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            self._follow(spec, spec.loader)
        return spec

    def _follow(self, spec: ModuleSpec, loader: Any) -> None:
        """Make this spec's loader, and no other module's, run our functions after the body. A
        loader may serve many modules (zipimport's does), so it stays unchanged, and the module
        shows it to the program afterwards."""

        def exec_module(module: ModuleType) -> None:
            spec.loader = module.__loader__ = loader
            self._execute(loader, module, spec.name)

        twin = _twin(loader, uncounted(exec_module))
        if twin is not None:
            spec.loader = twin
        else:
            self._wanted.pop(spec.name, None)

    @uncounted
    def _execute(self, loader: Any, module: ModuleType, name: str) -> None:
        try:
            loader.exec_module(module)
        except BaseException as error:  # the program's; it may try again
            hide_own(error)
            raise
        wanted = self._wanted.get(name, ())  # none: forgotten meanwhile
        self.forget(name)
        for then in wanted:
            self._run(name, then, module)

    def _run(self, name: str, then: Then, module: ModuleType) -> None:
        try:
            then(module)
        except Exception as error:  # noqa: BLE001 - nothing of ours gets into an import
            self._complain(f"{name} is not watched: {type(error).__name__}: {error}")


def _twin(loader: Any, exec_module: Callable[[ModuleType], None]) -> Any:
    """Return an object of the loader's class, with its state, whose ``exec_module`` is this one.
    None if that is impossible (a loader of the old kind, or one in C)."""
    if not hasattr(loader, "exec_module"):
        return None
    kind = type(loader)
    try:
        made = type(kind.__name__, (kind,), {"exec_module": property(lambda _: exec_module)})
        twin: Any = object.__new__(made)
        twin.__dict__ = loader.__dict__
    except (TypeError, AttributeError):
        return None
    return twin
