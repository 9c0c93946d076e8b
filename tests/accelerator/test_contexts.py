"""A rank whose device is not device 0: the agent goes to no other one, and changes none."""

from __future__ import annotations

import json

import pytest

from pardbg_agent.wire import Flag, Kind, Lane
from tests.distributed.programs.watched import run_watched
from tests.forked import Job
from tests.hook_ways import NATIVE, WAYS

pytestmark = pytest.mark.timeout(200)

NUM_OPS = 6


@pytest.mark.parametrize("queues", ["", "1"])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_uses_no_other_device_than_its_own(
    way: str, queues: str, simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARDBG_HOOKS", way)
    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    program = "tests.accelerator.programs.contexts", str(NUM_OPS)
    ended, rings = run_watched([Job("job", 2, program)])["job"]
    assert not any(ended.codes), ended.whole.err[-3000:]
    for number in range(2):
        told, ring = json.loads(ended.out[number].splitlines()[-1]), rings[number]
        assert told["contexts"] == 1 << number
        assert told["current"] == 0
        assert told["allocated"] == 4 << 16
        assert told["left_out"] == 0
        assert told["open"] == 0
        assert ring.defined("error") == []
        done = [r.flags for r in ring.of(Kind.OP_DONE, "all_reduce")]
        assert len(done) == NUM_OPS + 2
        asynchronous = [flags for flags in done if flags & Flag.ASYNC]
        assert len(asynchronous) == NUM_OPS // 2
        # With one queue of the hardware no stream of the agent's may wait for an op: what waits for
        # it tells its end, or the agent's next look.
        bound = bool(queues)
        assert all(bool(flags & Flag.DONE_POLLED) == bound for flags in asynchronous)
        timed = [r for r in ring.of(Kind.DEVICE, "all_reduce") if r.lane == Lane.COMM]
        assert len(timed) == len([flags for flags in done if flags & Flag.DONE_DEVICE])
        assert len(timed) == NUM_OPS + 2
        # Memory is free when it is without us; Python's way has no wait that leaves it so.
        kept = 0 if way == "native" or bound else len(asynchronous)
        assert told["recorded"] == kept
