"""A rank that a debugger's client leads: it moves by itself, others as far as its ops need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pardbg.control.machine.machine import Machine, Reported, Ticked
from pardbg.control.machine.state import Event
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg.events.control_facts import InDebugger
from pardbg_agent.ctrl.agent_messages import State
from pardbg_agent.wire import Gate
from tests.unit.control.control_world import World

MS = 1_000_000


def two_ranks() -> World:
    world = World([["coll dp", "waitcoll", "coll dp", "waitcoll"]] * 2)
    world.command("pause")
    assert world.machine.control.mode is Mode.HELD
    return world


def told(world: World, rank: int, **more: Any) -> None:
    """The rank's newest state, changed so, and time for what follows."""
    machine: Machine = world.machine
    view = next(view for view in machine.control.views.values() if view.rank == rank)
    assert view.state is not None
    state: State = replace(view.state, serial=view.state.serial + 1, **more)
    machine.take(Reported(state, world.now))
    world.now += 20 * MS
    machine.take(Ticked(world.now))


def test_it_is_a_cut_again_where_the_client_has_stopped_it() -> None:
    world = two_ranks()
    control = world.machine.control
    told(world, 1, held=int(Gate.BREAK), next="debugger", led=True)
    assert control.mode is Mode.HELD and control.held()[1] == "debugger"
    told(world, 1, held=0)
    assert control.mode is Mode.PAUSING, "it runs"
    told(world, 1, held=int(Gate.BREAK))
    assert control.mode is Mode.HELD
    told(world, 1, held=0, led=False)
    assert control.mode is Mode.PAUSING, "on its way to the next gate"
    facts = [e.fact for e in world.machine.drain() if isinstance(e, Event)]
    assert [f for f in facts if isinstance(f, InDebugger)] == [
        InDebugger(1, True), InDebugger(1, False),
    ]  # fmt: skip


def test_its_client_alone_moves_it() -> None:
    world = two_ranks()
    told(world, 1, held=int(Gate.BREAK), next="debugger", led=True)
    assert world.machine.control.pinned.procs == {"0.n0.1"}, "it stays though others may wait"
    refusal = world.ack(world.command(Verb.STEP.value, (1,)))
    assert refusal is not None and refusal.refusal is not None
    assert refusal.refusal.why is Why.IN_DEBUGGER and refusal.refusal.ranks == (1,)
