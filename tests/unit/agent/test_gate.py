"""Gates: permits, holds and the lease. The clock is a number the test sets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pardbg.control.language.expr import gates, parse
from pardbg_agent.control.breaks import Breaks, breaks_of
from pardbg_agent.control.gate import GateControl
from pardbg_agent.control.inspect import frames_of
from pardbg_agent.ctrl.agent_messages import BreakAt
from pardbg_agent.wire import GATE_ALL, GATE_OPS, LEASE_NS, Gate, Kind

SEC = 1_000_000_000


@dataclass
class World:
    """A gate with a clock that stands still, and what it wrote."""

    now_ns: int = 1000
    records: list[tuple[Any, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    status: list[tuple[int, int, int]] = field(default_factory=list)
    wakes: int = 0
    step: int = 7
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = GateControl(
            record=lambda *fields: self.records.append(fields),
            name=self._name,
            status=lambda *fields: self.status.append(fields),
            step=lambda: self.step,
            now=lambda: self.now_ns,
            sleep=self.slept.append,
        )
        self.gate.wake = self._woken

    def _name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text) + 1

    def _woken(self) -> None:
        self.wakes += 1

    def pause(self, message_id: int = 1, stop: int = GATE_ALL) -> None:
        self.gate.permit(message_id, 0, 0, stop, LEASE_NS)

    @contextmanager
    def thread_at(
        self, gate: int, text: str = "2F4", facts: dict[str, Any] | None = None
    ) -> Iterator[threading.Thread]:
        """A thread that goes through one gate."""
        args = (gate, text, lambda: facts or {})
        thread = threading.Thread(target=self.gate.wait, args=args, daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            self.gate.end()
            thread.join(5)
            assert not thread.is_alive()


def until(condition: Callable[[], object], timeout_s: float = 5) -> None:
    """Wait for a condition; fail if it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition never came"
        time.sleep(0.001)


def test_an_open_gate_lets_pass() -> None:
    world = World()
    assert not world.gate.closed
    assert world.gate.wait(Gate.ACTION, "2F4") == 0
    assert world.records == []


def test_held_until_run() -> None:
    world = World()
    world.pause(message_id=4)
    with world.thread_at(Gate.ACTION, "2F4") as thread:
        until(lambda: world.gate.state().held)
        state = world.gate.state()
        assert (state.held, state.next, state.since_ns) == (Gate.ACTION, "2F4", 1000)
        assert (state.reply_to, state.closed) == (4, True)
        assert world.status[-1] == (Gate.ACTION, 1, 1000)
        world.now_ns = 1500
        world.gate.run(5)
        assert world.gate.state().held == 0  # at once, not when the thread wakes
        assert world.gate.state().reply_to == 5
        thread.join(5)
    assert not world.gate.closed
    held = world.records[0]
    assert held[:8] == (Kind.HELD, 6, 0, 1, 1000, 1500, 7, 0)
    assert held[12] == Gate.ACTION
    assert world.status[-1][0] == 0


def test_wait_says_how_long_it_held() -> None:
    world = World()
    world.pause()
    took: list[int] = []
    thread = threading.Thread(target=lambda: took.append(world.gate.wait(Gate.STEP, "step 3")))
    thread.start()
    until(lambda: world.gate.state().held)
    world.now_ns += 300
    world.gate.run(2)
    thread.join(5)
    assert took == [300]


def test_ops_inside_an_action_pass_unless_the_permit_stops_there() -> None:
    world = World()
    world.gate.inside = 1  # a pipeline action has begun
    tick = int(Gate.ACTION | Gate.COLLECTIVE)
    world.gate.permit(1, int(Gate.ACTION), 0, tick, LEASE_NS)
    assert world.gate.wait(Gate.COLLECTIVE, "all_reduce tp #0") == 0
    world.gate.inside = 0
    with world.thread_at(Gate.COLLECTIVE, "all_reduce dp #0"):
        until(lambda: world.gate.state().held == Gate.COLLECTIVE)
        world.gate.run(2)
    world.gate.begin()  # the context has ended it
    world.gate.inside = 1
    world.gate.permit(3, int(GATE_ALL), 0, int(GATE_ALL), LEASE_NS)
    with world.thread_at(Gate.COLLECTIVE, "all_reduce tp #1"):
        until(lambda: world.gate.state().held == Gate.COLLECTIVE | Gate.INSIDE)
        world.gate.permit(4, int(Gate.ACTION), 0, tick, LEASE_NS)  # on to the action's end
        until(lambda: not world.gate.state().held)


