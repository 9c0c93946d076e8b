"""What a verb did, in words: ``tick 7 ran r1 B0 · r2 F2; r0 waits for 2B0; next r1 F3``.

Derived from what the agents reported before the verb and at the cut after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pardbg.analysis.pipeline.dependencies import parse, producer, satisfied, twin
from pardbg.analysis.pipeline.ticks.grid import tick_numbers
from pardbg.control.language.agent_state import AgentState
from pardbg.control.language.tick_words import did, grouped, text_of
from pardbg.control.language.verbs import Verb
from pardbg.control.machine.permits import next_action
from pardbg.words import ranks_text

States = Mapping[int, AgentState]
"""rank -> what it said."""


def outcome(
    verb: Verb, before: States, after: States, pipelines: Sequence[Sequence[int]], where: str = ""
) -> str:
    """Return one line. ``pipelines``: the ranks of each; ``where``: which of several verbs it was,
    ``3 of 5``."""
    ran = {rank: actions_ran(before[rank], after[rank]) for rank in before if rank in after}
    head = f"{verb.value}{f' ({where})' if where else ''}"
    if verb is Verb.NEXT:
        return f"{head} {_steps(before, after)}; now {_places(after)}"
    if not any(ran.values()):
        passed = {r: before[r].next for r in ran if before[r].next != after[r].next}
        if verb is Verb.TICK or not passed:
            return f"{head} ran no action; now {_places(after)}"
        return f"{head} passed {grouped(passed)}; now {_places(after)}"
    plans = [pipe for pipe in _planned(pipelines, after) if any(ran.get(rank) for rank in pipe)]
    if verb is not Verb.TICK or not plans:
        words = did(head, ran, {}, {}, _many(after))
        return f"{text_of(words)}; now {_places(after)}"
    number = max(_tick(ran, {rank: after[rank] for rank in ranks}) for ranks in plans)
    waits: dict[int, str] = {}
    coming: dict[int, str] = {}
    for ranks in plans:
        _upcoming({rank: after[rank] for rank in ranks}, waits, coming)
    head = f"tick {number}{f' ({where})' if where else ''}"
    return text_of(did(head, ran, waits, coming, _many(after)))


def _tick(ran: Mapping[int, Sequence[str]], pipe: States) -> int:
    """The number of the last tick of a pipeline."""
    ticks = tick_numbers({rank: state.plan for rank, state in pipe.items()}, _stages(pipe))
    return max((ticks.get(text, 0) for rank in pipe for text in ran.get(rank, ())), default=0)


def actions_ran(before: AgentState, after: AgentState) -> tuple[str, ...]:
    """Compute actions that ended between the two states, also over the end of a schedule."""
    if after.done[: len(before.done)] == before.done and after.step == before.step:
        return after.done[len(before.done) :]
    known = set(before.done)
    rest = tuple(text for text in before.plan if text not in known) if before.done else ()
    return (*rest, *after.done)


def _upcoming(pipe: States, waits: dict[int, str], coming: dict[int, str]) -> None:
    """Whose next action has its input, and for what the others wait."""
    last = _stages(pipe)
    done = {text for state in pipe.values() for text in state.done}
    for rank, state in pipe.items():
        action = next_action(state)
        if action is None:
            continue
        text = f"{action[0]}{action[1]}{action[2]}"
        if satisfied(text, last, done):
            coming[rank] = text
            continue
        needed = producer(text, last)
        plan = {a for other in pipe.values() for a in other.plan}
        other = twin(needed) if needed is not None else None
        if needed is not None and needed not in done and other not in done:
            waits[rank] = other if other is not None and needed not in plan else needed


def _planned(pipelines: Sequence[Sequence[int]], after: States) -> list[Sequence[int]]:
    """Pipelines of which every rank told its plan."""
    return [
        ranks for ranks in pipelines
        if ranks and all(rank in after and after[rank].plan for rank in ranks)
    ]  # fmt: skip


def _stages(pipe: States) -> int:
    known = (action for state in pipe.values() for text in state.plan if (action := parse(text)))
    return max((action.stage for action in known), default=0) + 1


def _many(states: States) -> bool:
    """A rank has several stages, so an action's name says its stage."""
    return any(
        len({action.stage for text in state.plan if (action := parse(text))}) > 1
        for state in states.values()
    )


def _steps(before: States, after: States) -> str:
    """``ran step 7``"""
    old = min((state.step for state in before.values()), default=0)
    new = max((state.step for state in after.values()), default=0)
    if new <= old:
        return "ended no step"
    return f"ran step {old}" if new == old + 1 else f"ran steps {old} to {new - 1}"


def _places(after: States) -> str:
    held = {rank: state.next for rank, state in after.items() if state.held}
    under_way = [rank for rank, state in after.items() if not state.held]
    text = grouped(held, "before ")
    return "; ".join(filter(None, [text, f"{ranks_text(under_way)} running" if under_way else ""]))
