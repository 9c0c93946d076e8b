"""The board: what one process posts, others find, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pardbg_agent import identity, wire
from pardbg_agent.control import posts
from pardbg_agent.control.posts import KINDS, SETS, WAYS, PeerPosts, Posts
from pardbg_agent.ring import Ring
from tests.processes import wait_until

JOB = 7
GROUP = posts.hash64("op", "0@abc")
SUM = posts.pack_what("all_reduce", 0, 1, -1, 4096, 4096, "float32", "1024")
ROOT = posts.pack_what("broadcast", -1, 1, 0, 2048, 2048, "float32", "512")


class Node:
    """Boards of several ranks in this process: pid and start are the same, the files are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boards: dict[int, Posts] = {}
        self.others: dict[int, PeerPosts] = {}

    def join(self, rank: int, job: int = JOB, name: str = "") -> Posts:
        path = self.folder / f"{name or rank}{posts.SUFFIX}"
        mine = self.boards[rank] = Posts.create(str(path), job, rank)
        self.others[rank] = PeerPosts(str(self.folder), mine)
        return mine

    def seen(self, rank: int, *ranks: int) -> dict[int, posts.Post] | None:
        """What this rank finds of the others for op 42."""
        return posts.posts(self.others[rank].of(ranks, len(ranks)), GROUP, 42)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_post_is_found_as_it_was_posted(node: Node) -> None:
    node.join(0).post(GROUP, 42, 1000, SUM)
    node.join(1)
    # 1024 float32 are 4096 bytes; op 1 of the table is all_reduce.
    assert node.seen(1, 0) == {
        0: posts.Post(0, 1000, "all_reduce", 0, 1, -1, 4096, 4096, "float32", "1024")
    }
    assert node.seen(0, 1) == {}


