"""Pipeline schedules as text: the plan of each rank, and the well-known orders.

An action is ``2B5``: stage, verb, microbatch. Stages are global over virtual stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pardbg_agent.wire import NONE

COMPUTE: Final = ("F", "B", "I", "W")
VERBS: Final = (*COMPUTE, "UNSHARD", "RESHARD", "REDUCE_GRAD")


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned schedule of a pipeline."""

    schedule: str
    ranks: tuple[int, ...]
    """Global ranks in pipeline order."""
    num_stages: int
    num_microbatches: int
    order: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Compute actions by global rank, text form (``2B5``); empty: unknown."""
    source: str = "schedule"
    group: str = ""
    """Key of the pipeline's process group, if known."""
    paced: bool = False

    def row(self, rank: int) -> list[str]:
        """Return the planned actions of one rank, an overlapped pair as two actions."""
        return one_by_one(self.order.get(rank, ()))


def text(stage: int, verb: str, mb: int) -> str:
    """Return text such as ``2B5``; without a microbatch ``2REDUCE_GRAD``."""
    return f"{stage}{verb}{mb if mb >= 0 else ''}"


def parse(said: str) -> tuple[int, str, int]:
    """Return ``2B5`` as (stage, verb, microbatch)."""
    head = len(said) - len(said.lstrip("0123456789"))
    verb = said[head:].rstrip("0123456789")
    mb = said[head + len(verb) :]
    return int(said[:head]), verb, int(mb) if mb else NONE


def one_by_one(order: Sequence[str]) -> list[str]:
    """Return the actions of a rank's plan, an overlapped pair as two actions."""
    out: list[str] = []
    for entry in order:
        out += entry[1 : entry.index(")")].split(";") if entry.startswith("(") else [entry]
    return out


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> list[str]:
    """Return the 1F1B order of a stage: warm-up forwards, then one backward, one forward each, then
    the remaining backwards. (torch's Schedule1F1B table lists the last stage wrongly, F1..Fm.)"""
    warmup = min(num_microbatches, num_stages - stage)
    order = [f"{stage}F{mb}" for mb in range(warmup)]
    for mb in range(num_microbatches):
        order.append(f"{stage}B{mb}")
        if warmup + mb < num_microbatches:
            order.append(f"{stage}F{warmup + mb}")
    return order


def all_forward_all_backward(
    stage: int, num_stages: int, num_microbatches: int, last_first: bool = False
) -> list[str]:
    """Return GPipe's order of a stage. ``last_first``: backward starts with the last microbatch."""
    mbs = range(num_microbatches)
    backwards = reversed(mbs) if last_first else mbs
    return [f"{stage}F{mb}" for mb in mbs] + [f"{stage}B{mb}" for mb in backwards]


def interleaved(
    pp_rank: int, pp_size: int, num_microbatches: int, num_chunks: int, group_size: int = 0
) -> list[str]:
    """Return the interleaved 1F1B order of a rank, as in Megatron-LM: microbatches in groups (by
    default of the pipeline's size) that pass chunk after chunk."""
    group_size = group_size or pp_size
    table = [
        (mb, chunk)
        for begin in range(0, num_microbatches, group_size)
        for chunk in range(num_chunks)
        for mb in range(begin, min(begin + group_size, num_microbatches))
    ]
    forwards = [f"{chunk * pp_size + pp_rank}F{mb}" for mb, chunk in table]
    backwards = [f"{(num_chunks - 1 - chunk) * pp_size + pp_rank}B{mb}" for mb, chunk in table]
    warmup = min(len(table), (pp_size - pp_rank - 1) * 2 + (num_chunks - 1) * group_size)
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(table) - warmup :]


def by_rank(ranks: Sequence[int], row: Callable[[int], list[str]]) -> dict[int, list[str]]:
    """Return {global rank: its actions}; ``row`` returns those of a pipeline rank, from 0."""
    return {rank: row(number) for number, rank in enumerate(ranks)}
