"""What a step moves, on real recordings: the model has 436,864 parameters of 4 bytes, so its
gradients are Z = 1,747,456 bytes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pardbg.analysis.answers.device_mesh import Mesh
from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.comm.p2p import Move, RingStep
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.draw.regions import regions
from pardbg.render.pages.mesh.link_boxes import link_boxes
from pardbg.render.pages.traffic import traffic
from pardbg.render.pages.traffic_step import across, crossing, film, matched
from pardbg.session.reader import load

SESSIONS = Path(__file__).parents[3] / "sessions"
Z = 436_864 * 4


@cache
def at_end(name: str) -> Snapshot:
    return snapshot(load(SESSIONS / f"{name}.mcap"), None)


def page(name: str, cells: int, rows: int) -> list[str]:
    picture = traffic(at_end(name), cells, rows)
    return [plain(row) for row in (*picture.head, *picture.body)]


def sent(name: str) -> dict[tuple[str, str], float]:
    step = at_end(name).traffic.step
    assert step is not None
    return {(op.axis, op.op): op.sent for op in step.ops}


def test_a_ring_of_messages_sends_what_its_formula_says() -> None:
    assert sent("ddp-ring")["default", "send"] == 2 * 3 / 4 * Z == 2_621_184
    found = matched(at_end("ddp-ring"))
    assert found is not None and found.seen and found.gradients == Z
    rows = "\n".join(page("ddp-ring", 120, 35))
    for words in ("2⋅3/4 ⋅ 1.747 MB = 2.621 MB", "6.99 MB", "3.49 MB"):  # N·Z, 2Z
        assert words in rows


def test_the_bytes_of_a_step_leave_the_first_one_out() -> None:
    """It broadcasts the parameters."""
    edges = at_end("ddp-ring").traffic.step
    assert edges is not None and edges.first == 1
    per = {(src, dst): size for src, dst, source, size in edges.edges if source == "observed"}
    assert per == {(rank, (rank + 1) % 4): 2_621_184 for rank in range(4)}


def test_every_axis_of_a_mesh_has_its_groups_and_bytes() -> None:
    """4 blocks on a rank, 4 microbatches, 4 all_reduces of 32,768 bytes in each: 64; a pair of
    ranks sends half of it twice. A stage sends one activation of 32,768 a microbatch."""
    found = sent("3d")
    assert found["tp", "all_reduce"] == 64 * 32_768
    assert found["pp", "send"] == 4 * 32_768
    rows = page("3d", 120, 35)
    groups = [row for row in rows if "4 groups of 2" in row]
    assert [row.split("■")[1].split()[0] for row in groups] == ["tp", "dp", "pp"]
    assert any("(0,2) (1,3) (4,6) (5,7)" in row for row in groups)
    row = next(row for row in rows if row.split()[:2] == ["r0", "·"])
    assert row.split("■")[0].split()[1:9] == ["·", "t", "p", "·", "d", "·", "·", "·"]


def test_a_formula_comes_to_what_it_says() -> None:
    """Of a sum a rank sends 2(N−1)/N, of what is gathered or scattered half of that."""
    asked = r"(2?)\(N−1\)/N ⋅ (\S+) kB = (2?)⋅?(\d)/(\d) ⋅ (\S+) kB = (\S+) kB"
    found = re.findall(asked, "\n".join(page("3d", 200, 55)))
    for *_, twice, sent_by, of, size, comes_to in found:
        value = float(twice or 1) * int(sent_by) / int(of) * float(size)
        assert float(comes_to) == pytest.approx(value, rel=0.01)
    assert {before == put_in for before, _, put_in, *_ in found} == {True} and len(found) >= 2


def test_a_small_mesh_is_boxes_with_what_neighbours_send() -> None:
    """3d is dp 2 × pp 2 × tp 2: rank = 4·dp + 2·pp + tp. A pair of tp sends half of 64 · 32,768
    twice, a pair of pp 4 · 32,768."""
    made = at_end("3d")
    assert [(axis.name, axis.size) for axis in made.mesh.axes] == [("dp", 2), ("pp", 2), ("tp", 2)]
    assert made.traffic.step is not None
    rows = [plain(row) for row in link_boxes(made.traffic.step, made.mesh, 56)]
    upper, lower = (row.replace("│", " ").split() for row in rows if re.search(r"│ \d │", row))
    assert [word for word in upper if word.isdecimal()] == ["0", "131", "2", "4", "131", "6"]
    assert [word for word in lower if word.isdecimal()] == ["1", "131", "3", "5", "131", "7"]
    (across_tp,) = [row for row in rows if "▲" in row]
    assert across_tp.count("▲") == 4 and across_tp.count(" MB") == 4
    assert all(len(row) <= 56 for row in rows)
    assert link_boxes(made.traffic.step, made.mesh, 40) == []
    assert link_boxes(made.traffic.step, Mesh(made.mesh.axes[:2]), 56) == [], "other neighbours"


@pytest.mark.parametrize(
    ("cells", "rows", "panels"), [(120, 35, True), (200, 55, True), (120, 24, False)]
)
def test_a_mesh_has_four_panels_and_the_links_below(cells: int, rows: int, panels: bool) -> None:
    """Where they leave no room for links the groups stand beside the senders alone."""
    made = traffic(at_end("3d"), cells, rows)
    drawn = [*made.head, *list(made.body)[: rows - len(made.head)]]
    titles = [region.title for region in regions(drawn)]
    assert len(made.head) + 4 <= rows and "links" in titles
    assert ("mesh dp 2 × pp 2 × tp 2" in titles) is panels
    if panels:
        four = {region.title: region for region in regions(drawn)}
        low, links = four["if the 8 ranks were on 2 hosts"], four["links"]
        assert four["who sends to whom"].y == low.y > four["groups by axis"].y
        assert links.y == low.y + low.lines and all(line_width(row) <= cells for row in made.head)
        # Squares of the two letters' colours: of 8 ranks each has one neighbour on each axis.
        squares = [run.style for row in drawn for run in row if run.style.startswith("brand/")]
        assert Counter(squares) == dict.fromkeys(
            {"brand/observed", "brand/bubble", "brand/spark"}, 8 + 1)  # fmt: skip


def test_what_would_go_between_two_hosts_by_the_axis_that_is_cut() -> None:
    """3d: tp (0,1) (2,3) …, pp (0,2) (1,3) …, dp (0,4) (1,5) …: cut by tp, all edges within the
    pairs of tp cross, and no other."""
    step = at_end("3d").traffic.step
    assert step is not None
    by_distance = {1: 0.0, 2: 0.0, 4: 0.0}
    for src, dst, _, size in step.edges:
        if abs(src - dst) in by_distance:
            by_distance[abs(src - dst)] += size
    found = crossing(step)
    for axis, apart in (("tp", 1), ("pp", 2), ("dp", 4)):
        assert found[axis] == pytest.approx(by_distance[apart], rel=0.01)
    assert min(found, key=lambda axis: found[axis]) == "pp"
    alone = at_end("ddp-ring").traffic.step
    assert alone is not None and not across(alone, 50), "one axis leaves no choice"
    assert sum(" cut  ━" in row for row in page("3d", 120, 35)) == 3


def test_bytes_that_are_not_the_gradients_are_not_said_to_be() -> None:
    """Of a mixture of experts, each rank has its own experts' gradients for itself."""
    assert matched(at_end("moe")) is None and matched(at_end("zero3")) is None
    assert matched(at_end("ddp")) is not None


