"""Plans of pipeline schedules that did not run: GPipe and 1F1B by rule, the others from torch.

A plan is {pipeline rank: compute entries in order}, stages as torch places them: stage k of p ranks
on rank k mod p, in the V-shaped schedules (ZBV, DualPipeV) there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pardbg.analysis.pipeline.dependencies import compute_actions
from pardbg.analysis.pipeline.implied import schedule_name
from pardbg_agent.schedule_orders import all_forward_all_backward, one_f_one_b

ONE_STAGE: Final = ("GPipe", "1F1B")
"""Schedules with one stage per rank; these need no torch."""
SEVERAL: Final = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
                  "DualPipeV")  # fmt: skip
"""Schedules with two or more stages per rank."""
SCHEDULES: Final = (*ONE_STAGE, *SEVERAL)
Plan = Mapping[int, tuple[str, ...]]


class NoPlan(ValueError):
    """A schedule cannot run in this way; the text is the reason, in words."""


_SHORT: Final = {"interleaved": "Interleaved1F1B", "zb": "InterleavedZeroBubble",
                 "zbv": "ZBVZeroBubble"}  # fmt: skip
"""Short names of schedules, as the recipes use them."""


def known(name: str) -> str | None:
    """Return torch's name of a schedule, written in any way; None: there is no such schedule."""
    by_word = {schedule_name(schedule): schedule for schedule in SCHEDULES} | _SHORT
    return by_word.get(schedule_name(name))


@lru_cache(maxsize=512)
def plan(schedule: str, num_ranks: int, num_virtual: int, num_microbatches: int) -> Plan:
    """Return the plan of each rank. Raises NoPlan if torch refuses it or is not installed."""
    if schedule in ONE_STAGE:
        if num_virtual != 1:
            raise NoPlan("one stage per rank")
        if schedule == "1F1B" and num_microbatches < num_ranks:
            raise NoPlan(f"it needs at least as many microbatches as stages ({num_ranks})")
        make = all_forward_all_backward if schedule == "GPipe" else one_f_one_b
        return {rank: tuple(make(rank, num_ranks, num_microbatches)) for rank in range(num_ranks)}
    return _from_torch(schedule, num_ranks, num_virtual, num_microbatches)


def torch_there() -> bool:
    """Return whether torch is installed, which knows the schedules of several stages."""
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _from_torch(schedule: str, num_ranks: int, num_virtual: int, num_microbatches: int) -> Plan:
    """Return the plan as torch's runtime runs it: neighbouring I and W of one microbatch are one B;
    an overlapped pair stays one entry, ``(0F3;1B2)OVERLAP_F_B``."""
    try:
        from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    except ImportError:
        raise NoPlan("its plan comes from torch, which is not installed here") from None
    try:
        rows = get_schedule_ops(schedule, num_ranks, num_microbatches, num_virtual, with_comms=True)
    except (ValueError, AssertionError, TypeError, KeyError, IndexError) as error:
        raise NoPlan(_short(str(error))) from None
    return {
        rank: tuple(text for text in map(str, row) if compute_actions(text))
        for rank, row in enumerate(rows)
    }


def _short(text: str) -> str:
    """Return torch's reason as the tail of a sentence."""
    words = " ".join(text.split()).rstrip(".")
    words = words.split(", but got", 1)[0] or "torch refuses it"
    return words[:1].lower() + words[1:] if words[1:2].islower() else words
