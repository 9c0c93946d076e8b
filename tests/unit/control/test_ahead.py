"""Settling a pipeline by its plan: who is told to go how far, and how soon everybody stands."""

from __future__ import annotations

import pytest

from pardbg.control.machine.ahead import ahead
from pardbg.control.machine.cut import View
from pardbg.control.machine.machine import (
    Renewed,
    Reported,
    Ticked,
)
from pardbg_agent.ctrl.agent_messages import OpenOp, State
from pardbg_agent.wire import Gate
from tests.unit.control.control_world import Rank, World, one_f_one_b, plan_1f1b

MS = 1_000_000
PIPELINE = {"pp": (0, 1, 2)}


def one(
    rank: int, done: int, held: int = 0, waits_for: int | None = None, step: int = 0,
    plan: tuple[str, ...] | None = None,
) -> View:  # fmt: skip
    """A rank of 3 with one microbatch (its plan: F0 B0), told to hold."""
    plan = (f"{rank}F0", f"{rank}B0") if plan is None else plan
    ops = () if waits_for is None else (OpenOp("pp", "recv", 0, waits_for, False, 0, 0, 0),)
    state = State(
        rank, 1, 5, held, 0, "", step, ops, done=plan[:done], plan=plan, proc=f"0.n0.{rank}"
    )
    return View(state.proc, rank, state, asked=5, settles=True)


def told(*views: View) -> dict[int, tuple[int, int]]:
    """rank -> (actions that it may run now, those that it will have behind it)"""
    onward = ahead({v.proc: v for v in views}, PIPELINE, lambda view, op: True)
    return {int(proc[-1]): (go.permit.n, go.to) for proc, go in onward.items()}


def test_all_in_the_chain_are_told_at_once() -> None:
    """Rank 0 waits for its B0, so for 1B0 and 2B0, and for 1F0 and 2F0 before them; it has sent
    0F0. Rank 1 is held before its receive, rank 2 inside its own."""
    chain = one(0, 1, waits_for=1), one(1, 0, Gate.RECV), one(2, 0, waits_for=1)
    assert told(*chain) == {1: (2, 2), 2: (2, 2)}


def test_into_the_step_that_one_is_in_already() -> None:
    """Rank 2 waits for F0 of step 1. Rank 1 still has B0 of step 0 to do, then F0: two actions.
    Rank 0 the same. Actions behind them then: 2 of step 0 and one."""
    chain = one(0, 1, Gate.RECV), one(1, 1, Gate.ACTION), one(2, 0, waits_for=1, step=1)
    assert told(*chain) == {0: (2, 3), 1: (2, 3)}


@pytest.mark.parametrize(
    ("at_the_end", "n"), [(Gate.OPTIMIZER, 1), (Gate.STEP, 1)], ids=["before", "behind"]
)
def test_at_the_steps_end_the_plan_begins_anew(at_the_end: Gate, n: int) -> None:
    """Both have done F0 and B0 of step 0; at the gate behind it the step counts as ended."""
    ended = int(at_the_end is Gate.STEP)
    chain = one(0, 2, at_the_end, step=ended), one(1, 0, waits_for=0, step=1)
    assert told(*chain) == {0: (n, 3)}


def test_who_may_run_an_action_meanwhile_is_not_told() -> None:
    """Rank 1 computes, or has a command, or has not answered: how far it is is not known."""
    for change in ({"computing_since_ns": 9}, {"settles": False}, {"asked": 6}):
        inside = one(1, 0, waits_for=0)
        for name, value in change.items():
            setattr(inside, name, value)
        assert told(one(0, 1, waits_for=1), inside, one(2, 0, Gate.RECV)) == {2: (2, 2)}


def test_who_was_told_is_not_told_again() -> None:
    inside = one(1, 0, waits_for=0)
    inside.ahead = 2
    assert told(one(0, 1, waits_for=1), inside, one(2, 2, Gate.OPTIMIZER)) == {}


