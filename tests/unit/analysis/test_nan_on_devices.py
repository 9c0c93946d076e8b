"""Findings about NaN on devices, on traces typed in by hand, steps of 100 ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.findings.values import looked_at
from pardbg_agent import wire
from pardbg_agent.hooks.ops import late_inputs
from tests.unit.analysis.test_findings_speed import found, one
from tests.unit.analysis.test_findings_values import probe
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns


@pytest.mark.parametrize(("device", "every", "culprits"), [
    ("cuda", 0, ()), ("cuda", 1, (1,)), ("cuda", 2, ()), ("cpu", 0, (1,)),
])  # fmt: skip
def test_which_stage_of_a_device_made_a_nan_is_not_known_unless_all_looked(
    device: str, every: int, culprits: tuple[int, ...]
) -> None:
    """Rank 0 sends to rank 1, which computes the loss, NaN since step 5: on the host its input
    would have been told, and on a device where stages looked at ``every`` so many steps."""
    trace = Trace(2)
    for proc in trace.ranks if every else ():
        probe(proc, "inputs finite", 640, 6, a=5, b=every)
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device=device)
    for step in range(8):
        t = 100 * step
        for proc in trace.ranks:
            proc.p2p("world", 1 - (proc.rank or 0), proc.rank == 0, t + 1, t + 2, step=step)
            proc.step(step, t, t + 90)
        trace.ranks[1].seen_loss(t + 30, float("nan") if step > 4 else 1.0, step)
    finding = one(trace, "nan")
    assert (finding.culprits, facts(finding, "hidden", "step")) == (culprits, (not culprits, 5))


def on_devices(
    num_steps: int, bad: int, losses: int = 99, looked: int = -1, sums: int = 1
) -> Trace:
    """Rank 1's sum is not finite in step ``bad``, nor are losses from step ``losses`` on; rank 0
    looked at its own up to ``looked``. Each has ``sums`` in a step."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
    for step in range(num_steps):
        t = 100 * step
        for proc in trace.ranks:
            proc.seen_loss(t + 30, float("nan") if step >= losses else 1.0, step)
            for at in range(sums):
                begin = t + 40 + at
                seq = proc.collective("world", "all_reduce", begin, begin + 1, 1 << 20, step=step)
            if step == bad and proc.rank == 1:
                probe(proc, "nan", t + 40, step, group_id=proc.group("world"), seq=seq, a=0, b=-1)
            elif step == losses and proc.rank == 0:
                probe(proc, "inputs finite", t + 60, step, a=looked, b=1)
            proc.step(step, t, t + 100)
    return trace


@pytest.mark.parametrize(("looked", "culprits"), [(5, (1,)), (4, ())])
def test_a_sum_on_a_device_has_a_culprit_if_all_ranks_looked(
    looked: int, culprits: tuple[int, ...]
) -> None:
    finding = one(on_devices(9, 5, 6, looked), "nan")
    assert (finding.culprits, finding.severity) == (culprits, "error")
    assert facts(finding, "step", "hidden") == (5, not culprits)


def test_a_sum_on_a_device_is_no_trouble_before_losses_are() -> None:
    """As where a gradient scaler skips the step: told as soon as two finite losses follow."""
    assert not [of for of in found(on_devices(7, 5)) if of.kind == "nan"]
    finding = one(on_devices(9, 5), "nan")
    assert (finding.severity, facts(finding, "step", "lasts")) == ("info", (5, False))


@pytest.mark.parametrize(
    ("looked", "sums", "unseen"), [(5, 1, False), (5, 2, False), (5, 3, True), (4, 1, True)]
)
def test_losses_of_all_devices_may_come_from_a_sum_that_was_not_seen(
    looked: int, sums: int, unseen: bool
) -> None:
    """Of more than two sums in a step, only the first and the last are looked at."""
    trace = on_devices(9, 99, 6, looked, sums)
    probe(trace.ranks[1], "inputs finite", 660, 6, a=5, b=1)
    finding = one(trace, "nan")
    assert facts(finding, "what", "everywhere", "unseen") == ("loss", True, unseen)


@pytest.mark.parametrize(("unread", "before", "culprits"), [
    (5, 0, ()), (4, 0, (1,)), (6, 0, (1,)), (6, 1, ()), (4, 1, (1,)),
])  # fmt: skip
@pytest.mark.parametrize("rank", [0, 1])
def test_an_input_that_was_due_and_not_read_clears_no_rank(
    rank: int, unread: int, before: int, culprits: tuple[int, ...]
) -> None:
    """Rank 1 brings NaN to the sum of step 5; one of both has an input of a step, or of all until
    then, that nobody read."""
    trace = on_devices(9, 5, 6, 5)
    probe(trace.ranks[rank], "inputs unread", 661, unread, a=before, b=0)
    finding = one(trace, "nan")
    assert (finding.culprits, facts(finding, "hidden")) == (culprits, not culprits)