def test_a_fence_follows_each_post(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is posted is on the board before the fence, so before the look that comes after."""
    mine, seen = node.join(0), list[object]()
    node.join(1)

    def fence(_: Posts) -> None:
        sums = next(iter(node.others[1].of((0,), 1))).sums(9, 1)
        seen.append((node.seen(1, 0), None if sums is None else sums.values))

    monkeypatch.setattr(Posts, "_fence", fence)
    mine.post(GROUP, 42, 1000, SUM)
    mine.post_sums(9, 1, -1, [5])
    there = {0: posts.post_of(0, 1000, SUM)}
    assert seen == [(there, None), (there, (5,))]


def test_boards_are_found_whenever_they_come(node: Node) -> None:
    node.join(0)
    assert node.seen(0, 1, 2) == {}
    node.join(2).post(GROUP, 42, 2000, ROOT)
    assert node.seen(0, 1, 2) == {2: posts.post_of(2, 2000, ROOT)}
    node.join(1).post(GROUP, 42, 1500, SUM)
    assert sorted(node.seen(0, 1, 2) or ()) == [1, 2]
    assert sorted(node.seen(0, 1) or ()) == [1], "only the group's own ranks"


def test_another_job_or_epoch_is_not_looked_at(node: Node) -> None:
    node.join(0)
    node.join(1, job=8).post(GROUP, 42, 1, SUM)
    assert node.seen(0, 1) == {}


def test_two_processes_of_one_rank_say_nothing(node: Node) -> None:
    node.join(0)
    node.join(1).post(GROUP, 42, 1, SUM)
    node.join(1, name="again").post(GROUP, 42, 1, ROOT)
    assert node.seen(0, 1) is None


def test_other_keys_are_not_taken_for_it(node: Node) -> None:
    """One set: the same op number modulo SETS, and another group whose numbers lie together."""
    mine = node.join(0)
    node.join(1)
    mine.post(GROUP, 42 + SETS, 1, SUM)
    mine.post(GROUP + 1, 41, 1, SUM)
    assert node.seen(1, 0) == {}
    mine.post(GROUP, 42, 5, ROOT)
    found = node.seen(1, 0)
    assert found is not None and found[0].t_ns == 5 and found[0].op == "broadcast"


def test_a_full_set_loses_its_oldest(node: Node) -> None:
    mine = node.join(0)
    node.join(1)
    mine.post(GROUP, 42, 1, SUM)
    for lap in range(1, WAYS):
        mine.post(GROUP, 42 + lap * SETS, 1, SUM)
    mine.post(GROUP, 42, 2, SUM)  # the same key again takes its own place, and is the newest
    assert (node.seen(1, 0) or {})[0].t_ns == 2
    for lap in range(WAYS, 2 * WAYS - 1):
        mine.post(GROUP, 42 + lap * SETS, 1, SUM)
    assert (node.seen(1, 0) or {})[0].t_ns == 2, "three more: the older ones went"
    mine.post(GROUP, 42 + 9 * SETS, 1, SUM)
    assert node.seen(1, 0) == {}


def test_one_group_has_the_whole_ring(node: Node) -> None:
    mine = node.join(0)
    node.join(1)
    (seen,) = node.others[1].of((0,), 1)
    for seq in range(3 * SETS * WAYS):
        mine.post(GROUP, seq, seq, SUM)
    newest = 3 * SETS * WAYS - 1
    oldest = newest - SETS * WAYS + 1
    assert seen.find(GROUP, newest) and seen.find(GROUP, oldest)
    assert seen.find(GROUP, oldest - 1) is None


def test_a_slot_that_is_half_written_is_not_there(node: Node) -> None:
    mine = node.join(0)
    node.join(1)
    mine.post(GROUP, 42, 1, SUM)
    raw = Path(mine.path).read_bytes()
    at = raw.index(SUM)
    for length in (1, 40, len(ROOT)):  # the writer is that far
        mine._buffer[at : at + length] = ROOT[:length]
        assert node.seen(1, 0) == {}
    mine._buffer[at : at + len(SUM)] = SUM
    assert node.seen(1, 0) == {0: posts.post_of(0, 1, SUM)}


def test_the_kinds_are_in_the_header(node: Node) -> None:
    mine = node.join(0)
    node.join(1)
    (seen,) = node.others[1].of((0,), 1)
    assert seen.kinds == 0
    mine.identify(0, KINDS["skew"] | KINDS["diverge"])
    assert seen.kinds == 0 and seen.refresh() and seen.kinds == 6
    mine._buffer[0:8] = b"scribble"  # half a header: as before
    assert seen.refresh() and seen.kinds == 6


def test_what_is_no_board_is_left_alone(node: Node, tmp_path: Path) -> None:
    (tmp_path / f"short{posts.SUFFIX}").write_bytes(b"x")
    (tmp_path / f"zeros{posts.SUFFIX}").write_bytes(bytes(posts.SIZE))
    node.join(0)
    node.join(1).post(GROUP, 42, 1, SUM)
    assert sorted(node.seen(0, 1, 2) or ()) == [1]


def test_checksums(node: Node) -> None:
    mine = node.join(0)
    node.join(1)
    (seen,) = node.others[1].of((0,), 1)
    assert seen.sums(GROUP, 5) is None
    mine.post_sums(GROUP, 5, -1, [3, -4, 1 << 62])
    mine.post_sums(GROUP, 6, 2, list(range(posts.MAX_SUMS)))
    assert seen.sums(GROUP, 5) == (-1, (3, -4, 1 << 62))
    found = seen.sums(GROUP, 6)
    assert found is not None and found.told == 2 and found.values[-1] == posts.MAX_SUMS - 1
    for step in range(7, 7 + posts.AREAS - 1):
        mine.post_sums(GROUP, step, -1, [step])
    assert seen.sums(GROUP, 5) is None and seen.sums(GROUP, 6) is not None
    at = Path(mine.path).read_bytes().rindex((7).to_bytes(8, "little"))
    mine._buffer[at : at + 1] = b"\x09"
    assert seen.sums(GROUP, 7) is None, "half written"


def test_held_is_read_from_the_ring_beside_it(node: Node, tmp_path: Path) -> None:
    ring = Ring.create(str(tmp_path / "0.ring"), 64)
    node.join(0)
    node.join(1)
    (seen,) = node.others[1].of((0,), 1)
    ring.status.gate(int(wire.Gate.COLLECTIVE), 3, 500)
    assert seen.gate() == (True, 500)
    ring.status.gate(0, 0, 900)
    assert seen.gate() == (False, 900)


CHILD = """
import sys
from pardbg_agent.control import posts
mine = posts.Posts.create(sys.argv[1], 7, int(sys.argv[2]))
mine.post(int(sys.argv[3]), 42, 10, bytes.fromhex(sys.argv[4]))
print("posted", flush=True)
for line in sys.stdin:
    for seq in range(20000):
        mine.post(int(sys.argv[3]), seq, seq, bytes.fromhex(sys.argv[4]))
    print("done", flush=True)
"""


@contextlib.contextmanager
def child(tmp_path: Path, rank: int) -> Iterator[subprocess.Popen[str]]:
    """Another process with a board of its own, which has posted op 42."""
    path = str(tmp_path / f"child{rank}{posts.SUFFIX}")
    argv = [sys.executable, "-c", CHILD, path, str(rank), str(GROUP), ROOT.hex()]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "posted\n"
            yield process
        finally:
            process.kill()


def test_another_process_posts_and_dies(node: Node, tmp_path: Path) -> None:
    node.join(0)
    with child(tmp_path, 1) as process:
        assert (node.seen(0, 1) or {})[1].op == "broadcast"
        process.kill()
        process.wait()
    assert node.seen(0, 1) != {}, "not looked at again before it matters"
    node.others[0].refresh()
    assert node.seen(0, 1) == {}
    assert (tmp_path / f"child1{posts.SUFFIX}").exists(), "its file does not bring it back"
    node.join(2)
    assert node.seen(0, 1) == {}


def test_a_zombie_is_dead(node: Node, tmp_path: Path) -> None:
    node.join(0)
    with child(tmp_path, 1) as process:
        node.seen(0, 1)
        process.kill()
        wait_until(lambda: not identity.started(process.pid), 5, "its end")
        assert os.path.exists(f"/proc/{process.pid}"), "nobody has reaped it"
        node.others[0].refresh()
        assert node.seen(0, 1) == {}


def test_what_is_read_while_it_is_written_is_whole(node: Node, tmp_path: Path) -> None:
    """20,000 posts of another process over our reading: a slot is what was posted, or nothing."""
    node.join(0)
    with child(tmp_path, 1) as process:
        (seen,) = node.others[0].of((1,), 1)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdin.close()
        reads = found = 0
        while process.poll() is None and reads < 100_000:
            reads += 1
            slot = seen.find(GROUP, reads % (SETS * WAYS))
            if slot is not None:
                found += 1
                assert posts.same(slot, ROOT)
                (post,) = (posts.posts([seen], GROUP, reads % (SETS * WAYS)) or {0: None}).values()
                assert post is None or post.rank == 1
        assert found > 0
