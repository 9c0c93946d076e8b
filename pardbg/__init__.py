"""pardbg: terminal dashboard and interactive debugger for parallel PyTorch training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pardbg.version import __version__ as __version__

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from os import PathLike

    from pardbg.opened import Session
    from pardbg.recorded_block import Recording


def open(session: str | PathLike[str], part: int | None = None) -> Session:
    """Open a session file, a bundle, or a live run as recorded so far (not followed); or one part
    of it. Raises UserError."""
    from pardbg.opened import opened

    return opened(session, part)


def record(session: str | PathLike[str], force: bool = False) -> AbstractContextManager[Recording]:
    """Record a block to a new file: ``with pardbg.record("S.mcap") as r: …``, then ``r.session``.
    This process is watched, and those that the block starts. Raises UserError."""
    from pardbg.recorded_block import recorded

    return recorded(session, force)
