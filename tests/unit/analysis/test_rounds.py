"""A look at many ranks in pieces finds what a whole snapshot of that moment has, whatever comes in
between."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from pardbg.analysis.answers.rounds import Round
from pardbg.analysis.answers.snapshot import MANY, Viewport, snapshot
from pardbg.store import Store
from pardbg.store.source import Message
from pardbg.ui.engine import engine as engines
from pardbg.ui.engine import pace
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.engine import Engine
from pardbg.ui.engine.feed import Analysis, Frame, Want
from pardbg.ui.engine.messages import FrameReady, Trouble
from tests.bench.bench_thousand_ranks import TP, one_step
from tests.unit.trace_builder import Trace

RANKS, STEPS, MORE = MANY + 8, 10, 2
DRAWN = frozenset({0, 1, 77})


@pytest.fixture(scope="module")
def trace() -> Trace:
    """One rank comes 30 ms late to each step; it is in the second half of the ranks."""
    trace = Trace(RANKS)
    for first in range(0, RANKS, TP):
        trace.groups[f"tp{first // TP}"] = tuple(range(first, first + TP))
    for place in range(TP):
        trace.groups[f"dp{place}"] = tuple(range(place, RANKS, TP))
    for step in range(STEPS + MORE):
        for proc in trace.ranks:
            one_step(proc, step)
            proc.flush()
    return trace


def fed(trace: Trace, steps: int) -> tuple[Store, list[Message]]:
    """A live store with so many steps, and the messages that come then."""
    store, records = Store(live=True), [m for m in trace.messages if m.key[:1] == b"R"]
    cut = steps * RANKS
    store.apply_all(m for m in trace.messages if m.key[:1] != b"R")
    store.apply_all(records[:cut])
    return store, records[cut:]


def test_it_finds_what_a_whole_snapshot_does_while_more_comes(trace: Trace) -> None:
    whole = snapshot(fed(trace, STEPS)[0], None, viewport=(port := Viewport(DRAWN, frozenset())))
    store, later = fed(trace, STEPS)
    before = snapshot(store, None, viewport=port, partial=True)
    look, draw, made, pieces = Round(store, None, port, before), random.Random(7), None, 0
    while made is None:
        made, pieces = look.go_on(lambda: True), pieces + 1
        some = draw.randrange(40)
        store.apply_all(later[:some])
        del later[:some]
        if pieces % 4 == 0:
            before = snapshot(store, None, viewport=port, before=before, partial=True)
    assert pieces > 40 and store.end_ns > whole.t_end_ns
    assert "straggler" in {one.kind for one in made.findings}
    assert made.findings == whole.findings
    assert (made.t_ns, made.steps, made.loss_history) == (
        whole.t_ns,
        whole.steps,
        whole.loss_history,
    )
    lagging = [[replace(row, lag_ns=None, cores=None) for row in of.ranks if row.rank in DRAWN]
               for of in (made, whole)]  # fmt: skip
    assert lagging[0] == lagging[1]


def test_what_waits_comes_into_the_tables_after_it(trace: Trace) -> None:
    store, later = fed(trace, STEPS)
    port = Viewport(DRAWN, frozenset())
    look = Round(store, None, port, snapshot(store, None, viewport=port, partial=True))
    for _ in range(4):  # all tables are read, and some detectors are through
        assert look.go_on(lambda: True) is None
    store.apply_all(later)
    assert look.go_on(lambda: False) is not None
    whole = snapshot(fed(trace, STEPS + MORE)[0], None)
    now = snapshot(store, None)
    assert (now.t_ns, now.findings, now.steps) == (whole.t_ns, whole.findings, whole.steps)


class Live:
    """Each rank's next step at a time, while there is one."""

    live, finished = True, False

    def __init__(self, messages: list[Message]) -> None:
        self.left = messages

    def poll(self, timeout_ms: int) -> list[Message]:
        came, self.left = self.left[:RANKS], self.left[RANKS:]
        return came

    def close(self) -> None: ...


