"""Control messages that are lost or come twice, hits that nobody knows, ranks that fall silent."""

from __future__ import annotations

import random

import pytest

from pardbg.control.machine.delivery import AGAIN_NS, Deliveries
from pardbg.control.machine.machine import (
    GivenUp,
    Renewed,
    Reported,
    Ticked,
)
from pardbg.events.control_codes import Mode, Why
from pardbg.events.control_facts import Hit, Lapsed, Loose, Resent, Silent, Stray
from pardbg_agent.ctrl.agent_messages import Permit, Run, SetBreaks
from pardbg_agent.wire import LEASE_NS
from tests.unit.control.control_world import World, one_f_one_b, plan_1f1b

S = 1_000_000_000


def pipeline(size: int = 3, microbatches: int = 3, steps: int = 1) -> World:
    return World(
        [one_f_one_b(r, size, microbatches, steps) for r in range(size)],
        [plan_1f1b(r, size, microbatches) for r in range(size)],
    )


@pytest.mark.parametrize("seed", range(5))
def test_lost_and_doubled_messages_change_nothing_but_the_time(seed: int) -> None:
    """A third of all messages between hub and ranks is lost, a third comes twice: every tick moves
    what it moves with all of them (worked out by hand for 3 ranks in 1F1B)."""
    world, chance = pipeline(), random.Random(seed)
    world.command("pause")
    world.times = lambda: chance.choice((0, 1, 2))
    front = []
    for verb in ["tick"] * 5:
        before = [set(rank.done) for rank in world.ranks]
        asked = world.command(verb)
        for _ in range(800):
            if world.ack(asked) is not None:
                break
            world.settle(rounds=4000)  # until all is quiet for four turns
        ack = world.ack(asked)
        assert ack is not None and ack.ok, (verb, ack)
        moved = [set(r.done) - b for r, b in zip(world.ranks, before, strict=True)]
        front.append(sorted(action for each in moved for action in each))
    assert front == [
        ["0F0"], ["0F1", "1F0"], ["0F2", "1F1", "2F0"], ["2B0"], ["1B0", "2F1"],
    ]  # fmt: skip
    assert world.facts(Resent), "the audit trail says that messages were lost"


def test_a_lost_run_is_said_again_and_no_longer_than_a_lease() -> None:
    world = pipeline()
    world.command("pause")
    world.times = lambda: 0
    world.machine.take(GivenUp("view-a", world.now))
    world._deliver()
    world.times = lambda: 1
    for _ in range(20):
        world.settle()
    assert [rank.next for rank in world.ranks] == ["end"] * 3
    deaf = Deliveries()
    deaf.add("0.n0.0", Run(7))
    sent = [bool(deaf.due(now, LEASE_NS)) for now in range(S, 16 * S, S)]
    assert sent == [False] + [True] * 11 + [False] * 3


def test_only_the_newest_is_said_again_until_it_is_answered() -> None:
    told = Deliveries()
    told.add("0.n0.0", Permit(7, 0, 0, 0))
    told.add("0.n0.0", Permit(8, 0, 0, 0))
    told.add("0.n0.0", SetBreaks(9))
    assert told.due(S, 5) == []
    again = told.due(S + AGAIN_NS, 5)
    assert [(one.message, first) for one, first in again] == [
        (Permit(8, 0, 0, 0, 5), True), (SetBreaks(9), True),
    ]  # fmt: skip
    told.state("0.n0.0", 7)
    told.acked("0.n0.0", 9)
    assert [one.message.id for one, _ in told.due(S + 2 * AGAIN_NS, 5)] == [8]
    told.state("0.n0.0", 8)
    assert told.due(S + 3 * AGAIN_NS, 5) == []


def test_a_hit_that_nobody_knows_is_said_and_holds_nobody() -> None:
    """The hub forgot it (or somebody deleted it while the hit was on its way)."""
    world = pipeline(steps=2)
    world.command("pause")
    assert world.ack(world.command("break", expr="action==1F1"))
    del world.machine.control.breakpoints._known[1]
    world.command("continue")
    assert world.machine.control.mode is Mode.RUNNING
    assert [rank.next for rank in world.ranks] == ["end"] * 3
    stray = Stray(1, 1, "1F1", runs=True)
    assert world.facts(Stray) == [stray, stray], "once a step"


