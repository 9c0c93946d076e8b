"""What a rank says that comes to an op with something else than the others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pardbg.analysis.comm import matching
from pardbg_agent.control.agreement import differs, late, odd_ones, pair, verdict, words
from pardbg_agent.control.posts import Post


@dataclass(frozen=True)
class Op:
    """Posts of one op by several ranks."""

    op: str = "all_reduce"
    reduce: int = -1
    tensors: int = 1
    peer: int = -1
    a: int = 4096
    b: int = 4096
    dtype: str = "float32"
    shape: str = "1024"
    held: bool = False

    def by(self, *ranks: int, t_ns: int = 0) -> dict[int, Post]:
        return {
            rank: Post(rank, t_ns, self.op, self.reduce, self.tensors, self.peer, self.a, self.b,
                       self.dtype, self.shape, self.held)
            for rank in ranks
        }  # fmt: skip


WHERE = "dp #42"
SUM = Op()
ROOT0 = Op("broadcast", peer=0, a=2048, b=2048, shape="512")


def said(mine: Op, rank: int, *others: dict[int, Post], members: int = 4) -> str:
    (post,) = mine.by(rank).values()
    return verdict(post, {r: p for part in others for r, p in part.items()}, members, WHERE)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (SUM, SUM, ""),
        (SUM, ROOT0, "op"),
        (Op(reduce=0), Op(reduce=3), "op"),
        (Op(reduce=0), Op(reduce=-1), ""),  # C++ issued one of them: not known
        (ROOT0, Op("broadcast", peer=1, a=2048, b=2048), "root"),
        (SUM, Op(dtype="int32"), "dtype"),
        (SUM, Op(dtype=""), ""),  # no tensor to tell
        (SUM, Op(a=2048, b=2048, shape="512"), "size"),
        (SUM, Op(shape="4, 256"), ""),  # as many bytes in another shape
        (Op("all_gather", a=16, b=48), Op("all_gather", a=12, b=36), "size"),
        (Op("all_gather", a=16, b=28), Op("all_gather", a=12, b=28), ""),  # uneven shares
        (Op("reduce_scatter", a=48, b=16), Op("reduce_scatter", a=48, b=8), ""),
        (Op("gather", peer=0, a=8, b=24), Op("gather", peer=0, a=8, b=0), ""),
        (Op("scatter", peer=0, a=24, b=8), Op("scatter", peer=0, a=0, b=8), ""),
        (Op("scatter", peer=0, a=24, b=8), Op("scatter", peer=0, a=0, b=4), "size"),
        (Op("all_to_all", a=8, b=100), Op("all_to_all", a=64, b=2), ""),
        (Op("all_to_all"), Op("all_to_all", dtype="int64"), "dtype"),
        (Op("barrier", a=0, b=0), Op("barrier", a=4, b=4), ""),
    ],
)  # fmt: skip
def test_what_must_be_equal(one: Op, other: Op, what: str) -> None:
    (a,), (b,) = one.by(0).values(), other.by(1).values()
    assert differs(a, b) == differs(b, a) == what


def test_both_sides_are_named() -> None:
    assert said(SUM, 2, ROOT0.by(0, 1, 3)) == (
        "wants all_reduce float32[1024] on dp #42, ranks 0,1,3 came with"
        " broadcast float32[512] root 0"
    )


def test_nothing_to_compare_with_says_nothing() -> None:
    assert said(SUM, 2) == "" and said(SUM, 2, SUM.by(0, 1)) == ""


def test_nobody_meets_one_who_comes_with_something_else() -> None:
    """The odd one was there first, and is in: whoever comes is held, also the second of those who
    agree with each other."""
    assert said(SUM, 0, ROOT0.by(2)).endswith("rank 2 came with broadcast float32[512] root 0")
    assert said(SUM, 1, ROOT0.by(2), Op(held=True).by(0)) == (
        "wants all_reduce float32[1024] on dp #42 (as rank 0), rank 2 came with"
        " broadcast float32[512] root 0"
    )


def test_one_who_is_held_meets_nobody() -> None:
    odd = Op("broadcast", peer=0, a=2048, b=2048, shape="512", held=True)
    assert said(SUM, 1, odd.by(2), SUM.by(0)) == ""
    assert said(SUM, 1, odd.by(2, 3), SUM.by(0)) == "", "however many they are"


def test_three_sides() -> None:
    """The larger of the others is the one that is named."""
    assert "ranks 1,3 came with broadcast" in said(SUM, 0, Op(dtype="int8").by(2), ROOT0.by(1, 3))


def test_the_reduce_op_is_said_where_it_differs() -> None:
    assert said(Op(reduce=3), 1, Op(reduce=0).by(0)) == (
        "wants all_reduce min float32[1024] on dp #42,"
        " rank 0 came with all_reduce sum float32[1024]"
    )


def test_bytes_are_said_where_the_shapes_hide_them() -> None:
    """all_gather of equal shares into places of another size."""
    mine, theirs = Op("all_gather", a=16, b=32, shape="4"), Op("all_gather", a=16, b=64, shape="4")
    assert said(mine, 1, theirs.by(0)).endswith("float32[4] (32 bytes here, 64 bytes there)")


def test_uneven_shares_must_add_up_when_all_are_there() -> None:
    long, short = Op("all_gather", a=16, b=44), Op("all_gather", a=12, b=44)
    assert said(short, 2, long.by(0, 1), members=3) == ""  # 16 + 16 + 12 = 44
    assert said(long, 2, long.by(0), members=3) == ""  # not all are there
    assert said(long, 2, long.by(0), short.by(1), members=3) == ""  # the same, last one even
    tiny = Op("all_gather", a=4, b=44)
    assert said(tiny, 2, long.by(0, 1), members=3) == (
        "wants all_gather float32[1024] on dp #42, and the shares do not add up:"
        " rank 0 16, rank 1 16, rank 2 4 bytes, in all 36 of 44"
    )


def test_a_message_has_one_size_and_type() -> None:
    (send,) = Op("send", peer=1).by(0).values()
    (small,) = Op("recv", peer=0, a=2048, b=2048, shape="512").by(1).values()
    (int32,) = Op("recv", peer=0, dtype="int32").by(1).values()
    (right,) = Op("recv", peer=0, shape="4, 256").by(1).values()
    assert pair(send, right, 1) == "" == pair(right, send, 0)
    assert pair(small, send, 0) == (
        "wants recv float32[512] from rank 0, rank 0 came with send float32[1024]"
    )
    assert pair(send, int32, 1) == (
        "wants send float32[1024] to rank 1, rank 1 came with recv int32[1024]"
    )


def test_only_what_is_over_the_limit_is_late() -> None:
    others = {**SUM.by(0, t_ns=1_000_000), **SUM.by(1, t_ns=9_000_000)}
    (mine,) = SUM.by(2, t_ns=36_200_000).values()
    assert late(mine, others, 20e6, WHERE) == (
        "last to all_reduce float32[1024] on dp #42, 35.2 ms after rank 0, the first"
    )
    assert late(mine, others, 35.3e6, WHERE) == ""
    assert late(mine, others, 20e6, WHERE, since_ns=30_000_000) == "", "all were held until then"
    assert late(mine, {}, 0, WHERE) == ""


@pytest.mark.parametrize(
    ("values", "odd", "most"),
    [
        ({0: 5, 1: 5, 2: 7, 3: 5}, [2], [0, 1, 3]),
        ({0: 1, 1: 2, 2: 2, 3: 3}, [0, 3], [1, 2]),
        ({0: 5, 1: 7}, [], []),  # neither side is the larger one
        ({0: 1, 1: 1, 2: 2, 3: 2, 4: 3}, [], []),
        ({0: 5, 1: 5}, [], []),
    ],
)
def test_the_odd_ones_are_those_that_most_differ_from(
    values: dict[int, int], odd: list[int], most: list[int]
) -> None:
    """In a rank and in the analysis alike."""
    assert odd_ones(values) == (odd, most)
    assert matching.odd_ones(values) == tuple(odd)


def test_words() -> None:
    (many,) = Op(tensors=3, shape="4, 2").by(0).values()
    (mixed,) = Op(tensors=0).by(0).values()
    (scalar,) = Op(shape="").by(0).values()
    (barrier,) = Op("barrier", dtype="").by(0).values()
    assert words(many, True) == "all_reduce float32[4, 2]×3"
    assert words(mixed, True) == "all_reduce float32[1024] and more"
    assert words(scalar, True) == "all_reduce float32[]"
    assert words(barrier, True) == "barrier"
