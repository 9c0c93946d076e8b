"""Cases drawn from a seed: rank count, rank and step of each class; the more, the surer."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.diagnosis.cases import END, HANG, SLOW, Case, program, quick, recipe, torchrun

Draw = Callable[[random.Random], Case]
SETUP: dict[str, tuple[tuple[str, ...], str]] = {
    "dies-at-import": (("exception",), END),
    "never-begins": (("missing-rank",), HANG),
    "another-port": (("call-mismatch",), HANG),
    "another-host": (("call-mismatch",), HANG),
    "expects-more": (("call-mismatch",), HANG),
    "group-left-out": (("deadlock",), HANG),
    "groups-order": (("call-mismatch",), HANG),
    "mesh-left-out": (("deadlock",), HANG),
    "key-nobody-sets": (("missing-rank",), HANG),
    "barrier-alone": (("missing-rank",), HANG),
    "save-hangs": (("missing-rank",), HANG),
    "exit-hangs": (("stuck-call",), HANG),
    "exit-hangs-early": (("stuck-call",), HANG),
    "exit-hangs-queue": (("stuck-call",), HANG),
    "tag": (("p2p-tag-mismatch",), HANG),
    "dtype": (("p2p-dtype-mismatch",), END),
    "size": (("p2p-size-mismatch",), END),
    "two-threads": (("thread-order",), END),
}
"""What the program of setup_programs does, what must be said, and from when seconds count."""
CULPRIT: dict[str, tuple[tuple[str, ...], str]] = {
    "skips-in-group": (("deadlock",), HANG), "ring": (("deadlock",), HANG),
    "extra-in-group": (("deadlock",), HANG), "splits": (("size-mismatch",), END),
    "monitored": (("missing-rank",), HANG), "monitored-at-step": (("missing-rank",), HANG),
    "short-timeout": (("missing-rank",), HANG), "swallows": (("op-mismatch",), HANG),
    "tp-sleeps": (("straggler",), SLOW), "on-socket": (("straggler",), SLOW),
    "in-lock": (("straggler",), SLOW), "sleeps": (("straggler",), SLOW),
    "file-lock": (("missing-rank",), HANG), "loader-hangs": (("missing-rank",), HANG),
    "stale-lock": (("missing-rank",), HANG), "fifo": (("missing-rank",), HANG),
    "awaits": (("missing-rank",), HANG), "lock-held": (("deadlock",), HANG),
    "feeder-dies": (("thread-exception",), HANG),
    "comm-thread-dies": (("thread-exception",), HANG),
    "unawaited-thread-dies": (("thread-exception",), HANG),
    "future-keeps": (("thread-exception",), HANG), "task-keeps": (("thread-exception",), HANG),
    "without-optimizer": (("straggler",), SLOW), "rpc-hangs": (("stuck-call",), HANG),
    "leaves-unit-out": (("op-mismatch",), HANG), "twins": (("deadlock",), HANG),
}  # fmt: skip
"""The same of culprit_programs."""
NUMBERS: dict[str, tuple[tuple[str, ...], str]] = {
    "init-differs": (("unequal-start",), SLOW), "lr-differs": (("replica-divergence",), SLOW),
    "never-waited": (("replica-divergence",), SLOW), "steps-early": (("late-average",), SLOW),
    "same-data": (("same-data",), SLOW), "wrapped-twice": (("summed-twice",), SLOW),
    "averaged-twice": (("summed-twice",), SLOW), "same-data-ddp": (("same-data",), SLOW),
    "lr-at-first": (("replica-divergence",), SLOW), "skips-nan": (("skipped-batch",), SLOW),
    "decay-differs": (("replica-divergence",), SLOW),
    "sharded-never-equal": (("unequal-start",), SLOW), "same-data-pipeline": (("same-data",), SLOW),
    "keeps-gradients": (("gradients-kept",), SLOW),
    "keeps-gradients-ddp": (("gradients-kept",), SLOW),
    "accumulates-less": (("unequal-accumulation",), SLOW),
    "accumulates-less-ddp": (("unequal-accumulation",), SLOW),
    "accumulates-less-in-step": (("unequal-accumulation",), SLOW),
    "other-period-local-sgd": (("unequal-averaging",), SLOW),
    "one-gathers-early-zero": (("step-order",), SLOW),
    "gathers-early-zero": (("stale-parameters",), SLOW),
    "never-clears": (("gradients-kept",), SLOW), "never-clears-ddp": (("gradients-kept",), SLOW),
    "never-clears-fsdp": (("gradients-kept",), SLOW), "rate-fsdp": (("unequal-settings",), SLOW),
    "eval-ddp": (("unequal-mode",), SLOW), "eval-fsdp": (("unequal-mode",), SLOW),
    "clips-fsdp": (("unequal-settings",), SLOW), "scale-differs-ddp": (("unequal-scale",), SLOW),
    "scale-differs": (("unequal-scale",), SLOW), "eval-by-hand": (("unequal-mode",), SLOW),
    "no-step-fsdp": (("step-drift",), SLOW), "less-equal": (("step-drift",), SLOW),
    "once-less-equal": (("step-drift",), SLOW), "skips-ring": (("step-drift",), SLOW),
    "nan-gathers": (("nan",), SLOW), "skips-nan-by-hand": (("skipped-batch",), SLOW),
    "skips-late-by-hand": (("skipped-batch",), SLOW),
    "zeros-ddp": (("no-gradient",), SLOW), "zeros-by-hand": (("no-gradient",), SLOW),
    "dropout-ddp": (("unequal-settings",), SLOW), "loss-ddp": (("unequal-settings",), SLOW),
    "clips-own-fsdp": (("unequal-settings",), SLOW), "rate-zero": (("unequal-settings",), SLOW),
    "clips-shards-own-fsdp": (("unequal-settings",), SLOW),
    "clips-pipeline": (("unequal-settings",), SLOW),
    "frozen-ddp": (("unequal-settings",), SLOW), "leaves-out": (("replica-divergence",), SLOW),
    "same-data-fsdp": (("same-data",), SLOW), "same-order": (("same-order",), SLOW),
    "leaves-out-fsdp": (("unequal-settings",), SLOW), "same-data-in-step": (("same-data",), SLOW),
    "leaves-out-two-fsdp": (("unequal-settings",), SLOW),
    "same-data-to-all": (("same-data",), SLOW), "other-data-tp": (("unlike-data",), SLOW),
}  # fmt: skip
"""The same of number_programs."""
SLOWED: dict[str, tuple[str, bool]] = {
    "sleeps": ("slow-steps", True), "socket": ("slow-steps", True), "lock": ("slow-steps", True),
    "child": ("slow-steps", True), "evaluates": ("slow-steps", True),
    "computes": ("slow-steps", True), "saves": ("slow-steps", False),
    "gathers": ("slow-steps", False), "burst": ("slow-steps", True), "thread": ("straggler", False),
    "loads": ("straggler", False), "burns": ("straggler", True),
}  # fmt: skip
"""What one rank of slow_programs does, what must be said, and whether with the place. What all do
(``fine-WHAT``) is no more than a note."""
ONE_ALONE = ("lr-differs", "lr-at-first", "decay-differs", "skips-nan", "keeps-gradients",
             "keeps-gradients-ddp", "accumulates-less", "accumulates-less-ddp",
             "accumulates-less-in-step",
             "other-period-local-sgd", "one-gathers-early-zero", "rate-fsdp", "nan-gathers",
             "skips-nan-by-hand", "skips-late-by-hand", "no-step-fsdp", "less-equal",
             "once-less-equal", "eval-ddp", "eval-fsdp", "clips-fsdp", "scale-differs-ddp",
             "scale-differs", "eval-by-hand", "zeros-ddp", "zeros-by-hand", "dropout-ddp",
             "loss-ddp", "clips-own-fsdp", "rate-zero", "frozen-ddp",
             "leaves-out-fsdp", "leaves-out-two-fsdp", "skips-ring",
             "other-data-tp")  # fmt: skip
FINE = (
    "fine",
    "fine-ddp",
    "fine-zero",
    "fine-accumulates",
    "fine-accumulates-ddp",
    "fine-accumulates-in-step",
    "fine-gan",
    "fine-local-sgd",
    "fine-fsdp",
    "fine-gathers",
    "fine-clears-twice",
    "fine-join",
    "fine-weights-ddp",
    "fine-dummy-ddp",
    "fine-accumulates-once-less",
    "fine-epochs",
    "fine-leaves-out-fsdp",
    "fine-two-fsdp",
    "fine-clips-pipeline",
    "fine-ring",
    "fine-to-all",
    "fine-tp",
)
"""Jobs of number_programs that nothing is wrong with."""
PIPELINES = ("same-data-pipeline", "clips-pipeline", "fine-clips-pipeline")
NANS = ("forward", "backward", "element", "output")
"""What a stage of nan_programs spoils."""
MESSAGES = ("tag", "dtype", "size")
PLACE = "setup_programs.py"
PLACED = ("dies-at-import", "never-begins", "group-left-out", "mesh-left-out", "key-nobody-sets",
          "barrier-alone", "save-hangs", "exit-hangs", "exit-hangs-early", "tag")  # fmt: skip
TRAINING = ("sleep", "pdb", "stop", "leave", "raises", "spins", "lock", "kill", "crash",
            "every-fifth")  # fmt: skip
_KINDS = {
    "sleep": ("missing-rank",), "pdb": ("in-debugger",), "stop": ("rank-stopped",),
    "leave": ("missing-rank",), "raises": ("exception",), "spins": ("missing-rank",),
    "every-fifth": ("slow-steps",), "lock": ("missing-rank",), "kill": ("rank-lost",),
    "crash": ("rank-lost",),
}  # fmt: skip
_ENDS = ("leave", "raises", "kill", "crash")
RECIPES = ("mismatch-op", "mismatch-shape", "group-order", "unpaired-send", "straggler",
           "slow-loader", "nan", "memory-imbalance")  # fmt: skip
_RECIPE_KINDS = {
    "mismatch-op": "op-mismatch", "mismatch-shape": "size-mismatch", "group-order": "deadlock",
    "unpaired-send": "unpaired-send", "straggler": "straggler", "slow-loader": "straggler",
    "nan": "nan", "memory-imbalance": "memory-imbalance",
}  # fmt: skip


def setup(what: str, draw: random.Random) -> Case:
    """A job of setup_programs."""
    kinds, sort = SETUP[what]
    nproc = draw.choice((3, 3, 4, 5))
    rank, step = draw.randrange(nproc), draw.choice((0, 3, 6, 9))
    if what == "mesh-left-out":  # an axis as long as the world, or of one rank, makes no group
        nproc, rank = 4, rank % 4
    if what == "groups-order" and rank == 0:
        rank = 1
    culprits: tuple[tuple[int, ...], ...] = ((rank,),)
    if what == "two-threads":
        culprits = (tuple(range(nproc)),)
    if what in MESSAGES:
        after = (rank + 1) % nproc
        culprits = ((rank,), (after,), tuple(sorted((rank, after))))
    words = ("tests.diagnosis.setup_programs", what, str(rank), str(step))
    return Case(
        f"setup:{what} n{nproc} r{rank} s{step}",
        torchrun(nproc, *words),
        kinds,
        culprits,
        sort,
        place=PLACE if what in PLACED else "",
    )


def culprit(what: str, draw: random.Random) -> Case:
    """A job of culprit_programs."""
    kinds, sort = CULPRIT[what]
    rank, step = draw.randrange(4), draw.choice((0, 3, 6, 9))
    words = ("tests.diagnosis.culprit_programs", what, str(rank), str(step))
    who = tuple(range(4)) if what == "lock-held" else (rank,)  # which thread is first, chance says
    case = Case(f"culprit:{what} r{rank} s{step}", torchrun(4, *words), kinds, (who,), sort,
                place="culprit_programs.py", alone=what.endswith("dies"))  # fmt: skip
    return quick(case)


def numbers(what: str, draw: random.Random) -> Case:
    """A job of number_programs: wrong on all ranks alike, but for those of ONE_ALONE."""
    kinds, sort = NUMBERS[what]
    rank, step = draw.randrange(3), draw.choice((10, 20))
    culprits = ((rank,),) if what in ONE_ALONE else ((), (0, 1, 2))
    words = ("tests.diagnosis.number_programs", what, str(rank), str(step))
    argv = torchrun(4 if what in PIPELINES else 3, *words)
    besides = ("nan",) if what == "skips-late-by-hand" else ()  # backward has seen that loss
    return quick(Case(f"numbers:{what} r{rank} s{step}", argv, kinds, culprits, sort, timeout_s=20,
                      besides=besides, notes=what == "loss-ddp"))  # fmt: skip


def slowed(what: str, draw: random.Random) -> Case:
    """A job of slow_programs."""
    kind, placed = SLOWED[what]
    rank, step = draw.randrange(3), draw.choice((10, 15, 20))
    argv = torchrun(3, "tests.diagnosis.slow_programs", what, str(rank), str(step))
    culprits = () if what == "gathers" else (rank,)  # whose object is large, no op tells
    return quick(Case(f"slow:{what} r{rank} s{step}", argv, (kind,), (culprits,), SLOW,
                      causes=(what,) if what == "thread" else (),
                      place="slow_programs.py" if placed else ""))  # fmt: skip


def fine_slowed(what: str, draw: random.Random) -> Case:
    """A job of slow_programs whose ranks all do the same."""
    argv = torchrun(3, "tests.diagnosis.slow_programs", f"fine-{what}", "0", "10")
    besides = ("input-bound",) if what == "loads" else ()
    return quick(Case(f"healthy:fine-{what}", argv, (), timeout_s=20, besides=besides))


def nan(what: str, draw: random.Random) -> Case:
    """A pipeline of nan_programs."""
    nproc = draw.choice((2, 3, 4))
    rank, step, width = draw.randrange(nproc), draw.choice((3, 8, 15)), draw.choice((64, 1024))
    words = ("tests.diagnosis.nan_programs", what, str(rank), str(step), str(width))
    return quick(Case(f"nan:{what} n{nproc} r{rank} s{step} w{width}", torchrun(nproc, *words),
                      ("nan",), ((rank,),), SLOW, timeout_s=30))  # fmt: skip


def training(what: str, draw: random.Random) -> Case:
    """A job of programs."""
    nproc = draw.choice((2, 3, 4, 5))
    rank, step = draw.randrange(nproc), draw.randrange(2, 15)
    sort = END if what in _ENDS else SLOW if what == "every-fifth" else HANG
    return program(what, nproc, rank, step, _KINDS[what], sort=sort)


def planted(what: str, draw: random.Random) -> Case:
    """A recipe's planted fault."""
    rank, step = draw.randrange(4), draw.randrange(3, 10)
    sort = SLOW if what in ("straggler", "slow-loader", "nan", "memory-imbalance") else HANG
    return recipe(what, 4, rank, step, (_RECIPE_KINDS[what],), sort=sort)


