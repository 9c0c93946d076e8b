"""Whose clock a run's times are.

On an accelerator the host only queues work and runs ahead of it: the order in which hosts issue ops
is not the order in which devices reach them, and a span is a launch, not a computation. Until a
rank's records have the device's own times, nothing about speed follows from them.
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
    """Return whose the run's times are: a single rank on a device makes them the host's, since a
    figure over ranks never mixes two clocks."""
    return "host" if any(map(device, view.ranks.values())) else ""
