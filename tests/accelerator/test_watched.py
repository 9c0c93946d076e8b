"""Watched ranks on simulated accelerators: what their records say of the device is the truth."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest

from pardbg_agent.hooks.device.device_records import CAPTURED
from pardbg_agent.wire import Flag, Kind, Lane
from tests.distributed.programs.watched import Rank, Record, run_watched
from tests.forked import Job
from tests.hook_ways import NATIVE, WAYS

pytestmark = pytest.mark.timeout(200)
MS = 1_000_000


@dataclass(frozen=True)
class Watched:
    """One rank: its records, and what it printed."""

    ring: Rank
    told: dict[str, Any]

    def device(self, case: str, lane: Lane) -> list[Record]:
        """DEVICE records of a case's step, in the order of their begin."""
        found = [
            r for r in self.ring.of(Kind.DEVICE)
            if r.lane == lane and r.step == self.told[case]["step"] and r.t0 >= self.since(case)
        ]  # fmt: skip
        return sorted(found, key=lambda r: r.t0)

    def since(self, case: str) -> int:
        return int(self.told[case]["at"]) - 20_000  # an anchor's error is below

    def truth(self, case: str, *names: str) -> list[tuple[int, int]]:
        """(arrival, end) of launches in the device's log."""
        return sorted((e[3], e[5]) for e in self.told[case]["log"] if e[0] in names)


def ran(way: str) -> list[Watched]:
    job = Job("job", 4, ("tests.accelerator.programs.watched_jobs",))
    with pytest.MonkeyPatch.context() as env:  # hooks are put in place before ranks are forked
        env.setenv("PARDBG_HOOKS", way)
        env.setenv("PARDBG_NATIVE", NATIVE)
        ended, rings = run_watched([job])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    return [Watched(rings[r], json.loads(ended.out[r].splitlines()[-1])) for r in range(4)]


@pytest.fixture(scope="module", params=WAYS)
def ranks(request: pytest.FixtureRequest, simulated: str) -> list[Watched]:
    found = ran(request.param)
    way = "NativeRecords" if request.param == "native" else "DeviceRecords"
    assert all(rank.told["way"] == way for rank in found)
    return found


def bubble(spans: list[list[tuple[int, int]]]) -> float:
    first, last = min(s[0] for own in spans for s in own), max(s[1] for own in spans for s in own)
    return 1 - sum(t1 - t0 for own in spans for t0, t1 in own) / (len(spans) * (last - first))


def test_actions_are_the_devices_not_their_launches(ranks: list[Watched]) -> None:
    device, host = [], []
    for rank in ranks:
        actions = [r for r in rank.device("pipeline", Lane.COMPUTE) if r.name in "FB"]
        truth = rank.truth("pipeline", "F", "B")
        assert len(actions) == len(truth) == 16
        for action, (begin, end) in zip(actions, truth, strict=True):
            assert abs(action.t0 - begin) <= action.b and abs(action.t1 - end) <= action.b
            assert action.a > begin - rank.told["pipeline"]["at"]  # issued before the release
        device.append([(r.t0, r.t1) for r in actions])
        step = rank.told["pipeline"]["step"]
        launches = [r for r in rank.ring.of(Kind.ACTION) if r.step == step and r.name in "FB"]
        host.append([(r.t0, r.t1) for r in launches])
    # (p - 1) / (p - 1 + m) = 3 / 11
    assert bubble(device) == pytest.approx(3 / 11, abs=0.005)
    assert abs(bubble(host) - 3 / 11) > 0.1


@pytest.mark.parametrize("case", ["pipeline", "interleaved", "zero_bubble"])
def test_the_bubble_is_the_devices(ranks: list[Watched], case: str) -> None:
    """Beside the truth: what kernels took, of each rank."""
    truth, device, host = [], [], []
    for rank in ranks:
        step = rank.told[case]["step"]
        truth.append(rank.truth(case, "F", "B", "WB"))
        device.append([(r.t0, r.t1) for r in rank.device(case, Lane.COMPUTE) if r.name in "FBIW"])
        launches = [r for r in rank.ring.of(Kind.ACTION) if r.step == step and r.name in "FBIW"]
        host.append([(r.t0, r.t1) for r in launches])
    found = {name: bubble(spans) for name, spans in
             (("truth", truth), ("device", device), ("host", host))}  # fmt: skip
    print(case, {name: f"{share:.2%}" for name, share in found.items()})
    assert found["device"] == pytest.approx(found["truth"], abs=0.005)
    assert abs(found["host"] - found["truth"]) > 0.1


