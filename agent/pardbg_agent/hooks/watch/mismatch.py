"""`watch mismatch` and `watch skew>T`: each op is posted on the board and compared there before it
is issued (``control.posts``: how; ``control.agreement``: what must be equal). Its own gate comes
right after, and holds a rank that disagrees: it has not issued, and ranks inside go on waiting.

Not compared, as ranks may rightly number them differently: ops of groups without a name (made by
hand), ops inside a backend's coalescing, receives on an edge that had a receive from any source,
and all ops of a rank whose counting failed."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.control import agreement, posts
from pardbg_agent.control.posts import Peer, PeerPosts, Post, Posts
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import Group
from pardbg_agent.hooks.tensors import bytes_of
from pardbg_agent.identity import job_name
from pardbg_agent.wire import NONE

_MOST: Final = 4096
"""Maximum entries of each cache here; a full one starts over."""


class Comparing:
    """The board of one Core's process, and the boards of other processes."""

    def __init__(self, c: _core.Core) -> None:
        path = c.ring.path
        if path is None:
            raise ValueError("no ring, so no board")
        who = c.identity
        self.core = c
        self.own = Posts.create(
            path.removesuffix(".ring") + posts.SUFFIX, posts.hash64(who.epoch, job_name()), who.rank
        )
        folder = c.run.ring_dir if c.run is not None else ""
        self.others = PeerPosts(folder, self.own)
        self.hash = functools.lru_cache(_MOST)(posts.hash64)
        """hash64, cached by name."""
        self._packed: dict[Any, bytes] = {}
        c.watches_changed = self.tell

    def tell(self) -> None:
        """Write this rank's watches on its board: other ranks wait only for ranks that watch."""
        watches = self.core.watches
        kinds = (bit for kind, bit in posts.KINDS.items() if getattr(watches, kind) is not None)
        self.own.identify(self.core.identity.rank, sum(kinds))

    def pack(self, op: Any) -> bytes:
        tensor = op.tensor
        shape = None if tensor is None else tensor.shape
        key = (op.spec.kind, op.reduce, op.peer, op.dtype, shape, op.in_bytes, op.out_bytes)
        known = self._packed.get(key)
        if known is None:
            if len(self._packed) >= _MOST:
                self._packed.clear()
            dtype = "" if op.dtype is None else str(op.dtype).removeprefix("torch.")
            known = self._packed[key] = posts.pack_what(
                op.spec.kind, op.reduce, _num_tensors(op), op.peer, op.in_bytes, op.out_bytes,
                dtype, "" if shape is None else ", ".join(map(str, shape)),
            )  # fmt: skip
        return known


def of(c: _core.Core) -> Comparing:
    """Return this Core's comparison. Raises OSError if there is no room for its board."""
    parts = context.of(c).parts
    found: Comparing | None = parts.get(Comparing)
    if found is None:
        found = parts[Comparing] = Comparing(c)
    return found


def comparable(c: _core.Core) -> bool:
    """Return whether this rank's sequence numbers are comparable with other ranks'."""
    return "c10d.count" not in c.guard.disabled and c.identity.rank >= 0


