"""Data parallel recipes and the tour as pardbg sees them, against what the programs do by their own
words: bytes, partners, order, staleness."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.lab.recipes.catalogue import command
from pardbg.lab.recipes.shape import BLOCKS, CONTEXT, VOCABULARY, WIDTH
from pardbg.render.draw.cells import plain
from pardbg.render.pages.collectives import operation
from pardbg.render.pages.overview.page import overview
from pardbg.render.pages.traffic import traffic
from tests.distributed.recorded import Recorded, recorded
from tests.forked import forked
from tests.processes import rank_env, run_argv

# A recipe's run starts in the first test that asks for it.
pytestmark = pytest.mark.timeout(150)
STEPS = 5

BLOCK = (
    2 * (2 * WIDTH)
    + (WIDTH * 3 * WIDTH + 3 * WIDTH)
    + (WIDTH * WIDTH + WIDTH)
    + (WIDTH * 4 * WIDTH + 4 * WIDTH + 4 * WIDTH * WIDTH + WIDTH)
)  # two norms, qkv, out, and the two layers of the network
PARAMETERS = VOCABULARY * WIDTH + CONTEXT * WIDTH + BLOCKS * BLOCK + 2 * WIDTH + WIDTH * VOCABULARY
S = 4 * PARAMETERS
"""Bytes of all gradients, or of all weights: 1,747,456."""


def run(name: str, nproc: int | None = None, steps: int = STEPS, *own: str) -> Recorded:
    found = recorded(name, nproc=nproc, steps=steps, extra=own)
    assert found.exit_code == 0, found.err
    return found


def sent(found: Recorded) -> dict[tuple[int, int], int]:
    """(src, dst) -> bytes that were seen on that edge."""
    edges = found.report["traffic"]
    return {(e["src"], e["dst"]): e["bytes"] for e in edges if e["source"] == "observed"}


def metrics(found: Recorded, rank: int, name: str) -> list[float]:
    process = found.store.rank_procs(None)[rank]
    table = process.table("metric")
    numbers = table.col("a").view("<f8").tolist()
    return [
        number
        for name_id, number in zip(table.col("name_id").tolist(), numbers, strict=True)
        if process.name(name_id) == name
    ]


def page(found: Recorded, draw: Callable[..., Any], size: tuple[int, int] = (120, 40)) -> str:
    """A page as it stands at the run's end."""
    picture = draw(snapshot(found.store, None), *size)
    return "\n".join(plain(row) for row in (*picture.head, *picture.body, *picture.foot))


# ------------------------------------------------------------------------------------- the ring