def test_ops_arrive_and_end_when_the_device_does(ranks: list[Watched]) -> None:
    for number, rank in enumerate(ranks):
        ops = [r for r in rank.device("ops", Lane.COMM) if r.name == "all_reduce"]
        at = rank.told["ops"]["at"]
        # A product of 20 ms (rank 2: 30), an op of 1 ms from the last arrival, twice; a third op.
        slow = number == 2
        expected = [(30 if slow else 20, 31), (61 if slow else 51, 62), (62, 63)]
        assert len(ops) == 3
        for op, (arrival, end) in zip(ops, expected, strict=True):
            assert op.t0 == pytest.approx(at + arrival * MS, abs=op.b)
            assert op.t1 == pytest.approx(at + end * MS, abs=op.b)
        pair = [r for r in rank.device("ops", Lane.COMM) if r.flags & Flag.P2P]
        ((_, end),) = rank.truth("ops", "coalesced")
        assert {bool(r.flags & Flag.SEND) for r in pair} == {True, False}
        for op in pair:  # one end for both, which the stream waited for
            assert op.t0 == pytest.approx(at + 62 * MS, abs=op.b)
            assert op.t1 == pytest.approx(end, abs=op.b)


def test_the_computing_stream_stands_in_waits_for_asynchronous_ops(ranks: list[Watched]) -> None:
    for number, rank in enumerate(ranks):
        at = rank.told["waits"]["at"]
        # Products of 20 ms (rank 2: 30); ops of 1 ms from the last arrival on: 30 to 31, 31 to 32,
        # 61 to 62. The second is over before its wait; one on another stream holds nothing up.
        slow = number == 2
        expected = [
            (30 if slow else 20, 31),
            *[(61 if slow else 51,) * 2],
            (61 if slow else 51, 62),
        ]
        *stood, late = rank.device("waits", Lane.WAIT)
        assert len(stood) == len(expected)
        for wait, (begin, end) in zip(stood, expected, strict=True):
            assert wait.name == "all_reduce"
            assert wait.t0 == pytest.approx(at + begin * MS, abs=wait.b)
            assert wait.t1 == pytest.approx(at + end * MS, abs=2 * wait.b)
        assert late.t0 == late.t1  # it had ended before the host asked for it


def test_a_batch_whose_end_fails_leaves_no_op_open(ranks: list[Watched]) -> None:
    assert [rank.told["refused"]["open"] for rank in ranks] == [0, 0, 0, 0]


def test_a_batch_is_open_until_the_device_ends_it_or_its_work_is_gone(ranks: list[Watched]) -> None:
    for rank in ranks:
        assert rank.told["unwaited"] == {
            "full_before": 2, "summary_before": 2, "summary_polled": False, "summary_open": 1,
        }  # fmt: skip


