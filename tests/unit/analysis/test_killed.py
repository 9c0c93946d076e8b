"""A job that a viewer ended."""

from __future__ import annotations

from pardbg_agent import wire
from tests.unit.analysis.test_ends import ended_by, ends, three


def test_a_job_that_a_viewer_killed_was_not_ended_by_the_signal_for_it() -> None:
    """torchrun says that it got SIGTERM; read 250 ms late, that seems to be before the kill."""
    trace = three(waiting=())
    by = "view-ada@pts:3-0123456789ab"
    trace.hub(wire.Key.CONTROL, 5, event="kill", by=by)
    trace.output(20, "Received 15 death signal, shutting down workers", stream="stderr")
    for proc in trace.ranks:
        ends(trace, proc, 60, "killed", -15)
    trace.end(90, code=1)
    said, worse = ended_by(trace)
    assert "ada" in said and worse == []
