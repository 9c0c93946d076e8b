"""The control machine against simulated ranks: what each verb moves, and who is told what."""

from __future__ import annotations

import pytest

from pardbg.control.machine.command_rules import MAX_QUEUE
from pardbg.control.machine.delivery import Send
from pardbg.control.machine.machine import (
    Departed,
    GivenUp,
    Joined,
    Ordered,
    Reported,
    TakenOver,
    Ticked,
)
from pardbg.control.machine.moves import outcome
from pardbg.control.machine.state import Order
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg.events.control_facts import Cut, Hit, Outcome, Refusal, Stuck, Taken, UnderWay
from pardbg_agent.ctrl.agent_messages import Lease, Permit, State
from pardbg_agent.wire import Gate
from tests.unit.control.control_world import World, one_f_one_b, plan_1f1b

S = 1_000_000_000


def pipeline(size: int = 4, microbatches: int = 4, steps: int = 1) -> World:
    world = World(
        [one_f_one_b(r, size, microbatches, steps) for r in range(size)],
        [plan_1f1b(r, size, microbatches) for r in range(size)],
    )
    world.machine.control.groups["pp"] = tuple(range(size))
    return world


def held_at_start(world: World) -> World:
    ack = world.ack(world.command("pause"))
    assert ack is not None and ack.ok
    return world


def done(world: World) -> list[set[str]]:
    return [set(rank.done) for rank in world.ranks]


def test_pause_holds_every_rank_and_answers_at_the_cut() -> None:
    world = held_at_start(pipeline())
    assert world.where() == ["*0F0", "*recv 0", "*recv 1", "*recv 2"]
    assert world.machine.control.mode is Mode.HELD
    assert world.acks[-1].data["held"] == {0: "0F0", 1: "recv 0", 2: "recv 1", 3: "recv 2"}
    assert world.names() == ["pause", "cut"]


def test_ticks_draw_the_wavefront() -> None:
    """1F1B, 4 ranks, 4 microbatches, worked out by hand: warm-up is one more action per tick,
    then 3B0 alone (nobody else has its input), then the backward front runs up again."""
    world = held_at_start(pipeline())
    front = []
    for _ in range(8):
        before = done(world)
        ack = world.ack(world.command("tick"))
        assert ack is not None and ack.ok, ack
        now = done(world)
        front.append(sorted(a for b, n in zip(before, now, strict=True) for a in n - b))
    assert front == [
        ["0F0"],
        ["0F1", "1F0"],
        ["0F2", "1F1", "2F0"],
        ["0F3", "1F2", "2F1", "3F0"],
        ["3B0"],
        ["2B0", "3F1"],
        ["1B0", "2F2", "3B1"],
        ["0B0", "1F3", "2B1", "3F2"],
    ]


def test_ticks_go_on_into_the_next_step() -> None:
    """2 ranks, 1 microbatch: 0F0 | 1F0 | 1B0 | 0B0 | then 0F0 of the next step."""
    world = held_at_start(pipeline(size=2, microbatches=1, steps=2))
    for _ in range(4):
        world.command("tick")
    assert done(world) == [{"0F0", "0B0"}, {"1F0", "1B0"}]
    world.command("tick")
    assert [rank.step for rank in world.ranks] == [1, 1]
    assert done(world) == [{"0F0"}, set()]
    world.command("tick")
    assert done(world) == [{"0F0"}, {"1F0"}]


def test_ticks_take_what_is_no_compute_along() -> None:
    """2 ranks, 1 microbatch; REDUCE_GRAD before the optimizer, at an action's gate. Stopped there,
    the next tick still runs the next step's first action, and rank 1 comes to its receive."""
    programs = [one_f_one_b(r, 2, 1, 2) for r in range(2)]
    programs = [
        [w for word in program for w in ([f"{r}REDUCE_GRAD", "opt"] if word == "opt" else [word])]
        for r, program in enumerate(programs)
    ]
    world = held_at_start(World(programs, [plan_1f1b(r, 2, 1) for r in range(2)]))
    for _ in range(4):
        world.command("tick")
    assert world.where() == ["*0REDUCE_GRAD", "*opt"]
    world.command("tick")
    assert done(world) == [{"0F0"}, set()]
    assert world.where() == ["*recv 1", "*recv 0"]


