"""Where ops of two ranks part before an op shows it, worked out by hand. Times in ms."""

from __future__ import annotations

from pardbg.analysis.findings.registry import standstills
from pardbg.analysis.hangs.partings import Parting
from pardbg_agent.wire import Kind, Lane
from tests.unit.analysis.test_waitgraph import at
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

STEPS = 4


def sharded(units: dict[int, tuple[str, ...]]) -> Trace:
    """Each step gathers the units in forward and again in backward, then reduces two; in the last
    step a rank has these ones. Rank 1 reduces where rank 0 gathers once more."""
    trace = Trace(2)
    for rank, proc in enumerate(trace.ranks):
        for step in range(STEPS):
            last, t = step == STEPS - 1, 100.0 * step + 1
            mine = units[rank] if last else ("a", "b")
            for phase in ("forward", "backward"):
                begun = t
                for unit in mine:
                    proc.record(Kind.FSDP, t, t + 1, proc.name(f"{unit} unshard"), lane=Lane.COMM,
                                step=step)  # fmt: skip
                    stands = last and phase == "backward" and (rank, unit) == (0, mine[-1])
                    proc.collective("world", "all_gather", t + 0.5, None if stands else t + 1,
                                    step=step)  # fmt: skip
                    t += 2
                if not (last and phase == "backward"):
                    proc.phase(phase, begun - 0.5, t, step=step)
                t += 1
            if not (last and rank == 0):
                proc.collective("world", "reduce_scatter", t, None if last else t + 1, step=step)
            if not last:
                proc.step(step, 100 * step, 100 * step + 99)
    return trace


def test_a_forward_that_left_a_unit_out_is_where_the_ops_part() -> None:
    """Rank 1 gathers a alone: its reduce, the third op of the step, meets rank 0's third gather."""
    trace = sharded({0: ("a", "b"), 1: ("a",)})
    (found,) = (f for f in standstills(at(trace, 4000)) if f.kind == "op-mismatch")
    assert found.culprits == (1,)
    assert facts(found, "parted") == Parting("forward", (1, 0), (1, 2), ((1, ("b",)),))


def test_ops_that_first_part_in_the_op_itself_have_parted_nowhere_else() -> None:
    trace = sharded({0: ("a", "b"), 1: ("a", "b")})
    trace.ranks[0].collective("world", "all_reduce", 350, None, step=STEPS - 1)
    found = [f for f in standstills(at(trace, 4000)) if f.kind == "op-mismatch"]
    assert [facts(f, "parted") for f in found] == [None]
