"""Tensor parallel, sharded, expert and recomputing recipes as pardbg sees them: bytes, order and
memory against what the model's own sizes say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from pardbg import words
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.lab.recipes.model import Block, gpt
from pardbg.lab.recipes.shape import BATCH, BLOCKS, CONTEXT, EXPERTS, MOE_BLOCKS, VOCABULARY, WIDTH
from pardbg.render.draw.cells import plain
from pardbg.render.pages.exchange import exchange, loads
from pardbg.render.pages.memory import memory
from pardbg_agent.wire import Flag
from tests.distributed.recorded import Recorded, recorded

# A recipe's run starts in the first test that asks for it.
pytestmark = pytest.mark.timeout(150)
N, STEPS = 4, 3
STEP = 2
"""A step like all that follow: DDP has its buckets, FSDP its order, and activations are sampled."""
FLOW = BATCH * CONTEXT * WIDTH * 4
"""Bytes that flow between blocks for the whole batch."""


@dataclass(frozen=True)
class Op:
    op: str
    axis: str
    seq: int
    a: int
    b: int


def run(name: str) -> Recorded:
    found = recorded(name, steps=STEPS)
    assert found.exit_code == 0, found.err
    return found


def ops(name: str, rank: int, step: int = STEP) -> list[Op]:
    """Collectives that a rank issued in a step, in order."""
    process = run(name).store.rank_procs(None)[rank]
    table = process.table("issue")
    columns = (table.col(c).tolist() for c in ("step", "name_id", "group_id", "seq", "a", "b"))
    return [
        Op(process.name(i), process.groups[g].name, seq, a, b)
        for s, i, g, seq, a, b in zip(*columns, strict=True)
        if s == step
    ]


def sizes(found: list[Op], op: str, axis: str) -> list[int]:
    """The larger side of each op of a kind."""
    return [max(o.a, o.b) for o in found if (o.op, o.axis) == (op, axis)]


@cache
def parameters() -> tuple[int, int]:
    """Bytes of a block, and of all the rest."""
    model = gpt(0)
    whole = sum(p.nbytes for p in model.parameters())
    block = sum(p.nbytes for p in model[1].parameters())
    return block, whole - BLOCKS * block


def whole() -> int:
    block, rest = parameters()
    return BLOCKS * block + rest


def num_parameters() -> int:
    return len(list(gpt(0).parameters()))


def memory_of(name: str, rank: int) -> dict[str, int]:
    (row,) = [row for row in run(name).report["memory"] if row["rank"] == rank]
    return row


def have(row: dict[str, int]) -> int:
    return row["parameters_bytes"] + row["gradients_bytes"] + row["optimizer_bytes"]


# -- tensor parallel


@pytest.mark.parametrize("rank", range(N))
def test_tp_adds_up_twice_in_each_block_forward_and_backward(rank: int) -> None:
    found = [o for o in ops("tp", rank) if o.op != "barrier"]
    assert [(o.op, o.axis, o.a) for o in found] == [("all_reduce", "tp", FLOW)] * (4 * BLOCKS)


def test_tp_cuts_what_lies_between_the_matrices_of_a_pair() -> None:
    """Of a block: qkv and the first MLP layer with their biases, and the weights of the others."""
    block = gpt(0)[1]
    assert isinstance(block, Block)
    cut = [block.attention.qkv.weight, block.attention.qkv.bias, block.attention.out.weight,
           block.mlp[0].weight, block.mlp[0].bias, block.mlp[2].weight]  # fmt: skip
    saved = sum(p.nbytes for p in cut) * (N - 1) // N
    for rank in range(N):
        row = memory_of("tp", rank)
        assert row["parameters_bytes"] == row["gradients_bytes"] == whole() - BLOCKS * saved
        assert row["expected_bytes"] == 4 * row["parameters_bytes"]  # AdamW: P + G + 2 P


@pytest.mark.parametrize("rank", range(N))
def test_tp_sp_gathers_and_scatters_instead(rank: int) -> None:
    """2 of each per block and direction. Around them: the head gathers its input and (1 MiB) its
    scores, and scatters one gradient; the embedding gathers one. 17 norms have 2 parameters."""
    found = ops("tp-sp", rank)
    scores = BATCH * CONTEXT * VOCABULARY * 4
    gathered = sizes(found, "all_gather", "tp")
    assert sorted(gathered) == [FLOW] * (4 * BLOCKS + 2) + [scores]
    assert sizes(found, "reduce_scatter", "tp") == [FLOW] * (4 * BLOCKS + 1)
    assert sizes(found, "all_reduce", "tp") == [WIDTH * 4] * (2 * (2 * BLOCKS + 1))
    assert all(max(o.a, o.b) == N * min(o.a, o.b) for o in found if o.op != "all_reduce")


def test_tp_sp_keeps_a_quarter_of_what_norms_keep() -> None:
    """A norm keeps its input, and of each position the mean and the spread (two floats)."""
    norms, each = 2 * BLOCKS + 1, FLOW + 2 * BATCH * CONTEXT * 4
    for rank in range(N):
        whole_, cut = (memory_of(name, rank)["activations_peak_bytes"] for name in ("tp", "tp-sp"))
        assert whole_ - cut == norms * each * (N - 1) // N


# -- sharded state


def fsdp(name: str, rank: int) -> list[tuple[str, int, int]]:
    """(unit and verb, bytes of the unit, bytes whole after it) in a step."""
    process = run(name).store.rank_procs(None)[rank]
    table = process.table("fsdp")
    columns = (table.col(c).tolist() for c in ("step", "name_id", "a", "b"))
    return [(process.name(i), a, b) for s, i, a, b in zip(*columns, strict=True) if s == STEP]


@pytest.mark.parametrize("rank", range(N))
def test_zero3_gathers_each_block_twice_and_reduces_it_once(rank: int) -> None:
    block, rest = parameters()
    found = ops("zero3", rank)
    assert sizes(found, "all_gather", "dp_shard") == [rest, *[block] * (2 * BLOCKS)]
    assert sizes(found, "reduce_scatter", "dp_shard") == [*[block] * BLOCKS, rest]
    assert all(max(o.a, o.b) == N * min(o.a, o.b) for o in found if o.op != "all_reduce")
    seen = fsdp("zero3", rank)
    there, back = [*map(str, range(1, BLOCKS + 1))], [*map(str, range(BLOCKS, 0, -1))]
    assert units(seen, "wait unshard") == ["root", *there, *back]
    assert units(seen, "reshard") == [*there, *back, "root"]
    assert units(seen, "reduce") == [*back, "root"]
    # Whole at once: the root and one block; nothing between steps.
    assert max(b for _, _, b in seen) == rest + block and seen[-1][2] == 0
    assert {a for name, a, _ in seen if name.startswith("root")} == {rest}


@pytest.mark.parametrize("rank", range(N))
def test_zero2_gathers_once_and_holds_all_at_the_turn(rank: int) -> None:
    block, rest = parameters()
    found, seen = ops("zero2", rank), fsdp("zero2", rank)
    assert sizes(found, "all_gather", "dp_shard") == [rest, *[block] * BLOCKS]
    assert sizes(found, "reduce_scatter", "dp_shard") == [*[block] * BLOCKS, rest]
    assert units(seen, "reshard") == [*map(str, range(BLOCKS, 0, -1)), "root"]
    assert max(b for _, _, b in seen) == whole()


def units(seen: list[tuple[str, int, int]], verb: str) -> list[str]:
    return [name.removesuffix(f" {verb}") for name, _, _ in seen if name.endswith(f" {verb}")]


@pytest.mark.parametrize("rank", range(N))
def test_hsdp_shards_in_pairs_and_replicates_across(rank: int) -> None:
    block, rest = parameters()
    found = ops("hsdp", rank)
    assert sizes(found, "all_gather", "dp_shard") == [rest, *[block] * (2 * BLOCKS)]
    assert sizes(found, "reduce_scatter", "dp_shard") == [*[block] * BLOCKS, rest]
    assert sizes(found, "all_reduce", "dp_replicate") == [*[block // 2] * BLOCKS, rest // 2]
    groups = {tuple(g["ranks"]): g["axis"] for g in run("hsdp").report["groups"] if g["axis"]}
    assert groups == {(0, 1): "dp_shard", (2, 3): "dp_shard",
                      (0, 2): "dp_replicate", (1, 3): "dp_replicate"}  # fmt: skip


def test_zero1_reduces_all_gradients_and_sends_out_all_parameters() -> None:
    for rank in range(N):
        found = ops("zero1", rank)
        assert sum(sizes(found, "all_reduce", "default")) == whole() + 4  # and the loss
        assert sum(sizes(found, "broadcast", "default")) == whole()


STATE = 8
"""AdamW keeps two floats per parameter; each parameter's step count is 4 bytes more."""