def test_step_moves_one_rank_one_action() -> None:
    world = held_at_start(pipeline())
    world.command("step", [0])
    assert world.where() == ["*send 1", "*recv 0", "*recv 1", "*recv 2"]
    world.command("step", [0])
    assert world.where()[0] == "*0F1"


def test_step_of_a_receiver_moves_its_sender_no_further_than_the_send() -> None:
    """Rank 1 receives 0F0: rank 0 has to compute and send it, and stops right there."""
    world = held_at_start(pipeline())
    ack = world.ack(world.command("step", [1]))
    assert ack is not None and ack.ok
    assert world.where() == ["*0F1", "*1F0", "*recv 1", "*recv 2"]


def test_next_ends_at_the_same_step_everywhere() -> None:
    world = held_at_start(pipeline(steps=3))
    world.command("tick")
    world.command("next")
    assert world.where() == ["*step"] * 4
    assert [rank.step for rank in world.ranks] == [1] * 4
    world.command("next")
    assert world.where() == ["*step"] * 4
    assert [rank.step for rank in world.ranks] == [2] * 4


def test_next_takes_ranks_before_a_step_to_the_end_of_the_one_others_are_in() -> None:
    """Rank 0 is in the first step already, the others stand at the gate before it: one step for
    them, the rest of it for rank 0, and nobody stops on the way."""
    step = ["coll dp", "waitcoll", "coll dp", "waitcoll", "opt", "step"]
    world = held_at_start(World([step, ["begin", *step], ["begin", *step]]))
    assert world.where() == ["*coll dp", "*begin", "*begin"]
    world.command("next")
    assert world.where() == ["*step"] * 3


def test_next_leaves_who_has_the_step_behind_it() -> None:
    """Rank 1 is through with the step rank 0 is in: it stays until rank 0 is there, too."""
    world = World([["busy", "opt", "step", "opt", "step"], ["step", "opt", "step"]])
    world.command("pause")
    assert world.where()[1] == "*step"
    world.ranks[0].busy = False
    world.settle()
    world.command("next")
    assert world.where() == ["*step", "*step"]
    assert [rank.step for rank in world.ranks] == [1, 1]
    world.command("next")
    assert [rank.step for rank in world.ranks] == [2, 2]


def ddp(buckets: int = 2) -> list[str]:
    return ["fwd"] * 0 + ["coll dp"] * buckets + ["waitcoll", "opt", "step"]


def test_ddp_paused_in_backward_comes_to_a_cut_behind_its_buckets() -> None:
    """Rank 0 waits for both its buckets inside C++, ranks 1 and 2 stand before their first."""
    world = World([ddp(), ["busy", *ddp()], ["busy", *ddp()]])
    world.settle()
    assert world.where()[0] == "waitcoll"
    request = world.command("pause")
    assert world.ack(request) is None  # ranks 1 and 2 compute on, at no gate
    for rank in world.ranks:
        rank.busy = False
    world.settle()
    ack = world.ack(request)
    assert ack is not None and ack.ok
    # Both buckets complete on all ranks; rank 0 stops before the optimizer. Ranks 1 and 2 were
    # moved by one op at a time, so they stop there too, not a gate further.
    assert world.where() == ["*opt", "*opt", "*opt"]
    assert ack.data["pending"] == 0


def test_op_goes_to_the_next_collective() -> None:
    world = held_at_start(World([ddp(), ddp()]))
    assert world.where() == ["*coll dp", "*coll dp"]
    world.command("op")
    assert [rank.issued["dp"] for rank in world.ranks] == [1, 1]
    assert world.where() == ["*coll dp", "*coll dp"]
    world.command("op")  # none left in this step: its end bounds it
    assert world.where() == ["*step", "*step"]


def test_op_lets_who_is_behind_catch_up_first() -> None:
    """DDP, 4 buckets; rank 0 was stepped two of them ahead."""
    world = held_at_start(World([ddp(4), ddp(4)]))
    world.command("op")
    world.command("step", [0])
    world.command("step", [0])
    seen = [[rank.issued["dp"] for rank in world.ranks]]
    for _ in range(3):
        world.command("op")
        seen.append([rank.issued["dp"] for rank in world.ranks])
    assert seen == [[3, 1], [3, 2], [3, 3], [4, 4]]
    assert world.where() == ["*step", "*step"]


