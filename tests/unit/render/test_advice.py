"""The steps of what to try about a finding."""

from __future__ import annotations

from pardbg.render.draw.advice import numbered, steps_of
from pardbg.render.draw.cells import plain


def test_each_thing_to_do_is_a_step_with_what_explains_it() -> None:
    assert steps_of("Mend what raised it. It hangs else. Until then pass it on.") == [
        "Mend what raised it. It hangs else.",
        "Until then pass it on.",
    ]
    assert steps_of("Look at the path (cable, or see dmesg); or put neighbours on one host.") == [
        "Look at the path (cable, or see dmesg).",
        "Or put neighbours on one host.",
    ]
    assert steps_of("It is over. See what it did, or leave it.") == [
        "It is over. See what it did.",
        "Or leave it.",
    ]
    assert steps_of("compare the two calls") == ["compare the two calls"]
    assert steps_of("") == [""]


def test_steps_are_numbered_where_there_are_several() -> None:
    rows = [plain(row) for row in numbered("Mend what raised it. Then look at the rest.", 18)]
    assert rows == ["1. Mend what", "   raised it.", "2. Then look at", "   the rest."]
    assert [plain(row) for row in numbered("Compare them.", 40)] == ["Compare them."]
    assert numbered("", 40) == []
