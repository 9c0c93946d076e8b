"""Held at an exception: the gate, the frames one looks at, and who holds whom for how long."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import click
import pytest

from pardbg.cli.options import ON_EXCEPTION
from pardbg.control.machine.holding import FOLLOWS_NS, RUN
from pardbg.control.machine.machine import (
    Departed,
    Renewed,
    Reported,
    Ticked,
)
from pardbg.events.control_codes import Mode, NotHeld, Why
from pardbg.events.control_events import ControlEvent, Status
from pardbg.events.control_facts import Lapsed, Paused, Raised, Refusal, Released, RunsOn
from pardbg.hub.run.config import NOTICES_FILE
from pardbg.render.frame.control_words import notice
from pardbg_agent.control import evaluate, inspect
from pardbg_agent.ctrl.agent_messages import Evaluated
from pardbg_agent.wire import GATE_ALL, LEASE_NS, Gate, Kind
from tests.unit.agent.test_gate import World, until
from tests.unit.control.control_world import World as Ranks
from tests.unit.hub.hub_rig import FakeAgent, Peer, Rig

SEC = 1_000_000_000


def fails(step: int) -> None:
    batch = [step]
    try:
        raise ValueError("no labels")
    finally:
        batch.append(0)  # has run when anybody looks


def caught() -> TracebackType:
    try:
        fails(3)
    except ValueError as error:
        assert error.__traceback__ is not None
        return error.__traceback__
    raise AssertionError


def held_thread(world: World) -> threading.Thread:
    thread = threading.Thread(
        target=world.gate.hold_raised, args=("exception ValueError: no labels", caught())
    )
    thread.start()
    until(lambda: world.gate.state().held)
    return thread


# ---------------------------------------------------------------------------- in the rank


def test_no_permit_lets_an_exception_pass_and_run_does() -> None:
    world = World()
    thread = held_thread(world)
    state = world.gate.state()
    assert (state.held, state.next) == (Gate.EXCEPTION, "exception ValueError: no labels")
    assert state.hit is None and state.closed
    world.gate.permit(1, int(GATE_ALL), 5, 0, LEASE_NS)  # what would let any other gate pass
    assert world.gate.state().held == Gate.EXCEPTION
    assert list(world.gate.raised()) == [thread.ident]
    world.gate.run(2)
    thread.join(5)
    assert not thread.is_alive() and world.gate.raised() == {}
    assert world.records[-1][0] == Kind.HELD and world.records[-1][-2] == Gate.EXCEPTION


def test_without_a_word_from_the_hub_it_dies_when_the_lease_is_over() -> None:
    world = World()
    thread = held_thread(world)
    world.now_ns += LEASE_NS + 1
    world.gate.check_lease()
    thread.join(5)
    assert not thread.is_alive()


def test_questions_are_answered_from_the_frames_the_exception_left() -> None:
    """Also while the main thread is held somewhere else."""
    world = World()
    answers: list[Evaluated] = []
    with world.thread_at(Gate.STEP):
        thread = held_thread(world)
        asked = [("p", "batch", 0), ("args", "", 0), ("list", "", 0), ("p", "error", 1)]
        for number, (kind, expr, frame) in enumerate(asked):

            def work(place: Any, kind: str = kind, expr: str = expr, frame: int = frame) -> None:
                answers.append(evaluate.answer(kind, expr, frame, place))

            assert world.gate.ask(work)
            until(lambda n=number: len(answers) > n)  # type: ignore[misc]
        world.gate.run(1)
        thread.join(5)
    value, args, source, caller = answers
    assert value.text == "[3, 0]" and value.frame is not None and value.frame[2] == "fails"
    assert args.text == "step = 3"
    # The frame's own line is where ``finally`` ended; what counts is where it was raised.
    (arrow,) = [row for row in source.text.splitlines() if row[5:8] == " ->"]
    assert 'raise ValueError("no labels")' in arrow
    assert caller.frame is not None and caller.frame[2] == "caught" and caller.raised


def test_where_shows_the_traceback_of_a_thread_that_raised() -> None:
    main = threading.main_thread().ident
    assert main is not None
    found = inspect.stacks(raised={main: caught()})[0]
    assert [frame[2] for frame in found.frames] == ["caught", "fails"]
    assert found.inside == "exception"


def test_a_traceback_is_bounded() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise RuntimeError
        deep(n - 1)

    with pytest.raises(RuntimeError):
        deep(inspect.MAX_FRAMES + 5)
    try:
        deep(inspect.MAX_FRAMES + 5)
    except RuntimeError:
        assert len(inspect.traceback_of(sys.exc_info()[2])) == inspect.MAX_FRAMES


# ---------------------------------------------------------------------------- at the hub


def raising(hold_s: float = 600, **more: int) -> Ranks:
    """Rank 1 raises while rank 0 is in an all_reduce that waits for it."""
    world = Ranks([["coll dp", "waitcoll", "step"], ["raise"]])
    world.machine.control.timeouts = {"dp": more.get("timeout_s", 1800) * SEC}
    world.machine.control.raised.hold_ns = int(hold_s * SEC)
    world.settle()
    return world


def wait(world: Ranks, seconds: int, viewer: str = "") -> None:
    """Time passes; ranks say where they are each second, and ``viewer`` that it is there."""
    for _ in range(seconds):
        world.now += SEC
        for rank in world.ranks:
            world.machine.take(Reported(rank.state(), world.now))
        if viewer:
            world.machine.take(Renewed(viewer, world.now))
        world.machine.take(Ticked(world.now))
        world._deliver()


def test_the_run_itself_holds_a_rank_that_raised_and_anybody_may_command() -> None:
    world = raising()
    machine = world.machine
    assert (machine.control.mode, machine.control.lease.holder) == (Mode.HELD, RUN)
    assert machine.control.why == (Raised(1, "raise"),)
    status = machine.control.status(world.now)
    assert list(status.held) == [1]
    assert [(w.rank, w.op.op, w.for_rank) for w in status.waiting.values()] == [
        (0, "all_reduce", 1)
    ]
    stepped = world.ack(world.command("step"))
    assert stepped is not None
    assert stepped.refusal == Refusal(Why.AT_EXCEPTION, ranks=(1,))
    assert world.ranks[1].held, "no verb but continue lets it die"
    answer = world.ack(world.command("continue", by="view-b"))
    assert answer is not None and answer.ok
    assert machine.control.mode is Mode.RUNNING and not world.ranks[1].held


def test_a_viewer_that_is_there_keeps_it_and_the_time_is_over_without_one() -> None:
    world = raising(hold_s=60)
    machine = world.machine
    wait(world, 40)
    machine.take(Renewed("view-b", world.now))  # any viewer's word counts
    wait(world, 59)
    assert machine.control.mode is Mode.HELD
    wait(world, 1)
    assert machine.control.mode is Mode.RUNNING and machine.control.lease.holder is None
    assert machine.control.why == (Lapsed(RUN),)


def test_it_is_let_die_before_another_ranks_timeout() -> None:
    world = raising(timeout_s=100)
    machine = world.machine
    wait(world, 77)
    assert machine.control.mode is Mode.HELD
    wait(world, 4)  # a fifth of the timeout is left
    assert machine.control.mode is Mode.RUNNING
    (released,) = machine.control.why
    assert isinstance(released, Released) and released.ranks == (1,)
    assert released.waits is not None and released.waits.rank == 0


def test_hold_keeps_it_past_timeouts() -> None:
    world = raising(timeout_s=100)
    held = world.ack(world.command("pause", hold=True))
    assert held is not None and held.ok
    wait(world, 120, viewer="view-a")
    assert world.machine.control.mode is Mode.HELD


def test_an_exception_that_follows_from_a_death_is_not_held() -> None:
    world = Ranks([["coll dp", "waitcoll", "raise"], ["raise"]])
    world.machine.control.raised.hold_ns = 600 * SEC
    world.settle()
    world.command("continue")
    world.machine.take(Departed(world.ranks[1].proc, world.now))
    del world.ranks[1]
    world.machine.control.groups = {"dp": (0,)}
    world.settle()
    assert world.machine.control.mode is Mode.RUNNING and not world.ranks[0].held
    assert world.facts()[-1] == Raised(0, not_held=NotHeld.FOLLOWS)
    assert world.machine.control.raised.refusal("0.n0.7", world.now + FOLLOWS_NS) is None
    assert world.machine.control.raised.refusal("1.n0.7", world.now) is None, (
        "restarted: another life"
    )


def test_two_raise_at_once_and_a_killed_one_frees_the_rest() -> None:
    world = Ranks([["raise"], ["raise"], ["busy", "step"]])
    world.machine.control.raised.hold_ns = 600 * SEC
    world.settle()
    assert sorted(world.machine.control.held()) == [0, 1]
    world.machine.take(Departed(world.ranks[0].proc, world.now))
    assert sorted(world.machine.control.held()) == [1]
    world.machine.take(Departed(world.ranks[1].proc, world.now))
    assert world.machine.control.mode is Mode.RUNNING
    assert world.machine.control.why == (RunsOn(no_exception_left=True),)


def test_where_exceptions_are_not_held_it_is_let_go_at_once() -> None:
    world = raising(hold_s=0)
    assert world.machine.control.mode is Mode.RUNNING and not world.ranks[1].held


def test_who_follows_the_job_is_told() -> None:
    status = Status(Mode.PAUSING, RUN, 600 * SEC)
    event = ControlEvent(Raised(1, "ValueError: x"), status)
    assert notice(event, "ddp-1") == (
        "rank 1 raised ValueError: x: continue lets it die (unattended: in 10 m 0 s); "
        "`pardbg ctl ddp-1 where`, `continue`, or `pardbg watch ddp-1`"
    )
    assert notice(replace(event, fact=Paused()), "ddp-1") == ""
    assert notice(replace(event, status=Status(Mode.RUNNING)), "ddp-1") == ""


@pytest.mark.parametrize(
    ("said", "seconds"), [("die", 0.0), ("hold", 600.0), ("hold:30s", 30.0), ("hold:1h", 3600.0)]
)
def test_how_long_is_said_where_the_job_is_started(said: str, seconds: float) -> None:
    assert ON_EXCEPTION.convert(said, None, None) == seconds


@pytest.mark.parametrize("said", ["hold:5s", "hold:2h", "hold:soon", "wait", "die:1m", ""])
def test_other_words_are_one_line(said: str) -> None:
    with pytest.raises(click.UsageError, match="write die, hold, or hold:TIME from 10s to 1h"):
        ON_EXCEPTION.convert(said, None, None)


def test_the_hub_holds_tells_who_follows_and_a_viewer_that_is_there_counts(run_dir: Path) -> None:
    rig = Rig(run_dir, on_exception_s=60.0)
    try:
        agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
        early = viewer.command("break", "0-1", expr="step==99")  # as a .pardbgrc does
        assert [b["on"] for b in early["data"]["breakpoints"]] == [[0, 1]]
        assert not viewer.command("break", "stage=2", expr="step==99")["ok"]
        agent.hello()
        agent.state(None, int(Gate.EXCEPTION), next="exception ValueError: x", held_since_ns=7)
        permit = agent.wait("permit")
        agent.state(permit["id"], int(Gate.EXCEPTION), next="exception ValueError: x")

        def status() -> dict[str, Any]:
            data: dict[str, Any] = viewer.command("status")["data"]
            return data

        rig.until(lambda: status()["mode"] == "held", "held")
        assert (status()["controller"], status()["held"]) == (RUN, {0: "exception ValueError: x"})
        notices = (run_dir / NOTICES_FILE).read_text()
        assert notices.startswith("pardbg: rank 0 raised ValueError: x: continue lets it die (")
        lease = rig.hub._machine.control.lease
        lease.until_ns -= 40 * SEC  # most of it is over
        viewer.send("lease", lease_ns=0)
        rig.until(lambda: (lease.left_ns(time.monotonic_ns()) or 0) > 50 * SEC, "the viewer's word")
        viewer.request("command", verb="continue")
        assert agent.wait("run")["id"] > permit["id"]
    finally:
        rig.close()
