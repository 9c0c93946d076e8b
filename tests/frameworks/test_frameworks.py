"""Each program runs as without pardbg, and what is shown of it is so. Minutes: not in `make test`;
``make frameworks`` prints the same as a table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.frameworks.cases import CASES, Case
from tests.frameworks.compare import TIMEOUT_S, compare, lacking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * TIMEOUT_S + 90),
    pytest.mark.skipif(
        os.environ.get("PARDBG_FRAMEWORKS") != "1", reason="minutes; `make frameworks` runs it"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_shown_is_so(case: Case, tmp_path: Path) -> None:
    missing = lacking(case)
    if missing:
        pytest.skip(f"no module {missing} here (PARDBG_FRAMEWORKS_PYTHON, PARDBG_FRAMEWORKS_PATH)")
    assert compare(case, tmp_path).wrong == ()
