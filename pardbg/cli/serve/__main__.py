"""App of one browser tab: ``python -m pardbg.cli.serve [--control] [RUN|SESSION]``, run by the
server, which is its terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from pardbg.cli.rc import own_rc
from pardbg.errors import UserError
from pardbg.session.navigation.replay import ReplayClock
from pardbg.ui.app import PardbgApp

WRITES: Final = ("picture", "mark", "unmark")
"""Actions that write files of the user who serves."""


def main() -> None:
    words = sys.argv[1:]
    control = words[:1] == ["--control"]
    target = next(iter(words[control:]), None)
    if target is not None and target.endswith(".mcap"):
        _recording(Path(target), control)
    else:
        _live(target, control)


def _recording(path: Path, control: bool) -> None:
    from pardbg.session.reader import open_session

    with closing(open_session(path)) as source:
        _run(PardbgApp(source, None, title=path.name, replay=ReplayClock(), rc=own_rc()), control)


def _live(name: str | None, control: bool) -> None:
    from pardbg.cli.here import find_target
    from pardbg.hub.client import HubControl, LiveSource

    with closing(find_target(name, None)) as target, closing(LiveSource(target)) as source:
        if not control:
            _run(PardbgApp(source, None, title=target.name, rc=own_rc()), control)
            return
        with closing(HubControl(target)) as port:
            _run(PardbgApp(source, port, title=target.name, rc=own_rc()), control)


def _run(app: PardbgApp, control: bool) -> None:
    """Run the app; without ``control`` actions that write files are refused, too."""

    def refuse(_argument: str) -> None:
        raise UserError("view only: `pardbg serve --control` lets a browser write")

    if not control:
        app.kept_in = None
        app.main.handlers = {**app.main.handlers, **dict.fromkeys(WRITES, refuse)}
    app.run()


if __name__ == "__main__":
    main()