@pytest.mark.parametrize(
    ("count", "n", "stop", "gates", "passed"),
    [
        # one permit for anything: the first gate is passed, the second holds
        (GATE_ALL, 1, GATE_ALL, [Gate.ACTION, Gate.SEND], 1),
        # tick: sends flow, one compute action, then stop at the receive
        (Gate.ACTION, 1, Gate.RECV | Gate.ACTION, [Gate.SEND, Gate.ACTION, Gate.SEND], 3),
        (Gate.ACTION, 1, Gate.RECV | Gate.ACTION, [Gate.ACTION, Gate.SEND, Gate.RECV], 2),
        # receives before the one counted action still pass
        (Gate.ACTION, 1, Gate.RECV | Gate.ACTION, [Gate.RECV, Gate.ACTION, Gate.RECV], 2),
        # next: everything but the step passes
        (Gate.STEP, 1, Gate.STEP, [Gate.ACTION, Gate.COLLECTIVE, Gate.STEP, Gate.ACTION], 4),
        (Gate.STEP, 1, Gate.STEP, [Gate.STEP, Gate.ACTION, Gate.STEP], 2),
        # op release for settling a cut
        (GATE_OPS, 1, GATE_ALL, [Gate.COLLECTIVE, Gate.ACTION], 1),
        # two permits
        (GATE_ALL, 2, GATE_ALL, [Gate.ACTION, Gate.ACTION, Gate.ACTION], 2),
        # hold
        (0, 0, GATE_ALL, [Gate.SEND], 0),
    ],
)
def test_permits(count: int, n: int, stop: int, gates: list[int], passed: int) -> None:
    world = World()
    world.gate.permit(1, count, n, stop, LEASE_NS)
    done: list[int] = []

    def run() -> None:
        for gate in gates:
            world.gate.wait(gate, "x")
            done.append(gate)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if passed < len(gates):
        until(lambda: world.gate.state().held)
        assert world.gate.state().held == gates[passed]
    else:
        thread.join(5)
    assert len(done) == passed
    world.gate.run(2)
    thread.join(5)
    assert done == gates


def test_a_permit_releases_the_held_rank_inside_the_call() -> None:
    """A state that follows permit 2 must not show the hold that permit 2 ended."""
    world = World()
    world.pause(1)
    with world.thread_at(Gate.ACTION) as thread:
        until(lambda: world.gate.state().held)
        world.gate.permit(2, GATE_ALL, 1, GATE_ALL, LEASE_NS)
        state = world.gate.state()
        assert (state.held, state.reply_to) == (0, 2)
        thread.join(5)
        # its one permit is used: the next gate holds
        with world.thread_at(Gate.SEND):
            until(lambda: world.gate.state().held == Gate.SEND)


def test_a_permit_that_does_not_count_here_keeps_the_hold() -> None:
    world = World()
    world.pause(1)
    with world.thread_at(Gate.ACTION):
        until(lambda: world.gate.state().held)
        world.gate.permit(2, GATE_OPS, 0, GATE_ALL, LEASE_NS)
        state = world.gate.state()
        assert (state.held, state.reply_to) == (Gate.ACTION, 2)


def test_a_rank_held_outside_stop_goes_on() -> None:
    world = World()
    world.pause(1)
    with world.thread_at(Gate.SEND) as thread:
        until(lambda: world.gate.state().held)
        world.gate.permit(2, 0, 0, Gate.STEP, LEASE_NS)
        thread.join(5)
        assert not thread.is_alive()
        assert world.gate.closed


def test_the_lease_ends_the_hold_by_the_clock() -> None:
    world = World()
    world.pause()
    with world.thread_at(Gate.ACTION) as thread:
        until(lambda: world.gate.state().held)
        world.now_ns += LEASE_NS - 1
        assert not world.gate.check_lease()
        assert world.gate.closed
        world.now_ns += 1
        assert world.gate.check_lease()
        thread.join(5)
    assert not world.gate.closed
    assert not world.gate.check_lease()  # once


