"""Facts of the run as a whole."""

from __future__ import annotations

import os

from pardbg.analysis.asof import View
from pardbg.analysis.model import RunInfo
from pardbg.events import fields


def run_info(view: View) -> RunInfo:
    run = view.store.run
    argv = fields.texts(run, "argv")
    end = view.run_end
    backends = sorted({g.backend for g in view.store.groups.values() if g.backend})
    return RunInfo(
        name=_name(view, argv),
        run=fields.text(run, "run"),
        argv=argv,
        t0_ns=fields.integer(run, "t_ns", view.begin_ns),
        wall_ns=fields.integer(run, "wall_ns", 0),
        exit_code=end[1] if end is not None else None,
        num_hosts=len({p.host for p in view.ranks.values()}),
        backend="+".join(backends),
        truncated=view.store.truncated,
    )


def _name(view: View, argv: tuple[str, ...]) -> str:
    said = fields.text(view.store.run, "recipe") or fields.text(view.store.run, "name")
    if said:
        return said
    noted = view.store.notes.get("recipe")
    if isinstance(noted, str) and noted:
        return noted
    programs = [os.path.basename(word) for word in argv if word.endswith(".py")]
    if programs:
        return programs[0].removesuffix(".py")
    return os.path.basename(argv[0]) if argv else ""
