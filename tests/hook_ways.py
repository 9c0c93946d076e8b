"""The ways to see collectives, for tests that run each; without importing torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from pardbg_agent import native

_TOLD: Final = "TESTS_NATIVE"
"""What a pytest tells those that it starts to run tests for it."""
NATIVE: Final = (
    os.environ.get(_TOLD)
    or os.environ.get("PARDBG_NATIVE")
    or str(Path(__file__).parent.parent / ".native")
)
"""Where the hot path in C++ is that these tests use: ``make native`` builds it."""
os.environ[_TOLD] = NATIVE
os.environ[native.BUILD_ENV] = "off"  # no build starts beside a test


def _why_no_native() -> str:
    os.environ["PARDBG_NATIVE"] = NATIVE
    try:
        native.state()
    except native.Unusable as error:
        return str(error)
    finally:
        os.environ["PARDBG_NATIVE"] = "off"  # tests of other things take Python's way
    return ""


WHY_NO_NATIVE: Final = _why_no_native()
needs_native: Final = pytest.mark.skipif(bool(WHY_NO_NATIVE), reason=WHY_NO_NATIVE)

WAYS: Final = (
    "dispatcher",
    pytest.param("native", marks=needs_native),
)
"""Values of PARDBG_HOOKS."""