def test_the_waiting_thread_enforces_the_lease_alone() -> None:
    """The agent's thread is dead, the hub too: the training runs on by itself."""
    gate = GateControl(record=lambda *_: None, name=len, status=lambda *_: None)
    gate.permit(1, 0, 0, GATE_ALL, 50_000_000)
    held_ns = gate.wait(Gate.ACTION, "2F4")
    assert held_ns >= 45_000_000
    assert not gate.closed


def test_renewing_moves_the_lease_and_never_past_the_limit() -> None:
    world = World()
    world.pause()
    world.now_ns += 9 * SEC
    world.gate.lease(10**18)
    world.now_ns += 9 * SEC
    assert not world.gate.check_lease()
    world.now_ns += 1 * SEC
    assert world.gate.check_lease()


def test_a_lapsed_lease_does_not_close_again_by_renewal() -> None:
    world = World()
    world.pause()
    world.now_ns += LEASE_NS
    world.gate.check_lease()
    world.gate.lease(LEASE_NS)
    assert not world.gate.closed


def test_several_threads_are_held_and_all_go() -> None:
    world = World()
    world.pause()
    threads = [
        threading.Thread(target=world.gate.wait, args=(Gate.COLLECTIVE, f"op {n}"))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(world.gate._holders) == 3)
    world.gate.run(2)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(world.records) == 3


