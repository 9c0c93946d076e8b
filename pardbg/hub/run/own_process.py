"""Start of our own processes, without anything from the job's directory or PYTHONPATH in them.

Run as a script (``python -I own_process.py ROOTS MODULE ARGS``) by the result of ``argv``:
isolated, with this pardbg's own directories at the front of the path, if they are not on it.
Without ``-I`` (Python's variables are for the program that runs there later) PYTHONPATH is taken
off the path here."""

import importlib
import io
import os
import sys


def argv(module: str, *args: str, isolated: bool = True) -> list[str]:
    """Return the command line that runs ``main`` of one of our modules in its own process."""
    names = ("pardbg", "pardbg_agent", "msgpack")  # the last: the directory of our dependencies
    found = [os.path.abspath(str(importlib.import_module(name).__file__)) for name in names]
    roots = [os.path.dirname(os.path.dirname(file)) for file in found]
    options = ["-I"] if isolated else []
    script = os.path.abspath(__file__)
    return [sys.executable, *options, script, os.pathsep.join(roots), module, *args]


def _main() -> None:
    if not sys.flags.isolated:
        named = [__file__ + "/..", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        foreign = {os.path.abspath(path) for path in named}
        sys.path[:] = [path for path in sys.path if os.path.abspath(path) not in foreign]
    *own, needed = sys.argv[1].split(os.pathsep)
    sys.path[:0] = [path for path in dict.fromkeys(own) if path not in sys.path]
    sys.path += [needed] if needed not in sys.path else []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files are any bytes
    sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))


if __name__ == "__main__":
    _main()
