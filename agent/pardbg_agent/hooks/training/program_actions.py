"""Pipeline actions and plans given by the program itself (pardbg_agent.action, plan)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent import schedule_orders as orders
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.patching import spend
from pardbg_agent.hooks.training import pipeline_actions
from pardbg_agent.settings import complain
from pardbg_agent.wire import NONE

MAX_NUMBER: Final = (1 << 15) - 1
"""Maximum stage and microbatch: they are 16-bit numbers in a record."""
_ENTRY = re.compile(r"\d{1,5}[FBIW]\d{1,5}")
_ORDERS: Final[dict[str, tuple[str, Callable[[int, int, int], list[str]]]]] = {
    "1f1b": ("1f1b", orders.one_f_one_b),
    "gpipe": ("gpipe", orders.all_forward_all_backward),
    "afab": ("gpipe", orders.all_forward_all_backward),
}
"""Name in a program -> (name, order of a rank)."""


class ProgramAction:
    """Context ``with action("F", stage=1, mb=3):``; its errors never reach the program."""

    __slots__ = ("_action", "_module", "_what")

    def __init__(self, verb: str, stage: int, mb: int, module: Any) -> None:
        self._what = verb, stage, mb
        self._module = module
        self._action: Any = None

    def __enter__(self) -> ProgramAction:
        c = _core.CURRENT
        if c is not None and c.level:
            begun = now_ns()
            self._action = c.guard.call("action", _begin, c, *self._what, self._module)
            spend(c, begun)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        ended, action, c = now_ns(), self._action, _core.CURRENT
        self._action = None
        if action is not None and c is not None:
            c.guard.call("action", _end, c, action, ended, kind is not None)
            spend(c, ended)


def _begin(c: _core.Core, verb: str, stage: int, mb: int, module: Any) -> Any:
    return pipeline_actions.of(c).begins(verb, stage, mb, module)


def _end(c: _core.Core, action: Any, t1: int, failed: bool) -> None:
    pipeline_actions.of(c).ended(action, t1, failed)


def action(verb: Any, stage: Any, mb: Any, module: Any) -> ProgramAction | None:
    """Return the action, or None for invalid arguments, reported once."""
    if verb not in orders.VERBS:
        _refuse(f"action({verb!r}): it is one of {', '.join(orders.VERBS)}")
        return None
    if not _is_number(stage) or not (_is_number(mb) or mb == NONE):
        _refuse(f"action({verb!r}, stage={stage!r}, mb={mb!r}): whole numbers from 0 on")
        return None
    return ProgramAction(verb, int(stage), int(mb), module)


def plan(
    c: _core.Core, schedule: Any, ranks: Any, microbatches: Any, chunks: Any, order: Any
) -> None:
    """Set the plan that the program's actions follow."""
    try:
        made = _plan(str(schedule), [int(r) for r in ranks], int(microbatches), int(chunks), order)
    except (TypeError, ValueError, AttributeError) as error:
        _refuse(f"plan({schedule!r}): {error}; ignored")
        return
    pipeline_actions.of(c).intend(made)


def _plan(
    schedule: str, ranks: list[int], microbatches: int, chunks: int, order: Any
) -> orders.Plan:
    name = schedule.lower().removeprefix("schedule").replace("_", "").replace("-", "")
    size = len(ranks)
    if not 0 < size <= MAX_NUMBER or chunks < 1 or len(set(ranks)) != size:
        raise ValueError("ranks are the pipeline's, each once, in its order")
    if order is not None:
        rows = _checked(order)
        actions = [orders.parse(entry) for row in rows.values() for entry in orders.one_by_one(row)]
        stages = max((stage for stage, _, _ in actions), default=-1) + 1
        microbatches = microbatches or max((mb for _, _, mb in actions), default=-1) + 1
        return orders.Plan(schedule, tuple(ranks), max(stages, size * chunks), microbatches, rows)
    if not 0 < microbatches <= MAX_NUMBER:
        raise ValueError("how many microbatches? Say microbatches=8")
    if name in _ORDERS and chunks == 1:
        schedule, row = _ORDERS[name]
        rows = orders.by_rank(ranks, lambda at: row(at, size, microbatches))
    elif name in ("interleaved", "interleaved1f1b"):
        schedule = "Interleaved1F1B"
        rows = orders.by_rank(ranks, lambda at: orders.interleaved(at, size, microbatches, chunks))
    else:
        raise ValueError('known are "1f1b", "gpipe" and "interleaved"; else say order={rank: […]}')
    return orders.Plan(schedule, tuple(ranks), size * chunks, microbatches, rows)


def _checked(order: Mapping[Any, Sequence[str]]) -> dict[int, list[str]]:
    rows = {int(rank): [str(entry) for entry in row] for rank, row in order.items()}
    for row in rows.values():
        for entry in orders.one_by_one(row):
            if _ENTRY.fullmatch(entry) is None:
                raise ValueError(f'{entry!r} is no action; one is "2B5": stage, kind, microbatch')
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_NUMBER


_said: set[str] = set()


def _refuse(text: str) -> None:
    if text not in _said and len(_said) < 100:
        _said.add(text)
        complain(text)
