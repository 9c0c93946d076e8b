"""`watch mismatch`, `skew` and `diverge` in real torch: rank 1 of a fake world of 4, whose three
peers are boards that the test writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import clock, core, hooks
from pardbg_agent.control import posts
from pardbg_agent.control.watches import NO_WATCHES
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.tensors import bits_sum
from pardbg_agent.hooks.watch import diverge, mismatch
from pardbg_agent.ring import Ring
from pardbg_agent.wire import Gate
from tests.distributed.programs.watched import make_run
from tests.unit.hooks.test_watches import hits, watch

MS = 1_000_000
PEERS = (0, 2, 3)
ALL_KINDS = sum(posts.KINDS.values())


class Peer:
    """Another rank: what it posts on its board."""

    def __init__(self, c: core.Core, rank: int) -> None:
        assert c.ring.path is not None
        folder = Path(c.ring.path).parent
        self.rank = rank
        self.ring = Ring.create(str(folder / f"peer{rank}.ring"), 64)
        job = mismatch.of(c).own.job
        self.board = posts.Posts.create(str(folder / f"peer{rank}{posts.SUFFIX}"), job, rank)
        self.board.identify(rank, ALL_KINDS)
        self._group = groups.group_of(context.of(c), dist.group.WORLD).key

    def comes(
        self, seq: int, op: str = "all_reduce", t_ns: int = 0, *, root: int = -1,
        dtype: str = "float32", num: int = 8, held: bool = False,
    ) -> None:  # fmt: skip
        """Arrives at the default group's op ``seq`` with ``num`` float32."""
        packed = posts.pack_what(op, -1, 1, root, 4 * num, 4 * num, dtype, str(num))
        what = posts.hash64("op", self._group)
        self.board.post(what, seq, t_ns or clock.now_ns(), packed, held)

    def p2p(self, src: int, dst: int, op: str, order: int, num: int) -> None:
        packed = posts.pack_what(op, -1, 1, 1, 4 * num, 4 * num, "float32", str(num))
        what = posts.hash64("p2p", self._group, src, dst, 0, op == "send")
        self.board.post(what, order, clock.now_ns(), packed)

    def sums(self, kind: str, names: Sequence[str], step: int, values: Sequence[int]) -> None:
        name = "\0".join((self._group, "0", *names))
        what, which = posts.hash64(kind, name), step * diverge._MOST_IN_STEP
        self.board.post_sums(what, which, -1, values)


@pytest.fixture
def c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[core.Core]:
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    assert core.CURRENT is not None
    core.CURRENT.status.gate(0, 0, 0)  # never held, and there since long ago
    yield core.CURRENT
    dist.destroy_process_group()
    hooks.uninstall()
    core.shutdown()


@pytest.fixture
def peers(c: core.Core) -> dict[int, Peer]:
    return {rank: Peer(c, rank) for rank in PEERS}


def sum_of(num: int = 8) -> Callable[[], object]:
    return lambda: dist.all_reduce(torch.zeros(num))


# -- mismatch


def test_the_op_that_differs_is_held_before_it_is_issued(
    c: core.Core, peers: dict[int, Peer]
) -> None:
    watch(c, "mismatch")
    for rank in PEERS:
        peers[rank].comes(0)
        peers[rank].comes(1, "broadcast", root=0, num=4)

    def program() -> None:
        dist.all_reduce(torch.zeros(8))
        dist.all_reduce(torch.zeros(8))

    assert hits(c, program) == [(
        "wants all_reduce sum float32[8] on default #1, ranks 0,2,3 came with"
        " broadcast float32[4] root 0", "all_reduce default #1",
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"num": 9}, "ranks 0,2,3 came with all_reduce float32[9]"),
        ({"dtype": "int32"}, "ranks 0,2,3 came with all_reduce int32[8]"),
        ({"op": "reduce", "root": 0}, "ranks 0,2,3 came with reduce float32[8] root 0"),
    ],
)
def test_size_dtype_and_op(
    c: core.Core, peers: dict[int, Peer], theirs: dict[str, Any], said: str
) -> None:
    watch(c, "mismatch")
    for rank in PEERS:
        peers[rank].comes(0, **theirs)
    assert [text.partition(", ")[2] for text, _ in hits(c, sum_of())] == [said]


def test_the_root_is_a_global_rank(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "mismatch")
    peers[2].comes(0, "broadcast", root=2)
    ((text, _),) = hits(c, lambda: dist.broadcast(torch.zeros(8), 0))
    assert text == (
        "wants broadcast float32[8] root 0 on default #0, rank 2 came with"
        " broadcast float32[8] root 2"
    )


def test_who_is_held_there_is_in_nobodys_way(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "mismatch")
    peers[0].comes(0)
    peers[2].comes(0, "broadcast", root=0, held=True)
    assert hits(c, sum_of()) == []
    peers[0].comes(1, "broadcast", root=0)
    peers[2].comes(1, held=True)
    seen = posts.PeerPosts(str(Path(c.ring.path or "").parent), peers[0].board)
    what = posts.hash64("op", peers[0]._group)
    assert held(seen, what, 0) == [False]
    ((text, _),) = hits(c, sum_of())
    assert text.startswith("wants all_reduce sum float32[8] on default #1 (as rank 2), rank 0 came")
    assert held(seen, what, 1) == [True]


