"""The ways to see collectives, for tests that run each; without importing torch."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import pytest

_TORCH: Final = tuple(int(part) for part in version("torch").split(".")[:2])

WAYS: Final = (
    "dispatcher",
    pytest.param(
        "public",
        marks=pytest.mark.skipif(
            _TORCH < (2, 14), reason="torch has public hooks on process groups from 2.14 on"
        ),
    ),
)
"""Values of PARDBG_HOOKS."""
