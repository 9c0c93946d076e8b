"""Common interface through which pipelines are reported: actions, plans, gates, stepping.

torch's own stages and schedules (``pipeline``), those of frameworks (``hooks.frameworks``) and the
program itself (``pardbg_agent.action``, ``pardbg_agent.plan``) all call it, so everything that is
shown of one pipeline is shown of all."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch.distributed.distributed_c10d as c10d

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.context import Context, local
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.memory import saved_tensors, usage
from pardbg_agent.hooks.patching import wait_gate
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.hooks.watch import op_watches
from pardbg_agent.schedule_orders import COMPUTE, Plan, parse, text
from pardbg_agent.wire import NONE, DefKind, Flag, Gate, Kind, Lane

FORWARD: Final = "F"
_PHASES: Final = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
_ACTION, _COMPUTE = int(Kind.ACTION), int(Lane.COMPUTE)
_FAILED, _TIMED = int(Flag.FAILED), int(Flag.DEVICE)


@dataclass(slots=True, eq=False)
class Action:
    """Pipeline action between its begin and its end."""

    verb: str
    name: int
    stage: int
    mb: int
    t0: int
    count: Any
    """Count of the bytes that a sampled forward saves for backward."""
    phase: str = ""
    """Phase that the action itself is, outside of a schedule's run."""
    on_device: Any = None
    """Span of the action on the device."""