def held(seen: posts.PeerPosts, what: int, seq: int) -> list[bool]:
    """Was this rank stopped there, as the others see it?"""
    return [post.held for post in (posts.posts(seen.of((1,), 1), what, seq) or {}).values()]


@pytest.mark.parametrize(("ahead_ns", "held"), [(3_600_000_000_000, 0), (-3_600_000_000_000, 1)])
def test_of_two_nodes_at_the_same_time_the_later_one_is_held(
    c: core.Core, peers: dict[int, Peer], monkeypatch: pytest.MonkeyPatch, ahead_ns: int, held: int
) -> None:
    """Rank 2's post arrives while this rank waits for it, an hour after or before its own."""
    watch(c, "mismatch")
    peers[2].board.identify(2, posts.ELSEWHERE | ALL_KINDS)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        if not naps:
            peers[2].comes(0, "broadcast", root=0, t_ns=clock.now_ns() + ahead_ns)
            for rank in (0, 3):
                peers[rank].comes(0)
        naps.append(seconds)

    monkeypatch.setattr("pardbg_agent.control.posts.time.sleep", nap)
    found = hits(c, sum_of())
    assert len(naps) == 1, "all are there: nobody waits on"
    assert [text.partition(", ")[2] for text, _ in found] == held * [
        "rank 2 came with broadcast float32[8] root 0"
    ]


def test_what_is_not_on_the_board_is_no_mismatch(c: core.Core, peers: dict[int, Peer]) -> None:
    """Peers that were told to watch later; a board that is not there at all."""
    watch(c, "mismatch")
    peers[0].comes(2)
    peers[2].comes(1)
    os.unlink(peers[3].board.path)
    program = sum_of()
    assert hits(c, lambda: [program() for _ in range(3)]) == []


def test_others_see_what_this_rank_wants(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "mismatch")
    before = clock.now_ns()
    assert hits(c, lambda: dist.broadcast(torch.zeros(2, 3, dtype=torch.int64), 2)) == []
    seen = posts.PeerPosts(str(Path(c.ring.path or "").parent), peers[0].board)
    found = posts.posts(seen.of((1,), 1), posts.hash64("op", peers[0]._group), 0)
    assert found is not None
    assert found[1]._replace(t_ns=0) == posts.Post(
        1, 0, "broadcast", -1, 1, 2, 48, 48, "int64", "2, 3"
    )
    assert before <= found[1].t_ns <= clock.now_ns()


def test_a_rank_whose_numbers_are_lost_compares_nothing(
    c: core.Core, peers: dict[int, Peer]
) -> None:
    c.guard.disabled.add("c10d.count")
    watch(c, "mismatch")
    peers[0].comes(0, "broadcast", root=0)
    assert hits(c, sum_of()) == []


def test_a_message_and_its_receive(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "mismatch")
    peers[0].p2p(1, 0, "recv", 0, 8)
    peers[0].p2p(1, 0, "recv", 1, 4)
    peers[2].p2p(2, 1, "send", 0, 4)

    def program() -> None:
        dist.send(torch.zeros(8), 0)
        dist.send(torch.zeros(8), 0)
        dist.recv(torch.zeros(8), 2)

    assert [text for text, _ in hits(c, program)] == [
        "wants send float32[8] to rank 0, rank 0 came with recv float32[4] (message 1 of tag 0)",
        "wants recv float32[8] from rank 2, rank 2 came with send float32[4] (message 0 of tag 0)",
    ]


def test_after_a_receive_from_anybody_nobody_knows_which_is_whose(
    c: core.Core, peers: dict[int, Peer]
) -> None:
    watch(c, "mismatch")
    peers[2].p2p(2, 1, "send", 0, 4)

    def program() -> None:
        dist.irecv(torch.zeros(8))
        dist.recv(torch.zeros(8), 2)

    assert hits(c, program) == []


# -- skew


def test_the_last_to_come_is_late(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "skew", 40 * MS)
    now = clock.now_ns()
    for rank, ago in zip(PEERS, (30, 500_000, 20), strict=True):
        peers[rank].comes(0, t_ns=now - ago * MS)
    ((text, _),) = hits(c, sum_of())
    assert text == "last to all_reduce float32[8] on default #0, 8 m 20 s after rank 2, the first"


def test_who_is_not_the_last_or_not_late_says_nothing(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "skew", 40_000 * MS)
    now = clock.now_ns()
    for rank in PEERS:
        peers[rank].comes(0, t_ns=now - 100 * MS)
        if rank != 2:  # which is still to come
            peers[rank].comes(1, t_ns=now - 90_000 * MS)
    program = sum_of()
    assert hits(c, lambda: [program() for _ in range(2)]) == []


