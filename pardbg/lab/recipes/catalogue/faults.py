"""Recipes of the same training with one planted fault."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pardbg.lab.recipes.catalogue.recipe import Kind, Option, Recipe, takes
from pardbg.lab.recipes.shape import BATCH, BLOCKS

_RANK = Option("fault-rank", 1, "the rank it strikes", least=0)
_STEP = Option("fault-step", 20, "the step it strikes in", least=0)
_SINCE = Option("fault-step", 20, "the step it begins with", least=0)
_TIMEOUT = Option(
    "timeout-s", 30, "seconds after which ranks that hang give up", least=1, most=86400
)


def _size(
    default: float, unit: str, least: int = 1, most: int = 10_000, of: type = float
) -> Option:
    return Option("fault-size", default, unit, of, least=least, most=most)


_SEVERAL = takes(
    range(2, BATCH // 2 + 1),
    f"needs ranks that wait for each other: take 2 to {BATCH // 2}, not {{}}",
)
"""Requirement of at least two sequences per rank."""
_UNEVEN_STAGES = takes(
    range(2, BLOCKS - 2), f"needs stages with blocks to move: take 2 to {BLOCKS - 3} ranks"
)


def _strikes(nproc: int, own: Mapping[str, Any]) -> str | None:
    """Return why the fault cannot strike (no such rank, or no such step); None: it strikes."""
    rank, step, steps = own.get("fault-rank", 0), own.get("fault-step", 0), own.get("steps")
    if rank >= nproc:
        return f"--fault-rank {rank}: there are ranks 0 to {nproc - 1}"
    if steps is not None and step >= steps:
        return f"--fault-step {step}: of {steps} steps the last is {steps - 1}"
    return None


def _ring(nproc: int, own: Mapping[str, Any]) -> str | None:
    size = own["fault-size"]
    if size == 1 or size > nproc:
        return f"--fault-size {size}: a ring of {nproc} ranks takes 2 to {nproc}, or 0 for all"
    return _strikes(nproc, own)


def _linux(nproc: int, own: Mapping[str, Any]) -> str | None:
    if sys.platform != "linux":
        return "slow-link asks the kernel to pace one socket, which is Linux's: run it there"
    return _strikes(nproc, own)


def _fault(
    name: str, code: str, summary: str, *options: Option, screen: str = "overview", **more: Any
) -> Recipe:
    return Recipe(
        name=f"fault:{name}",
        kind=Kind.FAULT,
        summary=summary,
        file="faults",
        code=f"pardbg.lab.recipes.faults.{code}",
        options=options,
        screen=screen,
        **{"fits": _SEVERAL, "able": _strikes, "steps": 100, **more},
    )


def _hang(name: str, code: str, summary: str, *options: Option, **more: Any) -> Recipe:
    """Return the recipe of a fault that ends when an op's timeout expires."""
    return _fault(name, code, summary, _RANK, _STEP, *options, _TIMEOUT, **more)


RECIPES: tuple[Recipe, ...] = (
    _hang("missing-rank", "missing_rank:MissingRank", "one rank does not come to a collective"),
    _hang("mismatch-op", "mismatch:MismatchOp",
          "one rank calls another collective than the others"),
    _hang("mismatch-shape", "mismatch:MismatchShape",
          "one rank brings a smaller tensor; gloo aborts"),
    _fault("mismatch-dtype", "mismatch:MismatchDtype",
           "one rank sums int32, the others float32; nobody notices",
           _RANK, _SINCE),
    _hang("mismatch-root", "mismatch:MismatchRoot",
          "one rank broadcasts from itself, the others from rank 0"),
    _hang("group-order", "waiting:GroupOrder",
          "one rank takes two groups the other way round: deadlock"),
    _hang("p2p-cycle", "waiting:P2PCycle", "ranks in a ring all receive before they send: deadlock",
          _size(0, "ranks in the ring, from --fault-rank on; 0: all", 0, of=int), able=_ring),
    _hang("unpaired-send", "waiting:UnpairedSend", "a rank sends what nobody receives"),
    _hang("unpaired-recv", "waiting:UnpairedRecv", "a rank receives what nobody sends"),
    _fault("straggler", "slow:Straggler", "one rank computes more slowly", _RANK, _SINCE,
           _size(60, "milliseconds more per step", 0)),
    _fault("slow-loader", "slow:SlowLoader", "one rank's data comes late", _RANK, _SINCE,
           _size(60, "milliseconds more per batch", 0)),
    _fault("slow-link", "slow:SlowLink",
           "the connection from one rank to the next is slow, in a ring of sends",
           _RANK, _SINCE, _size(20, "MB/s at most over that link", most=2000),
           able=_linux, screen="traffic"),
    _fault("stage-imbalance", "slow:stage_imbalance",
           "a 1F1B pipeline cut unevenly: one stage has more blocks", _RANK,
           _size(2, "blocks more for this rank's stage", of=int),
           fits=_UNEVEN_STAGES, screen="pipeline"),
    _fault("small-messages", "slow:SmallMessages",
           "a hundred tiny all_reduces a step instead of DDP's buckets"),
    _fault("exposed-comm", "slow:ExposedComm", "a large all_gather that no compute hides",
           _size(16, "MiB from each rank, each step", of=int)),
    _fault("nan", "wrong:Nan", "one rank's loss is NaN; a step later all are", _RANK, _STEP),
    _fault("diverge", "wrong:Diverge",
           "one replica's weights drift from the others'", _RANK, _SINCE,
           _size(2.0, "learning rate on that rank, times this", 0)),
    _fault("memory-creep", "wrong:MemoryCreep",
           "one rank's memory grows with every step", _RANK, _SINCE,
           _size(4, "MiB per step", of=int), screen="memory"),
    _fault("memory-imbalance", "wrong:MemoryImbalance",
           "one rank uses much more memory than its peers", _RANK, _SINCE,
           _size(256, "MiB more", of=int), screen="memory"),
    _hang("exception", "wrong:UncaughtError", "one rank raises"),
    _hang("kill", "wrong:Kill", "one rank is killed without a word"),
    _fault("gil-hold", "slow:GilHold",
           "one rank stands in C code that keeps Python's lock", _RANK, _STEP,
           _size(8.0, "seconds", 0, 600)),
)  # fmt: skip