def test_a_viewer_that_follows_looks_at_all_in_pieces(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first whole frame only partial ones come; the late rank, which shows after some
    steps alone, is in one of them."""
    monkeypatch.setattr(pace, "SLOW_S", 0.0)
    store, later = fed(trace, 1)
    frames: list[Frame] = []
    engine = Engine(
        Live(later), store, Analysis(), TimeCursor(),
        lambda said: frames.append(said.frame) if isinstance(said, FrameReady) else None,
    )  # fmt: skip
    engine.want(Want(viewport=Viewport(DRAWN, frozenset())))
    until, wholes = time.monotonic() + 60, 0
    while not (frames and any(one.kind == "straggler" for one in frames[-1].snapshot.findings)):
        assert time.monotonic() < until
        before = len(frames)
        engine._turn()
        wholes += len(frames) > before and engine._maker.whole
    assert wholes == 1 and len(frames) > 2
    assert all(frame.whole for frame in frames)  # none says that findings are still looked for


def test_of_a_look_that_fails_or_is_no_more_wanted_nothing_is_kept(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, the next one comes after a rest, and the store forgets again."""
    monkeypatch.setattr(pace, "SLOW_S", 0.0)
    monkeypatch.setattr(pace, "PIECE_S", 0.0)
    monkeypatch.setattr(pace, "ROUND_SHARE", 1e6)  # the rest outlasts whatever a busy machine takes
    store, later = fed(trace, STEPS)
    said: list[object] = []
    engine = Engine(Live([]), store, Analysis(), TimeCursor(), said.append)
    engine.want(Want(viewport=Viewport(DRAWN, frozenset())))
    while engine._shown is None:
        engine._turn()
    engine._go_on()
    assert engine._maker.owes_a_look
    assert any(process.put_by.looked_at for process in store.procs.values())
    monkeypatch.setattr(Round, "go_on", lambda *_: 1 / 0)
    for _ in range(3):
        engine._go_on()
    assert [type(one) for one in said].count(Trouble) == 1
    assert not any(process.put_by.looked_at for process in store.procs.values())
    assert not engine._maker.owes_a_look  # nothing has come since
    store.apply_all(later)
    assert engine._maker.owes_a_look and not engine._pace.piece_is_due(urgent=False)


def test_a_look_ends_with_the_run(trace: Trace) -> None:
    store, _ = fed(trace, STEPS)
    maker = Engine(Live([]), store, Analysis(), TimeCursor(), lambda _: None)._maker
    want = Want(viewport=Viewport(DRAWN, frozenset()))
    maker.make(want, 0.0, partial=False)
    assert not maker.go_on(want, lambda: True)
    store.run_ends.append((store.end_ns, 0))
    maker.make(want, 0.0, partial=True)
    assert not (maker.owes_a_look or any(p.put_by.looked_at for p in store.procs.values()))


def with_a_frame(store: Store) -> Engine:
    """An engine that has made its first frame."""
    engine = Engine(Live([]), store, Analysis(), TimeCursor(), lambda _: None)
    engine.want(Want(viewport=Viewport(DRAWN, frozenset())))
    while engine._shown is None:
        engine._turn()
    return engine


def test_where_ranks_may_come_to_stand_their_records_are_made_ready_once(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is looked for, and not again in the next seconds: some jobs wait in every step."""
    monkeypatch.setattr(pace, "SLOW_S", 1e9)
    store, later = fed(trace, STEPS)
    engine = with_a_frame(store)
    monkeypatch.setattr(engine._pace, "is_time", lambda _awaited: False)

    def waiting(seconds: float, part: list[Message]) -> bool:
        store.apply_all(part)
        store.settle()
        store.states.stood_ns = int(seconds * 1e9)
        engine._turn()
        return any(process.put_by.num_bytes for process in store.procs.values())

    assert waiting(0.9, later[:RANKS])
    assert not waiting(1.1, [])
    assert waiting(1.2, later[RANKS:])


def test_a_look_at_all_ranks_waits_while_a_hang_may_be_found(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a second after the records were made ready: a piece in between may take as long."""
    monkeypatch.setattr(pace, "SLOW_S", 0.0)
    store, later = fed(trace, STEPS)
    engine = with_a_frame(store)
    store.apply_all(later)
    monkeypatch.setattr(engine._pace, "is_time", lambda _awaited: False)
    monkeypatch.setattr(engine._pace, "piece_is_due", lambda _urgent: True)
    pieces: list[float] = []
    now = [1000.0]
    monkeypatch.setattr(engine, "_go_on", lambda: pieces.append(now[0]))
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    store.states.stood_ns = 1_100_000_000
    engine._turn()
    assert engine._ready_s == 1000.0 and not pieces
    for now[0] in (1000.9, 1001.1, 1001.5):
        engine._turn()
    assert pieces == [1001.1, 1001.5]
