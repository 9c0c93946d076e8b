"""Hand-made traces: writes real wire records and definitions, as an agent and the hub would.

Times are in ms unless a name says ns, so that a picture in a test's comment can be typed in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack

from pardbg.store.source import Message
from pardbg.store.store import Store
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane

MS = 1_000_000
BEGIN = 1_000_000 * MS
"""Hub time of ms 0: 1000 s after boot."""


def ns(ms: float) -> int:
    return BEGIN + round(ms * MS)


class Proc:
    """One rank's process."""

    def __init__(
        self, trace: Trace, rank: int | None, epoch: int, pid: int, host: str, start: float
    ) -> None:
        self.trace, self.rank, self.epoch = trace, rank, epoch
        self.proc = f"{epoch}.{host}.{pid}"
        self._names: dict[Any, int] = {}
        self._groups: dict[str, int] = {}
        self._seq: dict[tuple[str, bool], int] = {}
        self._records: list[bytes] = []
        self.life: dict[str, int] = {}
        """What its groups say besides."""
        self.index = 0
        self.define(
            wire.DefKind.PROCESS, proc=self.proc, rank=rank, world_size=None, host=host, pid=pid,
            epoch=epoch, start_ns=ns(start), wall_ns=0,
        )  # fmt: skip

    # definitions

    def define(self, kind: wire.DefKind, **fields: Any) -> None:
        payload = msgpack.packb({"k": kind.value, **fields})
        self.trace.say(wire.Key.DEFINITION.value + self.proc.encode(), payload)

    def name(self, text: str) -> int:
        if text not in self._names:
            self._names[text] = len(self._names) + 1
            self.define(wire.DefKind.NAME, id=self._names[text], s=text)
        return self._names[text]

    def op(
        self, op: str, dtype: str = "float32", reduce: str = "", root: int = -1, tag: int = 0,
        **more: Any,
    ) -> int:  # fmt: skip
        """``more``: ``at``, ``meets``."""
        key = (op, dtype, reduce, root, tag, more.get("meets"))
        if key not in self._names:
            self._names[key] = len(self._names) + 1
            self.define(
                wire.DefKind.OP, id=self._names[key], op=op, dtype=dtype, reduce=reduce, root=root,
                tag=tag, coalesced=False, **more,
            )  # fmt: skip
        return self._names[key]

    def group(self, key: str) -> int:
        if key not in self._groups:
            ranks = self.trace.groups[key]
            self._groups[key] = len(self._groups) + 1
            self.define(
                wire.DefKind.GROUP, id=self._groups[key], key=key, name=key, axis=None,
                ranks=list(ranks), backend="gloo", **self.life,
            )  # fmt: skip
        return self._groups[key]

    # records

    def record(
        self,
        kind: int,
        t0: float,
        t1: float,
        name_id: int = 0,
        *,
        lane: int = Lane.USER,
        flags: int = 0,
        step: int = 0,
        seq: int = 0,
        group_id: int = wire.NO_GROUP,
        stage: int = -1,
        mb: int = -1,
        peer: int = -1,
        a: float = 0,
        b: int = 0,
    ) -> None:
        layout = wire.RECORD_F if flags & Flag.FLOAT else wire.RECORD
        self.index += 1
        self._records.append(
            layout.pack(
                kind,
                lane,
                flags,
                name_id,
                ns(t0),
                ns(t1),
                step,
                seq,
                group_id,
                stage,
                mb,
                peer,
                a,
                b,
                self.index,
            )
        )

    def action(self, text: str, t0: float, t1: float, step: int = 0, a: int = 0) -> None:
        """``action("1F0", 2, 3)``: stage 1, forward, microbatch 0, from ms 2 to ms 3."""
        kind = next(c for c in text if c.isalpha())
        stage, mb = text.split(kind)
        self.record(
            Kind.ACTION, t0, t1, self.name(kind), lane=Lane.COMPUTE, step=step, stage=int(stage),
            mb=int(mb), a=a,
        )  # fmt: skip

    def collective(
        self,
        key: str,
        op: str,
        t0: float,
        done: float | None,
        num_bytes: int = 1000,
        out: int | None = None,
        *,
        dtype: str = "float32",
        reduce: str = "sum",
        root: int = -1,
        step: int = 0,
        source: int = Flag.DONE_COMPLETED,
        flags: int = Flag.ASYNC,
    ) -> int:
        seq = self.next_seq(key, False)
        common: dict[str, Any] = {
            "lane": Lane.COMM, "step": step, "seq": seq, "group_id": self.group(key),
            "peer": root, "a": num_bytes, "b": num_bytes if out is None else out,
        }  # fmt: skip
        op_id = self.op(op, dtype, reduce, root)
        self.record(Kind.OP_ISSUE, t0, t0 + 0.01, op_id, flags=flags, **common)
        if done is not None:
            self.record(Kind.OP_DONE, t0, done, op_id, flags=flags | source, **common)
        return seq

    def p2p(
        self,
        key: str,
        peer: int,
        send: bool,
        t0: float,
        done: float | None,
        num_bytes: int = 100,
        *,
        tag: int = 0,
        step: int = 0,
        stage: int = -1,
        mb: int = -1,
        label: str = "",
        issued: float | None = None,
        dtype: str = "float32",
    ) -> None:
        """``issued``: when the call that issued it returned; at once otherwise."""
        flags = Flag.P2P | (Flag.SEND if send else 0)
        common: dict[str, Any] = {
            "lane": Lane.COMM, "step": step, "seq": self.next_seq(key, True),
            "group_id": self.group(key), "peer": peer, "a": num_bytes, "b": num_bytes,
            "stage": stage, "mb": mb,
        }  # fmt: skip
        op_id = self.op("send" if send else "recv", dtype, label, tag=tag)
        back = t0 + 0.01 if issued is None else issued
        self.record(Kind.OP_ISSUE, t0, back, op_id, flags=flags, **common)
        if done is not None:
            self.record(Kind.OP_DONE, t0, done, op_id, flags=flags | Flag.DONE_WAITED, **common)

    def wait(self, t0: float, t1: float, step: int = 0, p2p: bool = True) -> None:
        self.record(Kind.WAIT, t0, t1, lane=Lane.WAIT, flags=Flag.P2P if p2p else 0, step=step)

    def step(self, step: int, t0: float, t1: float, hook_ns: int = 0) -> None:
        self.record(Kind.STEP, t0, t1, lane=Lane.STEP, step=step, a=hook_ns)

    def phase(self, name: str, t0: float, t1: float, step: int = 0) -> None:
        self.record(Kind.PHASE, t0, t1, self.name(name), lane=Lane.PHASE, step=step)

    def metric(self, name: str, t: float, value: float, step: int = 0) -> None:
        self.record(
            Kind.METRIC, t, t, self.name(name), lane=Lane.COUNTER, flags=Flag.FLOAT, step=step,
            a=value,
        )  # fmt: skip

    def seen_loss(self, t: float, value: float, step: int) -> None:
        """What backward began from."""
        self.record(
            Kind.METRIC, t, t, self.name("loss"), lane=Lane.COUNTER, step=step, a=value,
            flags=Flag.FLOAT | Flag.INFERRED,
        )  # fmt: skip

    def memory(self, name: str, t: float, value: int, peak: int = 0, stage: int = -1) -> None:
        self.record(
            Kind.MEMORY, t, t, self.name(name), lane=Lane.COUNTER, stage=stage, a=value, b=peak
        )

    def held(self, t0: float, t1: float) -> None:
        self.record(Kind.HELD, t0, t1, lane=Lane.GATE)

    def flush(self, dropped: int = 0) -> None:
        """Send what was recorded since the last flush as one batch."""
        if not self._records:
            return
        payload = batch(self.index - len(self._records), self._records, dropped)
        received = max(struct.unpack_from("<q", r, 16)[0] for r in self._records)
        self._records = []
        self.trace.say(wire.Key.RECORDS.value + self.proc.encode(), payload, received)

    def lose(self) -> None:
        """Forget what was recorded since the last flush: a gap."""
        self._records = []

    def next_seq(self, key: str, p2p: bool) -> int:
        seq = self._seq.get((key, p2p), 0)
        self._seq[key, p2p] = seq + 1
        return seq


