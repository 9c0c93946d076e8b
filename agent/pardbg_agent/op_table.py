"""Ops of this rank: sequence numbers, open ops, and sums of completed ones.

Every call is O(1) and safe between threads under the GIL without a lock: counters are
``itertools.count``, the table is a dict whose single operations are atomic."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pardbg_agent.ctrl.agent_messages import OpenOp
from pardbg_agent.wire import CALLS, NO_GROUP, NONE, Flag, Kind, Lane

Edge = tuple[str, int, int, bool]
"""(group key, peer, tag, send)"""


_P2P, _SEND = int(Flag.P2P), int(Flag.SEND)


class Issued(NamedTuple):
    """Op between its issue and its completion."""

    group: str
    group_id: int
    op: str
    seq: int
    p2p: bool
    send: bool
    peer: int
    tag: int
    order: int
    name_id: int
    since_ns: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class OpsState:
    """Fields of State that describe ops."""

    open: tuple[OpenOp, ...]
    issued: dict[str, int]
    p2p: dict[Edge, int]


class Call(NamedTuple):
    """Blocking call under way, which the table counts as an op (life.calls)."""

    token: int
    name_id: int
    group_id: int
    seq: int
    step: int
    t0: int


class OpTable:
    """Counters and open ops of the process."""

    def __init__(self, status: Callable[..., None], newest: Callable[..., None]) -> None:
        """``status``, ``newest``: ring.Status's ``op`` and ``newest_op``."""
        self._status, self._show_newest = status, newest
        self._idle = functools.partial(status, 0, 0, NO_GROUP, NONE, 0, 0, 0, 0, 0)
        self._open: dict[int, tuple[Any, ...]] = {}
        """Fields of Issued by token, oldest first; tuples, as a NamedTuple takes longer per op."""
        self._token = itertools.count(1).__next__
        self._newest = 0
        """Token given last."""
        self._seq: dict[tuple[str, bool], itertools.count[int]] = {}
        self._order: dict[Edge, itertools.count[int]] = {}
        self._collectives: dict[str, int] = {}
        self._edges: dict[Edge, int] = {}

    def next_seq(self, group_key: str, p2p: bool = False) -> int:
        """Return the number of a group's next op, from 0; p2p ops count apart from collectives."""
        return self.counter(group_key, p2p)()

    def counter(self, group_key: str, p2p: bool = False) -> Callable[[], int]:
        """Return ``next_seq`` of a group as a function to keep, which saves the look-up."""
        key = (group_key, p2p)
        counter = self._seq.get(key)
        if counter is None:
            counter = self._seq.setdefault(key, itertools.count())
        return counter.__next__

    def issued(
        self,
        group_key: str,
        group_id: int,
        op: str,
        seq: int,
        p2p: bool,
        send: bool,
        peer: int,
        tag: int,
        name_id: int,
        t0: int,
        order: int = -1,
        a: int = 0,
        b: int = 0,
    ) -> int:
        """Note an op's issue: call it before the call into the backend, and after the gate. ``a``,
        ``b``: its bytes in and out. Returns the token for ``completed``."""
        if p2p:
            order = self.passed(group_key, seq, p2p, send, peer, tag, order)
        else:
            self._collectives[group_key] = seq + 1  # as passed does, without a call
        self._newest = token = self._token()
        pending = self._open
        pending[token] = (
            group_key, group_id, op, seq, p2p, send, peer, tag, order, name_id, t0,
            a, b,
        )  # fmt: skip
        try:
            flags = _P2P | _SEND if send else _P2P if p2p else 0
            if (num := len(pending)) > 1:
                self._show()
                self._show_newest(name_id, seq, group_id, peer, flags, t0, num, a, b)
            else:
                self._status(name_id, seq, group_id, peer, flags, t0, 1, a, b)
        except BaseException:
            del pending[token]  # its token is lost
            raise
        return token

    def passed(
        self, group_key: str, seq: int, p2p: bool, send: bool, peer: int, tag: int, order: int = -1
    ) -> int:
        """Count an op that goes to the backend unrecorded: numbers must equal the other ranks'.
        Returns the message's order on its edge; -1 for a collective."""
        if not p2p:
            self._collectives[group_key] = seq + 1
            return order
        edge = (group_key, peer, tag, send)
        if order < 0:
            counter = self._order.get(edge)
            if counter is None:
                counter = self._order.setdefault(edge, itertools.count())
            order = next(counter)
        self._edges[edge] = order + 1
        return order

    def completed(self, token: int) -> bool:
        """Note an op as complete (or failed, or never issued after all). False: it already was."""
        if self._open.pop(token, None) is None:
            return False
        if self._open:
            self._show()
        else:
            self._idle()
        return True

    @property
    def revision(self) -> int:
        """Changes whenever State would: one up per issue, one up per completion."""
        return 2 * self._newest - len(self._open)

    def num_issued(self, group_key: str) -> int:
        """Return the number of collectives issued on this group: the number of the next one."""
        return self._collectives.get(group_key, 0)

    def num_on_edge(self, group_key: str, peer: int, tag: int, send: bool) -> int:
        """Return the number of p2p ops issued on an edge: the order of the next one."""
        return self._edges.get((group_key, peer, tag, send), 0)

    @property
    def num_ever(self) -> int:
        return self._newest

    @property
    def unused(self) -> bool:
        """Return whether no op was ever numbered."""
        return not self._seq and not self._newest

    @property
    def num_open(self) -> int:
        """Return the number of ops that a backend has; blocking calls are not counted."""
        return sum(not op[0].startswith(CALLS) for op in list(self._open.values()))

    def _first(self) -> tuple[Any, ...] | None:
        while True:
            try:
                return next(iter(self._open.values()), None)
            except RuntimeError:  # another thread changed the dict in between
                continue

    def snapshot(self) -> OpsState:
        """Return the ops' part of State; without calls, which have no gate."""
        edges = [(*edge, n) for edge, n in list(self._edges.items())]
        return as_state(list(self._open.values()), list(self._collectives.items()), edges)

    def idle(self) -> None:
        """Show in the status block that no op is open."""
        self._idle()

    def _show(self) -> None:
        op = self._first()
        if op is None:
            self._idle()
            return
        _, group_id, _, seq, p2p, send, peer, _, _, name_id, t0, a, b = op
        flags = _P2P | _SEND if send else _P2P if p2p else 0
        self._status(name_id, seq, group_id, peer, flags, t0, len(self._open), a, b)


