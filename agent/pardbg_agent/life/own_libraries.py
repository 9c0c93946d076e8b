"""Libraries of the agent, where the program has modules of the same names.

A script that lies beside its own ``msgpack.py`` gets that file from ``import msgpack``, with the
agent as without it; the agent gets the library. So the modules that the agent imports at the start
of such a program are removed from ``sys.modules`` again. The rest of the agent holds them by
reference."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Final, TypeVar

T = TypeVar("T")
LIBRARIES: Final = ("msgpack", "zmq")
PARTS: Final = ("pardbg_agent.core", "pardbg_agent.sender.agent_thread", "zmq.utils.monitor")
"""Modules whose imports reach everything that the agent uses from LIBRARIES."""
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
_hidden: dict[str, ModuleType] = {}
"""Libraries kept alive here, as the program's modules have their names."""


def load_own_libraries() -> None:
    """Import PARTS now if the program's directory has a module named like one of LIBRARIES."""
    directory = program_directory(sys.orig_argv)
    names = _modules_in(directory)
    if names.isdisjoint(LIBRARIES) or _hidden:
        return
    theirs = _take_out(LIBRARIES)
    path, before = sys.path[:], set(sys.modules)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry or os.curdir) != directory]
    try:
        for part in PARTS:
            importlib.import_module(part)
    finally:
        sys.path[:] = path
        _hidden.update(_take_out(names, before))
        sys.modules.update(theirs)


def _take_out(names: Collection[str], before: Collection[str] = ()) -> dict[str, ModuleType]:
    """Remove the modules of these packages from ``sys.modules``, except those of ``before``."""
    found = [name for name in sys.modules if name.partition(".")[0] in names and name not in before]
    return {name: sys.modules.pop(name) for name in found}


def program_directory(command: Sequence[str]) -> str | None:
    """Return the directory that Python puts first on ``sys.path`` for this command line; None for
    ``-I``, ``-P`` and commands without a program."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return None
    words = iter(command[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word[:2] in ("-c", "-m"):
            return _or_none(os.getcwd)
        elif not word.startswith("-"):
            return _or_none(functools.partial(_place_of, word))
    return None


def _place_of(script: str) -> str:
    """Return a script's directory; one with a ``__main__.py`` is its own. Links are followed."""
    script = os.path.realpath(script)
    return script if os.path.isdir(script) else os.path.dirname(script)


def _modules_in(directory: str | None) -> set[str]:
    if directory is None:
        return set()
    listed = _or_none(lambda: os.listdir(directory)) or []
    return {entry.partition(".")[0] for entry in listed if _is_module(directory, entry)}


def _is_module(directory: str, entry: str) -> bool:
    return entry.endswith((".py", ".so")) or os.path.exists(
        os.path.join(directory, entry, "__init__.py")
    )


def _or_none(look: Callable[[], T]) -> T | None:
    try:
        return look()
    except OSError:  # a working directory that was deleted
        return None
