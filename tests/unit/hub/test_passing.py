"""What a relay passes on after a link broke: nothing out of turn, nothing kept for ever."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from pardbg.hub.ctrl_messages import BoardNews
from pardbg.hub.run.config import Endpoints
from pardbg.hub.serve.sockets import make_keys
from pardbg.hub.uplink import MAX_KEPT, MAX_REFUSED, BatchOrder, Uplink
from pardbg_agent import wire

P = b"0.n1.7"


def batch(first: int, count: int, lost: int = 0, flags: int = 0) -> bytes:
    head = wire.FRAME.pack(wire.PROTOCOL_VERSION, flags, count, first, lost, 1)
    return head + bytes(count * wire.RECORD_BYTES)


def test_batches_wait_for_the_welcome_and_then_pass_in_turn() -> None:
    order = BatchOrder()
    early = [batch(0, 10), batch(10, 5)]
    assert not any(order.may_forward(P, one) for one in early)
    assert order.welcome(P, 0) == early
    assert order.may_forward(P, batch(15, 1)) and order.welcome(P, 0) == []


def test_after_a_new_link_only_what_the_hub_wants_next_passes() -> None:
    order = BatchOrder()
    order.welcome(P, 0)
    assert order.may_forward(P, batch(0, 20))
    order.new_link()
    assert not order.may_forward(P, batch(20, 5))  # sent before the agent heard of it
    assert order.welcome(P, 12) == []
    assert not order.may_forward(P, batch(25, 5))
    assert order.may_forward(P, batch(12, 13)) and order.may_forward(P, batch(25, 5))


def test_what_the_ring_lost_is_not_waited_for() -> None:
    order = BatchOrder()
    order.welcome(P, 5)
    assert order.may_forward(P, batch(9, 2, lost=4)) and not order.may_forward(
        P, batch(20, 2, lost=4)
    )
    assert order.may_forward(P, batch(11, 2, lost=4))
    order.new_link()
    order.welcome(P, 5)  # sent before, gone since, so no loss to the ring: but to the hub
    assert not order.may_forward(P, batch(20, 2, lost=4))
    assert order.may_forward(P, batch(9, 2, lost=4, flags=wire.FRAME_OLDEST))


def test_a_process_that_never_goes_back_is_heard_all_the_same() -> None:
    order = BatchOrder()
    order.welcome(P, 0)
    passed = [order.may_forward(P, batch(50 + n, 1)) for n in range(MAX_REFUSED + 2)]
    assert passed == [False] * MAX_REFUSED + [True, True]


def test_what_waits_is_bounded() -> None:
    order = BatchOrder()
    for n in range(MAX_KEPT):
        assert not order.full
        order.may_forward(P, batch(n, 1))
    assert order.full
    assert len(order.welcome(P, 0)) == MAX_KEPT and not order.full


def test_a_relay_ends_at_once_where_no_hub_is() -> None:
    context: zmq.Context[Any] = zmq.Context()
    up = Uplink(context, Endpoints("tcp://127.0.0.1:1"), make_keys(), 1)
    assert up.send(BoardNews(())) is False and not up.up
    up.close(linger_ms=0)
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(20)
    assert not ending.is_alive()  # a socket left open would keep it
