"""Op counters and open ops: what STATE says of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import OpenOp
from pardbg_agent.op_table import OpsState, OpTable
from pardbg_agent.ring import Ring
from pardbg_agent.wire import NO_GROUP, NONE, Flag
from tests.hook_ways import NATIVE, needs_native


class Blocks:
    """The status blocks that were written; of the table in C++, as it is now."""

    def __init__(self, ring: Ring | None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.newest_seen: list[tuple[Any, ...]] = []
        self._ring = ring

    def __getitem__(self, at: int) -> tuple[Any, ...]:
        if self._ring is None:
            return self.seen[at]
        return wire.STATUS_OP.unpack_from(self._ring.buffer, wire.STATUS_OP_OFFSET)

    @property
    def newest(self) -> tuple[Any, ...]:
        if self._ring is None:
            return self.newest_seen[-1] if self.newest_seen else (0,) * 9
        return wire.STATUS_OP.unpack_from(self._ring.buffer, wire.STATUS_NEWEST_OFFSET)


Make = Callable[[], tuple[Any, Blocks]]


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an op table, in Python or in C++."""

    def python() -> tuple[Any, Blocks]:
        blocks = Blocks(None)
        seen, newest = blocks.seen, blocks.newest_seen
        return OpTable(lambda *op: seen.append(op), lambda *op: newest.append(op)), blocks

    def native() -> tuple[Any, Blocks]:
        from pardbg_agent.hooks.ops import native_way

        monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
        ring = Ring.anonymous()
        table = native_way.module().Table(
            ring.buffer, *native_way.OFFSETS, ring.capacity, ring.record
        )
        return native_way.NativeTable(table), Blocks(ring)

    return native if request.param == "native" else python


def test_sequences_count_per_group_and_kind(make: Make) -> None:
    ops, _ = make()
    assert [ops.next_seq("dp") for _ in range(3)] == [0, 1, 2]
    assert ops.next_seq("pp") == 0
    assert ops.next_seq("dp", p2p=True) == 0
    assert ops.next_seq("dp") == 3


def test_orders_count_per_directed_edge_and_tag(make: Make) -> None:
    ops, _ = make()
    for peer, tag, send in ((1, 0, True), (1, 0, True), (1, 0, False), (1, 7, True), (2, 0, True)):
        ops.issued("pp", 2, "send" if send else "recv", 0, True, send, peer, tag, 9, 1000)
    assert ops.num_on_edge("pp", 1, 0, True) == 2
    assert ops.num_on_edge("pp", 1, 0, False) == 1
    assert ops.num_on_edge("pp", 1, 7, True) == 1
    assert ops.num_on_edge("pp", 2, 0, True) == 1


def test_a_collective_is_open_between_issue_and_completion(make: Make) -> None:
    ops, blocks = make()
    token = ops.issued("dp", 2, "all_reduce", 41, False, False, -1, 0, 9, 1000, -1, 64, 32)
    op = OpenOp("dp", "all_reduce", 41, since_ns=1000)
    assert ops.snapshot() == OpsState((op,), {"dp": 42}, {})
    assert blocks[-1] == (9, 41, 2, -1, 0, 1000, 1, 64, 32)
    assert ops.completed(token)
    assert not ops.completed(token)
    assert ops.snapshot().open == ()
    assert ops.snapshot().issued == {"dp": 42}
    assert blocks[-1] == (0, 0, NO_GROUP, NONE, 0, 0, 0, 0, 0)


def test_p2p_counts_its_edge_and_not_the_group(make: Make) -> None:
    ops, blocks = make()
    ops.issued("pp", 1, "send", 0, True, True, 3, 5, 9, 10)
    ops.issued("pp", 1, "send", 1, True, True, 3, 5, 9, 20)
    ops.issued("pp", 1, "recv", 2, True, False, 3, 5, 8, 30)
    found = ops.snapshot()
    assert [op.order for op in found.open] == [0, 1, 0]
    assert found.p2p == {("pp", 3, 5, True): 2, ("pp", 3, 5, False): 1}
    assert found.issued == {}
    assert blocks[-1] == (9, 0, 1, 3, Flag.P2P | Flag.SEND, 10, 3, 0, 0)


def test_the_status_block_shows_the_oldest_open_op(make: Make) -> None:
    ops, blocks = make()
    first = ops.issued("a", 1, "all_reduce", 0, False, False, -1, 0, 5, 10)
    ops.issued("b", 2, "barrier", 0, False, False, -1, 0, 6, 20)
    assert blocks[-1][:2] == (5, 0)
    ops.completed(first)
    assert blocks[-1] == (6, 0, 2, -1, 0, 20, 1, 0, 0)


def test_a_second_block_shows_the_op_issued_last_while_others_were_open(make: Make) -> None:
    ops, blocks = make()
    first = ops.issued("a", 1, "all_reduce", 0, False, False, -1, 0, 5, 10, -1, 8, 8)
    assert blocks.newest == (0,) * 9  # it is the oldest one, too
    ops.issued("b", 2, "send", 3, True, True, 1, 0, 6, 20, -1, 64, 32)
    assert blocks.newest == (6, 3, 2, 1, Flag.P2P | Flag.SEND, 20, 2, 64, 32)
    ops.completed(first)
    assert blocks.newest == (6, 3, 2, 1, Flag.P2P | Flag.SEND, 20, 2, 64, 32)


def test_a_gap_in_seq_does_not_lower_the_count(make: Make) -> None:
    ops, _ = make()
    ops.issued("dp", 1, "all_reduce", 4, False, False, -1, 0, 5, 10)
    assert ops.snapshot().issued == {"dp": 5}


def test_revision_changes_with_each_issue_and_completion(make: Make) -> None:
    ops, _ = make()
    seen = [ops.revision]
    token = ops.issued("dp", 1, "barrier", 0, False, False, -1, 0, 5, 10)
    seen.append(ops.revision)
    ops.completed(token)
    seen.append(ops.revision)
    assert len(set(seen)) == 3


def test_threads_issue_and_complete_at_once(make: Make) -> None:
    ops, _ = make()
    seqs: list[int] = []

    def work(n: int) -> None:
        for _ in range(500):
            seq = ops.next_seq("dp")
            seqs.append(seq)
            token = ops.issued("dp", 1, "all_reduce", seq, False, False, -1, 0, 5, n)
            ops.snapshot()
            assert ops.completed(token)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(2000))
    assert ops.num_open == 0
