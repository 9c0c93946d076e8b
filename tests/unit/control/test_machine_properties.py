"""The control machine under drawn inputs: whatever viewers and ranks do, each order is answered
once, a running job is held nowhere, and what is published survives its way."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pardbg.control.machine.machine import Departed, GivenUp, Ordered, Ticked, step
from pardbg.control.machine.state import ControlState, Order
from pardbg.events.commands import Arguments
from pardbg.events.control_codes import Mode, Verb
from pardbg_agent.wire import LEASE_NS
from tests.unit.control.control_world import World, one_f_one_b, plan_1f1b

MS = 1_000_000
VERBS = (Verb.PAUSE, Verb.CONTINUE, Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP, Verb.BREAK,
         Verb.TBREAK, Verb.UNTIL, Verb.DELETE, Verb.DELAY, Verb.WATCH)  # fmt: skip
EXPRS = {Verb.WATCH: "nan"}
moves = st.one_of(
    st.tuples(
        st.just("order"), st.sampled_from(VERBS), st.sampled_from(("view-a", "view-b")),
        st.sets(st.integers(0, 2), min_size=1),
    ),
    st.tuples(st.just("settle"), st.integers(1, 6)),
    st.tuples(st.just("sleep"), st.integers(1, 12_000)),
    st.tuples(st.just("leave"), st.sampled_from(("view-a", "view-b"))),
    st.tuples(st.just("die"), st.integers(0, 2)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
)  # fmt: skip


class Drawn(World):
    """Three ranks of 1F1B that are moved a little at a time; orders may fall anywhere between."""

    def __init__(self) -> None:
        super().__init__(
            [one_f_one_b(rank, 3, 2, 2) for rank in range(3)],
            [plan_1f1b(rank, 3, 2) for rank in range(3)],
        )
        self.machine.control.pipelines = {"pp": (0, 1, 2)}
        self.asked: list[int] = []

    def play(self, move: tuple[Any, ...]) -> None:
        kind, *rest = move
        if kind == "order":
            self._order(*rest)
        elif kind == "settle":
            self._turns(rest[0])
        elif kind == "sleep":
            self.now += rest[0] * MS
            self.machine.take(Ticked(self.now))
        elif kind == "leave":
            self.machine.take(GivenUp(rest[0], self.now))
        elif kind == "die":
            self._die(rest[0])
        else:
            self.times = lambda: rest[0]

    def _order(self, verb: Verb, by: str, ranks: set[int]) -> None:
        self._request += 1
        self.asked.append(self._request)
        args = Arguments(EXPRS.get(verb, "action==1F1"), ns=1, count=2)
        order = Order(by, by, self._request, verb, tuple(sorted(ranks)), "some", args)
        self.machine.take(Ordered(order, self.now))

    def _turns(self, number: int) -> None:
        for _ in range(number):
            try:
                self.settle(rounds=1)
            except AssertionError:
                continue  # one round is never enough to rest

    def _die(self, rank: int) -> None:
        gone = [one for one in self.ranks if one.rank == rank]
        self.ranks = [one for one in self.ranks if one.rank != rank]
        for one in gone:
            self.machine.take(Departed(one.proc, self.now))

    def end(self) -> None:
        """All messages arrive again; viewers leave, leases lapse, ranks die."""
        self.times = lambda: 1
        for viewer in ("view-a", "view-b"):
            self.machine.take(GivenUp(viewer, self.now))
        self.now += 2 * LEASE_NS
        self._turns(8)
        for rank in range(3):
            self._die(rank)
        self._turns(2)


@settings(max_examples=60, derandomize=True, database=None)
@given(st.lists(moves, max_size=25))
def test_every_order_is_answered_once_and_nothing_stays_held(played: list[Any]) -> None:
    world = Drawn()
    for move in played:
        world.play(move)
        control = world.machine.control
        if control.mode is Mode.RUNNING:
            assert not control.current and not control.queue, "nothing waits for a cut"
    world.end()
    assert sorted(ack.re for ack in world.acks) == sorted(world.asked)
    assert world.machine.control.mode is Mode.RUNNING
    assert not any(rank.held for rank in world.ranks)


@settings(max_examples=30, derandomize=True, database=None)
@given(st.lists(st.sampled_from(VERBS), max_size=6))
def test_a_step_without_ranks_changes_no_mode(verbs: list[Verb]) -> None:
    control = ControlState()
    for number, verb in enumerate(verbs, 1):
        args = Arguments(EXPRS.get(verb, "step==1"), ns=1)
        order = Order("view-a", "view-a", number, verb, (), "", args)
        control, _ = step(control, Ordered(order, 1))
        assert control.mode is Mode.RUNNING
