"""What a verb that moves ranks did, from what the agents reported before it and at the cut after
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pardbg.analysis.pipeline.dependencies import parse, producer, satisfied, twin
from pardbg.analysis.pipeline.ticks.grid import tick_numbers
from pardbg.control.machine.permits import next_action, num_stages, planned_actions
from pardbg.events.control_codes import Verb
from pardbg.events.control_facts import Outcome
from pardbg_agent.ctrl.agent_messages import State

States = Mapping[int, State]
"""rank -> what it said."""


def outcome(
    verb: Verb, before: States, after: States, pipelines: Sequence[Sequence[int]]
) -> Outcome:
    """Return what the verb did. ``pipelines``: ranks of each."""
    ran = {rank: actions_ran(before[rank], after[rank]) for rank in before if rank in after}
    ran = {rank: actions for rank, actions in ran.items() if actions}
    found = Outcome(
        verb, ran=ran, many_stages=_many(after),
        places={rank: state.next for rank, state in after.items() if state.held},
        moving=tuple(rank for rank, state in after.items() if not state.held),
    )  # fmt: skip
    planned = planned_actions(after.values())
    if verb is Verb.NEXT or (verb is Verb.TICK and not ran and not planned):
        return replace(found, ran={}, steps=_steps(before, after))
    if not ran:
        passed = {
            rank: old.next for rank, old in before.items()
            if rank in after and old.next != after[rank].next
        }  # fmt: skip
        return found if verb is Verb.TICK else replace(found, passed=passed)
    plans = [
        pipe for pipe in pipelines
        if all(rank in after and after[rank].plan for rank in pipe) and ran.keys() & set(pipe)
    ]  # fmt: skip
    if verb is not Verb.TICK or not plans:
        return found
    pipes = [{rank: after[rank] for rank in ranks} for ranks in plans]
    waits: dict[int, str] = {}
    coming: dict[int, str] = {}
    for pipe in pipes:
        _upcoming(pipe, waits, coming)
    return replace(found, tick=max(_tick(ran, pipe) for pipe in pipes), waits=waits, coming=coming)


def _tick(ran: Mapping[int, Sequence[str]], pipe: States) -> int:
    ticks = tick_numbers(
        {rank: state.plan for rank, state in pipe.items()}, num_stages(pipe.values())
    )
    return max((ticks.get(text, 0) for rank in pipe for text in ran.get(rank, ())), default=0)


def actions_ran(before: State, after: State) -> tuple[str, ...]:
    """Compute actions that ended between the two states, also over the end of a schedule."""
    if after.done[: len(before.done)] == before.done and after.step == before.step:
        return after.done[len(before.done) :]
    known = set(before.done)
    rest = tuple(text for text in before.plan if text not in known) if before.done else ()
    return (*rest, *after.done)


def _upcoming(pipe: States, waits: dict[int, str], coming: dict[int, str]) -> None:
    """Find whose next action has its input, and what the others wait for."""
    last = num_stages(pipe.values())
    done = {text for state in pipe.values() for text in state.done}
    for rank, state in pipe.items():
        action = next_action(state)
        if action is None:
            continue
        if satisfied(action, last, done):
            coming[rank] = action
            continue
        needed = producer(action, last)
        plan = {a for other in pipe.values() for a in other.plan}
        other = twin(needed) if needed is not None else None
        if needed is not None and needed not in done and other not in done:
            waits[rank] = other if other is not None and needed not in plan else needed


def _many(states: States) -> bool:
    """A rank has several stages, so an action's name says its stage."""
    return any(
        len({action.stage for text in state.plan if (action := parse(text))}) > 1
        for state in states.values()
    )


def _steps(before: States, after: States) -> tuple[int, int]:
    old = min((state.step for state in before.values()), default=0)
    return old, max([old, *(state.step for state in after.values())])
