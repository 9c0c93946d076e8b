#!/bin/sh
# Build the hot path in C++ with AddressSanitizer and UBSan (g++), and run the hooks' tests over it:
#   tests/asan.sh [PYTHON]
# UNDEBUG: pybind11 checks at each reference that the GIL is held.
# Two minutes and 2 GB. The first error ends it; leaks are not looked for: Python's are too many.
cd "$(dirname "$0")/.." || exit 2
python=${1:-.venv/bin/python}
export TESTS_NATIVE="$PWD/.native/asan" PARDBG_NATIVE="$PWD/.native/asan" CXX=g++ OMP_NUM_THREADS=1
mkdir -p "$TESTS_NATIVE" && chmod 700 "$TESTS_NATIVE"
# Not by `pardbg native build`: a plain Python, in which that tries its work, cannot load it.
CXXFLAGS="-fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer -g1 -O1 -UNDEBUG" \
  "$python" -c '
from pardbg_agent import native
from pardbg_agent.native import __main__ as build
torch = native.torch_folder()
path = native.path_of(torch)
try:
    native.checked(path)
except native.Unusable:
    build.compile_to(path, torch)
    build.seal(path)' || exit 1
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" \
  exec "$python" -m pytest -q --capture=sys --timeout 600 -k native \
  tests/unit/hooks tests/unit/agent/test_native.py
