"""Which permits a verb means for which rank: step, tick, next, op as tables.

[Note: the wavefront] A tick lets each rank run its next planned compute action if the action's
input has been produced: kF i needs (k-1)F i; kB i and kI i need (k+1)B i or (k+1)I i and the own
kF i (at the last stage only that); kW i needs kI i. After it, ranks stop before receives, not
before sends, so that what was produced reaches its consumer. At 1F1B the ticks are then
0F0 | 0F1,1F0 | 0F2,1F1,2F0 | …
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pardbg.control.language.verbs import Verb
from pardbg.control.machine.cut import AgentState
from pardbg_agent.wire import GATE_ALL, GATE_OPS, Gate

# Without INSIDE: a tick runs an action whatever collectives it has.
TICK_STOP = (
    Gate.RECV | Gate.ACTION | Gate.COLLECTIVE | Gate.STEP | Gate.OPTIMIZER | Gate.BREAK
)  # fmt: skip
FLOW_STOP = Gate.RECV | Gate.ACTION | Gate.BREAK
_ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_NO_COMPUTE = re.compile(r"\d{1,6}(UNSHARD|RESHARD|REDUCE_GRAD)")


@dataclass(frozen=True, slots=True)
class Permit:
    """wire.Msg.PERMIT without its id and lease."""

    count: int
    n: int
    stop: int

    def holds(self, gate: int) -> bool:
        """With no passes left, a rank stays at this gate."""
        if gate & Gate.INSIDE and not self.stop & Gate.INSIDE:
            return False
        return bool(gate & self.stop)


HOLD = Permit(int(GATE_ALL), 0, int(GATE_ALL))
PASS = Permit(0, 1, 0)
"""Held nowhere, but saying where it is: ranks beside one that alone is held."""
ONE_GATE = Permit(int(GATE_ALL), 1, int(GATE_ALL))
ONE_OP = Permit(int(GATE_OPS), 1, int(GATE_ALL))
"""Settling to a cut: this rank goes as far as past one op."""
ONE_ACTION = Permit(int(Gate.ACTION), 1, int(TICK_STOP))
ACTION_OR_STEP = Permit(int(Gate.ACTION | Gate.STEP), 1, int(TICK_STOP))
"""A tick where no plan is known: without actions the step's end bounds it."""
DRAIN = Permit(int(Gate.ACTION), 0, int(TICK_STOP))
"""Only sends flow."""
FLOW = Permit(int(Gate.ACTION), 0, int(FLOW_STOP))
"""On through the optimizer to the first receive or action of the next step."""

Action = tuple[int, str, int]
"""stage, kind, microbatch"""


def parse_action(text: str) -> Action | None:
    """``2B5`` -> (2, "B", 5); None for anything but a compute action."""
    found = _ACTION.fullmatch(text)
    return (int(found[1]), found[2], int(found[3])) if found else None


def next_action(state: AgentState) -> Action | None:
    """Return the first planned compute action not yet done; None at the end or without a plan."""
    done = {parse_action(text) for text in state.done}
    for text in state.plan:
        action = parse_action(text)
        if action is not None and action not in done:
            return action
    return None


def input_there(action: Action, done: frozenset[Action], last_stage: int) -> bool:
    """Everything the action needs has been computed (by whichever rank)."""
    stage, kind, mb = action
    if kind == "F":
        return stage == 0 or (stage - 1, "F", mb) in done
    if kind == "W":
        return (stage, "I", mb) in done
    if (stage, "F", mb) not in done:
        return False
    above = stage + 1
    return stage == last_stage or bool({(above, "B", mb), (above, "I", mb)} & done)


def tick(pipeline: Sequence[AgentState]) -> dict[str, Permit]:
    """proc -> permit for one tick of one pipeline whose ranks are all held."""
    permits = _tick(pipeline)
    for state in pipeline:
        permit = permits.get(state.proc)
        if permit is not None and _NO_COMPUTE.fullmatch(state.next):
            # It is an action's gate, but no action of the plan: it goes along, uncounted.
            permits[state.proc] = replace(permit, n=permit.n + 1)
    return permits