def test_a_begun_action_is_not_counted_again() -> None:
    """Rank 1 is held inside its F0, at a collective of its own."""
    inside = one(1, 0, Gate.COLLECTIVE | Gate.INSIDE)
    assert told(one(0, 1, waits_for=1), inside, one(2, 2, Gate.OPTIMIZER)) == {1: (1, 2)}


def test_a_plan_that_does_not_fit_says_nothing() -> None:
    other = one(1, 0, Gate.RECV)
    assert other.state is not None
    object.__setattr__(other.state, "done", ("1B0",))
    assert told(one(0, 1, waits_for=1), other) == {}
    assert told(one(0, 1, waits_for=1), one(1, 0, Gate.RECV, plan=())) == {}


# ------------------------------------------------------------------ how soon


class Timed(World):
    """Actions take time: a forward 5 ms, a backward 10; messages and words of control none."""

    def __init__(self, size: int, microbatches: int) -> None:
        super().__init__(
            [one_f_one_b(r, size, microbatches, 3) for r in range(size)],
            [plan_1f1b(r, size, microbatches) for r in range(size)],
        )
        self.machine.control.pipelines = {"pp": tuple(range(size))}
        self._seen = [0] * size
        self._busy_until = [0] * size

    def run(self, ms: int) -> None:
        """Let ranks and control go on for so long, a ms at a time."""
        for _ in range(ms):
            self.now += MS
            self._deliver()
            self._complete()
            for rank in self.ranks:
                while not self._computes(rank) and rank.advance(self):
                    self._complete()
            if self.machine.control.active:
                self._tell()

    def _computes(self, rank: Rank) -> bool:
        r = rank.rank
        if rank.at != self._seen[r]:
            self._seen[r], word = rank.at, rank.program[rank.at - 1]
            if word[0].isdigit():
                self._busy_until[r] = self.now + (5 if "F" in word else 10) * MS
        return self._busy_until[r] > self.now

    def _tell(self) -> None:
        for rank in self.ranks:
            self.machine.take(Reported(rank.state(), self.now))
        self.machine.take(Renewed("view-a", self.now))
        computing = {r.proc: self.now for r in self.ranks if self._computes(r)}
        self.machine.take(Ticked(self.now, computing))


def pause_ms(at_ms: int) -> int:
    """How long 8 ranks paused then take to stand."""
    world = Timed(8, 8)
    world.run(at_ms)
    world.settle = lambda *_: None  # type: ignore[method-assign]
    request, begin = world.command("pause"), world.now
    while (ack := world.ack(request)) is None:
        world.run(1)
    assert ack.ok and len(world.machine.control.held()) == 8
    return (world.now - begin) // MS


def test_a_pause_takes_little_longer_than_what_is_under_way() -> None:
    """1F1B on 8 ranks, 8 microbatches. What is under way is the most when rank 7 waits for the next
    step's first forward: the last backward comes down from rank 6 (7 times 10 ms), and a forward
    goes up (7 times 5): 105 ms. Found out link by link it took 288."""
    took = {at_ms: pause_ms(at_ms) for at_ms in range(100, 320, 11)}
    assert max(took.values()) < 105 + 15, took


def test_ticks_before_the_plan_is_known_run_no_action_ahead_of_it() -> None:
    """3 ranks, 2 microbatches, held before the first schedule begins; inside it shapes are handed
    on before the first action: the wavefront comes as if the plan had been known."""
    size = 3
    programs = [one_f_one_b(r, size, 2) for r in range(size)]
    for r, program in enumerate(programs):
        program[1:1] = [f"recv {r - 1}", "wait"] * (r > 0) + [f"send {r + 1}"] * (r < size - 1)
        program[:0] = ["coll dp", "waitcoll"]
    world = World(programs)
    for r, rank in enumerate(world.ranks):
        rank.built = tuple(plan_1f1b(r, size, 2))
    world.command("pause")
    front: list[list[str]] = []
    while len(front) < 3:
        before = {action for rank in world.ranks for action in rank.done}
        world.command("tick")
        ran = sorted({action for rank in world.ranks for action in rank.done} - before)
        front += [ran] if ran else []
    assert front == [["0F0"], ["0F1", "1F0"], ["1F1", "2F0"]]