def test_a_rank_that_records_less_for_a_time_is_not_cleared() -> None:
    """From 510 to 520 ms of step 5, whose ops may be missing then."""
    trace = on_devices(9, 5, 6, 5)
    first = trace.ranks[0]
    first.define(wire.DefKind.PROCESS, proc=first.proc, unrecorded=[[ns(510), ns(520)]])
    assert one(trace, "nan").culprits == ()


@pytest.mark.parametrize(("at", "num_bytes", "times", "culprits"), [
    (20, 1 << 20, 2, (1,)), (20, 1 << 20, 3, ()), (20, 4096, 1, ()), (20, 64, 4, (1,)),
])  # fmt: skip
def test_a_rank_may_have_its_nan_from_a_sum_of_another_group(
    at: float, num_bytes: int, times: int, culprits: tuple[int, ...]
) -> None:
    """As with tensor parallelism: of its large sums the first and last are looked at, of small ones
    none; those of up to 64 bytes are norms."""
    trace = on_devices(9, 5, 6, 5)
    trace.groups["tp"] = (0, 1)
    for proc in trace.ranks:
        for number in range(times):
            begin = 500 + at + number
            proc.collective("tp", "all_reduce", begin, begin + 0.5, num_bytes, step=5)
    finding = one(trace, "nan")
    assert (finding.culprits, facts(finding, "hidden")) == (culprits, not culprits)


@pytest.mark.parametrize(("num_bytes", "culprits"), [(64, (1,)), (65, ())])
def test_a_rank_may_have_its_nan_from_tokens(num_bytes: int, culprits: tuple[int, ...]) -> None:
    """As with expert parallelism, even on the group of its sums: nobody looks at an all_to_all."""
    trace = on_devices(9, 5, 6, 5)
    for proc in trace.ranks:
        proc.collective("world", "all_to_all", 520, 521, num_bytes, step=5)
    assert one(trace, "nan").culprits == culprits


@pytest.mark.parametrize(("sums", "looked", "unseen"), [(0, 5, False), (1, 6, False), (1, 5, True),
                                                        (2, 6, True)])  # fmt: skip
def test_losses_of_all_devices_may_come_from_a_sum_of_their_own_step(
    sums: int, looked: int, unseen: bool
) -> None:
    """Before a loss at 30 ms a step has sums of the forward; of one it is known in time."""
    trace = on_devices(9, 99, 6, looked)
    probe(trace.ranks[1], "inputs finite", 660, 6, a=looked, b=1)
    for proc in trace.ranks:
        for number in range(sums):
            proc.collective("world", "all_reduce", 610 + number, 610.5 + number, 1 << 20, step=6)
    finding = one(trace, "nan")
    assert facts(finding, "what", "everywhere", "unseen") == ("loss", True, unseen)


@pytest.mark.parametrize(("messages", "culprits"), [(32, (1,)), (33, ())])
def test_a_rank_did_not_look_at_more_messages_of_a_step(
    messages: int, culprits: tuple[int, ...]
) -> None:
    """Rank 0 sends so many; of the 33rd nobody knows, and rank 1's loss may come from it."""
    assert looked_at.MAX_SENDS == late_inputs.MAX_SENDS
    finding = one(sending(8, messages, bad=5), "nan")
    assert (finding.culprits, facts(finding, "hidden")) == (culprits, not culprits)


def sending(num_steps: int, messages: int, bad: int, masks: bool = False) -> Trace:
    """Rank 0 sends messages, one of them a mask with infinities; rank 1's loss is NaN from step
    ``bad`` on."""
    trace = Trace(2)
    for proc in trace.ranks:
        probe(proc, "inputs finite", 640, 6, a=-1 if masks and not proc.rank else 5, b=1)
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
    for step in range(num_steps):
        t, (first, last) = 100 * step, trace.ranks
        for at in range(messages):
            first.p2p("world", 1, True, t + at / 2, t + at / 2 + 0.5, step=step)
            last.p2p("world", 0, False, t + at / 2, t + at / 2 + 0.5, step=step)
        if masks:
            flags = int(wire.Flag.P2P | wire.Flag.SEND)
            probe(first, "nan", t, step, flags=flags, seq=messages * step, peer=1, a=0, b=-1)
        last.seen_loss(t + 30, float("nan") if step >= bad else 1.0, step)
        for proc in trace.ranks:
            proc.step(step, t, t + 90)
    return trace


def test_masks_are_no_trouble_and_make_no_rank_a_culprit() -> None:
    """Rank 0 sends infinities in each step, as masks have them. A NaN may hide among them."""
    for num_steps in (1, 2, 3, 4, 9):
        trace = sending(num_steps, 2, bad=99, masks=True)
        assert not [of for of in found(trace) if of.kind == "nan"]
    finding = one(sending(9, 2, bad=6, masks=True), "nan")
    assert (finding.culprits, facts(finding, "what", "step", "hidden")) == ((), ("loss", 6, True))