@pytest.mark.parametrize("size", [4, 3])
def test_a_ring_moves_what_the_formula_says(size: int) -> None:
    found = run("ddp-ring", size)
    edges = sent(found)
    assert set(edges) == {(rank, (rank + 1) % size) for rank in range(size)}
    # All ranks together: each chunk passes n-1 links twice.
    assert sum(edges.values()) == STEPS * 2 * (size - 1) * S
    if size == 4:  # divides all buckets, so every rank's share is the same: 2 (n-1)/n S
        assert set(edges.values()) == {STEPS * 2 * 3 * S // 4}


@pytest.mark.parametrize("size", [4, 3])
def test_phase_step_and_chunk_of_each_message(size: int) -> None:
    """Rank r sends chunk r - (step - 1) in its step 1, 2, …; the first n - 1 steps reduce."""
    found = run("ddp-ring", size)
    rows = snapshot(found.store, None).p2p
    assert len(rows) >= 150
    assert {row.verdict for row in rows} == {"matched"}
    for row in rows:
        assert row.parts == 2 * (size - 1)
        assert row.phase == ("reduce-scatter" if row.part < size else "all-gather")
        assert row.chunk == (row.src - (row.part - 1)) % size
        assert row.label == f"{row.phase} {row.part}/{row.parts} c{row.chunk}"
    parts = defaultdict(list)
    for row in sorted(rows, key=lambda r: r.send_ns or 0):
        parts[row.src].append(row.part)
    for order in parts.values():  # 1 2 3 4 1 2 3 4 …, begun anywhere
        assert all(b == a % (2 * (size - 1)) + 1 for a, b in pairwise(order))


@pytest.mark.parametrize("size", [4, 3])
def test_the_screen_draws_the_ring_with_its_step(size: int) -> None:
    text = page(run("ddp-ring", size), traffic)
    steps = 2 * (size - 1)
    assert f"all-gather, part {steps} of {steps}" in text
    for rank in range(size):  # the last step: chunk r - (2 (n-1) - 1) = r + 3 (mod n)
        assert f"{rank}▶{(rank + 1) % size} c{(rank + 3 - 2 * size) % size}" in text
        assert f"│{rank:^3}│" in text


# ----------------------------------------------------------------------------- parameter server


def test_push_and_pull_are_whole_models() -> None:
    """Each worker, each step: the weights one way; the gradients and a loss the other."""
    found = run("ps")
    edges = sent(found)
    workers = (1, 2, 3)
    assert edges == {(0, w): STEPS * S for w in workers} | {
        (w, 0): STEPS * (S + 4) for w in workers
    }
    assert Counter((row["label"], row["verdict"]) for row in found.report["p2p"]) == {
        ("pull", "matched"): 3 * STEPS, ("push", "matched"): 3 * STEPS,
    }  # fmt: skip
    assert [f"{step['loss']:.6g}" for step in found.report["steps"]] == [
        f"{loss:.6g}" for loss in found.losses
    ]
    assert metrics(found, 0, "staleness") == [0.0] * STEPS
    assert "staleness 0" in page(found, overview)
    text = page(found, traffic)
    assert " pull " in text and " push " in text


K, UPDATES = 2, 24


def test_staleness_has_its_bound_and_it_trains() -> None:
    found = run("ps-async", 4, UPDATES, "--staleness", str(K))
    seen = metrics(found, 0, "staleness")
    assert len(seen) == UPDATES
    # Three workers get the first weights at once; the last of them comes back after two updates.
    assert seen[:3] == [0, 1, 2] and max(seen) <= K
    assert len(found.losses) == UPDATES
    assert found.losses[0] > 5.4 and sum(found.losses[-4:]) / 4 < 4.7


def test_receives_from_anybody_find_their_senders() -> None:
    """24 updates: as many pulls and pushes, and a last message that says it is over to each."""
    found = run("ps-async", 4, UPDATES, "--staleness", str(K))
    rows = Counter((row["label"], row["verdict"]) for row in found.report["p2p"])
    assert rows == {("pull", "matched"): UPDATES + 3, ("push", "matched"): UPDATES}
    edges = sent(found)
    for worker in (1, 2, 3):
        pushes, rest = divmod(edges[worker, 0], S + 8)  # and version and loss
        assert rest == 0
        assert edges[0, worker] == (pushes + 1) * (S + 8)
    assert sum(edges[w, 0] for w in (1, 2, 3)) == UPDATES * (S + 8)


def test_without_any_staleness_it_is_the_single_process() -> None:
    program = [sys.executable, "-m", "pardbg.lab.recipes.single", "--steps", "6"]
    single = run_argv(program, env=rank_env(), timeout_s=50)
    assert single.code == 0, single.err
    found = run("ps-async", 3, 6, "--staleness", "0")  # watched, and the same to the last bit
    assert found.lines(0) == single.out.splitlines()


# ------------------------------------------------------------------------------------- ddp


def collectives(found: Recorded, rank: int = 0) -> dict[int, list[tuple[str, int]]]:
    """step -> (op, bytes) as a rank issued them."""
    process = found.store.rank_procs(None)[rank]
    table = process.table("issue")
    columns = (table.col(c).tolist() for c in ("step", "name_id", "a"))
    made = defaultdict(list)
    for step, name_id, size in zip(*columns, strict=True):
        made[step].append((process.name(name_id), size))
    return made


def test_accumulation_sends_gradients_once_a_step() -> None:
    """Two pieces, and still S bytes in all. The loss's four bytes follow the optimizer, and so
    count to the next step."""
    made = collectives(run("ddp-accum"))
    for step in range(2, STEPS):
        sizes = [size for op, size in made[step] if op == "all_reduce"]
        assert sizes[0] == 4 and sum(sizes[1:]) == S


def test_batch_norm_adds_two_small_messages() -> None:
    """Sums and sums of squares of 64 channels forward, their gradients backward: 512 bytes each.
    Its 128 parameters join the gradients."""
    made = collectives(run("ddp-syncbn"))
    for step in range(2, STEPS):
        sizes = [size for op, size in made[step] if op == "all_reduce"]
        assert sizes.count(512) == 2
        assert sum(sizes) == S + 4 * 128 + 2 * 512 + 4


def test_batch_norm_over_all_ranks_is_that_of_one_big_batch() -> None:
    argv = [*forked(command("ddp-syncbn", 1, STEPS)), "--pace", "0"]
    alone = run_argv(argv, env=rank_env(), timeout_s=50)
    assert alone.code == 0, alone.err
    big = [float(line.split()[-1]) for line in alone.lines(0)]
    assert run("ddp-syncbn").losses == pytest.approx(big, rel=1e-4)


def test_two_launchers_are_one_run_on_two_nodes() -> None:
    argv = command("ddp", 2, 3, nnodes=2)
    found = recorded("ddp", nproc=2, steps=3, nnodes=2)
    assert argv[2:5] == ["pardbg.lab.recipes.nodes", "--nnodes", "2"]
    assert found.exit_code == 0, found.err
    ranks = found.report["ranks"]
    assert sorted((r["rank"], r["node"]) for r in ranks) == [(0, 0), (1, 1)]
    assert [c["verdict"] for c in found.report["collectives"]].count("matched") >= 3
    text = page(found, overview)
    assert "node" in text and "n0" in text and "n1" in text
    one_launcher = run_argv(
        [*forked(command("ddp", 2, 3)), "--pace", "0"], env=rank_env(), timeout_s=50
    )
    assert found.lines(0) == one_launcher.lines(0)


# ------------------------------------------------------------------------------------- the tour

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
BITS = ("band", "bor", "bxor")


def tour_by_hand(size: int) -> list[tuple[str, str, int]]:
    """(op, reduction, bytes) in order up to the barriers: tensors of four numbers, 4 bytes each or
    8 where bits are combined; a list for all ranks is ``size`` times that. The larger side counts.
    """
    b = {name: 32 if name in BITS else 16 for name in REDUCTIONS}
    return [
        ("broadcast", "", 16),
        ("scatter", "", 16 * size),
        ("gather", "", 16 * size),
        *(("reduce", name, b[name]) for name in REDUCTIONS),
        *(("all_reduce", name, b[name]) for name in REDUCTIONS),
        *(("reduce_scatter", name, b[name] * size) for name in REDUCTIONS),
        ("all_gather", "", 16 * size),
        ("all_gather", "", 16 * size),
        ("reduce_scatter", "sum", 16 * size),
        ("all_to_all", "", 16 * size),
        ("all_to_all", "", 16 * size),
        ("barrier", "", 0),
        ("monitored_barrier", "", 0),
    ]


def test_the_tour_shows_each_op_with_its_reduction_and_bytes() -> None:
    found = run("tour", 3, 1)
    rows = snapshot(found.store, None).collectives
    by_hand = tour_by_hand(3)
    assert [(row.op, row.reduce, row.bytes) for row in rows[: len(by_hand)]] == by_hand
    assert {row.verdict for row in rows} == {"matched"}
    # Objects go as bytes, with their sizes ahead.
    objects = {row.op for row in rows[len(by_hand) :]}
    assert objects == {"all_gather", "broadcast", "gather", "scatter", "barrier"} or objects == {
        "all_gather", "broadcast", "gather", "scatter",
    }  # fmt: skip
    assert "all_reduce product" in {operation(row) for row in rows}


def test_the_tours_messages() -> None:
    """send/recv to the right neighbour but the last; around the ring; both ways; and to rank 0."""
    found = run("tour", 3, 1)
    count = Counter((row["src"], row["dst"], row["tag"]) for row in found.report["p2p"])
    expected: Counter[tuple[int, int, int]] = Counter()
    for rank in range(3):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        expected[rank, right, 0] += (1 if rank < 2 else 0) + 1
        expected[rank, left, 0] += 1
        expected[rank, right, 7] += 1
        expected[rank, 0, 9] += 1 if rank > 0 else 0
    assert count == +expected
    assert {row["bytes"] for row in found.report["p2p"]} == {16}
    assert {row["verdict"] for row in found.report["p2p"]} == {"matched"}


def test_ranks_meet_in_a_file(tmp_path: Any) -> None:
    argv = forked(command("tour", 2, 1, ["--init-method", f"file://{tmp_path / 'meet'}"]))
    done = run_argv([*argv, "--pace", "0"], env=rank_env(), timeout_s=60)
    assert done.code == 0, done.err
    assert "results as expected" in done.lines(0)[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("dp",), "needs 2 GPUs"),
        (("tour", "--backend", "mpi"), "built without mpi"),
        (("tour", "--init-method", "tcp://nowhere"), "tcp://HOST:PORT"),
        (("ddp", "--nnodes", "3"), "take --nnodes 1, 2, 4"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_one_line_and_exit_2(words: tuple[str, ...], says: str) -> None:
    argv = [sys.executable, "-m", "pardbg.cli", "demo", *words]
    done = run_argv(argv, env=rank_env(), timeout_s=30)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and says in done.err, done.err
