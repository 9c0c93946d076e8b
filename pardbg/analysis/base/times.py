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

Times = Literal["", "host", "device"]
"""``device``: times of the devices that the run computes on. ``host``: of such a run, but of its
launches. Empty: the host computes, so its times are the run's."""


def device(process: Process) -> str:
    """Return the type of device a rank computes on (``cuda``, ``xpu``); empty on the host."""
    found = fields.text(process.facts, "device")
    return "" if found == "cpu" else found


@per_view
def times(view: View) -> Times:
    """Return whose the run's times are: a single rank on a device without times of its own makes
    them the host's, since a figure over ranks never mixes two clocks."""
    on_device = [process for process in view.ranks.values() if device(process)]
    if not on_device:
        return ""
    return "device" if all(process.device_times.seen for process in on_device) else "host"


Untimed = Literal["", "level", "native", "dispatcher"]
"""Why a run on a device has the host's times: a rank is not at level full, or its hooks in C++
(which need torch's word on what a stream captures) or in Python found no timing events."""


def why_untimed(view: View) -> Untimed:
    """Return why the times are the host's; empty where they are not, or it is not known."""
    if times(view) != "host":
        return ""
    without = [p.facts for p in view.ranks.values() if device(p) and not p.device_times.seen]
    if any(fields.text(facts, "level", "full") != "full" for facts in without):
        return "level"
    ways: tuple[Untimed, ...] = ("native", "dispatcher")
    return next((way for way in ways if fields.text(without[0], "hooks") == way), "")


def are_launches(view: View) -> bool:
    """Return whether the times are the host's launches: they have an order, and no durations."""
    return times(view) == "host"
