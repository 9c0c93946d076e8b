"""What is chosen stays chosen while lists grow and are sorted anew."""

from __future__ import annotations

from dataclasses import replace

from textual.app import App, ComposeResult
from textual.widgets import Static

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.op_rows import P2PRow
from pardbg.render.frame.panels import no_match
from pardbg.render.pages.traffic import busiest
from pardbg.ui.app import PardbgApp
from pardbg.ui.main.main_screen import _Pages
from tests.ui import sample
from tests.ui.fakes import FakePort, FakeStore, app_on, shows, text_of, until


def busiest_edge(app: PardbgApp) -> tuple[int, int]:
    """Source and destination of the first edge listed."""
    frame = app.main.shared.frame
    assert frame is not None
    first = busiest(frame.snapshot.traffic)[0]
    return first.src, first.dst


def with_rates(base: Snapshot, *rates: float) -> Snapshot:
    """Edges 0-1, 1-2, 2-3, 3-0 at these rates."""
    edges = tuple(
        replace(edge, rate_bps=rate * 1e6)
        for edge, rate in zip(base.traffic.edges, rates, strict=True)
    )
    return replace(base, traffic=replace(base.traffic, edges=edges))


async def test_an_edge_stays_chosen_when_another_one_becomes_busier() -> None:
    base = sample.snapshot_ddp()
    app = app_on(with_rates(base, 40, 30, 20, 10), start="traffic")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "1 ┄┄▶  2")
        await pilot.press("down")
        page = app.main.pages["traffic"]
        assert page._chosen == (1, 2, "modelled")  # type: ignore[attr-defined]
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(with_rates(base, 10, 20, 30, 40))  # 3-0, 2-3, 1-2, 0-1
        await until(lambda: busiest_edge(app) == (3, 0), "the new order")
        frame = app.main.shared.frame
        assert frame is not None
        assert page.at(frame) == 2  # type: ignore[attr-defined]
        await pilot.press("up")
        assert page._chosen == (2, 3, "modelled")  # type: ignore[attr-defined]


def p2p(tag: int, epoch: int, num_bytes: int) -> P2PRow:
    return P2PRow("pp", 0, 1, 5, tag, num_bytes, "", 10, 11, 12, "matched", key=(epoch, "g1"))


async def test_messages_that_differ_in_tag_or_epoch_alone_are_chosen_apart() -> None:
    """Three rows with the same group, ranks and order. Going up from the newest reaches each."""
    rows = (p2p(0, 0, 1000), p2p(7, 0, 2000), p2p(0, 1, 3000))
    base = replace(sample.snapshot_1f1b(), collectives=(), p2p=rows)
    app = app_on(base, start="collectives")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "a frame")
        page = app.main.pages["collectives"]
        seen = []
        for _ in range(3):
            await pilot.press("up")
            frame = app.main.shared.frame
            assert frame is not None
            seen.append(page.draw(frame, 120, 30).focus)
        assert seen == [1, 0, 0]


async def test_a_click_on_the_time_bar_goes_there() -> None:
    """The track's first cell is the begin of the run, its last one the end."""

    def at(now: Snapshot, t_ns: int | None) -> Snapshot:
        return now if t_ns is None else replace(now, t_ns=t_ns)

    base = sample.snapshot_1f1b()
    app = app_on(base, live=False, at=at)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "‖ stop")

        def moment() -> int:
            frame = app.main.shared.frame
            return frame.snapshot.t_ns if frame is not None else -1

        def track() -> tuple[int, int]:
            bar = text_of(app).split("\n")[app.main._bars.status.region.y]
            cells = [x for x, sign in enumerate(bar) if sign in "━─●┴▲•✗◆╌"]
            last = max(cells)
            first = last
            while first - 1 in cells:
                first -= 1
            return first, last

        await pilot.click("#status", offset=(track()[1], 0))
        await until(lambda: moment() == base.t_end_ns, "the end")
        await pilot.click("#status", offset=(track()[0], 0))
        await until(lambda: moment() == base.t_begin_ns, "the begin")


async def test_the_chosen_box_stays_in_sight_while_a_live_run_goes_on() -> None:
    """A minute on, the window ends where it did when the box was chosen; esc follows again."""
    base = sample.snapshot_1f1b()
    app = app_on(base, FakePort(), start="timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, " across")
        await pilot.press("l")
        await shows(app, "┌ r0")
        box = text_of(app).partition("┌")[2][:60]
        later = base.t_ns + 60 * sample.S
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(replace(base, t_ns=later, t_end_ns=later))
        await shows(app, "stays 60 s back for the box")
        frame = app.main.shared.frame
        assert frame is not None and frame.lanes_t1_ns == base.t_ns
        assert text_of(app).partition("┌")[2][:60] == box
        await pilot.press("plus")  # closer: the box stays inside
        await until(lambda: "┌" in text_of(app) and app.main.shared.frame.lanes_t1_ns <= base.t_ns)
        await pilot.press("escape")
        await until(lambda: app.main.shared.frame.lanes_t1_ns == later, "follows")
        assert "┌" not in text_of(app)


async def test_a_page_chosen_before_the_pages_are_mounted_is_the_one_shown() -> None:
    chosen = ["overview"]

    class Early(App[None]):
        def compose(self) -> ComposeResult:
            pages = [Static(id=name) for name in ("overview", "findings")]
            switcher = _Pages(lambda: chosen[0], *pages)  # type: ignore[arg-type]
            chosen[0] = "findings"
            yield switcher

    app = Early()
    async with app.run_test():
        switcher = app.query_one(_Pages)
        await until(lambda: switcher.current == "findings", "the page chosen meanwhile")
        assert [page.id for page in switcher.children if page.display] == ["findings"]


async def test_a_filter_that_leaves_nothing_says_so_and_a_rank_is_found_by_its_name() -> None:
    """The same on each page that has rows to filter, and no filter is asked for on others."""
    app = app_on(sample.snapshot_1f1b())

    def blank() -> bool:
        page = app.main.page
        return all(row in page.shown for row in no_match(*page.size).body)

    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "a frame")
        for key in "134":
            await pilot.press(key, "slash", *"zzz", "enter")
            await until(blank, f"nothing on {key}")
            await pilot.press("slash", *("backspace",) * 3, *"r1", "enter")
            if key in "13":
                await until(lambda: bool(app.main.page.rows_shown()), f"rank 1 on {key}")
            assert key != "1" or [*app.main.page.rows_shown()] == [1]
            await pilot.press("escape")
        for key in "25678":
            await pilot.press(key, "slash")
            assert not app.main._prompting
