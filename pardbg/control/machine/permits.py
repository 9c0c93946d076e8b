"""Permits of each verb by rank: step, tick, next, op as tables.

[Note: the wavefront] A tick lets each rank run its next planned compute action if the action's
input has been produced: kF i needs (k-1)F i; kB i and kI i need (k+1)B i or (k+1)I i and the own kF
i (at the last stage only that); kW i needs kI i. After it, ranks stop before receives, not before
sends, so that produced tensors reach their consumers. At 1F1B the ticks are then 0F0 | 0F1,1F0 |
0F2,1F1,2F0 | …"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pardbg.analysis.pipeline.dependencies import COMPUTE, parse, satisfied
from pardbg.events.control_codes import Verb
from pardbg_agent.ctrl.agent_messages import State
from pardbg_agent.wire import GATE_ALL, GATE_OPS, Gate

# Without INSIDE: a tick runs an action whatever collectives it has.
TICK_STOP = (
    Gate.RECV | Gate.ACTION | Gate.COLLECTIVE | Gate.STEP | Gate.OPTIMIZER | Gate.BREAK
)  # fmt: skip
FLOW_STOP = Gate.RECV | Gate.ACTION | Gate.BREAK


@dataclass(frozen=True, slots=True)
class Permit:
    """Permit message without its id and lease."""

    count: int
    n: int
    stop: int

    def holds(self, gate: int) -> bool:
        """Return whether a rank with no passes left stays at this gate."""
        if gate & Gate.INSIDE and not self.stop & Gate.INSIDE:
            return False
        return bool(gate & self.stop)


HOLD = Permit(int(GATE_ALL), 0, int(GATE_ALL))
PASS = Permit(0, 1, 0)
"""Permit that holds nowhere but has the rank report its state: for ranks beside one held alone."""
ONE_GATE = Permit(int(GATE_ALL), 1, int(GATE_ALL))
ONE_OP = Permit(int(GATE_OPS), 1, int(GATE_ALL))
"""Permit for settling to a cut: past one op."""
ONE_ACTION = Permit(int(Gate.ACTION), 1, int(TICK_STOP))
_UNTIL_PLAN = int(Gate.RECV | Gate.ACTION | Gate.STEP | Gate.BREAK)
DRAIN = Permit(int(Gate.ACTION), 0, int(TICK_STOP))
"""Permit that lets only sends pass."""
FLOW = Permit(int(Gate.ACTION), 0, int(FLOW_STOP))
"""Permit through the optimizer to the first receive or action of the next step."""


def planned_actions(states: Iterable[State]) -> list[str]:
    """Return the compute actions of the states' plans."""
    texts = (text for state in states for text in state.plan)
    return [text for text in texts if (found := parse(text)) and found.kind in COMPUTE]


def num_stages(states: Iterable[State]) -> int:
    """Return the number of stages according to the plans."""
    known = (action for text in planned_actions(states) if (action := parse(text)))
    return max((action.stage for action in known), default=0) + 1


def next_action(state: State) -> str | None:
    """Return the first planned compute action not yet done; None at the end or without a plan."""
    return next((text for text in planned_actions([state]) if text not in state.done), None)


def tick(pipeline: Sequence[State]) -> dict[str, Permit]:
    """Return process -> permit for one tick of one pipeline whose ranks are all held."""
    permits = _tick(pipeline)
    for state in pipeline:
        permit = permits.get(state.proc)
        found = parse(state.next)
        if permit is not None and found is not None and found.kind not in COMPUTE:
            # It is an action's gate, but the action is not in the plan: it passes uncounted.
            permits[state.proc] = replace(permit, n=permit.n + 1)
    return permits


