"""Breakpoints, ranks that are held alone, and the timeouts that then run."""

from __future__ import annotations

from pardbg.control.machine.machine import (
    Departed,
    GivenUp,
    Renewed,
    Reported,
    Ticked,
)
from pardbg.events.control_codes import Mode, Why
from pardbg.events.control_facts import Edited, Hit, Refusal, Refused, Released
from pardbg_agent.ctrl.agent_messages import Watch
from tests.unit.control.control_world import World, one_f_one_b, plan_1f1b

S = 1_000_000_000


def pipeline(steps: int = 2, size: int = 3, microbatches: int = 3) -> World:
    world = World(
        [one_f_one_b(r, size, microbatches, steps) for r in range(size)],
        [plan_1f1b(r, size, microbatches) for r in range(size)],
    )
    # Nothing runs before the breakpoints are set: hold all at the first gate.
    world.command("pause")
    return world


def set_break(world: World, text: str, verb: str = "break", by: str = "view-a") -> None:
    ack = world.ack(world.command(verb, by=by, expr=text))
    assert ack is not None and ack.ok, ack


def test_a_hit_holds_every_rank_and_the_one_that_hit_where_it_stands() -> None:
    """1B0 needs 2B0, so rank 2 is past it; rank 1 stops before 1B0 though rank 0 waits for its
    gradient: it is not moved on to let rank 0 come to a gate."""
    world = pipeline()
    set_break(world, "action==1B0")
    world.command("continue")
    assert world.machine.control.mode is Mode.HELD
    assert world.ranks[1].next == "1B0" and world.ranks[1].held
    assert "2B0" in world.ranks[2].done
    status = world.machine.control.status(world.now)
    (why,) = status.why
    assert isinstance(why, Hit) and (why.number, why.rank, why.next) == (1, 1, "1B0")
    assert why.condition == "action==1B0"
    # Rank 0 wants 1B0's gradient; rank 2's own send of 2B0's waits for nobody to receive it yet.
    assert set(status.waiting) == {0, 2}
    assert status.waiting[0].for_rank == 1
    assert status.breaks[0].hits == 1
    assert world.names()[-2:] == ["hit", "cut"]
    # It hits again in the next step, and only then.
    world.command("continue")
    assert world.machine.control.mode is Mode.HELD and world.ranks[1].step == 1


def test_tbreak_and_until_stop_once() -> None:
    world = pipeline()
    set_break(world, "action==F and mb==2", "tbreak")
    world.command("continue")
    assert world.machine.control.mode is Mode.HELD
    assert not world.machine.control.breakpoints
    asked = world.command("until", expr="step==1")
    answer = world.ack(asked)
    assert answer is not None and answer.ok and {r.step for r in world.ranks if r.held} >= {1}
    world.command("continue")
    assert [rank.next for rank in world.ranks] == ["end"] * 3


def test_until_that_is_never_true_is_answered_when_the_job_ends() -> None:
    world = pipeline()
    asked = world.command("until", expr="step==99")
    assert world.ack(asked) is None
    for rank in world.ranks:
        world.machine.take(Departed(rank.proc, world.now))
    world.settle()
    answer = world.ack(asked)
    assert answer is not None and answer.refusal == Refusal(Why.JOB_ENDED)


def test_only_on_the_ranks_that_were_named_and_conditions_can_change() -> None:
    world = pipeline()
    world.command("break", [2], expr="action==F and mb==1")
    world.command("condition", number=1, expr="action==F and mb==2")
    world.command("ignore", number=1, count=1)
    world.command("continue")
    assert world.ranks[2].next == "2F2" and world.ranks[2].step == 1, "the first was ignored"
    listed = world.machine.control.status(world.now).breaks
    assert [(b.on, b.condition, b.hits) for b in listed] == [((2,), "action==F and mb==2", 2)]


def test_one_that_is_disabled_stops_nobody_and_keeps_its_matches() -> None:
    """It stops rank 2 before 2F0 of step 0, passes 2F1 and those after it, and stops it before 2F1
    of step 1."""
    world = pipeline()
    world.command("break", [2], expr="action==F")
    world.command("continue")
    assert (world.ranks[2].next, world.ranks[2].step) == ("2F0", 0)
    world.command("disable", numbers=())
    world.command("until", expr="step==1 and action==2F0")
    assert (world.ranks[2].next, world.ranks[2].step) == ("2F0", 1)
    (listed,) = world.machine.control.status(world.now).breaks
    assert (listed.enabled, listed.hits) == (False, 1)
    world.command("enable", numbers=(1,))
    world.command("continue")
    assert (world.ranks[2].next, world.ranks[2].step) == ("2F1", 1)
    (listed,) = world.machine.control.status(world.now).breaks
    assert (listed.enabled, listed.hits) == (True, 2)


def test_wrong_ones_are_refused_in_one_line() -> None:
    world = pipeline()
    for verb, args, why, number in [
        ("break", {"expr": "rnak==2"}, Why.INVALID, 0),
        ("condition", {"number": 4, "expr": "step==1"}, Why.NO_BREAKPOINT, 4),
        ("ignore", {"number": 9, "count": 1}, Why.NO_BREAKPOINT, 9),
        ("delete", {"numbers": (7,)}, Why.NO_BREAKPOINT, 7),
        ("disable", {"numbers": (7,)}, Why.NO_BREAKPOINT, 7),
    ]:
        ack = world.ack(world.command(verb, **args))
        assert ack is not None and ack.refusal is not None
        assert (ack.refusal.why, ack.refusal.number) == (why, number)
        refused = world.facts()[-1]
        assert refused == Refused(verb, ack.refusal), "it is in the audit trail"


