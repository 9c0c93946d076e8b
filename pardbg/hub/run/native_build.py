"""Build of the C++ hot path in the background of the first run with a torch, for later runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pardbg_agent
from pardbg_agent import native

_PYTHON: Final = re.compile(rb"(?:\S*/)?(?:env +(?:-S +)?)?(\S*python[\d.]*)\b")


def start(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Start the build for the job's Python, unless it is switched off. This run never loads it."""
    off = env.get(native.ENV), env.get(native.BUILD_ENV), env.get("PARDBG_HOOKS")
    python = python_of(argv, env)
    if python is None or "off" in off or "dispatcher" in off:
        return
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [*command(python), "--background"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={name: value for name, value in env.items() if name != "PARDBG"},
        )  # fmt: skip


def command(python: str) -> list[str]:
    """Return the command that builds for this Python's torch."""
    return agents_main(python, "native")


def agents_main(python: str, package: str) -> list[str]:
    """Return the command for a package of the agent, free of the cwd and PYTHONPATH."""
    code = (
        f"import sys; sys.path.append({str(Path(pardbg_agent.__file__).parent.parent)!r}); "
        f"from pardbg_agent.{package} import __main__; sys.exit(__main__.main())"
    )
    return [python, "-I", "-c", code]


def python_of(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the Python that runs a command, itself or by its script's first line; None: none."""
    path = env.get("PATH")
    program = shutil.which(argv[0], path=path) if argv else None
    if program is None:
        return None
    if _PYTHON.fullmatch(os.fsencode(os.path.basename(program))):
        return program
    try:
        with open(program, "rb") as file:
            line = file.readline(1024)
    except OSError:
        return None
    found = _PYTHON.match(line[2:].strip()) if line.startswith(b"#!") else None
    return shutil.which(os.fsdecode(found[1]), path=path) if found else None
