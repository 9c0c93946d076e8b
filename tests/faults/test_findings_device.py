"""Faults of devices, on simulated accelerators: who, and why, and nobody by the order of hosts.

`python -m tests.diagnosis --device 20` draws many more.
"""

from __future__ import annotations

import random

import pytest

from pardbg.lab.sim import extension
from pardbg_agent import native
from tests.diagnosis.device_drawn import ENV, drawn
from tests.diagnosis.live import watch

HEALTHY_S = 10.0
"""How long nothing may be said: a hundred steps, and five times as long as a wait must be to be an
error. `make diagnosis` looks for 20 s."""


@pytest.fixture(scope="module")
def simulated() -> None:
    """The extension, which all ranks load; tests are skipped where it cannot be built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*ENV[0])
        try:
            extension.built()
        except (native.Unusable, OSError) as error:
            pytest.skip(f"no simulated accelerator: {error}")


@pytest.mark.faults
@pytest.mark.timeout(240)
@pytest.mark.parametrize("what", ["slow-device", "stopped-device", "host-bound", "nothing"])
def test_a_fault_of_a_device_is_named_with_its_cause(simulated: None, what: str) -> None:
    case = drawn(what, random.Random(3))
    outcome = watch(case, patience_s=None if case.kinds else HEALTHY_S)
    assert outcome.as_it_should_be, (case.name, outcome.named, outcome.cause, outcome.false)
    assert case.kinds or not outcome.warned, outcome.warned
