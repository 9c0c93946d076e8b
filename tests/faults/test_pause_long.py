"""Held for longer than the groups' timeout: the job lives, and trains what it would have trained.
For minutes: ``python -m tests.bench.pause_long``."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_events import event_of
from pardbg.events.control_facts import Hit, Lapsed, Left, Released, Taken
from pardbg.hub.client import HubControl
from tests.bench.pause_long import all_stopped, finish, hold, plain, start
from tests.distributed.recorded import recorded
from tests.distributed.runs import maps, session_of

STEPS = 10
LIMIT_S = 8.0
"""No less: a start on a busy machine keeps others waiting in their first ops."""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_held_beyond_the_groups_timeout_the_losses_are_bit_identical(tmp_path: Path) -> None:
    """1F1B and DDP at once. Two breakpoints hit at the same time on DDP's ranks; while it is held,
    another viewer takes control and the first one ends."""
    with ExitStack() as stack:
        at_two = "step==3 and rank==0", "step==3 and rank==2"
        jobs = [
            start(stack, "1f1b", STEPS, LIMIT_S, tmp_path, "step==3"),
            start(stack, "ddp", STEPS, LIMIT_S, tmp_path, *at_two),
        ]
        all_stopped(jobs)
        begun = time.monotonic()
        ddp = jobs[1]
        other = stack.enter_context(closing(HubControl(ddp.handle.run_dir)))
        refused = other.command(Verb.CONTINUE)
        assert refused.refusal is not None and refused.refusal.why is Why.TAKEN
        assert other.take().ok
        ddp.control.close()
        ddp.control = other
        expected = {"ddp": plain("ddp", STEPS)}
        hold(jobs, max(0.5, 1.5 * LIMIT_S - (time.monotonic() - begun)))
        expected["1f1b"] = recorded("1f1b", steps=STEPS).loss_texts
        assert [finish(job, expected[job.name], LIMIT_S) for job in jobs] == [[], []]
    facts = [event_of(plain).fact for plain in maps(session_of(ddp.handle), b"C")]
    assert sorted(fact.number for fact in facts if isinstance(fact, Hit)) == [1, 2]
    assert any(isinstance(f, Taken) and str(f.before).startswith("view-") for f in facts)
    assert not [fact for fact in facts if isinstance(fact, (Left, Lapsed, Released))]