def healthy(what: str, draw: random.Random) -> Case:
    """Nothing is wrong."""
    nproc = draw.choice((2, 3, 4))
    words = ("tests.diagnosis.setup_programs", what, str(draw.randrange(nproc)), "5")
    return Case(f"healthy:{what} n{nproc}", torchrun(nproc, *words), (), timeout_s=20)


def fine(what: str, draw: random.Random) -> Case:
    """A job of number_programs that nothing is wrong with."""
    words = ("tests.diagnosis.number_programs", what, str(draw.randrange(3)), "10")
    argv = torchrun(4 if what in PIPELINES else 3, *words)
    return quick(Case(f"healthy:{what}", argv, (), timeout_s=20))


def cases(seed: int, number: int) -> list[Case]:
    """``number`` cases, all classes in turn, in an order drawn too."""
    draw = random.Random(seed)
    makers: list[tuple[Callable[[str, random.Random], Case], str]] = [
        *((setup, what) for what in SETUP), *((culprit, what) for what in CULPRIT),
        *((training, what) for what in TRAINING), *((nan, what) for what in NANS),
        *((numbers, what) for what in NUMBERS), *((slowed, what) for what in SLOWED),
        *((planted, what) for what in RECIPES), (healthy, "healthy"), (healthy, "slow-import"),
        *((fine, what) for what in FINE),
        *((fine_slowed, what) for what in SLOWED if what != "gathers"),
    ]  # fmt: skip
    made = [make(what, draw) for make, what in (makers[i % len(makers)] for i in range(number))]
    draw.shuffle(made)
    return made