def _tick(pipeline: Sequence[State]) -> dict[str, Permit]:
    planned = [state for state in pipeline if planned_actions([state])]
    unplanned = [state for state in pipeline if state not in planned]
    if not planned:
        return {state.proc: _without_plan(state) for state in pipeline}
    behind, current = _rounds(planned)
    done = {text for state in current for text in state.done}
    permits = {state.proc: DRAIN for state in [*planned, *unplanned]}
    permits.update({state.proc: FLOW for state in behind})
    for state in current:
        action = next_action(state)
        if state.held & Gate.INSIDE:
            continue  # an action that has begun is this tick's
        if action is not None and satisfied(action, num_stages(planned), done):
            permits[state.proc] = ONE_ACTION
    if not current:
        # The step is over everywhere: on to the next one, whose first stage runs its first action.
        permits.update(
            {s.proc: ONE_ACTION for s in behind if planned_actions([s])[0].startswith("0F")}
        )
    if not any(permit.n for permit in permits.values()) and not behind:
        return {state.proc: ONE_ACTION for state in planned}  # the plan does not fit: let it show
    return permits


def _without_plan(state: State) -> Permit:
    """Return a permit for one action, or without actions one step. In the first step a plan may
    come with the schedule's begin: there a rank runs no action, nor waits for a message inside it,
    in the tick that brings it to the plan."""
    if not state.step:
        return Permit(_UNTIL_PLAN, int(bool(state.held & _UNTIL_PLAN)), _UNTIL_PLAN)
    gates = Gate.ACTION | Gate.STEP
    return Permit(int(gates), 2 if state.held & Gate.STEP else 1, int(TICK_STOP))


def _rounds(planned: Sequence[State]) -> tuple[list[State], list[State]]:
    """Return (ranks whose schedule step is over while the pipeline goes on, the others)."""
    going = [state for state in planned if next_action(state) is not None]
    over = [state for state in planned if next_action(state) is None]
    if not going:
        return over, []
    first = min(state.step for state in going)
    behind = [state for state in over if state.step < first]
    return behind, [*going, *(state for state in over if state.step >= first)]


def to_gate(states: Sequence[State], gates: int) -> dict[str, Permit]:
    """Return permits to each rank's next gate of these: a rank held at one passes it, unless others
    must come there first (so that all stand at the same one afterwards): they are at no such gate,
    or at one before it."""
    stop = int(gates | Gate.BREAK)
    there = [state for state in states if state.held & stop]
    onward = there if len(there) == len(states) else []
    onward = [s for s in onward if not any(_behind(other, s) for other in there)]
    return {
        s.proc: Permit(stop, 1 if s in onward else 0, stop)
        for s in states
        if s in onward or s not in there
    }


def _behind(state: State, other: State) -> bool:
    """Return whether ``state`` has issued fewer collectives on the groups common to both."""
    both = state.issued.keys() & other.issued.keys()
    counts = [other.issued[group] - state.issued[group] for group in both]
    return min(counts, default=0) >= 0 and max(counts, default=0) > 0


def step_target(states: Sequence[State]) -> int:
    """Return the number of steps each rank has behind it after ``next``: that of the furthest rank
    at the end of its step, or one more if all stand at that end already."""
    ends = {state.step if state.held & Gate.STEP else state.step + 1 for state in states}
    all_there = len(ends) == 1 and all(state.held & Gate.STEP for state in states)
    return max(ends) + 1 if all_there else max(ends)


def to_step(states: Sequence[State], target: int) -> dict[str, Permit]:
    """Return permits for the ranks that have fewer than ``target`` steps behind them."""
    stop = int(Gate.STEP | Gate.BREAK)
    return {
        s.proc: Permit(stop, 1 if s.held & stop else 0, stop) for s in states if s.step < target
    }


def permits(
    verb: Verb, chosen: Sequence[State], pipelines: Sequence[Sequence[State]]
) -> dict[str, Permit]:
    """Return the permits of a verb for the chosen (held) ranks; for a tick, by pipeline."""
    if verb is Verb.STEP:
        return {state.proc: ONE_GATE for state in chosen}
    if verb is Verb.NEXT:
        return to_step(chosen, step_target(chosen))
    if verb is Verb.OP:
        return to_gate(chosen, Gate.COLLECTIVE | Gate.STEP | Gate.INSIDE)
    out: dict[str, Permit] = {}
    for pipeline in pipelines:
        out.update(tick(pipeline))
    wanted = {state.proc for state in chosen}
    return {p: x if p in wanted or not x.n else DRAIN for p, x in out.items()}
