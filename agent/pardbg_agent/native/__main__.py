"""``python -m pardbg_agent.native``: build the hot path for this Python's torch.

stdout: one line. Exit code 0: the module exists; 1: it cannot be built here, with the reason in the
line. ``--background``: at idle priority, unless another process builds it, it has failed before, or
memory is short."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from typing import Final

from pardbg_agent import native
from pardbg_agent.native import HERE, OPTIONS, Unusable
from pardbg_agent.words import duration

HOTPATH: Final = os.path.join(HERE, "hotpath.cpp")
COMPILERS: Final = ("c++", "g++", "clang++")
TIMEOUT_S: Final = 1800
BACKGROUND_BYTES: Final = 4 << 30
"""Free memory, in bytes, that a background build needs: it takes 1 GB, and the job comes first."""
TRY: Final = """
import sys, torch
from pardbg_agent import native
native.loaded(sys.argv[1])
"""
ABI: Final = """
import torch
print(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):  # until torch 2.8, part of pybind11's name
    if value := getattr(torch._C, f"_PYBIND11_{name}", None):
        print(f'-DPYBIND11_{name}="{value}"')
"""
"""Program that prints the options which make a library's C++ objects compatible with torch's."""


def build() -> tuple[str, float]:
    """Build the module; return (path, seconds; 0: it existed). Raises Unusable."""
    torch = native.torch_folder()
    path = native.path_of(torch)
    try:
        native.checked(path)
    except Unusable:
        pass
    else:
        return path, 0.0
    begun = time.monotonic()
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        # In the same directory, so that the whole file comes to its name in one step: a job that
        # starts meanwhile, or another build, finds all of it or nothing.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=os.path.dirname(path)) as scratch:
            made = os.path.join(scratch, "hotpath.so")
            compile_to(made, torch)
            try_it(made)
            seal(made)
            os.replace(made, path)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path + native.FAILED)
    except OSError as error:
        raise Unusable(f"{os.path.dirname(path)}: {error.strerror}") from None
    return path, time.monotonic() - begun


def build_in_background() -> None:
    """Build the module for later runs. Raises Unusable."""
    path = native.path_of(native.torch_folder())
    try:
        native.state()
        return
    except Unusable:
        if native.failure(path) or find_compiler() is None or free_bytes() < BACKGROUND_BYTES:
            return
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process builds it
        try:
            build()
        except (Unusable, subprocess.SubprocessError) as error:
            with open(path + native.FAILED, "w", encoding="utf-8") as file:
                file.write(f"{error}\n")


def free_bytes() -> int:
    """Return the memory available on this host, in bytes; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as file:
        return int(next(line for line in file if line.startswith("MemAvailable")).split()[1]) << 10
    return 0


def find_compiler() -> str | None:
    """Return the C++ compiler's command."""
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)


def compile_to(
    out: str, torch: str, source: str = HOTPATH, options: Sequence[str] = OPTIONS
) -> None:
    """Compile to the file ``out`` against the torch in that directory. Raises Unusable."""
    compiler = find_compiler()
    if compiler is None:
        raise Unusable("no C++ compiler: install g++, or name one in CXX")
    include, python = os.path.join(torch, "include"), sysconfig.get_paths()["include"]
    needed = (
        os.path.join(include, "torch", "csrc", "distributed", "c10d", "Work.hpp"),
        os.path.join(python, "Python.h"),
    )
    for header in needed:
        if not os.path.isfile(header):
            raise Unusable(f"no headers: {header}")
    libraries = os.path.join(torch, "lib")
    abi = run_python(ABI).stdout.split()
    ran = subprocess.run(
        [
            *compiler.split(), *options, *abi, "-fPIC", "-shared",
            "-fvisibility=hidden", f"-I{include}", f"-I{include}/torch/csrc/api/include",
            f"-I{python}", source, "-o", out, f"-L{libraries}",
            "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python",
            *os.environ.get("CXXFLAGS", "").split(),
        ],
        capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
    )  # fmt: skip
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if "error" in line] or ["no message"]
        raise Unusable(f"{compiler} failed: {said[0]}"[:300])


def run_python(*code: str) -> subprocess.CompletedProcess[str]:
    """Run code that imports torch in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", *code], capture_output=True, text=True, timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PARDBG": ""},
    )  # fmt: skip


def try_it(path: str) -> None:
    """Load the module in a separate process. Raises Unusable."""
    ran = run_python(TRY, path)
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        raise Unusable(f"built, but it cannot be loaded: {said[-1]}"[:300])


def seal(path: str) -> None:
    """Append a module's checksum, which the dynamic loader ignores."""
    with open(path, "rb+") as file:
        file.write(hashlib.sha256(file.read()).hexdigest().encode())
    os.chmod(path, 0o755)  # an image is built by root, and run by another user


def main() -> int:
    try:
        if "--background" in sys.argv[1:]:
            build_in_background()
            return 0
        path, seconds = build()
    except (Unusable, subprocess.SubprocessError, OSError) as error:
        sys.stdout.write(f"not built: {error}\n")
        return 1
    said = f"built in {duration(seconds * 1e9)}" if seconds else "is there"
    sys.stdout.write(f"{path}: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
