"""What a verb did, in words: ``tick 7 ran r1 B0 · r2 F2; r0 waits for 2B0; next r1 F3``.

Derived from what the agents reported before the verb and at the cut after it; said the same way on
every screen and by ``pardbg ctl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pardbg.analysis.pipeline.dependencies import parse, producer, satisfied, twin
from pardbg.analysis.pipeline.ticks.grid import tick_numbers
from pardbg.control.language.verbs import Verb
from pardbg.control.machine.cut import AgentState
from pardbg.control.machine.permits import next_action, num_stages, planned_actions
from pardbg.words import rank_set, ranks_text

States = Mapping[int, AgentState]
"""rank -> what it said."""


def outcome(
    verb: Verb, before: States, after: States, pipelines: Sequence[Sequence[int]], where: str = ""
) -> str:
    """Return one line. ``pipelines``: ranks of each; ``where``: ``3 of 5`` of several verbs."""
    ran = {rank: actions_ran(before[rank], after[rank]) for rank in before if rank in after}
    head = f"{verb.value}{f' ({where})' if where else ''}"
    if verb is Verb.NEXT:
        return f"{head} {_steps(before, after)}; now {_places(after)}"
    if not any(ran.values()):
        passed = {r: before[r].next for r in ran if before[r].next != after[r].next}
        if verb is Verb.TICK and not planned_actions(after.values()):  # a step
            return f"{head} {_steps(before, after)} (no actions are named); now {_places(after)}"
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
    ticks = tick_numbers(
        {rank: state.plan for rank, state in pipe.items()}, num_stages(pipe.values())
    )
    return max((ticks.get(text, 0) for rank in pipe for text in ran.get(rank, ())), default=0)


def actions_ran(before: AgentState, after: AgentState) -> tuple[str, ...]:
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


def _planned(pipelines: Sequence[Sequence[int]], after: States) -> list[Sequence[int]]:
    """Pipelines of which every rank told its plan."""
    return [
        ranks for ranks in pipelines
        if ranks and all(rank in after and after[rank].plan for rank in ranks)
    ]  # fmt: skip


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


_MOST = 4
"""Maximum number of actions of a rank that are listed."""
Words = list[tuple[str, str]]
"""(text, style token) in order."""


def short(action: str, many_stages: bool) -> str:
    """Return ``B5`` where a rank has one stage only, else ``2B5``; other words stay."""
    parsed = parse(action)
    if parsed is None or many_stages:
        return action
    return action[len(str(parsed.stage)) :]


def did(
    head: str,
    ran: Mapping[int, Sequence[str]] | None,
    waits: Mapping[int, str],
    coming: Mapping[int, str],
    many_stages: bool,
) -> Words:
    """Return ``tick 7 ran r1 B0 · r2 F2; r0 waits for 1B0; next r1 F3 · r2 B1``.

    ``ran``: None where there was nothing to run yet; ``waits``: rank -> the action that has to run
    first on another rank; ``coming``: rank -> what its next tick runs.
    """
    parts: Words = [(head, "strong")]
    if ran is not None:
        parts += [(" ran ", "dim"), *(_list(ran, many_stages, "strong") or [("nothing", "warn")])]
    if waits:
        parts += [("; ", "dim"), (grouped(waits, "waits for "), "warn")]
    if coming:
        parts += [("; next ", "dim")]
        parts += _list({rank: [action] for rank, action in coming.items()}, many_stages, "accent")
    return parts


def _list(actions: Mapping[int, Sequence[str]], many_stages: bool, style: str) -> Words:
    """Merge ranks that do the same: ``r0,4 F3``."""
    same: dict[str, list[int]] = {}
    for rank, row in sorted(actions.items()):
        if row:
            few = row if len(row) <= _MOST else [row[0], "…", row[-1]]
            text = " ".join(short(action, many_stages) for action in few)
            same.setdefault(text, []).append(rank)
    found: Words = []
    for text, ranks in same.items():
        found += [(" · ", "faint")] * bool(found)
        found += [(f"r{rank_set(ranks)} ", "dim"), (text, style)]
    return found


def grouped(texts: Mapping[int, str], before: str = "") -> str:
    """Return text such as ``r0–3 before 0F0 · r4 before recv``"""
    same: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        same.setdefault(text, []).append(rank)
    return " · ".join(f"r{rank_set(ranks)} {before}{text}" for text, ranks in same.items())


def text_of(words: Words) -> str:
    """Return the text without styles."""
    return "".join(text for text, _ in words)
