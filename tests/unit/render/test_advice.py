"""The steps of what to try about a finding."""

from __future__ import annotations

from pardbg.render.draw.advice import numbered
from pardbg.render.draw.cells import plain


def test_steps_are_numbered_where_there_are_several() -> None:
    rows = [plain(row) for row in numbered(("Mend what raised it.", "Then look at the rest."), 18)]
    assert rows == ["1. Mend what", "   raised it.", "2. Then look at", "   the rest."]
    assert [plain(row) for row in numbered(("Compare them.",), 40)] == ["Compare them."]
    assert numbered((), 40) == []
