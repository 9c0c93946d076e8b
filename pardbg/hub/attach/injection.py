"""Having a running Python process run a file, at a place where its main thread may: by
``sys.remote_exec`` (Python 3.14), else by gdb, which stops the process for some tenths of a second.

gdb calls ``mmap`` and ``Py_AddPendingCall`` in the process: neither needs the GIL, nor a lock that
the stopped thread may hold. What it adds, ``PyRun_SimpleString``, runs between two bytecodes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pardbg.hub.attach.job_ranks import JobRank, why_no_stack
from pardbg.words import duration

TIMEOUT_S: Final = 30.0
AT_ONCE: Final = 8
"""Processes of gdb at a time."""
NO_REMOTE: Final = 9
_REMOTE: Final = f"""import sys
if not hasattr(sys, "remote_exec"):
    sys.exit({NO_REMOTE})
sys.remote_exec(int(sys.argv[1]), sys.argv[2])
"""
_GDB: Final = (
    "gdb", "-nx", "-nh", "-batch", "-iex", "set auto-load off", "-iex", "set auto-solib-add off",
    "-iex", "set debuginfod enabled off",
)  # fmt: skip
_MMAP: Final = "((char*(*)(void*,unsigned long,int,int,int,long))mmap)"
_ADDED: Final = "pardbg: added"


def run_in_each(ranks: Sequence[JobRank], script: Path) -> dict[int, str]:
    """Have each process run the script; return rank -> why it does not. Returns before they have
    run it: a process that waits outside Python does so when it comes back."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        whys = pool.map(lambda one: _run_in(one.pid, script), ranks)
        return {one.rank: why for one, why in zip(ranks, whys, strict=True) if why}


def _run_in(pid: int, script: Path) -> str:
    """Return why not; empty: it will run it."""
    if not _is_same_file(pid, script):
        return "its container does not have this machine's files: attach from inside"
    try:
        remote = [f"/proc/{pid}/exe", "-I", "-S", "-c", _REMOTE, str(pid), str(script)]
        done = subprocess.run(remote, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode == 0:
            return ""
        return _by_gdb(pid, script)
    except subprocess.TimeoutExpired:
        return f"no answer within {duration(TIMEOUT_S * 1e9)}"
    except OSError as error:
        return error.strerror or str(error)


def _is_same_file(pid: int, script: Path) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/root{script}", script)
    except OSError:
        return False


def _by_gdb(pid: int, script: Path) -> str:
    if shutil.which("gdb") is None:
        return "Python before 3.14 needs gdb here: install it (apt-get install gdb)"
    code = script.with_suffix(".code")  # all ranks get the same
    size = code.stat().st_size
    commands = (
        "sharedlibrary libpython", "sharedlibrary libc[-.]",
        f"set $at = {_MMAP}(0, {size}, 3, 34, -1, 0)",  # to read and write; private, of no file
        f"restore {code} binary $at",
        "set $not = ((int(*)(void*,void*))Py_AddPendingCall)((void*)PyRun_SimpleString, $at)",
        f'printf "{_ADDED} %d\\n", $not',
    )  # fmt: skip
    argv = [*_GDB, "-p", str(pid), *(word for one in commands for word in ("-ex", one))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    if f"{_ADDED} 0" in done.stdout:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    refused = next((line for line in lines if "ermitted" in line or "ermission" in line), "")
    return why_no_stack(refused) if refused else f"gdb: {lines[-1] if lines else 'no answer'}"[:200]


def write_script(path: Path, text: str) -> None:
    """Write a script for ``run_in_each``, 0600, and what gdb puts into a process to run it."""
    path.write_text(text, encoding="utf-8")
    run = (
        f"try:\n  with open({str(path)!r}) as file: text = file.read()\n"
        f"  exec(compile(text, {str(path)!r}, 'exec'), {{}})\nexcept Exception: pass"
    )
    # In a namespace of its own: PyRun_SimpleString's is the program's.
    path.with_suffix(".code").write_bytes(
        f"__import__('builtins').exec({run!r}, {{}})".encode() + b"\0"
    )
    for one in (path, path.with_suffix(".code")):
        one.chmod(0o600)
