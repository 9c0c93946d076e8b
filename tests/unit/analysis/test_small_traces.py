"""Memory, steps, ranks, control, timeline, output and the report, on small traces."""

from __future__ import annotations

import json

import pytest

from pardbg.analysis.answers.ranks import Activity, RankNow
from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import Spot, lanes, waited_for
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import intersect, subtract, total, union
from pardbg.analysis.base.losses import loss_history
from pardbg.analysis.base.run import lines
from pardbg.analysis.base.steps import stated_step
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.finding import Candidate, Label
from pardbg.analysis.findings.kinds.recording_kinds import HookError
from pardbg.analysis.findings.kinds.speed_kinds import Straggler
from pardbg.analysis.memory.breakdown import ZeroModel
from pardbg.analysis.pipeline.dependencies import compute_actions, parse, producer, satisfied
from pardbg.events.control_facts import Asked, Cut
from pardbg.render.reports.text import WIDTH, text
from pardbg.store import Store
from pardbg.store.table import Limits
from pardbg_agent import wire
from tests.report_schema import VALIDATOR
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import MS, Trace, ns


def test_producers() -> None:
    assert producer("0F3", 4) is None
    assert producer("2F3", 4) == "1F3"
    assert producer("2B3", 4) == "3B3"
    assert producer("2I3", 4) == "3I3"
    assert producer("3B3", 4) == "3F3"
    assert producer("1W3", 4) == "1I3"
    assert producer("1UNSHARD", 4) is None and producer("nonsense", 4) is None


def test_satisfied() -> None:
    assert satisfied("1F0", 2, {"0F0"}) and not satisfied("1F0", 2, set())
    assert satisfied("0B0", 2, {"0F0", "1B0"})
    assert satisfied("0B0", 2, {"0F0", "1I0"}), "a split backward gives its gradient with I"
    assert not satisfied("0B0", 2, {"1B0"}), "its own forward has not run"


def test_text_forms() -> None:
    action = parse("12B34")
    assert action is not None and action == (12, "B", 34) and action.text == "12B34"
    assert parse("0UNSHARD") == (0, "UNSHARD", -1)
    assert parse("F0") is None and parse("1SEND_F0") is None
    assert compute_actions("(0F3;1B2)OVERLAP_F_B") == ("0F3", "1B2")
    assert compute_actions("2SEND_F0") == ()


