"""Record batches of very many processes go to viewers bundled, and say the same."""

from __future__ import annotations

import random

from pardbg.events.decode import frame_head
from pardbg.hub.serve.collector import HOLD_NS, MAX_RECORDS, Bundles
from pardbg.store import Store
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import Kind
from tests.unit.trace_builder import Trace

MS = 1_000_000


def payload(first: int, count: int, dropped: int = 0, flags: int = 0, sent: int = 0) -> bytes:
    head = wire.FRAME.pack(wire.PROTOCOL_VERSION, flags, count, first, dropped, sent)
    return head + bytes(count * wire.RECORD_BYTES)


class Out:
    """What was published, and the bundles that did."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.bundles = Bundles(lambda key, body: self.sent.append((key, body)))

    @property
    def heads(self) -> list[tuple[bytes, int, int]]:
        heads = ((key, frame_head(body)) for key, body in self.sent)
        return [(key, head.first, head.count) for key, head in heads]


def test_batches_that_go_on_are_one_message_after_a_moment() -> None:
    out = Out()
    for i in range(4):
        out.bundles.add(b"Ra", payload(10 * i, 10, dropped=i), i * 100 * MS)
        out.bundles.tick(i * 100 * MS)
    out.bundles.add(b"Rb", payload(0, 5), 350 * MS)
    assert not out.sent
    out.bundles.tick(HOLD_NS)
    assert out.heads == [(b"Ra", 0, 40)]  # b came later: it waits on
    assert frame_head(out.sent[0][1]).dropped == 3
    out.bundles.flush()
    assert out.heads[1:] == [(b"Rb", 0, 5)]


def test_a_gap_another_origin_and_too_many_are_messages_of_their_own() -> None:
    out = Out()
    out.bundles.add(b"Ra", payload(0, 10), 0)
    out.bundles.add(b"Ra", payload(12, 10), 0)
    out.bundles.add(b"Ra", payload(22, 10, flags=1), 0)
    out.bundles.add(b"Ra", payload(32, MAX_RECORDS, flags=1), 0)
    out.bundles.release(b"Rb")
    out.bundles.release(b"Ra")
    assert out.heads == [
        (b"Ra", 0, 10), (b"Ra", 12, 10), (b"Ra", 22, 10), (b"Ra", 32, MAX_RECORDS),
    ]  # fmt: skip


def test_a_store_fed_with_bundles_is_the_one_fed_with_batches() -> None:
    """Of five processes, batches of any length in any turn, one of them lost."""
    gaps = 0
    for seed in range(8):
        draw, trace = random.Random(seed), Trace(5)
        for at in range(300):
            proc = draw.choice(trace.ranks)
            proc.record(Kind.SPAN, at, at + 1, step=at)
            if draw.random() < 0.3:
                proc.flush()
        trace.flush()
        lost = draw.randrange(10, 20)
        records = [m for m in trace.messages if m.key[:1] == b"R"]
        came = [m for m in trace.messages if m is not records[lost]]
        out, now = Out(), 0
        for message in came:
            now += draw.randrange(200 * MS)
            if message.key[:1] == b"R":
                out.bundles.add(message.key, message.payload, now)
                out.bundles.tick(now)
            else:
                out.sent.append((message.key, message.payload))
        out.bundles.flush()
        assert len(out.sent) < len(came)
        plain, bundled = Store(), Store()
        plain.apply_all(came)
        bundled.apply_all(Message(key, body, 0) for key, body in out.sent)
        plain.settle()
        bundled.settle()
        assert plain.lost(None) == bundled.lost(None)
        gaps += plain.lost(None)
        for name, one in plain.procs.items():
            mine, other = one.table("span"), bundled.procs[name].table("span")
            assert mine.col("step").tolist() == other.col("step").tolist()
    assert gaps > 0