def test_ctrl_c_at_a_gate_leaves_no_hold_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.pause()

    def interrupted(timeout: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.gate._changed, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.gate.wait(Gate.ACTION, "2F4")
    assert world.gate.state().held == 0
    assert world.status[-1][0] == 0


def test_the_description_is_made_only_when_held_and_may_fail() -> None:
    world = World()
    calls: list[int] = []

    def describe() -> str:
        calls.append(1)
        raise ValueError("no words")

    world.gate.permit(1, GATE_ALL, 1, GATE_ALL, LEASE_NS)
    world.gate.wait(Gate.ACTION, describe)
    assert calls == []
    thread = threading.Thread(target=world.gate.wait, args=(Gate.ACTION, describe), daemon=True)
    thread.start()
    until(lambda: world.gate.state().held)
    assert world.gate.state().next == "?"
    world.gate.run(2)
    thread.join(5)


def test_after_the_end_nothing_holds() -> None:
    world = World()
    world.gate.end()
    world.pause()
    assert not world.gate.closed


def test_every_change_wakes_the_agent() -> None:
    world = World()
    world.pause()
    before = world.wakes
    with world.thread_at(Gate.ACTION):
        until(lambda: world.wakes > before)


def test_the_stack_of_a_held_thread_ends_where_it_met_the_gate() -> None:
    world = World()
    world.pause()
    with world.thread_at(Gate.COLLECTIVE) as thread:
        deadline = time.monotonic() + 5
        while not world.status and time.monotonic() < deadline:
            time.sleep(0.001)
        functions = [f[2] for f in frames_of(sys._current_frames()[thread.ident or 0])]
    assert functions[-1] == "run"  # threading's, which called the gate: nothing inside it


# ------------------------------------------------------------------ breakpoints and delays


def _breaks(text: str) -> Breaks:
    tree = parse(text)
    return breaks_of([BreakAt(3, gates(tree), tree)])


def test_a_breakpoint_closes_the_gate_by_itself_and_says_which() -> None:
    world = World()
    world.gate.set_breaks(_breaks("action==B and mb==3"))
    assert world.gate.closed and not world.gate.holding
    assert world.gate.wait(Gate.ACTION, "2B2", lambda: {"action": "B", "mb": 2}) == 0
    with world.thread_at(Gate.ACTION, "2B3", {"action": "B", "mb": 3}) as thread:
        until(lambda: world.gate.state().held == Gate.ACTION)
        assert world.gate.state().hit == (3, "2B3") and world.gate.holding
        world.gate.run(1)
        thread.join(5)
        assert not thread.is_alive() and world.gate.state().hit is None
        assert world.gate.closed and not world.gate.holding, "the breakpoint stays"
        world.gate.set_breaks(breaks_of([]))
        assert not world.gate.closed


def test_a_breakpoint_that_nobody_answers_lets_go_after_the_lease() -> None:
    world = World()
    world.gate.set_breaks(_breaks("op==all_reduce"))
    facts = {"op": "all_reduce"}
    with world.thread_at(Gate.COLLECTIVE, "all_reduce", facts) as thread:
        until(lambda: world.gate.state().held == Gate.COLLECTIVE)
        world.now_ns += LEASE_NS
        assert world.gate.check_lease()
        thread.join(5)
        assert not thread.is_alive()


def test_a_delay_comes_once_in_each_step_and_is_not_the_agents_cost() -> None:
    world = World()
    world.gate.set_delay(50_000_000)
    late = []
    for step in (1, 1, 2):
        world.step = step
        late.append(world.gate.wait(Gate.ACTION, "x"))
    assert late == [50_000_000, 0, 50_000_000] and world.slept == [0.05, 0.05]
    world.gate.set_delay(0)
    assert not world.gate.closed


def test_the_end_forgets_breakpoints_and_delays() -> None:
    world = World()
    world.gate.set_breaks(_breaks("op==all_reduce"))
    world.gate.set_delay(1)
    world.gate.end()
    assert not world.gate.closed


def test_a_hold_does_not_hide_a_hit_that_was_not_told_yet() -> None:
    """Two ranks hit at once: the hub's hold for the first comes to the second before it has said
    that it hit, too. A permit or RUN ends the hit."""
    world = World()
    world.gate.set_breaks(breaks_of([_broken("action==F")]))
    with world.thread_at(Gate.ACTION, "2F4", {"action": "F"}):
        until(lambda: world.gate.state().held)
        world.pause(message_id=4)
        assert world.gate.state().hit == (1, "2F4") and world.gate.state().reply_to == 4
        world.gate.permit(5, GATE_ALL, 1, GATE_ALL, LEASE_NS)
        assert world.gate.state().hit is None and not world.gate.state().held


def _broken(text: str) -> BreakAt:
    tree = parse(text)
    return BreakAt(1, gates(tree), tree)


class Client:
    """A debugger's client that stands, or runs."""

    def __init__(self, leads: int) -> None:
        self.leads, self.since_ns, self.standing, self.ended = leads, 5, True, False

    def stands(self) -> bool:
        return self.standing

    def end(self) -> None:
        self.ended = True


@contextmanager
def led(world: World) -> Iterator[tuple[Client, threading.Event]]:
    """A rank that a client leads out of its gate, and what lets its work go on."""
    clients: list[Client] = []
    go, passed = threading.Event(), threading.Event()

    def work(_: object) -> None:
        clients.append(Client(threading.get_ident()))
        assert world.gate.lead(clients[0])
        go.wait(5)

    def program() -> None:
        world.gate.wait(Gate.STEP, "step 1")
        world.gate.wait(Gate.COLLECTIVE, "all_reduce dp #0")
        passed.set()
        while clients and not clients[0].ended:
            time.sleep(0.001)
        world.gate.wait(Gate.COLLECTIVE, "all_reduce dp #1")

    world.pause()
    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    try:
        until(lambda: world.gate.ask(work))
        until(lambda: clients)
        go.set()
        yield clients[0], passed
    finally:
        clients[0].end()
        world.gate.end()
        thread.join(5)
        assert not thread.is_alive()


def test_a_led_thread_passes_gates_and_is_held_where_its_client_stops_it() -> None:
    world = World()
    with led(world) as (client, passed):
        assert passed.wait(5)
        state = world.gate.state()
        assert (state.held, state.next, state.led) == (Gate.BREAK, "debugger", True)
        client.standing = False
        state = world.gate.state()
        assert (state.held, state.closed, state.led) == (0, True, True)
        assert not world.gate.ask(lambda _: None)
        world.pause(2)  # that is no reason to go
        assert not client.ended
        world.gate.lead_no_more(client)
        assert client.ended
        until(lambda: world.gate.state().next == "all_reduce dp #1")
    assert [(r[4], r[5]) for r in world.records if world.names[r[3] - 1] == "debugger"] == [
        (5, world.now_ns)
    ]


@pytest.mark.parametrize("how", ["run", "permit", "lease"])
def test_the_end_of_the_hold_is_the_clients_too(how: str) -> None:
    world = World()
    with led(world) as (client, _):
        if how == "run":
            world.gate.run(2)
        elif how == "permit":
            world.gate.permit(2, GATE_ALL, 1, GATE_ALL, LEASE_NS)
        else:
            world.now_ns += LEASE_NS
            world.gate.check_lease()
        assert client.ended
        assert not world.gate.state().led