def batch(first: int, records: Iterable[bytes], dropped: int = 0) -> bytes:
    """A records payload."""
    body = list(records)
    head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, len(body), first, dropped, 0)
    return head + b"".join(body)


class Trace:
    """A run: processes, what the hub says, and the messages in order."""

    def __init__(
        self, num_ranks: int = 0, groups: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.messages: list[Message] = []
        self.groups: dict[str, Sequence[int]] = dict(groups or {"world": range(num_ranks)})
        self._n = 0
        self.ranks = [self.process(rank) for rank in range(num_ranks)]

    def process(
        self,
        rank: int | None,
        epoch: int = 0,
        pid: int | None = None,
        host: str = "host",
        start: float = 0,
    ) -> Proc:
        pid = pid if pid is not None else 100 + (rank or 0)
        return Proc(self, rank, epoch, pid, host, start)

    def say(self, key: bytes, payload: bytes, received_ns: int = 0) -> None:
        self.messages.append(Message(key, payload, received_ns or ns(0)))

    def hub(self, key: wire.Key, t: float, **fields: Any) -> None:
        """OUTPUT, CONTROL or STATE."""
        self._n += 1
        payload = msgpack.packb({"n": self._n, "t_ns": ns(t), **fields})
        self.say(key.value, payload, ns(t))

    def define(self, kind: wire.DefKind, **fields: Any) -> None:
        self.say(wire.Key.DEFINITION.value, msgpack.packb({"k": kind.value, **fields}))

    def state(self, t: float, **ranks: Mapping[str, Any]) -> None:
        """``state(5, **{proc: {...}})``"""
        self.hub(wire.Key.STATE, t, ranks=ranks)

    def output(self, t: float, text: str, rank: int | None = None, stream: str = "stdout") -> None:
        self.hub(wire.Key.OUTPUT, t, rank=rank, stream=stream, text=text)

    def end(self, t: float, code: int = 0) -> None:
        self.define(wire.DefKind.END, proc=None, t_ns=ns(t), code=code)

    def define_end(self, proc: Proc, t: float, reason: str) -> None:
        self.define(wire.DefKind.END, proc=proc.proc, t_ns=ns(t), reason=reason)

    def plan(
        self,
        schedule: str,
        order: Mapping[int, Sequence[str]],
        num_microbatches: int,
        num_virtual: int = 1,
    ) -> None:
        """The same plan from each rank's process, as the hooks send it."""
        for proc in self.ranks:
            proc.define(
                wire.DefKind.PLAN,
                schedule=schedule, group="world", ranks=sorted(order),
                num_stages=len(order) * num_virtual, num_microbatches=num_microbatches,
                num_virtual=num_virtual, order={str(r): list(row) for r, row in order.items()},
                source="schedule", paced=False,
            )  # fmt: skip

    def flush(self) -> Trace:
        for proc in self.ranks:
            proc.flush()
        return self

    def store(self, **kwargs: Any) -> Store:
        """Everything said so far, in a store."""
        self.flush()
        store = Store(**kwargs)
        store.apply_all(self.messages)
        return store


def one_f_one_b(num_ranks: int, num_microbatches: int) -> dict[int, list[str]]:
    """The 1F1B plan: p - 1 - r forwards ahead, then one of each in turn."""
    plan = {}
    for rank in range(num_ranks):
        ahead = min(num_ranks - 1 - rank, num_microbatches)
        row = [f"{rank}F{i}" for i in range(ahead)]
        for i in range(num_microbatches):
            if ahead + i < num_microbatches:
                row.append(f"{rank}F{ahead + i}")
            row.append(f"{rank}B{i}")
        plan[rank] = row
    return plan


def gpipe(num_ranks: int, num_microbatches: int) -> dict[int, list[str]]:
    return {
        rank: [f"{rank}F{i}" for i in range(num_microbatches)]
        + [f"{rank}B{i}" for i in range(num_microbatches)]
        for rank in range(num_ranks)
    }