def test_a_rank_that_a_hub_before_this_one_held_runs_on() -> None:
    world = pipeline()
    rank = world.ranks[1]
    rank.closed, rank.stop, rank.reply_to = True, 127, 4
    world.settle()
    assert [rank.next for rank in world.ranks] == ["end"] * 3
    assert world.facts(Stray)[0] == Stray(1, runs=True)


def test_ranks_beside_a_held_one_stop_too_when_a_breakpoint_hits() -> None:
    world = World([["busy", "0F0", "0F1"], ["busy", "1F0"], ["opt", "opt"]])
    world.command("pause", [2])
    world.command("break", expr="action==F and stage==0 and mb==1")
    world.ranks[0].busy = False
    world.settle()
    world.ranks[1].busy = False
    world.settle()
    assert world.where() == ["*0F1", "*1F0", "*opt"]
    assert world.machine.control.mode is Mode.HELD
    (why,) = world.machine.control.why
    assert isinstance(why, Hit) and (why.number, why.rank, why.next) == (1, 0, "0F1")


def test_a_pause_while_another_settles_is_answered_by_its_own_cut() -> None:
    world = World([["busy", "coll dp", "opt"], ["busy", "coll dp", "opt"], ["busy", "opt"]])
    world.machine.control.groups["dp"] = (0, 1)
    alone = world.command("pause", [1])
    every = world.command("pause")
    other = world.command("pause", by="view-b")
    refused = world.ack(other)
    assert refused is not None and refused.refusal is not None
    assert (refused.refusal.why, refused.refusal.holder) == (Why.TAKEN, "view-a")
    assert world.ack(alone) is None and world.ack(every) is None
    for rank in world.ranks:
        rank.busy = False
    world.settle()
    for request in (alone, every):
        ack = world.ack(request)
        assert ack is not None and ack.ok and sorted(ack.data["held"]) == [0, 1, 2]


def test_one_rank_more_can_be_held_beside_the_first() -> None:
    world = World([["busy", "opt", "opt"] for _ in range(3)])
    world.command("pause", [0])
    more = world.command("pause", [1])
    for rank in world.ranks:
        rank.busy = False
    world.settle()
    ack = world.ack(more)
    assert ack is not None and ack.ok and sorted(ack.data["held"]) == [0, 1]
    assert world.ranks[2].next == "end"


def test_a_lease_that_is_over_cannot_be_renewed() -> None:
    """The hub stood still for longer than the lease (SIGSTOP): the ranks run on, whatever waited in
    its sockets meanwhile."""
    world = pipeline()
    world.command("pause")
    world.now += LEASE_NS
    assert not world.machine.take(Renewed("view-a", world.now))
    world.machine.take(Ticked(world.now))
    assert world.machine.control.mode is Mode.RUNNING
    world._deliver()
    assert world.facts(Lapsed) == [Lapsed("view-a")]


def test_ranks_whose_leases_end_one_after_the_other_are_all_held_again() -> None:
    """The hub stood still for a while: rank 0's state comes first, rank 1's when rank 0 has been
    told already; then rank 1 waits inside an op for rank 0, and says nothing more by itself."""
    world = World([["coll dp", "waitcoll"] * 9 for _ in range(2)])
    world.command("pause")
    for rank in world.ranks:
        rank.closed = False
        rank.held = 0
        world.machine.take(Reported(rank.state(), world.now))
        world.machine.take(Ticked(world.now))
        world._deliver()
    assert world.facts(Loose) == [Loose((0,)), Loose((1,))]
    world.settle()
    assert world.machine.control.mode is Mode.HELD and all(rank.held for rank in world.ranks)


def test_a_rank_that_fell_silent_is_not_said_to_be_held() -> None:
    """Its lease is over, so it runs on: the network between is gone. Back again, it is held."""
    world = pipeline()
    world.command("pause")
    silent = world.ranks[2]
    world.ranks.remove(silent)
    for _ in range(11):
        world.now += S
        world.machine.take(Renewed("view-a", world.now))
        for rank in world.ranks:
            world.machine.take(Reported(rank.state(), world.now))
        world.machine.take(Ticked(world.now))
    world._deliver()
    assert sorted(world.machine.control.held()) == [0, 1]
    assert world.facts(Silent) == [Silent((2,), LEASE_NS)]
    silent.closed, silent.held = False, 0
    silent.program.insert(silent.at, "busy")
    world.ranks.append(silent)
    world.settle()
    assert world.machine.control.mode is Mode.PAUSING
    silent.busy = False
    world.settle()
    assert world.machine.control.mode is Mode.HELD and sorted(world.machine.control.held()) == [
        0,
        1,
        2,
    ]
