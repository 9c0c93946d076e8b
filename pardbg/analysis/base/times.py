"""Clock of a run's times: the devices' or the host's.

On an accelerator the host only queues work and runs ahead of it: hosts issue ops in another order
than devices reach them, and a span is a launch, not a computation. Without the device's own times
in a rank's records nothing about speed can be derived from them.
"""

from __future__ import annotations

from typing import Literal

from pardbg.analysis.base.asof import View, per_view
from pardbg.events import fields
from pardbg.store.process import Process

Times = Literal["", "host", "device"]
"""Clock of the run's times. ``device``: of the devices that the run computes on; ``host``: of such
a run's launches; empty: the host computes, so its times are the run's."""


def device(process: Process) -> str:
    """Return the type of device a rank computes on (``cuda``, ``xpu``); empty on the host."""
    found = fields.text(process.facts, "device")
    return "" if found == "cpu" else found


@per_view
def times(view: View) -> Times:
    """Return the clock of the run's times: one rank on a device without times of its own makes it
    the host's, since a figure over ranks never mixes two clocks."""
    on_device = [process for process in view.ranks.values() if device(process)]
    if not on_device:
        return ""
    return "device" if all(_timed(view, process) for process in on_device) else "host"


def _timed(view: View, process: Process) -> bool:
    """Return whether the process's rows have device times. At level summary they have the host's,
    also around moments that are recorded in full."""
    tables = [process.table(name).when for name in ("step", "action")]
    since = min((int(when[0]) for when in tables if len(when)), default=view.now_ns)
    return process.device_times.seen and not process.unrecorded_since(since, view.now_ns)


def are_launches(view: View) -> bool:
    """Return whether the times are the host's launches: they have an order, and no durations."""
    return times(view) == "host"
