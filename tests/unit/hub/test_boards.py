"""Boards of other nodes: what ranks post there is found here, a moment later and on our clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pardbg.events.decode import Malformed
from pardbg.hub.ctrl_messages import BoardNews
from pardbg.hub.ranks import boards
from pardbg.hub.ranks.boards import LOOK_NS, Boards
from pardbg.hub.removal import mark
from pardbg_agent.control import posts
from pardbg_agent.control.posts import ELSEWHERE, KINDS, PLACES, PeerPosts, Posts
from pardbg_agent.ctrl.codec import decode, encode

JOB, OP = 2**64 - 7, posts.hash64("op", "0@abc")
SUM = posts.pack_what("all_reduce", 0, 1, -1, 4096, 4096, "float32", "1024")


class Side:
    """One node: a rank's own board, what it sees of the others, and who copies."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True)
        mark(folder, "r")
        self.own = Posts.create(str(folder / f"0.n{rank}.1.board"), JOB, rank)
        self.others = PeerPosts(str(folder), self.own)
        self.boards = Boards(folder, "r")
        self.now = 0

    def changes(self) -> list[Any]:
        """As they come out of a message."""
        self.now += LOOK_NS
        pieces = [BoardNews(tuple(piece)) for piece in self.boards.changes(self.now)]
        return [change for one in pieces for change in decode(BoardNews, encode(one)).changes]


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Side, Side]:
    tmp_path.chmod(0o700)
    return Side(tmp_path / "a", 0), Side(tmp_path / "b", 1)


def seen(side: Side, rank: int, seq: int) -> posts.Post | None:
    return (posts.posts(side.others.of((rank,), 1), OP, seq) or {}).get(rank)


def test_a_post_is_found_on_the_other_node_at_its_time_there(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.own.identify(0, KINDS["mismatch"])
    a.own.post(OP, 42, 1000, SUM)
    a.own.post_sums(9, 3, -1, [5, -6])
    first = a.changes()
    assert [change[:4] for change in first] == [("0.n0.1", 0, KINDS["mismatch"], JOB)]
    assert a.changes() == [], "once"
    b.boards.take(first, 500)  # a's clock is 500 ns behind
    assert seen(b, 0, 42) == posts.post_of(0, 1500, SUM)
    (copy,) = b.others.of((0,), 1)
    assert copy.kinds == KINDS["mismatch"] | ELSEWHERE and copy.alive()
    assert copy.sums(9, 3) == (-1, (5, -6))
    b.boards.take(first, 0)
    a.own.post(OP, 43, 2000, SUM, held=True)
    b.boards.take(a.changes(), 0)
    found = seen(b, 0, 43)
    assert found is not None and found.held
    assert b.changes() == [("0.n1.1", 1, 0, JOB, ())], "a copy is nobody's own"


def test_a_rank_that_ends_there_counts_no_more_here(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = sides
    a.own.post(OP, 1, 10, SUM)
    b.boards.take(a.changes(), 0)
    assert seen(b, 0, 1) is not None
    a.own.end()
    (ended,) = (a.boards._own[proc].peer for proc in a.boards._own)
    assert ended.refresh() and not ended.alive()
    gone = a.changes()
    assert gone == [("0.n0.1", -1, 0, JOB, ())]
    b.boards.take(gone, 0)
    b.others.refresh()
    assert seen(b, 0, 1) is None
    assert len(list(b.folder.glob("*~*.board"))) == 1
    b.changes()
    assert list(b.folder.glob("*~*.board")) == []


def test_what_came_too_fast_is_lost_and_says_nothing(sides: tuple[Side, Side]) -> None:
    a, b = sides
    for seq in range(PLACES + 3):
        a.own.post(OP, seq, seq, SUM)
    b.boards.take(a.changes(), 0)
    assert seen(b, 0, 2) is None
    assert seen(b, 0, 3) == posts.post_of(0, 3, SUM)
    assert seen(b, 0, PLACES + 2) == posts.post_of(0, PLACES + 2, SUM)


def test_nonsense_is_refused_or_left_out(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, b = sides
    for bad in (("../x", 0, 1, JOB, ()), ("0.n0.1", 0, 1 << 40, JOB, ())):
        with pytest.raises(Malformed):
            b.boards.take([bad], 0)
    b.boards.take([["0.n0.1", 0, 1, JOB, [[0, b"x"], [-1, b"y" * 128], [1 << 15, b"z"]]]], 5)
    assert seen(b, 0, 1) is None
    monkeypatch.setattr(boards, "MAX_COPIES", 1)
    b.boards.take([["0.n2.1", 2, 1, JOB, []]], 0)
    assert [other.rank for other in b.others.of((0, 2), 2)] == [0]
