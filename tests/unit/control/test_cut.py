"""The settling rule as tables: who is released, who is waited for, when it is over."""

from __future__ import annotations

from pardbg.control.machine.cut import GracePeriod, View, settle
from pardbg_agent.ctrl.agent_messages import OpenOp, State
from pardbg_agent.wire import Gate

GROUPS = {"dp": (0, 1, 2)}


def all_reduce(seq: int) -> OpenOp:
    return OpenOp("dp", "all_reduce", seq, None, False, 0, 0, since_ns=0)


def recv(source: int, order: int) -> OpenOp:
    return OpenOp("pp", "recv", 0, source, False, 0, order, since_ns=0)


def view(
    rank: int,
    held: int = 0,
    open: tuple[OpenOp, ...] = (),
    issued: int = 0,
    p2p: dict[tuple[str, int, int, bool], int] | None = None,
    asked: int = 5,
    reply: int = 5,
) -> View:
    state = State(
        rank, 1, reply, held, 0, "", 0, open, {"dp": issued}, p2p or {}, proc=f"0.n0.{rank}"
    )
    return View(state.proc, rank, state, asked)


def views(*each: View) -> dict[str, View]:
    return {one.proc: one for one in each}


def test_all_held_is_the_cut() -> None:
    found = settle(views(view(0, Gate.ACTION), view(1, Gate.STEP)), GROUPS)
    assert found.reached
    assert not found.stuck


def test_held_ranks_may_keep_their_own_ops_open() -> None:
    """Rank 0 is held with a posted receive: nobody waits inside it, no timeout runs on gloo."""
    assert settle(views(view(0, Gate.ACTION, (recv(1, 0),)), view(1, Gate.SEND)), GROUPS).reached


def from_anybody(order: int) -> OpenOp:
    return OpenOp("dp", "recv", 0, -1, False, 9, order, since_ns=0)


def test_a_receive_from_anybody_waits_for_all_until_one_has_sent() -> None:
    """Rank 0 asked for 3 messages under tag 9 (2 from anybody, 1 from rank 1). Two were sent: both
    others may send the third. Then rank 2 has: nobody moves any more."""
    asked = {("dp", -1, 9, False): 2, ("dp", 1, 9, False): 1, ("dp", 1, 7, False): 5}
    server = view(0, 0, (from_anybody(1),), p2p=asked)
    one = view(1, Gate.SEND, p2p={("dp", 0, 9, True): 2, ("dp", 0, 7, True): 5})
    found = settle(views(server, one, view(2, Gate.SEND)), GROUPS)
    assert found.release == ("0.n0.1", "0.n0.2")
    sent = view(2, Gate.SEND, p2p={("dp", 0, 9, True): 1})
    assert settle(views(server, one, sent), GROUPS).release == ()


def test_ddp_in_backward_releases_just_those_who_have_not_issued() -> None:
    """Rank 0 waits in C++ for buckets 3 and 4. Rank 1 has issued 3, rank 2 neither; both held."""
    found = settle(
        views(
            view(0, 0, (all_reduce(3), all_reduce(4)), issued=5),
            view(1, Gate.COLLECTIVE, (all_reduce(3),), issued=4),
            view(2, Gate.COLLECTIVE, issued=3),
        ),
        GROUPS,
    )
    assert found.release == ("0.n0.1", "0.n0.2")
    assert found.under_way == ("0.n0.0",)


def test_who_has_issued_everything_open_stays() -> None:
    """Only bucket 3 is open: rank 1 has issued it and must not move."""
    found = settle(
        views(
            view(0, 0, (all_reduce(3),), issued=4),
            view(1, Gate.COLLECTIVE, issued=4),
            view(2, Gate.COLLECTIVE, issued=3),
        ),
        GROUPS,
    )
    assert found.release == ("0.n0.2",)


def test_a_receive_releases_its_sender_only() -> None:
    found = settle(
        views(
            view(0, Gate.SEND, p2p={("pp", 1, 0, True): 2}),
            view(1, 0, (recv(0, 2),)),
            view(2, Gate.SEND),
        ),
        GROUPS,
    )
    assert found.release == ("0.n0.0",)  # it has sent number 0 and 1; number 2 is waited for