def test_percents_of_axes_and_ops_add_up() -> None:
    """Of 2.71 MB: tp 77.6 %, dp 17.6 % in two ops, pp 4.8 %."""
    shown = page("3d", 120, 35)
    said = sum(map(int, re.findall(r"(\d+)% (?:tp|dp|pp)", " ".join(shown[:2]))))
    ops = [int(one) for row in shown for one in re.findall(r"B +(\d+)% *$", row.rstrip())]
    assert said == sum(ops) == 100 and len(ops) == 5


@pytest.mark.parametrize("name", ["1f1b", "3d"])
def test_a_step_whose_senders_are_not_known_is_drawn(name: str) -> None:
    """Ops of which no edge is told: a recording may claim it."""
    known = at_end(name)
    step = known.traffic.step
    assert step is not None and step.edges
    without = replace(step, ops=step.ops if name == "3d" else step.ops[:1], edges=())
    picture = traffic(replace(known, traffic=replace(known.traffic, step=without)), 120, 35)
    assert picture.head


@pytest.mark.parametrize("name", ["ddp-ring", "3d", "moe", "ps", "1f1b", "zero3", "tp-sp", "hsdp"])
@pytest.mark.parametrize("size", [(80, 21), (120, 35), (200, 55), (61, 13)])
def test_no_line_is_wider_than_the_page(name: str, size: tuple[int, int]) -> None:
    assert max(map(len, page(name, *size))) <= size[0]


def test_a_sentence_that_has_one_line_ends_in_an_ellipsis() -> None:
    assert page("ddp", 60, 13)[0].rstrip().endswith("…")
    assert "…" not in page("ddp", 60, 20)[0]


def test_chunks_fill_up_as_in_the_ring_by_hand() -> None:
    """Two ranks: rank 0 sends chunk 0, rank 1 chunk 1; each adds what comes to its own, and then
    passes the sum on."""
    first = (Move(0, 1, 0, 8), Move(1, 0, 1, 8))
    second = (Move(0, 1, 1, 8), Move(1, 0, 0, 8))
    ring = RingStep("all-gather", 2, 2, second, None, None,
                    (("reduce-scatter", first), ("all-gather", second)))  # fmt: skip
    rows = [plain(row).split() for row in film(ring, 80)]
    assert rows[1] == ["r0", "1", "1", "1", "▸✓", "▸✓", "✓"]
    assert rows[2] == ["r1", "1", "1", "▸✓", "1", "✓", "▸✓"]


def test_the_film_of_a_real_ring_ends_with_all_chunks_summed() -> None:
    ring = at_end("ddp-ring").traffic.ring
    assert ring is not None and len(ring.film) == ring.parts == 6
    last = [plain(row).replace("▸", " ").split()[-4:] for row in film(ring, 118)[1:5]]
    assert last == [["✓"] * 4] * 4