def test_the_breakpoints_of_a_viewer_that_leaves_go_with_it() -> None:
    world = pipeline()
    set_break(world, "action==1B0")
    world.machine.take(GivenUp("view-a", world.now))
    world.settle()
    assert world.machine.control.mode is Mode.RUNNING
    assert [rank.next for rank in world.ranks] == ["end"] * 3, "nothing stopped it"


def test_two_hits_at_once_are_one_pause_and_both_are_said() -> None:
    world = pipeline()
    set_break(world, "action==0F1")
    set_break(world, "action==1F0")
    world.command("continue")
    assert world.machine.control.mode is Mode.HELD
    assert [world.ranks[0].next, world.ranks[1].next] == ["0F1", "1F0"]
    assert [type(fact) for fact in world.machine.control.why] == [Hit, Hit]
    assert world.names().count("hit") == 2


def test_many_hits_at_once_are_all_reasons() -> None:
    world = World([["coll dp", "step", "coll dp", "step"] for _ in range(8)])
    world.command("pause")
    set_break(world, "step==1")
    world.command("continue")
    assert [type(fact) for fact in world.machine.control.why] == [Hit] * 8
    assert world.names().count("hit") == 8


def test_a_watch_is_in_the_table_and_its_hit_says_what_was_found() -> None:
    """Only rank 1 is asked to look, so rank 0 passes what rank 1 stops at."""
    world = World([["coll dp", "memory", "coll dp", "waitcoll", "step"] for _ in range(2)])
    world.command("pause")
    set_break(world, "step==7")
    made = world.ack(world.command("watch", [1], expr="memory>8B"))
    assert made is not None and isinstance(made.answer, Edited)
    (info,) = made.answer.breakpoints
    assert (info.number, info.condition, info.on) == (2, "memory>8B", (1,))
    listed = [(b.number, b.kind, b.on) for b in world.machine.control.status(world.now).breaks]
    assert listed == [(1, "", None), (2, "memory", (1,))]
    world.command("continue")
    assert world.machine.control.mode is Mode.HELD
    (why,) = world.machine.control.status(world.now).why
    assert why == Hit(1, 2, "memory>8B", True, "9 B allocated, more than 8 B", "coll dp", step=0)
    assert "watch" in world.names()
    world.command("condition", number=2, expr="memory>1KiB")
    table = world.machine.control.breakpoints
    assert table.for_rank(1, 1).watches == (Watch(2, "memory", 1024.0),)
    assert table.for_rank(0, 1).watches == ()
    for verb, args in [
        ("watch", {"expr": "memory>2"}),
        ("watch", {"expr": "nan>3"}),
        ("condition", {"number": 2, "expr": "step==3"}),
        ("condition", {"number": 1, "expr": "nan"}),
    ]:
        ack = world.ack(world.command(verb, **args))
        assert ack is not None and ack.refusal is not None and ack.refusal.why is Why.INVALID
    world.command("delete", numbers=(2,))
    world.command("continue")
    assert [rank.next for rank in world.ranks] == ["end"] * 2


def test_one_rank_alone_is_held_and_let_go_before_somebodys_op_times_out() -> None:
    world = _alone(hold=False)
    status = world.machine.control.status(world.now)
    assert list(status.held) == [1] and set(status.waiting) == {0, 2}
    assert 25 * S <= status.timeout_ns <= 30 * S
    # A fifth of the timeout, 6 s, is left when it is let go.
    until = world.now + status.timeout_ns - 6 * S
    while world.now < until - S:
        assert world.machine.control.mode is Mode.HELD
        _second(world)
    _second(world)
    _second(world)
    assert world.machine.control.mode is Mode.RUNNING
    world.settle()
    (released,) = world.facts(Released)
    assert released.ranks == (1,) and released.waits is not None and released.waits.rank != 1
    assert [rank.next for rank in world.ranks] == ["end"] * 3


def test_with_hold_it_stays_however_long() -> None:
    world = _alone(hold=True)
    for _ in range(60):
        _second(world)
    assert world.machine.control.mode is Mode.HELD and world.ranks[1].held


def test_pause_after_one_rank_alone_holds_all() -> None:
    world = _alone(hold=True)
    ack = world.ack(world.command("pause"))
    assert ack is not None and ack.ok and world.machine.control.mode is Mode.HELD
    assert all(rank.held for rank in world.ranks), "a cut: nobody waits inside an op"


def test_a_delay_goes_to_the_ranks_that_were_named() -> None:
    world = pipeline()
    world.command("delay", [1], ns=50_000_000)
    assert [rank.late_ns for rank in world.ranks] == [0, 50_000_000, 0]


def _second(world: World) -> None:
    world.now += S
    for rank in world.ranks:
        world.machine.take(Reported(rank.state(), world.now))
    world.machine.take(Renewed("view-a", world.now))
    world.machine.take(Ticked(world.now))


def _alone(hold: bool) -> World:
    """Rank 1 of three is asked to hold before anything ran; the others run until they wait."""
    world = World(
        [one_f_one_b(r, 3, 3, 2) for r in range(3)], [plan_1f1b(r, 3, 3) for r in range(3)]
    )
    world.machine.control.timeouts = {"pp": 30 * S}
    world.command("pause", [1], hold=hold)
    assert world.machine.control.mode is Mode.HELD
    assert [rank.held != 0 for rank in world.ranks] == [False, True, False]
    return world
