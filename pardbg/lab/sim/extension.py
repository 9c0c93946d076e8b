"""The C++ extension of the simulated accelerator: built once per torch and source, then loaded."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Final

from pardbg_agent import native
from pardbg_agent.native.__main__ import compile_to

HERE: Final = Path(__file__).parent
OPTIONS: Final = ("-O1", "-std=c++20", "-DNDEBUG", "-DTORCH_EXTENSION_NAME=_sim")


def place() -> Path:
    """Return the path of the extension for this torch, built or not. Raises native.Unusable."""
    return _folder() / f"sim-{_digest(Path(native.torch_folder()))}.so"


def built() -> Path:
    """Return the path of the extension, built now if there is none (about 30 s). Concurrent callers
    wait. Raises native.Unusable (no compiler, no headers) or OSError."""
    path = place()
    if path.exists():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            compiled = path.with_suffix(".part")
            compile_to(str(compiled), native.torch_folder(), str(HERE / "sim.cpp"), OPTIONS)
            os.replace(compiled, path)
    return path


def load() -> Any:
    """Return the extension's module. Raises the errors of ``built``, or ImportError."""
    path = str(built())
    loader = importlib.machinery.ExtensionFileLoader("_sim", path)
    spec = importlib.util.spec_from_file_location("_sim", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("PARDBG_SIM") or Path(cache, "pardbg", "sim"))


def _digest(torch: Path) -> str:
    known = hashlib.sha256(repr((sys.implementation.cache_tag, OPTIONS)).encode())
    for path in [torch / "version.py", *sorted(HERE.glob("*.[hc]pp"))]:
        known.update(path.read_bytes())
    return known.hexdigest()[:20]