def test_a_tick_without_a_plan_ends_at_the_step() -> None:
    world = held_at_start(World([ddp() * 3, ddp() * 3]))
    ack = world.ack(world.command("tick"))
    assert ack is not None and ack.ok
    assert [rank.step for rank in world.ranks] == [1, 1]
    assert world.where() == ["*step", "*step"]
    world.command("tick")
    assert [rank.step for rank in world.ranks] == [2, 2]
    assert world.where() == ["*coll dp", "*coll dp"]


def test_continue_is_answered_when_the_ranks_run() -> None:
    world = held_at_start(pipeline())
    ack = world.ack(world.command("continue"))
    assert ack is not None and ack.ok
    assert world.machine.control.mode is Mode.RUNNING
    assert world.where() == ["end"] * 4
    assert world.names()[-1] == "running"


@pytest.mark.parametrize("verb", ["step", "tick", "next", "op"])
def test_nothing_held_refuses_to_step(verb: str) -> None:
    world = World([["busy"]])
    ack = world.ack(world.command(verb))
    assert ack is not None and not ack.ok
    assert ack.refusal == Refusal(Why.NOTHING_HELD, verb=verb)


def test_no_rank_yet_is_said() -> None:
    world = World([])
    ack = world.ack(world.command("pause"))
    assert ack is not None and ack.refusal == Refusal(Why.NO_RANK_YET)


def test_commands_queue_up_and_too_many_are_refused() -> None:
    """While a pause is under way: MAX_QUEUE steps wait, one more is refused; then all are run."""
    world = World([["busy", *["coll dp"] * 20]])
    pause = world.command("pause")
    steps = [world.command("step") for _ in range(MAX_QUEUE)]
    refused = world.ack(world.command("step"))
    assert refused is not None and refused.refusal == Refusal(Why.QUEUE_FULL, number=MAX_QUEUE)
    world.ranks[0].busy = False
    world.settle()
    assert [ack.re for ack in world.acks if ack.ok] == [pause, *steps]
    assert world.ranks[0].issued["dp"] == MAX_QUEUE


def test_continue_ends_what_waits_for_a_cut() -> None:
    world = World([["busy", "coll dp"]])
    pause = world.command("pause")
    go = world.command("continue")
    ack, last = world.ack(pause), world.ack(go)
    assert ack is not None and not ack.ok
    assert last is not None and last.ok


def test_one_viewer_in_control_until_another_takes_over() -> None:
    world = held_at_start(pipeline())
    refused = world.ack(world.command("step", by="view-b"))
    assert refused is not None and refused.refusal is not None
    assert (refused.refusal.why, refused.refusal.holder) == (Why.TAKEN, "view-a")
    order = Order("view-b", "view-b", 99, Verb.STATUS, ())
    world.machine.take(TakenOver(order, world.now))
    world.settle()
    taken = world.ack(99)
    assert taken is not None and taken.status is not None
    assert (taken.answer, taken.status.controller) == (Taken("view-a"), "view-b")
    assert world.machine.control.mode is Mode.HELD
    stepped = world.ack(world.command("step", [0], by="view-b"))
    assert stepped is not None and stepped.ok


def test_leave_lets_everything_run_on_at_once() -> None:
    world = held_at_start(pipeline())
    world.machine.take(GivenUp("view-b", world.now))  # not the holder: nothing happens
    assert world.machine.control.mode is Mode.HELD
    world.machine.take(GivenUp("view-a", world.now))
    world.settle()
    assert world.where() == ["end"] * 4
    assert world.names()[-1] == "leave"


def test_a_lease_that_is_not_renewed_lapses() -> None:
    world = held_at_start(pipeline())
    world.machine.take(Ticked(world.machine.control.lease.until_ns - 1))
    assert world.machine.control.mode is Mode.HELD
    world.machine.take(Ticked(world.machine.control.lease.until_ns))
    assert world.machine.control.mode is Mode.RUNNING
    world.settle()
    assert world.where() == ["end"] * 4
    assert world.names()[-1] == "lapsed"


def test_agents_get_what_is_left_of_the_lease_and_never_more() -> None:
    world = World([["busy"]])
    machine = world.machine
    machine.take(Ordered(Order("view-a", "view-a", 1, Verb.PAUSE, (0,)), world.now))
    machine.drain()
    machine.take(Ticked(world.now + 4 * S))
    # The Lease, and the Permit that nobody has answered.
    sent = [e.message for e in machine.drain() if isinstance(e, Send)]
    assert [(type(m), m.lease_ns) for m in sent] == [(Lease, 6 * S), (Permit, 6 * S)]


