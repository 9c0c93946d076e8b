"""Hot path in C++: where built modules are kept, and how they are loaded.

A module is built by ``pardbg native build``, or in the background of a torch's first run
(``PARDBG_NATIVE_BUILD=off``: not there), once for each torch, Python and version of the source,
into the user's cache (``PARDBG_NATIVE`` names another directory; ``off``: never used). A job uses
one that existed when its run began: if anything is wrong with it, the Python hooks are used."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import stat
import sys
import sysconfig
from typing import Any, Final

ENV: Final = "PARDBG_NATIVE"
BUILD_ENV: Final = "PARDBG_NATIVE_BUILD"
FAILED: Final = ".failed"
"""Suffix of a file with the reason of a failed background build, so that no later run tries
again."""
HERE: Final = os.path.dirname(os.path.abspath(__file__))
SOURCES: Final = (
    "table.hpp", "places.hpp", "scan.hpp", "state.hpp", "device.hpp", "held.hpp", "module.hpp",
    "pipeline.hpp", "phases.hpp", "fsdp.hpp", "sketch.hpp", "looks.hpp", "hotpath.cpp",
)  # fmt: skip
OPTIONS: Final = ("-O2", "-ftree-vectorize", "-std=c++20", "-DNDEBUG")
"""Compiler options. NDEBUG as in torch's builds: else its headers check tracing for each op."""
DIGEST: Final = 64
"""Bytes at the end of a built file: its checksum. A cut or changed file is not loaded."""


class Unusable(Exception):
    """Reason, in one line, why the Python hooks are used."""


def folder() -> str:
    """Return the directory of built modules. Raises Unusable."""
    wanted = os.environ.get(ENV, "")
    if wanted == "off":
        raise Unusable(f"off ({ENV}=off)")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(wanted or os.path.join(cache, "pardbg", "native"))


def torch_folder() -> str:
    """Return torch's directory, without importing torch. Raises Unusable."""
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin:
        raise Unusable(f"no torch in {sys.executable}")
    return os.path.dirname(found.origin)


@functools.lru_cache(1)
def tag(torch: str) -> str:
    """Return a 20-letter digest of torch, Python, source and options, for a module's name."""
    python = sys.implementation.cache_tag, sysconfig.get_platform()
    known = hashlib.sha256(repr((python, OPTIONS)).encode())
    paths = [os.path.join(torch, "version.py"), *(os.path.join(HERE, s) for s in SOURCES)]
    for path in paths:
        with open(path, "rb") as file:
            known.update(file.read())
    return known.hexdigest()[:20]


def path_of(torch: str) -> str:
    """Return the path of the module built for this torch. Raises Unusable or OSError."""
    return os.path.join(folder(), f"hotpath-{tag(torch)}.so")


def checked(path: str) -> None:
    """Raise Unusable unless the file is complete, and no other user can have written it."""
    try:
        about = os.stat(path)
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise Unusable(f"{failure(path) or 'not built'} (pardbg native build)") from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"{path}: writable by others")
    if hashlib.sha256(data[:-DIGEST]).hexdigest().encode() != data[-DIGEST:]:
        raise Unusable(f"{path}: damaged (pardbg native build)")


def failure(path: str) -> str:
    """Return the reason why a background build failed; "" if none did."""
    try:
        with open(path + FAILED, encoding="utf-8", errors="replace") as file:
            return file.readline(300).strip()
    except OSError:
        return ""


def check_age(path: str, run_file: str) -> None:
    """Raise Unusable if the module was built after the run began: all its ranks must agree."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(run_file) as file:
        if os.stat(path).st_mtime_ns > int(json.load(file)["wall_ns"]):
            raise Unusable("built since this run began: the next run uses it")


def state() -> str:
    """Return the path of the module that jobs of this Python use; loads nothing. Raises
    Unusable."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise Unusable("Python runs without its lock")
    try:
        path = path_of(torch_folder())
        checked(path)
    except OSError as error:
        raise Unusable(str(error)) from None
    return path


def loaded(path: str) -> Any:
    """Return the loaded module of a file. Raises Unusable."""
    loader = importlib.machinery.ExtensionFileLoader("_hotpath", path)
    spec = importlib.util.spec_from_file_location("_hotpath", path, loader=loader)
    try:
        if spec is None:
            raise ImportError("no such module")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - built elsewhere, for something else
        raise Unusable(f"{path}: {type(error).__name__}: {error}"[:200]) from None
    if not module.knows_torch():
        raise Unusable(f"{path}: its pybind11 is not torch's")
    return module