def test_intervals() -> None:
    assert union([(3, 4), (0, 2), (1, 2), (2, 3), (9, 9)]) == [(0, 4)]
    assert subtract([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert intersect([(0, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]
    assert total([(0, 4), (6, 9)]) == 7


@pytest.mark.parametrize(
    ("level", "expected"),
    # P = G = 100, O = 200, N = 4
    [(0, 400), (1, 100 + 100 + 50), (2, 100 + 75), (3, 100)],
)
def test_expected_memory_by_zero_level(level: int, expected: int) -> None:
    assert ZeroModel(level, level, 4, 100, 100, 200).bytes_at(level) == expected


def test_memory_row() -> None:
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.define(wire.DefKind.MODEL, zero=1, shards=4, parameters_bytes=100, optimizer="AdamW")
    proc.memory("parameters", 1, 60, stage=0)
    proc.memory("parameters", 1, 40, stage=1)
    proc.memory("gradients", 1, 100)
    proc.memory("activations", 1, 30, peak=80)
    proc.memory("rss", 1, 1000)
    proc.memory("activations", 2, 20, peak=50)
    proc.memory("rss", 2, 1200)
    store = trace.store()
    (row,) = snapshot(store, None).memory
    assert (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes) == (100, 100, None)
    assert (row.activations_bytes, row.activations_peak_bytes) == (20, 80)
    assert (row.total_bytes, row.total_kind) == (1200, "rss")
    assert row.unattributed_bytes == 1200 - 220
    assert row.expected_bytes == 250  # AdamW: O = 2 P
    assert row.history == ((ns(1), 1000), (ns(2), 1200))
    (before,) = snapshot(store, ns(1)).memory
    assert (before.total_bytes, before.activations_bytes) == (1000, 30)


def test_memory_over_many_blocks_is_the_same_as_looking_at_all() -> None:
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.memory("parameters", 0, 77)
    for i in range(10_000):
        proc.memory("rss", 1 + i, i, peak=20_000 - i)
    store = trace.store()
    for t, rss in ((5000, 4999), (10_000, 9999), (2, 1)):
        (row,) = snapshot(store, ns(t)).memory
        assert (row.parameters_bytes, row.total_bytes) == (77, rss)


def ddp() -> Trace:
    """Two ranks, two steps of 100 ms: forward 20, backward 60 with an all_reduce, optimizer 10."""
    trace = Trace(2)
    for step in range(2):
        for proc in trace.ranks:
            t = 100 * step
            proc.phase("data", t, t + 10, step)
            proc.phase("forward", t + 10, t + 30, step)
            # Rank 1 issues at 60, rank 0 at 50; both complete at 80, backward ends at 90.
            issue = t + 50 + 10 * (proc.rank or 0)
            proc.collective("world", "all_reduce", issue, t + 80, 1000, step=step)
            proc.phase("backward", t + 30, t + 90, step)
            proc.phase("optimizer", t + 90, t + 100, step)
            proc.metric("loss", t + 99, 4.0 - step + (proc.rank or 0), step)
            proc.step(step, t, t + 100 + (proc.rank or 0), hook_ns=200_000)
    return trace


def test_steps_phases_and_loss() -> None:
    shown = snapshot(ddp().store(), None)
    assert [(s.step, s.duration_ns) for s in shown.steps] == [(0, 101 * MS), (1, 101 * MS)]
    assert shown.steps[0].phases == {
        "data": 10 * MS, "forward": 20 * MS, "backward": 60 * MS, "optimizer": 10 * MS,
    }  # fmt: skip
    assert shown.loss_history == ((0, 4.5), (1, 3.5))  # means of (4, 5) and (3, 4)
    assert (shown.step, shown.step_ns, shown.loss) == (1, 101 * MS, 3.5)


def test_a_loss_logged_after_the_optimizer_is_the_ended_steps() -> None:
    """Hooks see each rank's own loss inside the step; rank 0 logs the mean after it."""
    trace = Trace(2)
    for step in range(3):
        t = 100 * step
        for proc in trace.ranks:
            proc.phase("forward", t + 10, t + 20, step)
            proc.metric("loss", t + 20, 5.0 - step + (proc.rank or 0), step)
            proc.step(step, t, t + 90)
            proc.collective("world", "all_reduce", t + 91, t + 92, 4, step=step + 1)
        trace.ranks[0].metric("loss", t + 95, 5.5 - step, step + 1)
    store = trace.store()
    assert snapshot(store, None).loss_history == ((0, 5.5), (1, 4.5), (2, 3.5))
    # As of 96 ms step 1 has done nothing: what was logged is step 0's.
    assert snapshot(store, ns(96)).loss_history == ((0, 5.5),)
    # As of 30 ms only the hooks have spoken: the mean of 5 and 6.
    assert snapshot(store, ns(30)).loss_history == ((0, 5.5),)


def test_split_of_a_ddp_step() -> None:
    row = snapshot(ddp().store(), None).ranks[0]
    # Rank 0, 100 ms. Its only op is issued at 50; until 60 it waits for rank 1, until 80 data
    # moves. Computing: 10..30 forward, 30..50 and 80..90 backward, 90..100 optimizer.
    assert row.wait_fraction == pytest.approx(0.10, abs=0.001)
    assert row.comm_fraction == pytest.approx(0.20, abs=0.001)
    assert row.compute_fraction == pytest.approx(0.60, abs=0.001)
    assert row.agent_overhead == pytest.approx(0.002)
    assert row.step_ns == (100 * MS, 100 * MS)


def test_split_of_a_pipeline_step() -> None:
    row = snapshot(two_ranks().store(), None).ranks[0]
    # 10 ms: 6 busy, 3 dependency, 1 communication.
    assert row.compute_fraction == pytest.approx(0.6)
    assert row.wait_fraction == pytest.approx(0.3)
    assert row.comm_fraction == pytest.approx(0.1)


def stated(said: dict[str, object], t: float = 50, at: float | None = None) -> RankNow:
    trace = Trace(1)
    trace.ranks[0].phase("forward", 0, 1)
    trace.flush()
    base = {"rank": 0, "alive": True, "step": 3, "heartbeat_ns": ns(t)}
    trace.state(t, **{trace.ranks[0].proc: base | said})
    (row,) = snapshot(trace.store(), None if at is None else ns(at)).ranks
    return row


def test_rank_states() -> None:
    held = stated({"held": 8, "held_since_ns": ns(20), "next": "2F4"})
    assert (held.state, held.now, held.since_ns) == ("held", Activity("held before", "2F4"), ns(20))
    waiting = stated({"open": 1, "open_op": "recv F4 from r2", "open_since_ns": ns(20)})
    assert (waiting.state, waiting.now, waiting.since_ns) == (
        "waiting",
        Activity("in", "recv F4 from r2"),
        ns(20),
    )
    busy = stated({"what": "forward", "since_ns": ns(45)})
    assert (busy.state, busy.now, busy.step) == ("running", Activity("in", "forward"), 3)
    for key in ("what", "phase"):
        assert stated_step({key: wire.START_UP, "step": 0}) is None
        assert stated_step({key: "forward", "step": 0}) == 0
    running = stated({"action": "F", "stage": 0, "mb": 5, "since_ns": ns(45), "what": "0F5"})
    assert (running.state, running.now) == ("running", Activity("in", "0F5"))
    assert stated({"alive": False}).state == "ended"
    stale = stated({"what": "forward", "heartbeat_ns": ns(10)}, t=5000)
    assert stale.state == "stale" and stale.since_ns == ns(10)


def test_rank_states_without_state_messages() -> None:
    trace = two_ranks()
    store = trace.store()
    assert [r.state for r in snapshot(store, ns(3)).ranks] == ["running", "running"]
    assert [r.now for r in snapshot(store, ns(3)).ranks] == [
        Activity("after", "0F1"),
        Activity("in", "1B0"),
    ]
    trace.end(20)
    assert [r.state for r in snapshot(trace.store(), None).ranks] == ["ended", "ended"]


def test_control_as_of() -> None:
    trace = Trace(2)
    trace.hub(wire.Key.CONTROL, 5, event="verb", verb="pause", mode="pausing", controller="view-1",
              lease_ns=10_000 * MS, by="view-1")  # fmt: skip
    trace.hub(wire.Key.CONTROL, 9, event="cut", mode="held", controller="view-1",
              lease_ns=10_000 * MS, held={0: "0F1", 1: "1F0"}, pending=1)  # fmt: skip
    trace.hub(wire.Key.CONTROL, 90, event="running", mode="running")
    store = trace.store()
    assert snapshot(store, ns(1)).control.mode == "running"
    held = snapshot(store, ns(11)).control
    assert (held.mode, held.controller, held.pending) == ("held", "view-1", 1)
    assert held.held == {0: "0F1", 1: "1F0"}
    assert held.lease_ns == 9_998 * MS
    assert [(e.t_ns, e.by, type(e.fact)) for e in held.log] == [
        (ns(5), "view-1", Asked), (ns(9), "", Cut),
    ]  # fmt: skip
    after = snapshot(store, None).control
    assert (after.mode, after.held, after.lease_ns) == ("running", {}, None)


def test_output_as_of() -> None:
    trace = Trace(1)
    for t in range(5):
        trace.output(t, f"Line {t}", rank=t % 2)
    store = trace.store()
    assert [line.text for line in lines(store, ns(3), 2)] == ["Line 2", "Line 3"]
    assert [line.text for line in lines(store, None, 9, contains="line 4")] == ["Line 4"]
    assert [line.text for line in lines(store, None, 9, rank=1)] == ["Line 1", "Line 3"]


def test_timeline_boxes() -> None:
    store = two_ranks().store()
    made = lanes(store, ns(0), ns(10), 100, ranks=(0,))
    assert list(made) == [0]
    boxes = made[0]["compute"]
    assert [(b.label, b.style) for b in boxes] == [
        ("0F0", "action.F"), ("0F1", "action.F"), ("0B0", "action.B"), ("0B1", "action.B"),
    ]  # fmt: skip
    assert (boxes[2].t0_ns, boxes[2].t1_ns) == (ns(5), ns(7))
    assert [b.label for b in made[0]["comm"]] == ["recv B0 from r1", "recv B1 from r1"]
    # Only what touches the window.
    assert [b.label for b in lanes(store, ns(6), ns(7.5), 100)[0]["compute"]] == ["0B0"]


def test_timeline_merges_what_is_narrower_than_a_column() -> None:
    trace = Trace(1)
    for i in range(1000):
        # 100 ms of F, then 100 ms of B, each 0.1 ms and 0.1 ms apart
        trace.ranks[0].action(f"0{'F' if i < 500 else 'B'}{i}", 0.2 * i, 0.2 * i + 0.1)
    boxes = lanes(trace.store(), ns(0), ns(200), 50)[0]["compute"]
    assert [(b.style, b.label) for b in boxes] == [("action.F", "×500"), ("action.B", "×500")]
    assert (boxes[0].t0_ns, boxes[1].t1_ns) == (ns(0), ns(199.9))


def test_replay_is_the_same_twice_and_however_it_came() -> None:
    trace = ddp()
    store = trace.store()
    times = [None, *(ns(t) for t in range(-10, 220, 13))]
    first = [snapshot(store, t) for t in times]
    assert [snapshot(store, t) for t in reversed(times)] == first[::-1]
    again = trace.store()
    assert [snapshot(again, t) for t in times] == first


def test_a_growing_store_ends_where_a_whole_one_does() -> None:
    trace = Trace(2)
    for step in range(12):
        for proc in trace.ranks:
            other = 1 - (proc.rank or 0)
            t = 10 * step + (proc.rank or 0)
            proc.phase("forward", t, t + 3, step)
            proc.action(f"{proc.rank}F0", t, t + 3, step)
            proc.p2p("world", other, not proc.rank, t + 3, t + 4, step=step)
            proc.collective("world", "all_reduce", t + 5, t + 8, step=step)
            proc.memory("rss", t + 8, 100 + step)
            proc.step(step, 10 * step, 10 * step + 9)
            proc.flush()
    grown = Store()
    for message in trace.messages:
        grown.apply(message)
        snapshot(grown, None)
    assert snapshot(grown, None) == snapshot(trace.store(), None)


@pytest.mark.parametrize("make", [lambda: Trace(0), lambda: Trace(2), ddp, two_ranks])
def test_report_follows_its_schema_and_fits_the_terminal(make: object) -> None:
    trace = make()  # type: ignore[operator]
    trace.end(300, code=3)
    said = report(trace.store())
    VALIDATOR.validate(json.loads(json.dumps(as_json(said))))
    shown = text(said)
    assert all(len(line) <= WIDTH for line in shown.splitlines())
    assert "exit code 3" in shown


def test_report_says_the_figures() -> None:
    made = report(two_ranks().store())
    said = as_json(made)
    assert said["pipeline"]["bubble_fraction"] == pytest.approx(0.4)
    assert said["pipeline"]["implied_fraction"] == pytest.approx(1 / 3)
    (step,) = said["pipeline"]["steps"]
    for rank in step["ranks"]:
        assert rank["busy_ns"] + sum(rank["idle_ns"].values()) == step["window_ns"]
    assert step["ranks"][0]["actions"] == ["0F0", "0F1", "0B0", "0B1"]
    shown = text(made)
    assert "bubble 40.0%   implied 33.3%   bound 33.3%   excess 6.7%" in shown


def test_steps_under_the_debugger_are_left_out_of_the_medians() -> None:
    trace = two_ranks()
    r0, r1 = trace.ranks
    # Step 1: the same, but the ranks are held from 30 to 130.
    r0.action("0F0", 20, 21, 1)
    r0.action("0F1", 21, 22, 1)
    r1.action("1F0", 21, 22, 1)
    for proc in trace.ranks:
        proc.held(30, 130)
    for proc, row in ((r0, ("0B0", "0B1")), (r1, ("1B0", "1F1", "1B1"))):
        for i, action in enumerate(row):
            proc.action(action, 140 + 2 * i, 142 + 2 * i, 1)
    said = as_json(report(trace.store()))["pipeline"]
    assert [step["held_ns"] for step in said["steps"]] == [0, 200 * MS]
    # Without the hold the step lasts from 20 to 46, and its ranks compute 6 and 7 ms of it.
    assert said["steps"][1]["window_ns"] == 26 * MS
    assert said["steps"][1]["bubble_fraction"] == pytest.approx(1 - 13 / 52)
    assert said["bubble_fraction"] == pytest.approx(0.4)


def test_hook_errors_and_exit_codes_are_findings() -> None:
    trace = Trace(1)
    trace.ranks[0].define(wire.DefKind.ERROR, where="c10d.send", text="KeyError: 3", t_ns=ns(2))
    trace.ranks[0].step(0, 0, 1)
    trace.end(9, code=1)
    store = trace.store()
    assert [f.kind for f in snapshot(store, ns(3)).findings] == ["hook-error"]
    assert [f.kind for f in snapshot(store, None).findings] == ["exit-code", "hook-error"]


def test_what_holds_of_many_ranks_is_said_once() -> None:
    trace = Trace(1024)
    for rank in trace.ranks:
        rank.step(0, 0, 1)
        if rank.rank not in (3, 700):
            rank.define(wire.DefKind.ERROR, where="c10d.send", text="KeyError: 3", t_ns=ns(2))
    for rank in trace.ranks[700:703]:
        rank.define(wire.DefKind.ERROR, where="c10d.recv", text="KeyError: 4", t_ns=ns(2))
    many, *few = snapshot(trace.store(), ns(3)).findings
    assert many.ranks == tuple(rank for rank in range(1024) if rank not in (3, 700))
    assert many.facts == HookError("c10d.send", "KeyError: 3")
    assert [one.ranks for one in few] == [(700,), (701,), (702,)]  # fewer stand each for itself


def test_ranks_that_differ_in_figures_alone_are_one_finding() -> None:
    """The facts are those of the rank that costs most: rank 5, of 2 to 7."""
    slow = [
        Candidate(kind="straggler", t_ns=0, ranks=(1, n + 9), culprits=(n,), cost_ns_per_step=n % 6,
                  facts=straggler(n))
        for n in range(2, 8)
    ]  # fmt: skip
    assert [one.culprits for one in decided(slow[:3])] == [(2,), (3,), (4,)]
    (one,) = decided(slow)
    assert one.facts == straggler(5)
    assert (one.culprits, one.ranks) == ((2, 3, 4, 5, 6, 7), (1, 11, 12, 13, 14, 15, 16))


def straggler(rank: int) -> Straggler:
    """Late by compute in a group of its own."""
    return Straggler(
        label=Label(f"dp[1,{rank}]"), num_late=12, num_steps=12, by_ns=rank, cause="compute",
        cause_ns=rank, phases=("forward",), own_ns=rank, step_ns=100, timed=False, recurring=True,
        whole_host="", late=(rank,),
    )  # fmt: skip


def test_a_healthy_run_has_no_findings() -> None:
    trace = ddp()
    trace.end(300)
    assert snapshot(trace.store(), None).findings == ()


def test_groups_nobody_named_are_called_by_their_ranks_and_groups_of_one_fold_away() -> None:
    trace = Trace(2)
    trace.groups |= {"3": (0, 1), "4": (0,), "5": (1,)}
    for proc in trace.ranks:
        proc.collective("3", "all_reduce", 1, 2, 64)
        proc.collective("5" if proc.rank else "4", "all_reduce", 3, 4, 64)
    rows = snapshot(trace.store(), None).collectives
    assert [row.label for row in rows] == ["ranks 0,1"]


def test_a_wait_names_whom_it_was_for() -> None:
    """Rank 0 comes at 1 ms, rank 1 at 41; rank 0's wait for it is over at 43."""
    trace = Trace(2)
    r0, r1 = trace.ranks
    r0.collective("world", "all_reduce", 1, 43)
    r0.wait(2, 43, p2p=False)
    r1.collective("world", "all_reduce", 41, 43)
    store = trace.store()
    shown, drawn = snapshot(store, None), lanes(store, ns(0), ns(50), 100)
    (op,), (wait,) = drawn[0]["comm"], drawn[0]["wait"]
    assert op.label == "all_reduce world #0"
    for lane, span in (("comm", op), ("wait", wait)):
        about = waited_for(shown, drawn, Spot(0, lane, span.t0_ns))
        assert about is not None
        assert (about.op, about.rank, about.late_ns) == ("all_reduce world #0", 1, 40_000_000)
        assert about.came_ns == ns(41)
    (last,) = drawn[1]["comm"]
    about = waited_for(shown, drawn, Spot(1, "comm", last.t0_ns))
    assert about is not None and about.rank is None


def test_what_has_its_column_to_itself_is_a_box_of_its_own() -> None:
    """64 ops of 0.1 ms, one a millisecond, over 100 columns of a millisecond."""
    trace = Trace(1)
    for at in range(64):
        trace.ranks[0].collective("world", "all_reduce", at + 0.2, at + 0.3)
    boxes = lanes(trace.store(), ns(0), ns(100), 100)[0]["comm"]
    assert [box.label for box in boxes] == [f"all_reduce world #{at}" for at in range(64)]


@pytest.mark.parametrize("at_ms", [12, 16], ids=["inside its step", "after its end"])
def test_the_loss_of_a_step_whose_phases_are_gone_is_still_its_own(at_ms: int) -> None:
    """A viewer keeps the newest 4,096 phases, of 409 steps or more, but the losses of 600 steps. A
    step's own are over after 15 of 20 ms; what is logged then has the next one's number."""
    trace = Trace(1)
    (proc,) = trace.ranks
    ended = at_ms > 15
    for step in range(600):
        for place in range(10):
            proc.phase("forward", 20 * step + place, 20 * step + place + 1, step)
        if not ended:
            proc.metric("loss", 20 * step + at_ms, float(step), step)
        proc.step(step, 20 * step, 20 * step + 15)
        if ended:
            proc.metric("loss", 20 * step + at_ms, float(step), step + 1)
        proc.flush()
    store = Store(Limits(4096, 1 << 62, 10, 10, 10), live=True)
    store.apply_all(trace.messages)
    store.settle()
    assert store.procs[proc.proc].table("phase").base > 0
    expected = tuple((step, float(step)) for step in range(88 + ended, 600))
    assert loss_history(View(store, None)) == expected
