"""A finding that is gone again is withdrawn where everybody sees it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from pardbg.analysis.findings.finding import Finding
from pardbg.ui.engine.landmarks import Places

S = 1_000_000_000
LATE = Finding(
    kind="straggler", severity="warning", culprits=(2,), ranks=(0, 1), t_ns=2 * S, text="rank 2 …"
)


def places() -> Places:
    return Places(SimpleNamespace(), lambda _store, _t_ns: ())


def test_a_warning_that_is_not_there_any_more_is_withdrawn() -> None:
    seen = places()
    seen.take([LATE], 3 * S)
    assert seen.withdrawn([LATE], 3 * S, 0) == ()
    (gone,) = seen.withdrawn([], 5 * S, 0)
    assert (gone.kind, gone.severity, gone.culprits) == ("straggler", "info", (2,))
    assert gone.text == "withdrawn at 5 s: rank 2 …"
    (still,) = seen.withdrawn([], 9 * S, 0)
    assert still.t_ns == 5 * S
    assert seen.withdrawn([], 2 * S, 0) == ()  # back in time: it has not been said there
    seen.take([LATE], 10 * S)
    assert seen.withdrawn([LATE], 10 * S, 0) == ()  # it is so again


def test_what_another_finding_took_the_place_of_is_not_withdrawn() -> None:
    """The window has moved on, or more is known of the same rank by now. Notes come and go."""
    seen = places()
    seen.take([LATE, replace(LATE, kind="late-rank", severity="info", culprits=(1,))], 3 * S)
    assert seen.withdrawn([replace(LATE, seq=9)], 5 * S, 0) == ()
    assert seen.withdrawn([replace(LATE, kind="exception")], 6 * S, 0) == ()


def test_what_is_said_together_with_others_by_now_is_not_withdrawn() -> None:
    """Memory of three ranks grows, then that of more, then that of fewer, then of none."""
    seen = places()
    one = [replace(LATE, kind="memory-creep", culprits=(n,), ranks=(n,)) for n in range(3)]
    five = replace(one[0], culprits=(0, 1, 2, 3, 4), ranks=(0, 1, 2, 3, 4))
    seen.take(one, 3 * S)
    assert seen.withdrawn([five], 5 * S, 0) == ()
    seen.take([five], 5 * S)
    assert (
        seen.withdrawn([replace(five, culprits=(0, 1, 2, 3), ranks=(0, 1, 2, 3))], 6 * S, 0) == ()
    )
    assert seen.withdrawn(one, 6 * S, 0) == ()
    assert seen.withdrawn([replace(five, ranks=(7, 8, 9, 10), culprits=(7,))], 7 * S, 0) != ()
    assert seen.withdrawn([], 7 * S, 0) != ()


def test_a_part_of_the_run_has_findings_of_its_own() -> None:
    """What another life is told of is neither to come in this one nor withdrawn."""
    seen = places()
    seen.take([LATE], 3 * S)
    seen.look_at(2)
    assert seen.findings == []
    assert seen.withdrawn([], 5 * S, 0) == ()
    seen.take([replace(LATE, culprits=(1,))], 5 * S)
    seen.look_at(None)
    assert [finding.culprits for finding in seen.findings] == [(2,)]
