"""Facts of the run as a whole."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import Times, times
from pardbg.events import fields
from pardbg.store.store import NEXT_PART, PART, Store
from pardbg_agent.wire import NOTE_ATTACHED

_LAUNCHERS = ("python", "torchrun")
"""Names that say how a program was started, not which one."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    name: str  # of the recipe or program
    run: str
    argv: tuple[str, ...]
    t0_ns: int
    wall_ns: int
    """Wall clock at t0_ns, in ns since the epoch."""
    exit_code: int | None
    num_hosts: int
    backend: str
    truncated: bool
    """Whether the session file ends without its summary."""
    part: tuple[int, str] = (1, "")
    """(number of this file in a recording of several, name of the next file)"""
    rehearsed: bool = False
    """Whether the session is a rehearsal: times count events, and values are arbitrary."""
    attached: bool = False
    """Whether the agent was attached to running ranks: steps and ops count from that moment."""
    times: Times = ""
    """Clock of the times; ``host``: a run on a device with the host's times."""
    hooks: str = ""
    """Kinds of hooks: ``native`` (C++), ``dispatcher`` (Python), or both; empty: not known."""
    world_size: int = 0
    """Number of ranks of the job as reported by ranks; 0: not known."""


def rehearsed(view: View) -> bool:
    """Return whether the session is a rehearsal, in which each rank ran by itself."""
    return "rehearsed" in view.store.notes


def launcher(view: View) -> str:
    """Return the name of the launcher, which ends all ranks when one fails."""
    words = " ".join(fields.texts(view.store.run, "argv"))
    known = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
    return "torchrun" if any(name in words for name in known) else "its launcher"


def run_info(view: View) -> RunInfo:
    """Return the run's name, command, hosts, backend and end, as known at the cursor."""
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
        part=_part(view),
        rehearsed=rehearsed(view),
        attached=NOTE_ATTACHED in view.store.notes,
        times=times(view),
        hooks="+".join(sorted({fields.text(p.facts, "hooks") for p in view.ranks.values()} - {""})),
        world_size=max((p.world_size or 0 for p in view.ranks.values()), default=0),
    )


def _part(view: View) -> tuple[int, str]:
    """Return (number of this file, name of the next); a live viewer has all in one store."""
    notes = view.store.notes
    number, following = notes.get(PART), notes.get(NEXT_PART)
    if view.store.live:
        return 1, ""
    return (
        number if isinstance(number, int) and number > 0 else 1,
        following if isinstance(following, str) else "",
    )


def _name(view: View, argv: tuple[str, ...]) -> str:
    """Return the name of the recipe or program, not of the launcher."""
    given = fields.text(view.store.run, "name")
    recipe = fields.text(view.store.run, "recipe") or view.store.notes.get("recipe")
    if isinstance(recipe, str) and recipe:
        return recipe
    if given and not given.startswith(_LAUNCHERS):
        return given
    programs = [os.path.basename(word) for word in argv if word.endswith(".py")]
    if programs:
        return programs[0].removesuffix(".py")
    modules = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "-m"]
    if modules:
        return modules[-1].rpartition(".")[2]
    return given or (os.path.basename(argv[0]) if argv else "")


@dataclass(frozen=True, slots=True)
class OutputLine:
    t_ns: int
    rank: int | None
    stream: str
    text: str


def lines(
    store: Store, t_ns: int | None, limit: int, contains: str | None = None, rank: int | None = None
) -> tuple[OutputLine, ...]:
    """Return the last ``limit`` output lines up to ``t_ns`` (None: all), oldest first.

    ``contains`` keeps lines with that text in any case; ``rank`` keeps that rank's lines.
    """
    wanted = contains.lower() if contains else None
    found: list[OutputLine] = []
    for index in range(store.output.count(t_ns) - 1, -1, -1):
        if len(found) >= limit:
            break
        at, (said_rank, stream, text) = store.output.at(index)
        if rank is not None and said_rank != rank:
            continue
        if wanted is not None and wanted not in text.lower():
            continue
        found.append(OutputLine(at, said_rank, stream, text))
    return tuple(reversed(found))