def test_a_receive_whose_message_was_sent_releases_nobody() -> None:
    found = settle(
        views(view(0, Gate.SEND, p2p={("pp", 1, 0, True): 3}), view(1, 0, (recv(0, 2),))), GROUPS
    )
    assert found.release == ()
    assert found.under_way == ("0.n0.1",)


def test_a_chain_releases_through_a_rank_that_runs() -> None:
    """Rank 2 waits for 1, which waits for 0, which is held: only 0 can be released."""
    found = settle(
        views(view(0, Gate.SEND), view(1, 0, (recv(0, 0),)), view(2, 0, (recv(1, 0),))), GROUPS
    )
    assert found.release == ("0.n0.0",)
    assert set(found.under_way) == {"0.n0.1", "0.n0.2"}


def test_a_state_older_than_the_last_permit_decides_nothing() -> None:
    """Rank 1's state says held, but it has not answered permit 6 yet: never the end, no release."""
    found = settle(views(view(0, 0, (recv(1, 0),)), view(1, Gate.SEND, asked=6, reply=5)), GROUPS)
    assert not found.reached
    assert found.release == ()
    assert set(found.under_way) == {"0.n0.0", "0.n0.1"}


def test_a_process_without_a_state_is_under_way() -> None:
    found = settle({"0.n0.0": View("0.n0.0", 0, None, 5)}, GROUPS)
    assert found.under_way == ("0.n0.0",)


def test_a_rank_in_a_long_compute_is_waited_for() -> None:
    found = settle(views(view(0, Gate.COLLECTIVE), view(1)), GROUPS)
    assert not found.reached
    assert found.release == ()


def test_who_waits_for_a_dead_rank_will_come_to_no_gate() -> None:
    found = settle(views(view(0, 0, (recv(1, 0),)), view(2, Gate.STEP)), GROUPS, departed={1})
    assert found.reached
    stuck = found.stuck["0.n0.0"]
    assert (list(found.stuck), stuck.rank, stuck.op.op, stuck.gone) == (["0.n0.0"], 0, "recv", 1)


def test_a_rank_that_was_never_seen_may_still_come() -> None:
    assert not settle(views(view(0, 0, (recv(1, 0),))), GROUPS).reached


def test_a_restarted_rank_is_not_its_dead_predecessor() -> None:
    """Rank 1 of epoch 1 does not answer for epoch 0."""
    other = view(1, Gate.SEND)
    other.proc = "1.n0.1"
    found = settle({"0.n0.0": view(0, 0, (recv(1, 0),)), "1.n0.1": other}, GROUPS, departed={1})
    assert found.release == ()
    assert list(found.stuck) == ["0.n0.0"]


def test_patience_gives_an_op_a_moment_and_a_computing_rank_more() -> None:
    """15 ms for an op seen open; 2 s while an action runs that began after the op was issued."""
    grace_period = GracePeriod(grace_ns=15, long_ns=2000)
    waiting = view(0, 0, (recv(1, 0),))
    both = views(waiting, view(1, Gate.SEND))
    assert settle(both, {}, grace_period.update(both, 100)).release == ()
    assert settle(both, {}, grace_period.update(both, 114)).release == ()
    assert settle(both, {}, grace_period.update(both, 115)).release == ("0.n0.1",)
    waiting.computing_since_ns = 7
    assert settle(both, {}, grace_period.update(both, 115)).release == ()
    assert settle(both, {}, grace_period.update(both, 2100)).release == ("0.n0.1",)


def test_an_op_issued_inside_the_action_is_not_given_more_time() -> None:
    """Tensor parallel: the collective belongs to the action that runs."""
    grace_period = GracePeriod(grace_ns=15, long_ns=2000)
    inside = view(0, 0, (all_reduce(0),), issued=1)
    inside.computing_since_ns = 7
    both = views(inside, view(1, Gate.COLLECTIVE))
    grace_period.update(both, 100)
    assert settle(both, GROUPS, grace_period.update(both, 120)).release == ("0.n0.1",)
