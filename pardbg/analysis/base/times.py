"""The clock of a run's times.

On an accelerator the host only queues work and runs ahead of it: hosts issue ops in another order
than devices reach them, and a span is a launch, not a computation. Without the device's own times
in a rank's records nothing about speed can be derived from them.
"""

from __future__ import annotations

from typing import Literal

from pardbg.analysis.base.asof import View, per_view
from pardbg.events import fields
from pardbg.store.process import Process

Times = Literal["", "host"]
"""``host``: times of the host, of a run that computes on a device. Empty: the host computes, so
its times are the run's."""


def device(process: Process) -> str:
    """Return the type of device a rank computes on (``cuda``, ``xpu``); empty on the host."""
    found = fields.text(process.facts, "device")
    return "" if found == "cpu" else found


@per_view
def times(view: View) -> Times:
    """Return the clock of the run's times. One rank on a device makes them the host's: a figure
    over ranks never mixes two clocks."""
    return "host" if any(map(device, view.ranks.values())) else ""
