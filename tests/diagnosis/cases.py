"""What is planted where, and what must be said of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pardbg.lab.recipes import catalogue
from tests.forked import served

HANG, END, SLOW = "hang", "end", "slow"


@dataclass(frozen=True)
class Case:
    """One job with one fault (or none)."""

    name: str
    argv: tuple[str, ...]
    kinds: tuple[str, ...]
    """Kinds of finding that are right; empty: nothing is wrong, and no error may be said."""
    culprits: tuple[tuple[int, ...], ...] = ()
    """Answers that are right, each a set of ranks."""
    sort: str = HANG
    """hang: seconds are counted from the last progress; end: from the rank's end; slow: it shows
    over many steps."""
    timeout_s: float = 40.0
    """How long the finding may take to come."""
    place: str = ""
    """What the place in the code must name; empty: there is none to be known."""
    alone: bool = False
    """Right is only an error: what it explains is told by it."""
    notes: bool = False
    """A note of the kind is right, too: on an overloaded host the rule says no more than that."""
    env: tuple[tuple[str, str], ...] = ()
    """Beside ours."""
    handles: bool = False
    """The culprit handles an exception, which its stack tells."""
    causes: tuple[str, ...] = ()
    """Causes that are right, as the finding's facts name them; empty: not looked at."""

    besides: tuple[str, ...] = ()
    """Kinds that are true of the fault, too."""

    def is_right(self, kind: str, culprits: tuple[int, ...]) -> bool:
        return kind in self.kinds and tuple(sorted(culprits)) in self.culprits


def quick(case: Case) -> Case:
    """The same fault, the ranks forked: where the launcher's part in it is not looked at."""
    return replace(case, argv=tuple(served(case.argv)))


def torchrun(nproc: int, *words: str) -> tuple[str, ...]:
    head = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return (*head, "--nproc-per-node", str(nproc), "-m", *words)


def program(
    what: str, nproc: int, rank: int, step: int, kinds: tuple[str, ...], *seconds: str,
    sort: str = HANG,
) -> Case:  # fmt: skip
    return Case(
        f"program:{what} n{nproc} r{rank} s{step}",
        torchrun(nproc, "tests.diagnosis.programs", what, str(rank), str(step), *seconds),
        kinds, ((rank,),) if kinds else (), sort,
    )  # fmt: skip


def recipe(
    name: str, nproc: int, rank: int, step: int | None, kinds: tuple[str, ...],
    culprits: tuple[tuple[int, ...], ...] | None = None, sort: str = HANG, steps: int = 60,
    *own: str,
) -> Case:  # fmt: skip
    words = [*own]
    options = {option.name for option in catalogue.RECIPES[f"fault:{name}"].options}
    if "fault-rank" in options:
        words += ["--fault-rank", str(rank)]
    if step is not None and "fault-step" in options:
        words += ["--fault-step", str(step)]
    argv = catalogue.command(f"fault:{name}", nproc, steps, words)
    place = f"n{nproc} r{rank}" + ("" if step is None else f" s{step}")
    return Case(
        f"fault:{name} {place}", tuple(argv), kinds,
        ((rank,),) if culprits is None else culprits, sort, 40 if sort != SLOW else 60,
    )  # fmt: skip


PLACES = ((4, 2, 5), (4, 0, 11), (2, 1, 7), (6, 5, 4))
"""(ranks, the faulty rank, step). Global rank 0 is a rank."""
DDP_PLACES = tuple(place for place in PLACES if place[0] != 6)
"""The recipes' batch is shared by 2, 4 or 8 ranks."""


def _recipes() -> list[Case]:
    cases = []
    for n, r, s in DDP_PLACES:
        # With two ranks nobody is in the majority.
        odd = ((r,),) if n > 2 else ((r,), (), (0, 1))
        cases += [
            recipe("missing-rank", n, r, s, ("missing-rank",)),
            recipe("mismatch-op", n, r, s, ("op-mismatch",), odd),
            recipe("mismatch-shape", n, r, s, ("size-mismatch",), odd),
            recipe("mismatch-dtype", n, r, s, ("dtype-mismatch",), odd),
            recipe("mismatch-root", n, r, s, ("root-mismatch",), odd),
            recipe("group-order", n, r, s, ("deadlock",), odd),
            recipe("unpaired-send", n, r, s, ("unpaired-send",)),
            recipe("unpaired-recv", n, r, s, ("unpaired-recv",)),
            recipe("exception", n, r, s, ("exception",), sort=END),
            recipe("kill", n, r, s, ("rank-lost",), sort=END),
            recipe("gil-hold", n, r, s, ("gil-held",)),
        ]
    cases += [
        recipe("p2p-cycle", 4, 0, 5, ("p2p-cycle",), ((0, 1, 2, 3),)),
        recipe("p2p-cycle", 4, 1, 6, ("p2p-cycle",), ((1, 2, 3),), HANG, 60, "--fault-size", "3"),
    ]
    return cases


def _slow() -> list[Case]:
    cases = []
    for n, r, s in ((4, 2, 5), (4, 0, 8), (2, 1, 5)):
        cases += [
            recipe("straggler", n, r, s, ("straggler",), sort=SLOW),
            recipe("slow-loader", n, r, s, ("straggler",), sort=SLOW),
            recipe("nan", n, r, s, ("nan",), sort=SLOW),
            recipe("diverge", n, r, s, ("replica-divergence",),
                   ((r,),) if n > 2 else ((r,), (), (0, 1)), sort=SLOW),
            recipe("memory-creep", n, r, s, ("memory-creep",), sort=SLOW),
            recipe("memory-imbalance", n, r, s, ("memory-imbalance",), sort=SLOW),
        ]  # fmt: skip
    alike = [
        recipe("small-messages", 4, 0, None, ("small-messages",), ((),), sort=SLOW),
        recipe("exposed-comm", 4, 0, None, ("exposed-communication",), ((),), sort=SLOW),
    ]
    cases += [recipe("stage-imbalance", 4, 2, None, ("stage-imbalance",), sort=SLOW)]
    return [*cases, *(replace(case, notes=True) for case in alike)]


def _programs() -> list[Case]:
    kinds: dict[str, tuple[tuple[str, ...], str]] = {
        "sleep": (("missing-rank",), HANG), "pdb": (("in-debugger",), HANG),
        "stop": (("rank-stopped",), HANG), "leave": (("missing-rank",), END),
        "leave-at-once": (("missing-rank",), END), "leave-with-code": (("rank-exited",), END),
        "crash": (("rank-lost",), END), "kill": (("rank-lost",), END),
        "raises": (("exception",), END), "skips-barrier": (("op-mismatch",), HANG),
        "short-tensor": (("size-mismatch",), HANG), "spins": (("missing-rank",), HANG),
        "gil": (("gil-held",), HANG), "in-kernel": (("missing-rank",), HANG),
        "lock": (("missing-rank",), HANG),
    }  # fmt: skip
    return [
        program(what, *PLACES[i % len(PLACES)] if what not in ("skips-barrier", "short-tensor")
                else PLACES[(0, 1, 3)[i % 3]], found, sort=sort)
        for i, (what, (found, sort)) in enumerate(kinds.items())
    ]  # fmt: skip


def healthy() -> list[Case]:
    """Nothing is wrong: no error may be said."""
    return [
        program("evaluates", 4, 0, 5, (), "20"),
        program("saves", 4, 0, 5, (), "6"),
        program("computes-long", 4, 0, 5, (), "10"),
        program("nothing", 6, 0, 5, ()),
    ]


def faults() -> list[Case]:
    return [*_recipes(), *_programs(), *_slow()]