def test_sharded_ops_without_a_work_are_timed(ranks: list[Watched]) -> None:
    for rank in ranks:
        for name, in_log in (
            ("all_gather", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_tensor"),
        ):  # fmt: skip
            ops = [r for r in rank.device("sharded", Lane.COMM) if r.name == name]
            truth = rank.truth("sharded", in_log)
            assert len(ops) == len(truth) >= 3
            for op, (arrival, end) in zip(ops, truth, strict=True):
                assert abs(op.t0 - arrival) <= op.b and abs(op.t1 - end) <= op.b


def test_units_of_fsdp_and_the_programs_spans_are_timed(ranks: list[Watched]) -> None:
    for rank in ranks:
        for verb, in_log in (
            (" unshard", "all_gather_into_tensor"), (" wait unshard", "all_gather_into_tensor"),
            (" reduce", "reduce_scatter_tensor"),
        ):  # fmt: skip
            units = [
                r for r in rank.device("sharded", Lane.COMM)
                if r.name.removeprefix(r.name.partition(" ")[0]) == verb
            ]  # fmt: skip
            truth = rank.truth("sharded", in_log)
            assert len(units) == len(truth)
            for unit, (_, end) in zip(sorted(units, key=lambda r: r.t1), truth, strict=True):
                assert abs(unit.t1 - end) <= unit.b
        (span,) = rank.device("sharded", Lane.USER)
        assert span.name == "all of it"
        assert abs(span.t0 - rank.told["sharded"]["at"]) <= span.b
        assert abs(span.t1 - truth[-1][1]) <= span.b


def test_what_each_unit_of_fsdp_computes_is_timed(ranks: list[Watched]) -> None:
    """Three layers in a root: forward in their order, backward in the other one, one after the
    other; each ends where its kernels do, before its gradients are reduced."""
    for rank in ranks:
        spans = [r for r in rank.device("units", Lane.COMM) if r.name.endswith("ward")]
        units = {verb: [r for r in spans if r.name.endswith(verb) and "root" not in r.name]
                 for verb in ("forward", "backward")}  # fmt: skip
        assert [r.name for r in units["forward"]] == ["0 forward", "1 forward", "2 forward"]
        assert [r.name for r in units["backward"]] == ["2 backward", "1 backward", "0 backward"]
        for verb, kernel in (("forward", "aten::addmm"), ("backward", "aten::mm")):
            ran = rank.truth("units", kernel)
            assert ran
            for unit in units[verb]:
                assert any(unit.t0 - unit.b <= t0 and t1 <= unit.t1 + unit.b for t0, t1 in ran)
        for before, after in itertools.pairwise(units["forward"] + units["backward"]):
            assert before.t1 <= after.t0 + before.b + after.b


def test_every_op_on_the_device_ends_by_its_clock(ranks: list[Watched]) -> None:
    for rank in ranks:
        done = {(r.group, r.flags & Flag.P2P, r.seq): r for r in rank.ring.of(Kind.OP_DONE)}
        timed = rank.ring.of(Kind.DEVICE)
        ops = [r for r in timed if r.lane == Lane.COMM and r.group]
        assert ops
        for op in ops:
            end = done[op.group, op.flags & Flag.P2P, op.seq]
            assert end.flags & Flag.DONE_DEVICE and end.t1 == op.t1
        bounds = [end for end in done.values() if end.flags & Flag.DONE_POLLED]
        assert bounds and all(end.flags & Flag.P2P for end in bounds)  # in batches
        assert rank.told["left_out"] == 1  # the one that a graph captured
        assert rank.ring.defined("error") == []


def test_phases_and_steps_are_timed_too(ranks: list[Watched]) -> None:
    for rank in ranks:
        (pipeline,) = [r for r in rank.device("pipeline", Lane.PHASE) if r.name == "pipeline"]
        truth = rank.truth("pipeline", "F", "B")
        assert pipeline.t1 == pytest.approx(truth[-1][1], abs=pipeline.b)
        (step,) = rank.device("pipeline", Lane.STEP) or [None]
        assert step is None or step.t1 >= truth[-1][1] - step.b


def test_recording_synchronizes_nothing(ranks: list[Watched]) -> None:
    for rank in ranks:
        assert [rank.told[case]["syncs"] for case in ("pipeline", "ops", "waits", "sharded")] == [
            0
        ] * 4


def test_a_captured_graph_is_a_marked_gap(ranks: list[Watched]) -> None:
    for rank in ranks:
        replays = rank.device("captured", Lane.USER)
        at = rank.told["captured"]["at"]
        assert len(replays) == 2
        for replay, begin in zip(replays, (0, 4), strict=True):  # of two kernels of 2 ms
            assert replay.name == CAPTURED
            assert replay.t0 == pytest.approx(at + begin * MS, abs=replay.b)
            assert replay.t1 == pytest.approx(at + (begin + 4) * MS, abs=replay.b)
        gaps = [r for r in rank.ring.of(Kind.SPAN, CAPTURED) if r.flags & Flag.INFERRED]
        (op,) = [r for r in rank.ring.of(Kind.OP_ISSUE) if r.t0 <= gaps[0].t0 <= r.t1]
        assert len(gaps) == 1 and not op.flags & Flag.DEVICE
        # It is over with its call: when it runs nobody knows.
        (end,) = [r for r in rank.ring.of(Kind.OP_DONE, "all_reduce")
                  if (r.group, r.seq) == (op.group, op.seq)]  # fmt: skip
        assert not end.flags & (Flag.DONE_DEVICE | Flag.DONE_POLLED | Flag.DONE_WAITED)
        assert rank.told["captured"]["left_out"] == 1


def test_a_device_that_stands_keeps_nobody_from_leaving(ranks: list[Watched]) -> None:
    for rank in ranks:
        assert rank.told["detached_s"] < 20 and rank.told["open"] == 0


def test_an_op_that_hangs_says_who_has_arrived(ranks: list[Watched]) -> None:
    began = []
    for rank in ranks:
        step = rank.told["hang"]["step"]
        told = (r for r in rank.ring.of(Kind.DEVICE_BEGIN) if r.step == step)
        began.append([r.t0 for r in told if r.name == "all_reduce"])
    others = [min(own) for rank, own in enumerate(began) if rank != 1]
    # Rank 1's, once its device goes on, may be told as well: all have looked by then.
    assert not began[1] or min(began[1]) > max(others)