class Actions:
    """The pipeline actions of this rank: recorded, gated, and matched with the plan."""

    def __init__(self, c: _core.Core, x: Context) -> None:
        self._c, self._x = c, x
        self._pending: tuple[Any, list[Any], Action] | None = None
        """Forward whose loss is still to be computed: (object that computes it, fields, action)."""
        self._defined: dict[tuple[str, tuple[int, ...]], Plan] = {}
        self._open: list[Action] = []
        """Actions that run, the innermost last."""
        self._own: tuple[int, list[str]] = (NONE, [])
        """(step, its planned actions) outside a schedule's run."""
        self._run_t0 = 0
        """Start time of the run's open phase; 0: none is open."""
        self.run_step = 0
        """Step in which the run began."""
        self.of_run: Any = None
        """State that a framework's adapter keeps of the run; None outside of one."""
        self.counts: dict[tuple[str, int], int] = {}
        """(verb, stage) -> number of such actions in this run of the schedule."""

    # -- plans and runs

    def define(self, plan: Plan) -> list[str]:
        """Send the PLAN definition, once; return this rank's planned actions."""
        key = (plan.schedule, plan.ranks)
        if self._defined.get(key) != plan:
            self._defined[key] = plan
            self._c.defs.put(
                DefKind.PLAN, schedule=plan.schedule, ranks=list(plan.ranks),
                group=plan.group or _group_of(plan.ranks),
                num_stages=plan.num_stages, num_microbatches=plan.num_microbatches,
                num_virtual=max(1, plan.num_stages // max(1, len(plan.ranks))),
                order={str(rank): list(row) for rank, row in plan.order.items()},
                source=plan.source, paced=plan.paced,
            )  # fmt: skip
        return plan.row(self._c.identity.rank)

    def intend(self, plan: Plan) -> None:
        """Set the plan of all actions outside a schedule's run."""
        self._own = (self._own[0], self.define(plan))

    def run_begins(self, planned: list[str]) -> None:
        """Begin a schedule's run. ``planned``: this rank's actions."""
        c, x = self._c, self._x
        x.labels.clear()
        step_phases.schedule_begins(c, x)
        self._forget(planned)
        self._run_t0 = t0 = now_ns()
        step_phases.phase_begins(c, x, "pipeline", t0)
        local().nest.pipeline += 1
        if c.native is not None:
            c.native.run_begins(c, x.loop.phase)
            c.pipeline.pull = functools.partial(c.native.pull, self.counts)

    def run_ended(self, t1: int, failed: bool) -> None:
        """End the schedule's run."""
        if self._c.native is not None:
            self._c.native.run_ended()
        self.flush()
        local().nest.pipeline -= 1
        self.phase_pauses(t1, failed)
        self._x.loop.num_schedules += 1

    def phase_pauses(self, t: int, failed: bool = False) -> None:
        """End the open phase of the run: the run ends, or the optimizer steps inside it
        (DeepSpeed's is an instruction of the schedule)."""
        if self._run_t0:
            t0, self._run_t0 = self._run_t0, 0
            step_phases.phase_ends(self._c, self._x, "pipeline", t0, t, failed)

    def phase_resumes(self, t: int) -> None:
        """Reopen the run's phase after an optimizer's step: the rest belongs to the next step."""
        if local().nest.pipeline:
            self._run_t0 = t

    def _forget(self, planned: list[str]) -> None:
        usage.schedule_begins(self._c)
        self.counts.clear()
        self._c.pipeline.begin(planned)

    # -- actions

    def next_mb(self, verb: str, stage: int) -> int:
        """Return the microbatch of a verb that a stage runs in order: the number before it."""
        return self.counts.get((verb, stage), 0)

    def next_planned(self, verb: str) -> tuple[int, int] | None:
        """Return (stage, microbatch) of the plan's next action with this verb, for calls that do
        not tell which action they are."""
        number = sum(n for (v, _), n in self.counts.items() if v == verb)
        rows = [at for at in map(parse, self._c.pipeline.plan) if at[1] == verb]
        return (rows[number][0], rows[number][2]) if number < len(rows) else None

    def begins(self, verb: str, stage: int, mb: int, module: Any = None) -> Action:
        """Wait at an action's gate, then begin it. ``mb`` is NONE for an action without one; the
        activations that ``module`` saves in a forward are counted in sampled steps."""
        c = self._c
        self.flush()
        if not local().nest.pipeline:
            self._own_step(verb, stage, mb)
        if c.gate.closed:
            self._gate(verb, stage, mb)
        name = c.defs.name(verb)
        sampled = module is not None and verb == FORWARD and saved_tensors.due(c.step)
        count = saved_tensors.begin(c, module) if sampled else None
        action = Action(verb, name, stage, mb, now_ns(), count)
        if not local().nest.pipeline and not local().nest.action and verb in _PHASES:
            action.phase = _PHASES[verb]
            step_phases.phase_begins(c, self._x, action.phase, action.t0)
            self._x.loop.forward_seen = True
        if c.device is not None:
            action.on_device = c.guard.call(HOOK, c.device.begin, action.t0)
        c.status.now(c.step, self._x.loop.phase, name, stage, mb, action.t0)
        local().nest.action += 1
        c.gate.inside += 1
        self._open.append(action)
        return action

    def _gate(self, verb: str, stage: int, mb: int) -> None:
        c = self._c
        known = {"action": verb, "stage": stage, "mb": None if mb < 0 else mb}
        coming = text(stage, verb, mb)
        look = None
        if c.watches.slow is not None:
            look = functools.partial(op_watches.comes, c, (stage, verb), lambda: coming)
        wait_gate(c, Gate.ACTION, coming, lambda: known, look)

    def compute_begins(self) -> None:
        """Begin the compute of the innermost open action: until now it waited for its input."""
        if self._open:
            action = self._open[-1]
            action.t0 = now_ns()
            if action.on_device is not None and self._c.device is not None:
                self._c.guard.call(HOOK, self._c.device.drop, action.on_device)
                action.on_device = self._c.guard.call(HOOK, self._c.device.begin, action.t0)
            self._c.status.now(
                self._c.step, self._x.loop.phase, action.name, action.stage, action.mb, action.t0
            )

    def ended(self, action: Action, t1: int, failed: bool, loss_of: Any = None) -> None:
        """End an action. ``loss_of``: object that computes a loss right afterwards, which belongs
        to this forward; ``loss_computed`` is then called."""
        c = self._c
        self._open = [other for other in self._open if other is not action]
        local().nest.action -= 1
        c.gate.inside -= 1
        num_bytes = saved_tensors.end(c, action.count) if action.count is not None else 0
        if action.phase:
            step_phases.phase_ends(c, self._x, action.phase, action.t0, t1, failed)
        fields = [
            _ACTION, _COMPUTE, _FAILED if failed else 0, action.name, action.t0, t1, c.step,
            action.stage, action.mb, num_bytes, self._x.loop.phase,
        ]  # fmt: skip
        if loss_of is not None and not failed:
            self._pending = (loss_of, fields, action)
            c.status.now(c.step, self._x.loop.phase, 0, NONE, NONE, t1)
        else:
            self._write(fields, action)
        self._note(action, num_bytes, t1, failed)

    def _note(self, action: Action, num_bytes: int, t1: int, failed: bool) -> None:
        c, verb, stage = self._c, action.verb, action.stage
        said = text(stage, verb, action.mb)
        if action.count is not None:
            usage.counted(c, stage, num_bytes)
        if c.watches.memory is not None and not failed:
            usage.chunk(c, stage, verb)
        if c.watches.slow is not None:
            op_watches.action_ended(c, stage, verb, said, action.t0, t1)
        if failed:
            return
        self.counts[verb, stage] = self.counts.get((verb, stage), 0) + 1
        if verb in COMPUTE:
            c.pipeline.done.append(said)

    def _own_step(self, verb: str, stage: int, mb: int) -> None:
        """Begin the plan anew at the first action of a step outside a schedule's run, or at one
        that ran before (gradients accumulate)."""
        c = self._c
        step, planned = self._own
        if step != c.step or text(stage, verb, mb) in c.pipeline.done:
            self._own = (c.step, planned)
            self._forget(planned)

    # -- a forward that ends with its loss

    @property
    def pending(self) -> Any:
        """Return the object that will compute the loss of the last ended forward, or None."""
        return None if self._pending is None else self._pending[0]

    def loss_computed(self, t1: int) -> None:
        """End the forward, whose loss has been computed."""
        if self._pending is not None:
            self._pending[1][5] = t1
        self.flush()

    def flush(self) -> None:
        """Write the pending forward, which no loss followed."""
        if self._pending is not None:
            (_, fields, action), self._pending = self._pending, None
            self._write(fields, action)

    def _write(self, fields: list[Any], action: Action) -> None:
        c, span = self._c, action.on_device
        if span is not None and c.device is not None:
            if fields[2] & _FAILED:
                c.guard.call(HOOK, c.device.drop, span)
            elif c.guard.call(
                HOOK, c.device.ended, span, _COMPUTE, action.name, action.stage, action.mb
            ):
                fields[2] |= _TIMED
        c.span_ended(*fields)


def of(c: _core.Core) -> Actions:
    x = context.of(c)
    if x.actions is None:
        x.actions = Actions(c, x)
    made: Actions = x.actions
    return made


def _group_of(ranks: tuple[int, ...]) -> str:
    """Return the key of a process group of these ranks, else a name made of the ranks."""
    for pg, known in list(c10d._world.pg_group_ranks.items()):
        if sorted(known) == sorted(ranks):
            return group_key(pg)
    return f"pipeline of ranks {','.join(map(str, ranks))}"


def group_key(pg: Any) -> str:
    """Return the key, in records, of a pipeline's process group (None: the default one)."""
    c = _core.CURRENT or _core.ensure()
    pg = pg or c10d._get_default_group()
    if pg is not c10d._world.default_pg:
        groups.name_axes(SimpleNamespace(pg=pg), {"pg": "pp"})
    return groups.group_of(context.of(c), pg).key


def ranks_of(pg: Any) -> tuple[int, ...]:
    """Return the global ranks of a process group in its order."""
    return tuple(map(int, c10d.get_process_group_ranks(pg or c10d._get_default_group())))
