"""Cases on simulated accelerators, drawn from a seed: a slow device, one that stops, a rank whose
host launches too slowly, a late rank, a mismatch; and nothing wrong."""

from __future__ import annotations

import random
from typing import Final

from tests.conftest import ROOT
from tests.diagnosis.cases import HANG, SLOW, Case, quick, torchrun

FAULTS: Final = ("slow-device", "stopped-device", "host-bound", "late-rank", "mismatch")
REPLICAS: Final = ("ddp", "loop", "fsdp", "tp")
MISMATCHES: Final = {
    "other-op": "op-mismatch", "other-size": "size-mismatch", "other-dtype": "dtype-mismatch",
}  # fmt: skip
SPEED: Final = {
    "slow-device": (("straggler", "stage-imbalance"), ("compute",)),
    "host-bound": (("straggler", "schedule-excess", "stage-imbalance"), ("launch",)),
    "late-rank": (("straggler", "schedule-excess"), ("host", "launch", "blocked")),
}
"""What goes wrong -> (kinds, causes) that are right."""
AMOUNTS: Final = {"slow-device": (1.5, 2.5), "host-bound": (0.05, 0.09), "late-rank": (0.15, 0.3)}
"""Times as long; seconds per layer; seconds per step. A step is 96 ms on a device."""
PIPELINE_S: Final = 0.2
"""What a pipeline's step takes longer."""

ENV: Final = (("PARDBG_SIM", str(ROOT / ".native")), ("TORCH_CPP_LOG_LEVEL", "ERROR"))


def drawn(what: str, draw: random.Random) -> Case:
    """One case of a class, or a healthy job."""
    ranks, step = draw.choice((2, 3, 3, 4)), draw.randrange(4, 9)
    rank, every = draw.randrange(ranks), draw.choice((0, 1, 3))
    job = draw.choice(REPLICAS if what == "mismatch" else (*REPLICAS, "1f1b"))
    if job == "1f1b" and what == "late-rank":
        rank = rank or ranks - 1  # a step begins with the first stage's first forward, however late
    kinds: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    amount, fault = 0.0, what
    culprits: tuple[tuple[int, ...], ...] = ((rank,),)
    if what in SPEED:
        kinds, causes = SPEED[what]
        amount = draw.uniform(*AMOUNTS[what])
        if job == "1f1b" and what == "late-rank":
            amount += PIPELINE_S
    elif what == "stopped-device":
        kinds, causes = ("missing-rank",), ("device",)
    elif what == "mismatch":
        fault = draw.choice(tuple(MISMATCHES))
        kinds = (MISMATCHES[fault],)
        if ranks == 2:  # nobody is in the majority
            culprits = ((rank,), (), (0, 1))
    words = (job, fault, str(rank), str(step), f"{amount:.2f}", str(every))
    return quick(Case(
        f"{' '.join(words)} n{ranks}",
        torchrun(ranks, "tests.diagnosis.device_programs", *words),
        kinds, culprits, SLOW if what in SPEED else HANG, timeout_s=45 if kinds else 20,
        causes=causes, env=ENV,
    ))  # fmt: skip


def cases(seed: int, number: int) -> list[Case]:
    """``number`` of each class, and half as many healthy jobs."""
    draw = random.Random(seed)
    faults = [drawn(what, draw) for _ in range(number) for what in FAULTS]
    return [*faults, *(drawn("nothing", draw) for _ in range((number + 1) // 2))]