def test_a_script_keeps_control_between_its_commands() -> None:
    """One process per command: all of them hold control as ``ctl``; a minute was asked for."""
    world = World([["coll dp"] * 3])
    script = {"keep": True, "lease_ns": 60 * S}
    first = Order("view-1", "ctl", 1, Verb.PAUSE, (0,), **script)
    world.machine.take(Ordered(first, world.now))
    world.settle()
    assert world.machine.control.lease.left_ns(world.now) == pytest.approx(60 * S, abs=2 * S)
    second = Order("view-2", "ctl", 2, Verb.STEP, (0,), **script)
    world.machine.take(Ordered(second, world.now))
    world.settle()
    assert [ack.ok for ack in world.acks] == [True, True]


def test_a_rank_that_joins_while_held_is_held_too() -> None:
    world = World([["coll dp"], ["busy", "coll dp"]])
    late = world.ranks[1]
    world.machine.take(Departed(late.proc, world.now))
    world.machine.drain()
    world.command("pause")
    assert world.machine.control.mode is Mode.HELD
    world.machine.take(Joined(late.proc, 1, world.now))
    assert world.machine.control.mode is Mode.PAUSING
    late.busy = False
    world.settle()
    assert world.machine.control.mode is Mode.HELD
    assert world.where() == ["*coll dp", "*coll dp"]


def test_a_launcher_that_was_taken_for_a_rank_is_not_waited_for() -> None:
    world = World([["coll dp"], ["busy"]])
    request = world.command("pause")
    assert world.ack(request) is None
    world.machine.take(Joined(world.ranks[1].proc, -1, world.now))
    world.settle()
    ack = world.ack(request)
    assert ack is not None and ack.ok and ack.data["held"] == {0: "coll dp"}


def test_the_death_of_the_last_rank_under_way_ends_the_pause() -> None:
    world = World([["coll dp"], ["busy"]])
    request = world.command("pause")
    assert world.ack(request) is None
    world.machine.take(Departed("0.n0.1", world.now))
    world.settle()
    ack = world.ack(request)
    assert ack is not None and ack.ok and ack.data["held"] == {0: "coll dp"}


def test_who_waits_for_a_dead_rank_is_named_at_the_cut() -> None:
    world = World([["coll dp", "waitcoll"], ["busy"], ["busy", "opt"]])
    world.settle()
    dead = world.ranks.pop(1)
    request = world.command("pause")
    world.machine.take(Departed(dead.proc, world.now))
    world.ranks[1].busy = False
    world.settle()
    ack = world.ack(request)
    assert ack is not None and ack.ok
    assert ack.status is not None
    (stuck,) = ack.status.why
    assert isinstance(stuck, Stuck) and (stuck.rank, stuck.gone) == (0, 1)
    assert (stuck.op.op, stuck.op.group, stuck.op.seq) == ("all_reduce", "dp", 0)


def test_no_rank_left_ends_control() -> None:
    world = held_at_start(World([["coll dp"]]))
    world.machine.take(Departed("0.n0.0", world.now))
    assert world.machine.control.mode is Mode.RUNNING


def test_a_rank_that_ran_on_by_itself_is_held_again() -> None:
    """Its own lease lapsed (the hub was late) while the hub still holds."""
    world = held_at_start(World([["coll dp", "coll dp", "coll dp"]]))
    rank = world.ranks[0]
    rank.held, rank.closed = 0, False
    rank._issue()
    rank.program.insert(rank.at, "busy")
    world.settle()
    assert world.machine.control.mode is Mode.PAUSING
    rank.busy = False
    world.settle()
    assert world.machine.control.mode is Mode.HELD
    assert world.where() == ["*coll dp"]


def test_a_deadline_answers_with_who_is_under_way_and_the_pause_goes_on() -> None:
    world = World([["coll dp"], ["busy"]])
    order = Order("view-a", "view-a", 7, Verb.PAUSE, (0, 1), deadline_ns=world.now + 2 * S)
    world.machine.take(Ordered(order, world.now))
    world.settle(ms=500)
    ack = world.ack(7)
    assert ack is not None and ack.refusal == Refusal(Why.NO_CUT_YET, ranks=(1,))
    assert world.machine.control.mode is Mode.PAUSING
    assert world.facts(UnderWay)[0] == UnderWay((1,))