def _num_tensors(op: Any) -> int:
    one = 0 if op.tensor is None else bytes_of(op.tensor)
    if not one or one in (op.in_bytes, op.out_bytes):
        return 1
    return next((n // one for n in (op.in_bytes, op.out_bytes) if n and n % one == 0), 0)


def check(c: _core.Core, op: Any) -> None:
    """Post an op (``op_watches.Coming``), compare it; ``gate.stop`` if it disagrees or is late."""
    group, watches = op.group, c.watches
    if not comparable(c) or group.key.startswith("ProcessGroup@"):
        return
    x = of(c)
    x.tell()
    if op.spec.p2p:
        if watches.mismatch is not None:
            _compare_pair(c, x, op, watches.mismatch.number)
    else:
        _compare(c, x, op)


def _compare(c: _core.Core, x: Comparing, op: Any) -> None:
    group: Group = op.group
    watches, packed, t_ns = c.watches, x.pack(op), now_ns()
    what, seq = x.hash("op", group.key), c.ops.num_issued(group.key)
    x.own.post(what, seq, t_ns, packed)
    here = _Here(group, what, seq, t_ns, packed, x.others.of(group.ranks, len(group.ranks) - 1))
    if watches.mismatch is not None:
        text = _disagrees(x, here)
        text = text or _disagrees_away(c, x, here)
        if text and c.gate.stop(watches.mismatch.number, text):
            x.own.post(what, seq, t_ns, packed, held=True)
            return
    if watches.skew is not None:
        text = _is_late(c, x, here, watches.skew.limit)
        if text:
            c.gate.stop(watches.skew.number, text)


class _Here(NamedTuple):
    """Collective that this rank has posted, with its peers' boards."""

    group: Group
    what: int
    seq: int
    t_ns: int
    packed: bytes
    found: list[Peer]
    """Boards of the group's other ranks."""

    @property
    def where(self) -> str:
        return f"{self.group.name} #{self.seq}"


def _disagrees_away(c: _core.Core, x: Comparing, here: _Here) -> str:
    """Compare with ranks of other nodes, whose posts arrive a moment late. Both ranks of a pair may
    wait for the other: if they disagree, the later one is held. This wait, like a hold, is not the
    agent's cost."""
    waited = posts.waited(here.found, lambda other: other.find(here.what, here.seq))
    c.hook_ns -= waited
    return _disagrees(x, here, later=True) if waited else ""


def _disagrees(x: Comparing, here: _Here, later: bool = False) -> str:
    """Return the message about a disagreement, or an empty text. Slots are mostly equal to the
    byte, and then nothing is decoded. ``later``: ignore ranks that came after this one."""
    for other in here.found:
        slot = other.find(here.what, here.seq)
        if slot is not None and not posts.same(slot, here.packed):
            break
    else:
        return ""
    x.others.refresh()  # ranks that died since do not count
    others = posts.posts(x.others.of(here.group.ranks, 0), here.what, here.seq)
    if others is None or x.own.rank in others:
        return ""
    mine = _mine(x, here)
    if later:
        others = {
            rank: post for rank, post in others.items()
            if (post.t_ns, rank) < (mine.t_ns, mine.rank) or not agreement.differs(mine, post)
        }  # fmt: skip
    return agreement.verdict(mine, others, len(here.group.ranks), here.where)


def _is_late(c: _core.Core, x: Comparing, here: _Here, limit_ns: float) -> str:
    """Return the message about this rank's lateness, if it is the last watching rank to come; else
    an empty text."""
    mine = _mine(x, here)
    others = posts.posts(here.found, here.what, here.seq)
    if not others or not agreement.late(mine, others, limit_ns, here.where):
        return ""
    c.hook_ns -= posts.waited(here.found, lambda other: other.find(here.what, here.seq))
    x.others.refresh()
    watching = [
        other for other in x.others.of(here.group.ranks, 0) if other.kinds & posts.KINDS["skew"]
    ]
    others = posts.posts(watching, here.what, here.seq)
    if not others or len(others) < len(watching) or x.own.rank in others:
        return ""
    # A pause is no lateness: waits count from the moment the last rank was released.
    since = 0
    for held, since_ns in (posts.gate_of(c.ring.buffer), *(o.gate() for o in x.others.all())):
        if held:
            return ""
        since = max(since, since_ns)
    return agreement.late(mine, others, limit_ns, here.where, since)


def _compare_pair(c: _core.Core, x: Comparing, op: Any, number: int) -> None:
    """Compare a send with its receive: the first of the two posts, the second one compares with
    that post."""
    group, send, peer, me = op.group, op.spec.send, op.peer, c.identity.rank
    tag = op.args[op.spec.tag]
    if peer < 0 or (not send and c.ops.num_on_edge(group.key, NONE, tag, False)):
        return  # the message of an any-source receive is unknown before completion
    edge = (group.key, *((me, peer) if send else (peer, me)), tag)
    order = c.ops.num_on_edge(group.key, peer, tag, send)
    packed, t_ns = x.pack(op), now_ns()
    x.own.post(x.hash("p2p", *edge, send), order, t_ns, packed)
    others = posts.posts(x.others.of((peer,), 1), x.hash("p2p", *edge, not send), order)
    theirs = others.get(peer) if others else None
    if theirs is None:
        return
    text = agreement.pair(posts.post_of(me, t_ns, packed), theirs, peer)
    if text:
        x.others.refresh()
        if x.others.of((peer,), 0):  # it lives
            c.gate.stop(number, f"{text} (message {order} of tag {tag})")


def _mine(x: Comparing, here: _Here) -> Post:
    return posts.post_of(x.own.rank, here.t_ns, here.packed)