def test_zero1_deals_out_the_optimizer_state() -> None:
    """Whole parameters, so not to the byte: the largest has 64 KiB, its state twice that."""
    rows = [memory_of("zero1", rank) for rank in range(N)]
    assert sum(row["optimizer_bytes"] for row in rows) == 2 * whole() + 4 * num_parameters()
    for row in rows:
        assert abs(row["optimizer_bytes"] - 2 * whole() // N) < 2 * 64 * 1024
        assert row["parameters_bytes"] == row["gradients_bytes"] == whole()
        assert row["expected_bytes"] == 2 * whole() + 2 * whole() // N


@pytest.mark.parametrize(("name", "shards"), [("zero2", N), ("zero3", N), ("hsdp", 2)])
def test_sharded_parameters_gradients_and_state_are_a_part_of_the_whole(
    name: str, shards: int
) -> None:
    for rank in range(N):
        row = memory_of(name, rank)
        assert row["parameters_bytes"] == row["gradients_bytes"] == whole() // shards
        assert row["optimizer_bytes"] == 2 * whole() // shards + 4 * num_parameters()
        # Between steps, where both are counted: beside the step counts to the byte.
        assert have(row) - 4 * num_parameters() == row["expected_bytes"] == 4 * whole() // shards


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_the_memory_page_says_how_much_is_whole_at_once(name: str) -> None:
    block, rest = parameters()
    peak = whole() if name == "zero2" else rest + block
    page = memory(snapshot(run(name).store, None), 120, 35)
    text = [plain(row) for row in (*page.head, *page.body, *page.foot)]
    said = f"at most {words.binary_size(peak)} of {words.binary_size(whole())}"
    assert any(said in row for row in text)
    assert sum(f"gathers up to {words.binary_size(peak)} beside P" in row for row in text) == N


# -- experts


def parts(rank: int) -> dict[tuple[int, int], int]:
    """(seq, peer) -> bytes the rank sent there."""
    table = run("moe").store.rank_procs(None)[rank].table("part")
    columns = (table.col(c).tolist() for c in ("seq", "peer", "a"))
    return {(seq, peer): a for seq, peer, a in zip(*columns, strict=True)}


def load() -> dict[tuple[int, int], int]:
    """(block, expert) -> tokens in STEP, as the recipe counted them."""
    process = run("moe").store.rank_procs(None)[0]
    table = process.table("metric")
    # Logged after the optimizer's step: the agent has begun to count the next one.
    columns = (table.col("step").tolist(), table.col("name_id").tolist(),
               table.col("a").view("<f8").tolist())  # fmt: skip
    rows = zip(*columns, strict=True)
    named = [(process.name(i), value) for s, i, value in rows if s == STEP + 1]
    found = {}
    for block in MOE_BLOCKS:
        for expert in range(EXPERTS):
            (value,) = [v for name, v in named if name == f"block {block} expert/{expert}"]
            found[block, expert] = int(value)
    return found


def test_moe_moves_the_bytes_that_its_routing_says() -> None:
    """Per block: counts (8 int64), dispatch, combine; in backward the last two mirrored."""
    tokens, each, row = load(), EXPERTS // N, WIDTH * 4
    share = BATCH * CONTEXT // N * row
    for block in MOE_BLOCKS:
        assert sum(tokens[block, e] for e in range(EXPERTS)) == BATCH * CONTEXT
    for rank in range(N):
        here = [sum(tokens[b, rank * each + e] for e in range(each)) * row for b in MOE_BLOCKS]
        found = [(o.a, o.b) for o in ops("moe", rank) if (o.op, o.axis) == ("all_to_all", "ep")]
        forward = [pair for size in here for pair in ((64, 64), (share, size), (size, share))]
        backward = [pair for size in here[::-1] for pair in ((share, size), (size, share))]
        assert found == forward + backward


def test_moe_parts_agree_from_both_sides() -> None:
    """What a rank keeps is what it sent less its parts, and what it got less others' parts."""
    sent = [parts(rank) for rank in range(N)]
    seen = 0
    for rank in range(N):
        for o in ops("moe", rank):
            if o.axis != "ep":
                continue
            away = sum(sent[rank].get((o.seq, peer), 0) for peer in range(N))
            came = sum(sent[peer].get((o.seq, rank), 0) for peer in range(N))
            assert o.a - away == o.b - came >= 0
            seen += 1
    assert seen == N * 10


def test_the_traffic_page_shows_routing_and_load() -> None:
    store = run("moe").store
    shot = snapshot(store, store.end_ns + 10**10)  # at rest: in all, not by the second
    text = [plain(row).split() for row in exchange(shot.traffic, range(N), 120)]
    for rank in range(N):
        sums = [sum(a for (_, peer), a in parts(rank).items() if peer == p) for p in range(N)]
        shown = ["╲" if p == rank else words.size(sums[p]) for p in range(N)]
        assert text[2 + rank] == " ".join([str(rank), *shown, words.size(sum(sums))]).split()
    rows = [plain(row) for row in loads(shot.ranks, 120, 5)]
    for block, row in zip(MOE_BLOCKS, rows[1:], strict=True):
        for expert in range(EXPERTS):
            assert str(load()[block, expert]) in row


def test_moe_follows_its_own_single_process() -> None:
    alone = recorded("moe", nproc=1, steps=STEPS)
    assert alone.exit_code == 0, alone.err
    assert run("moe").losses == pytest.approx(alone.losses, rel=1e-4)


# -- recomputation


def test_recomputed_forwards_are_marked_and_hold_less() -> None:
    """Step 1 keeps all; step 2 keeps the blocks' inputs, and one block's inside at a time."""
    flow = FLOW // N
    for rank in range(N):
        process = run("recompute").store.rank_procs(None)[rank]
        table = process.table("phase")
        columns = (table.col(c).tolist() for c in ("step", "name_id", "flags"))
        again = [s for s, i, flags in zip(*columns, strict=True)
                 if process.name(i) == "recompute" and flags == int(Flag.RECOMPUTE)]  # fmt: skip
        assert again == [0] * BLOCKS + [2] * BLOCKS
        table = process.table("memory")
        columns = (table.col(c).tolist() for c in ("step", "name_id", "a", "b"))
        kept = [(s, a, b) for s, i, a, b in zip(*columns, strict=True)
                if process.name(i) == "activations"]  # fmt: skip
        (_, all_of_it, _), (_, inputs, same), (_, still, peak) = kept
        assert [s for s, _, _ in kept] == [1, 2, 2]
        assert inputs == same == still and BLOCKS * flow < inputs < 12 * flow
        assert peak < all_of_it / 4
        # A block's inside, eight times, is what was not kept: but for the norms' small statistics.
        assert inputs + BLOCKS * (peak - inputs) == pytest.approx(all_of_it, rel=0.01)
