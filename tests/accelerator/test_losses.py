"""Training on the simulated accelerator computes what the CPU computes, to the last bit."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from pardbg_agent.hooks.watch.probes import LEAST_BYTES
from pardbg_agent.wire import NONE, Flag, Kind
from tests.accelerator.conftest import Run
from tests.accelerator.programs import drifting, spoiling, unread
from tests.distributed.programs.watched import run_watched
from tests.forked import Job
from tests.hook_ways import NATIVE, WAYS

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def ranks(run: Run) -> list[dict[str, Any]]:
    return run("losses", nproc=2)


def test_losses_are_the_cpus_to_the_last_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        kinds = rank["losses"]
        assert set(kinds) == {"ddp", "fsdp2", "tp", "1f1b", "interleaved", "zb", "zbv"}
        for kind, (on_cpu, on_device) in kinds.items():
            assert on_cpu == on_device, kind
            assert all(map(math.isfinite, on_cpu)), kind
        # The backend saw what each way of training communicates.
        assert {
            "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "send", "recv",
            "aten::addmm",
        } <= set(rank["ops"])  # fmt: skip
    trained = ranks[0]["losses"]["ddp"][1]
    assert trained[-1] < trained[0]


@pytest.mark.parametrize("way", WAYS)
def test_watched_losses_are_the_same_to_the_last_bit(
    way: str, ranks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARDBG_HOOKS", way)
    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    ended, rings = run_watched([Job("job", 2, ("tests.accelerator.programs.losses",))])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    for rank, unwatched in enumerate(ranks):
        watched = json.loads(ended.out[rank].splitlines()[-1])
        assert watched["losses"] == unwatched["losses"]
        assert watched["way"] == ("NativeRecords" if way == "native" else "DeviceRecords")
        timed = {(record.name, record.lane) for record in rings[rank].of(Kind.DEVICE)}
        assert {"forward", "F", "B", "all_reduce"} <= {name for name, _ in timed}
        assert rings[rank].defined("error") == []
        recorded = Counter(record.a for record in rings[rank].of(Kind.METRIC, "loss"))
        for kind, (_, on_device) in watched["losses"].items():
            parts = 1 if kind in ("ddp", "fsdp2", "tp") else 4  # microbatches: their mean is it
            for loss in filter(None, on_device):  # 0: no stage of this rank has one
                assert recorded[loss / parts] >= 2, (kind, loss)  # on the CPU, on the device


@pytest.mark.parametrize("way", WAYS)
def test_a_devices_losses_and_replicas_are_known_without_waiting(
    way: str, simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOOKS": way, "NATIVE": NATIVE, "SIM": simulated}.items():
        monkeypatch.setenv(f"PARDBG_{name}", value)
    ended, rings = run_watched([Job("job", 2, ("tests.accelerator.programs.drifting",))])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    sums = []
    for rank in (0, 1):
        told, ring = json.loads(ended.out[rank].splitlines()[-1]), rings[rank]
        *losses, first, both = [record.a for record in ring.of(Kind.METRIC, "loss")]
        assert (first, both) == (told["halves"][0], sum(told["halves"]))
        assert losses == pytest.approx(told["losses"], rel=0, nan_ok=True) and told["syncs"] == 0
        assert math.isnan(losses[drifting.BREAKS]) == bool(rank)
        steps = [*range(drifting.STEPS), drifting.STEPS, drifting.STEPS]
        assert [r.step for r in ring.of(Kind.METRIC, "loss")] == steps
        assert ring.defined("error") == []
        probes = [r for r in ring.of(Kind.PROBE) if r.name.startswith("checksum ")]
        sums.append({r.step: (r.a, r.b) for r in probes})
    assert sums[0].keys() == sums[1].keys() == {0, 10}
    assert sums[0][0] == sums[1][0] and sums[0][10] != sums[1][10]


@pytest.mark.parametrize("way", WAYS)
def test_a_devices_inputs_are_looked_at_without_waiting(
    way: str, simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sums of 16 KiB or more the step's first, which is DDP's, and its last. The sum that is not
    finite is rank 1's; after it both ranks' are, as the loss is. The message is infinite in places,
    and so is the maximum, which may be. Of another one a sum would overflow."""
    for name, value in {"HOOKS": way, "NATIVE": NATIVE, "SIM": simulated}.items():
        monkeypatch.setenv(f"PARDBG_{name}", value)
    ended, rings = run_watched([Job("job", 2, ("tests.accelerator.programs.spoiling",))])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    sends = []
    for rank in (0, 1):
        ring = rings[rank]
        assert json.loads(ended.out[rank].splitlines()[-1])["syncs"] == 0
        assert ring.defined("error") == []
        bad = ring.of(Kind.PROBE, "nan")
        sums = [r for r in ring.of(Kind.OP_ISSUE, "all_reduce") if r.a >= LEAST_BYTES]
        first = {r.step: r.seq for r in reversed(sums[:-2])}
        begins = spoiling.BREAKS + (1 - rank)
        assert {r.step: r.seq for r in bad if not r.flags & Flag.P2P} == {
            step: first[step] for step in range(begins, spoiling.STEPS)
        }
        ((finite, every),) = [(r.a, r.b) for r in ring.of(Kind.PROBE, "inputs finite")]
        assert (finite, every) == (begins - 1, 1)
        sends.append(len([r for r in bad if r.flags & Flag.P2P]))
    assert sends == [2, 0]


@pytest.mark.parametrize("captured", ["", "captured"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_with_an_input_that_was_due_and_not_read_is_told(
    way: str, captured: str, simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose input nobody read is not cleared: each kind of op, twice. With a graph that
    captured one no step of the rank is, as its replays have no hook."""
    for name, value in {"HOOKS": way, "NATIVE": NATIVE, "SIM": simulated}.items():
        monkeypatch.setenv(f"PARDBG_{name}", value)
    ended, rings = run_watched(
        [Job("job", 2, ("tests.accelerator.programs.unread", captured))]
    )["job"]  # fmt: skip
    assert not any(ended.codes), ended.whole.err[-3000:]
    for rank in (0, 1):
        steps = json.loads(ended.out[rank].splitlines()[-1])
        assert steps.keys() == unread.STEPS.keys()
        assert rings[rank].defined("error") == []
        sends = rank == 0
        expected = {
            name: not read and (sends or not name.startswith("message"))
            for name, (_, read) in unread.STEPS.items()
        }
        told = {r.step for r in rings[rank].of(Kind.PROBE, "inputs unread")}
        for which in (0, 1):
            assert {name: of[which] in told for name, of in steps.items()} == expected
        newest = max(step for of in steps.values() for step in of) + 1
        finite = [r.a for r in rings[rank].of(Kind.PROBE, "inputs finite")]
        assert finite == [NONE if captured else newest]


def test_a_frameworks_losses_on_a_device_are_read_late(
    simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(3 + 5) / 2 of two microbatches; (8 + 5) / (2 + 3) of two sums and their tokens."""
    monkeypatch.setenv("PARDBG_SIM", simulated)
    job = Job("job", 1, ("tests.accelerator.programs.framework_losses",))
    ended, rings = run_watched([job])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    assert json.loads(ended.out[0].splitlines()[-1]) == {"syncs": 0}
    assert rings[0].defined("error") == []
    assert [(r.step, r.a) for r in rings[0].of(Kind.METRIC, "loss")] == [(7, 4.0), (7, 2.6)]
