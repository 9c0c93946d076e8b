"""The screen as an SVG file."""

from __future__ import annotations

import re
import time
from pathlib import Path

_SPACES = re.compile(r"<text (?![^>]*xml:space)")


def save(svg: str, session: str, screen: str, t_ns: int, named: str = "") -> Path:
    """Write it as ``session-screen-12.345s.svg`` where pardbg was started, or as ``named``.

    ``t_ns``: from the run's begin. An existing file is kept. Raises OSError.
    """
    stem = re.sub(r"[^\w.-]+", "-", session.removesuffix(".mcap")).strip("-") or "pardbg"
    path = Path(named).expanduser() if named else Path(f"{stem}-{screen}-{t_ns / 1e9:.3f}s.svg")
    if path.is_dir():
        path /= f"{stem}-{screen}-{t_ns / 1e9:.3f}s.svg"
    if path.exists():
        path = path.with_stem(f"{path.stem}-{time.strftime('%H%M%S')}")
    # Renderers other than browsers squeeze runs of blanks unless they are told not to.
    with open(path, "x", encoding="utf-8") as file:
        file.write(_SPACES.sub('<text xml:space="preserve" ', svg))
    return path.absolute()
