"""Entry of ``pardbg`` and ``python -m pardbg``: the command line, isolated from the job's modules.

A job's directory and PYTHONPATH are for the job: pardbg must not import the job's ``click.py`` or
``select.py``. So they leave the path before any other import.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    leave_out_foreign_paths()
    from pardbg.cli import main as command_line

    command_line()


def leave_out_foreign_paths() -> None:
    """Remove the current directory and PYTHONPATH from ``sys.path``, but keep pardbg's own."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    foreign = {_absolute(path) for path in (*named, "")}
    sys.path[:] = [path for path in sys.path if _absolute(path) not in foreign or _is_ours(path)]


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path or os.curdir)
    except FileNotFoundError:  # a deleted current directory has no modules
        return path


def _is_ours(path: str) -> bool:
    root = _absolute(path)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return root == here or os.path.isfile(os.path.join(root, "pardbg_agent", "wire.py"))


if __name__ == "__main__":
    main()