def as_state(
    ops: Iterable[Sequence[Any]], issued: Iterable[tuple[str, int]], edges: Iterable[Sequence[Any]]
) -> OpsState:
    """Return the snapshot of ops and counts; an edge is (group, peer, tag, send, number)."""
    known = [op for op in map(Issued._make, ops) if not op.group.startswith(CALLS)]
    return OpsState(
        tuple(
            OpenOp(op.group, op.op, op.seq, op.peer if op.p2p else None, bool(op.send), op.tag,
                   op.order if op.p2p else 0, op.since_ns)
            for op in known
        ),
        {key: n for key, n in issued if not key.startswith(CALLS)},
        {(group, peer, tag, bool(send)): n for group, peer, tag, send, n in edges},
    )  # fmt: skip


MAX_GAPS: Final = 32
"""Maximum number of periods without records that are reported one by one."""


class Unrecorded:
    """Periods in which ops were counted, not recorded one by one: at lower levels, and since a hook
    failed. Reported, so that such ops are not taken for ops that were never issued."""

    def __init__(self, tell: Callable[[list[list[int]]], None], from_start: bool = False) -> None:
        self._tell = tell
        self._gaps: list[list[int]] = [[0, 0]] if from_start else []
        self._for_good = False

    @property
    def gaps(self) -> list[list[int]]:
        """Return [from, to] in ns for each period; to = 0 while it lasts."""
        return [list(gap) for gap in self._gaps]

    def begins(self, t_ns: int, for_good: bool = False) -> None:
        """Begin a period without records of ops; ``for_good``: a hook failed."""
        self._for_good |= for_good
        if self._gaps and not self._gaps[-1][1]:
            return
        self._gaps.append([t_ns, 0])
        if len(self._gaps) > MAX_GAPS:  # the oldest two become one
            self._gaps[0][1] = self._gaps.pop(1)[1]
        self._tell(self.gaps)

    def ends(self, t_ns: int) -> None:
        """End a period without records of ops, unless a hook failed."""
        if self._gaps and not self._gaps[-1][1] and not self._for_good:
            self._gaps[-1][1] = t_ns
            self._tell(self.gaps)


MOST: Final = 1 << 16
"""Maximum ops of a step that are summed; with more, the oldest are missing from the sums."""
_KEPT: Final = int(Flag.P2P | Flag.SEND)


class Sums:
    """Sums of level summary: instead of a record per op, one per step and kind of op, with number
    and bytes. Completed ops since the last step's end; ``add`` may be called from any thread."""

    def __init__(self) -> None:
        self._ops: deque[tuple[int, int, int, int, int]] = deque(maxlen=MOST)
        self.add = self._ops.append
        """``add((name_id, group_id, flags, bytes, ns))``: one append, which needs no lock."""
        self.more: Callable[[], dict[tuple[int, int, int], tuple[int, int, int]]] = dict
        """Returns (and resets) sums that were added up elsewhere, in the form of ``write``'s."""

    def write(self, record: Callable[..., Any], t0: int, t1: int, step: int) -> None:
        """Write the sums as OP_SUM records of a step."""
        ops = self._ops
        sums = {key: list(known) for key, known in self.more().items()}
        for _ in range(len(ops)):
            name_id, group_id, flags, num_bytes, ns = ops.popleft()
            known = sums.setdefault((name_id, group_id, flags & _KEPT), [0, 0, 0])
            known[0] += 1
            known[1] += num_bytes
            known[2] += ns
        for (name_id, group_id, flags), (number, num_bytes, ns) in sums.items():
            record(
                Kind.OP_SUM, Lane.COMM, flags, name_id, t0, t1, step, number, group_id, NONE, NONE,
                NONE, num_bytes, ns,
            )  # fmt: skip
