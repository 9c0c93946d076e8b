"""pardbg: terminal dashboard and interactive debugger for parallel PyTorch training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pardbg.version import __version__ as __version__

if TYPE_CHECKING:
    from os import PathLike

    from pardbg.opened import Session


def open(session: str | PathLike[str], part: int | None = None) -> Session:
    """Open a session file, a bundle, or a live run as recorded so far (not followed); or one part
    of it. Raises UserError."""
    from pardbg.opened import opened

    return opened(session, part)
