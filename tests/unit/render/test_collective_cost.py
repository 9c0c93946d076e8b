"""What is worked out of times of collectives, and the line through them by size, where known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pardbg import words
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.render.draw.cells import plain
from pardbg.render.pages.collective_charts import charts, cost_of, said
from pardbg.render.pages.collectives import CollectivesPageState, collectives, verdict
from pardbg.render.pages.collectives import rows_of as listed
from tests.ui.sample import MS, S, snapshot_ddp
from tests.unit.render.test_pages import text_of
from tests.unit.trace_builder import Trace, ns

SIZES = (1_000, 16_000, 1_000_000, 40_000_000)


def rows_of(sizes: Sequence[int], off: dict[int, float] | None = None) -> list[CollectiveRow]:
    """2 ms and a nanosecond a byte, on a bus that carries 1.5 bytes for each."""
    row, made = snapshot_ddp().collectives[0], []
    for size in sizes:
        took = round((2_000_000 + size) * (off or {}).get(size, 1.0))
        made.append(replace(row, bytes=size, transfer_ns=took, busbw_gbps=1.5 * size / took))
    return made


def test_start_and_bandwidth_are_found() -> None:
    cost = cost_of(rows_of(SIZES, {16_000: 1.1, 1_000: 0.95}))
    assert cost is not None
    assert cost.start_ns == pytest.approx(2e6, rel=0.1)
    assert cost.ns_per_byte == pytest.approx(1.0, rel=0.1)
    (low, _), *_, (high, rate) = cost_of(rows_of(SIZES)).line  # type: ignore[union-attr]
    assert (round(low), round(high)) == (SIZES[0], SIZES[-1])
    assert rate == pytest.approx(1.5 * 40 / 42)  # 42 ms for 40 MB
    text = "\n".join(map(plain, charts(rows_of(SIZES * 3), 140, 14)))
    assert cost.text.startswith("2.0") and f"fit: {cost_of(rows_of(SIZES)).text}" in text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(SIZES[:3]),  # of three sizes one alone would judge two values
        rows_of((500_000, 520_000, 540_000, 560_000)),  # alike
        rows_of(SIZES, {16_000: 3.0}),  # one that is elsewhere
        rows_of(SIZES, dict(zip(SIZES, (40.0, 40.0, 20.0, 0.1), strict=True))),  # falls
    ],
    ids=["few", "alike", "off", "falls"],
)
def test_no_line_where_none_is_known(rows: list[CollectiveRow]) -> None:
    assert cost_of(rows) is None and "fit" not in "\n".join(map(plain, charts(rows * 3, 140, 14)))


def test_one_page_has_one_median() -> None:
    row = snapshot_ddp().collectives[0]
    rows = tuple(replace(row, seq=at, skew_ns=ms * MS) for at, ms in enumerate((10, 10, 20, 20)))
    text = text_of(collectives(replace(snapshot_ddp(), collectives=rows, findings=()), 120, 36))
    assert text.count(words.duration(15 * MS)) == 2


@pytest.mark.parametrize(("took_ms", "loud"), [(20, True), (40, False)])
def test_a_late_rank_is_told_by_how_long_moving_took_at_most(took_ms: int, loud: bool) -> None:
    """One rank asked, another waited: no one duration is known, and none of the two is too early.
    The last comes 60 ms after the first."""
    row = snapshot_ddp().collectives[0]
    came = tuple(
        arrival._replace(issued_ns=S + 60 * MS * (at == 2), completed_ns=S + (60 + took_ms) * MS,
                         held_ns=0, held_in_ns=0, source="waited" if at else "completed")
        for at, arrival in enumerate(row.arrivals)
    )  # fmt: skip
    made = replace(row, arrivals=came, skew_ns=60 * MS, last_rank=2, transfer_ns=None)
    alike = verdict(replace(made, transfer_ns=took_ms * MS))
    assert verdict(made) == alike and (alike != verdict(replace(made, skew_ns=0))) is loud


def test_an_op_that_lacks_a_rank_counts_in_what_ranks_waited() -> None:
    """Ranks 0 and 1 come at 1 and 2 s, rank 2 never: at 6 s they have waited 5 + 4 s. Of messages
    the receiver of one that is not sent has waited, and one that nobody receives is not moving."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 100, 200)
    trace.ranks[2].phase("data", 0, 300)
    for proc, t in zip(trace.ranks[:2], (1000, 2000), strict=True):
        proc.collective("world", "all_reduce", t, None)
    trace.ranks[0].p2p("world", 2, False, 3000, None)
    trace.ranks[1].p2p("world", 2, True, 3500, None)
    trace.flush()
    now = snapshot(trace.store(), ns(6000))
    whole, lacking = listed(now, CollectivesPageState())
    assert isinstance(whole, CollectiveRow) and isinstance(lacking, CollectiveRow)
    assert (whole.wait_ns, lacking.wait_ns) == (0, 9_000 * MS)
    first = listed(now, CollectivesPageState(by_wait=True))[0]
    assert isinstance(first, CollectiveRow) and first.seq == lacking.seq
    received, sent = listed(now, CollectivesPageState(p2p=True))
    assert isinstance(received, P2PRow) and isinstance(sent, P2PRow)
    assert (received.waited_ns, received.moving_ns) == (3000 * MS, None)
    assert (sent.waited_ns, sent.moving_ns) == (None, None)
    assert " 9 s " in plain(said(now, 120)[-1])
