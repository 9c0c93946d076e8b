"""Replacement of the builtin ``breakpoint()`` in a job without stdin (``pardbg watch``).

pdb would read the end of its input and end the program with BdbQuit. The launcher names ``hook`` in
PYTHONBREAKPOINT, unless the user has set it."""

from __future__ import annotations

import sys

_told: set[tuple[str, int]] = set()


def hook(*_args: object, **_named: object) -> None:
    """Print what to do, once per place; stop if the rank is paused; go on."""
    import pardbg_agent

    caller = sys._getframe(1)
    place = caller.f_code.co_filename, caller.f_lineno
    if place not in _told:
        _told.add(place)
        where = f"{place[0]}:{place[1]}"
        sys.stderr.write(
            f"pardbg: breakpoint() at {where}: no terminal under `pardbg watch`, going on; pause "
            "before it to stop here (screen 7 looks inside), or use `pardbg run` for pdb\n"
        )
        sys.stderr.flush()
    pardbg_agent.breakpoint(f"{caller.f_code.co_name}:{place[1]}")