def test_states_that_come_out_of_order_are_ignored() -> None:
    world = World([["coll dp"]])
    old = world.ranks[0].state()
    world.command("pause")
    serial = world.machine.control.views["0.n0.0"].state
    world.machine.take(Reported(old, world.now))
    assert world.machine.control.views["0.n0.0"].state is serial


def test_each_verb_says_what_it_did() -> None:
    """1F1B, 4 ranks: tick 1 is 0F0, tick 2 is 0F1 and 1F0; then rank 3 still waits for 2F0."""
    world = held_at_start(pipeline())
    world.machine.control.pipelines = {"pp": (0, 1, 2, 3)}

    def outcome_of(verb: str, ranks: list[int] | None = None) -> Outcome:
        ack = world.ack(world.command(verb, ranks))
        assert ack is not None and isinstance(ack.answer, Cut)
        event = world.events[-1]
        assert (event.fact, event.n) == (ack.answer, ack.n), "one answer: what was recorded"
        assert ack.answer.outcome is not None
        return ack.answer.outcome

    first = outcome_of("tick")
    assert (first.tick, first.ran) == (1, {0: ("0F0",)})
    assert (first.waits, first.coming) == ({2: "1F0", 3: "2F0"}, {0: "0F1", 1: "1F0"})
    second = outcome_of("tick")
    assert (second.tick, second.ran) == (2, {0: ("0F1",), 1: ("1F0",)})
    assert (second.waits, second.coming) == ({3: "2F0"}, {0: "0F2", 1: "1F1", 2: "2F0"})
    step = outcome_of("step", [0])
    assert (step.tick, step.ran, step.places[0]) == (None, {0: ("0F2",)}, "send 1")
    third = outcome_of("tick")  # rank 0 stands a column ahead of the others
    assert (third.tick, third.ran) == (None, {0: ("0F3",), 1: ("1F1",), 2: ("2F0",)})


def test_a_verb_several_times() -> None:
    world = held_at_start(pipeline())
    ack = world.ack(world.command("tick", count=3))
    assert ack is not None and ack.ok
    assert isinstance(ack.answer, Cut) and ack.answer.outcome is not None
    assert (ack.answer.outcome.time, ack.answer.outcome.times) == (3, 3)
    assert done(world) == [{"0F0", "0F1", "0F2"}, {"1F0", "1F1"}, {"2F0"}, set()]
    assert world.names() == ["pause", "cut", "tick", "cut", "tick", "cut", "tick", "cut"]
    world.command("tick", count=0)  # no number of times: once
    assert done(world)[3] == {"3F0"}


def test_a_breakpoint_ends_a_count() -> None:
    world = held_at_start(pipeline())
    world.command("break", expr="action==2F0")
    ack = world.ack(world.command("tick", count=9))
    assert ack is not None and ack.status is not None and isinstance(ack.status.why[0], Hit)
    assert done(world)[2] == set()


def test_a_tick_runs_an_action_with_the_collectives_inside() -> None:
    """The permits of a tick do not stop at ops inside an action; those of a step do."""
    world = held_at_start(pipeline())
    stops = [
        permit.stop for permit in _permits(world, "tick") if permit.n
    ]  # fmt: skip
    assert stops and not any(stop & Gate.INSIDE for stop in stops)
    pauses = [permit.stop for permit in _permits(held_at_start(pipeline()), "step")]
    assert pauses and all(stop & Gate.INSIDE for stop in pauses)


def _permits(world: World, verb: str) -> list[Permit]:
    order = Order("view-a", "view-a", 99, Verb(verb), tuple(range(len(world.ranks))))
    world.machine.take(Ordered(order, world.now))
    sent = [e.message for e in world.machine.drain() if isinstance(e, Send)]
    return [message for message in sent if isinstance(message, Permit)]


def test_a_tick_without_named_actions_is_a_step_and_says_so() -> None:
    """Ranks that hand a batch on by hand: nothing says what an action is, so the step ends it."""
    before = {0: State(0, 1, None, 1, 0, "recv 1→0", 7)}
    after = {0: State(0, 2, None, 1, 9, "recv 1→0", 8)}
    found = outcome(Verb.TICK, before, after, ())
    assert (found.steps, found.ran, found.places) == ((7, 8), {}, {0: "recv 1→0"})