def test_nobody_waits_for_a_rank_that_does_not_watch_any_more(
    c: core.Core, peers: dict[int, Peer]
) -> None:
    watch(c, "skew", 40_000 * MS)
    peers[0].comes(0, t_ns=clock.now_ns() - 90_000 * MS)
    peers[2].board.identify(2, 0)
    peers[3].board.identify(3, posts.KINDS["mismatch"])
    assert len(hits(c, sum_of())) == 1
    seen = posts.PeerPosts(str(Path(c.ring.path or "").parent), peers[0].board)
    (mine,) = seen.of((1,), 1)
    assert mine.kinds == posts.KINDS["skew"]
    c.watches = NO_WATCHES
    c.watches_changed()
    assert mine.refresh() and mine.kinds == 0


@pytest.mark.parametrize("held", [True, False])
def test_a_pause_is_no_lateness(c: core.Core, peers: dict[int, Peer], held: bool) -> None:
    """Rank 3, which has nothing to do with it, is held, or was let go just now."""
    watch(c, "skew", 40_000 * MS)
    for rank in PEERS:
        peers[rank].comes(0, t_ns=clock.now_ns() - 90_000 * MS)
    gate, since = (int(Gate.STEP), 5) if held else (0, clock.now_ns())
    peers[3].ring.status.gate(gate, 0, since)
    assert hits(c, sum_of()) == []


# -- diverge

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")


def trained() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def step(model: Any, optimizer: Any) -> None:
    for p in model.parameters():  # the fake backend cannot average any
        p.grad = torch.ones_like(p)
    optimizer.step()


def sums_of(model: Any, gradients: bool) -> list[int]:
    tensors = [p.grad if gradients else p for p in model.parameters()]
    return [int(bits_sum(t)) for t in tensors]


def other(values: list[int], *places: int) -> list[int]:
    return [v + 1 if i in places else v for i, v in enumerate(values)]


def test_gradients_come_first_then_parameters(c: core.Core, peers: dict[int, Peer]) -> None:
    model, optimizer = trained()
    step(model, optimizer)
    watch(c, "diverge")
    ones = [4 * 8, 8, 8 * 2, 2]  # so many 1.0 each, taken two at a time
    expected = [n // 2 * 0x3F8000003F800000 for n in ones]
    expected = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in expected]
    assert sums_of(model, True) == expected
    whole = sums_of(model, False)
    for rank in PEERS:
        peers[rank].sums("gradient", NAMES, 1, other(expected, 1, 2) if rank == 2 else expected)
        peers[rank].sums("parameter", NAMES, 1, whole)
        peers[rank].sums("gradient", NAMES, 2, expected)
        peers[rank].sums("parameter", NAMES, 2, other(whole, 3) if rank == 0 else whole)

    def program() -> None:
        step(model, optimizer)
        watch_again(c)
        step(model, optimizer)

    assert hits(c, program) == [
        ("gradient 0.bias differs in step 1, the first one looked at: rank 2 from ranks 0,1,3"
         " (2 of 4 differ)", "optimizer.step 1"),
        ("parameter 1.bias differs after step 2, the first one looked at: rank 0 from ranks 1–3"
         " (1 of 4 differ)", "step 3"),
    ]  # fmt: skip


def watch_again(c: core.Core) -> None:
    """Another watch: one says it once."""
    watch(c, "diverge", number=2)


def test_said_once_and_only_by_the_last_to_come(c: core.Core, peers: dict[int, Peer]) -> None:
    watch(c, "diverge")
    model, optimizer = trained()
    whole = sums_of(model, False)
    for rank in PEERS:
        for number in range(4):
            if number or rank != 3:  # rank 3 has not come to step 0
                apart = rank == 2 and number != 1
                peers[rank].sums("parameter", NAMES, number, other(whole, 0) if apart else whole)
    said = hits(c, lambda: [step(model, optimizer) for _ in range(4)])
    assert [text for text, _ in said] == [
        "parameter 0.weight differs after step 2: rank 2 from ranks 0,1,3 (1 of 4 differ)"
    ]


def test_many_parameters_share_a_sum() -> None:
    """Two each: 1 * first + 3 * second."""
    each = list(range(posts.MAX_SUMS + 2))
    folded = diverge._folded(each)
    assert len(folded) == posts.MAX_SUMS // 2 + 1
    assert folded[:2] == [0 + 3 * 1, 2 + 3 * 3]


def test_the_bits_are_summed_in_eights_where_they_lie_so() -> None:
    assert int(bits_sum(torch.tensor([1.0, 1.0]))) == 0x3F8000003F800000
    assert int(bits_sum(torch.tensor([1.0, 1.0, 1.0]))) == 3 * 0x3F800000
    assert int(bits_sum(torch.zeros(8)[1:3] + 0)) == 0
    assert int(bits_sum(torch.arange(8.0)[1:3])) == 0x3F800000 + 0x40000000
    assert int(bits_sum(torch.tensor(2.0, dtype=torch.bfloat16))) == 0x4000
    assert int(bits_sum(torch.zeros(0))) == 0