def _tick(pipeline: Sequence[AgentState]) -> dict[str, Permit]:
    planned = [state for state in pipeline if any(map(parse_action, state.plan))]
    unplanned = [state for state in pipeline if state not in planned]
    if not planned:
        return {state.proc: ACTION_OR_STEP for state in pipeline}
    last_stage = max(a[0] for s in planned for t in s.plan if (a := parse_action(t)))
    behind, current = _rounds(planned)
    done = frozenset(a for s in current for t in s.done if (a := parse_action(t)))
    permits = {state.proc: DRAIN for state in [*planned, *unplanned]}
    permits.update({state.proc: FLOW for state in behind})
    for state in current:
        action = next_action(state)
        if state.held & Gate.INSIDE:
            continue  # an action that has begun is this tick's
        if action is not None and input_there(action, done, last_stage):
            permits[state.proc] = ONE_ACTION
    if not current:
        # The step is over everywhere: on to the next one, whose first stage runs its first action.
        permits.update({s.proc: ONE_ACTION for s in behind if _starts(s)})
    if not any(permit.n for permit in permits.values()) and not behind:
        return {state.proc: ONE_ACTION for state in planned}  # the plan does not fit: let it show
    return permits


def _rounds(planned: Sequence[AgentState]) -> tuple[list[AgentState], list[AgentState]]:
    """(ranks whose schedule step is over while the pipeline goes on to the next, the others)."""
    going = [state for state in planned if next_action(state) is not None]
    over = [state for state in planned if next_action(state) is None]
    if not going:
        return over, []
    first = min(state.step for state in going)
    behind = [state for state in over if state.step < first]
    return behind, [*going, *(state for state in over if state.step >= first)]


def _starts(state: AgentState) -> bool:
    first = next((a for a in map(parse_action, state.plan) if a is not None), None)
    return first is not None and first[0] == 0 and first[1] == "F"


def to_gate(states: Sequence[AgentState], gates: int) -> dict[str, Permit]:
    """Each rank to its next gate of these: who is held at one passes it, unless others still
    have to come there first (so that all stand at the same one afterwards): they are at no such
    gate, or at one before it."""
    stop = int(gates | Gate.BREAK)
    there = [state for state in states if state.held & stop]
    onward = there if len(there) == len(states) else []
    onward = [s for s in onward if not any(_behind(other, s) for other in there)]
    return {
        s.proc: Permit(stop, 1 if s in onward else 0, stop)
        for s in states
        if s in onward or s not in there
    }


def _behind(state: AgentState, other: AgentState) -> bool:
    """It has issued fewer collectives on the groups that both are in."""
    both = state.issued.keys() & other.issued.keys()
    counts = [other.issued[group] - state.issued[group] for group in both]
    return min(counts, default=0) >= 0 and max(counts, default=0) > 0


def step_target(states: Sequence[AgentState]) -> int:
    """How many steps each rank has behind it after ``next``: as many as the one furthest on will
    have at the end of the step it is in, or one more if all stand at that end already."""
    ends = {state.step if state.held & Gate.STEP else state.step + 1 for state in states}
    all_there = len(ends) == 1 and all(state.held & Gate.STEP for state in states)
    return max(ends) + 1 if all_there else max(ends)


def to_step(states: Sequence[AgentState], target: int) -> dict[str, Permit]:
    """Permits for the ranks that have fewer than ``target`` steps behind them."""
    stop = int(Gate.STEP | Gate.BREAK)
    return {
        s.proc: Permit(stop, 1 if s.held & stop else 0, stop) for s in states if s.step < target
    }


def permits(
    verb: Verb, chosen: Sequence[AgentState], pipelines: Sequence[Sequence[AgentState]]
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
