"""Pictures of every screen at three sizes: ``python -m tests.ui.shots OUTDIR [NAME…]``.

Not a test: for eyes. Needs ``rsvg-convert`` for PNGs; writes SVGs without it.
"""

from __future__ import annotations

import asyncio
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.ui import sample
from tests.ui.fakes import FakePort, app_on, until

SIZES = ((80, 24), (120, 40), (200, 60))
SCREENS = ("overview", "pipeline", "timeline", "collectives", "traffic", "memory", "debug",
           "findings", "output")  # fmt: skip


def _hard_spaces(svg: str) -> str:
    """rsvg-convert collapses spaces at a text's ends: start the text where its ink starts."""

    def moved(match: re.Match[str]) -> str:
        head, x, middle, length, tail, text = match.groups()
        cells = html.unescape(text)
        each = float(length) / max(1, len(cells))
        ink = cells.strip("\xa0 ")
        if not ink:
            return ""
        start = float(x) + each * (len(cells) - len(cells.lstrip("\xa0 ")))
        return (f'<text{head}x="{start:.2f}"{middle}textLength="{each * len(ink):.2f}"{tail}>'
                f"{html.escape(ink)}</text>")  # fmt: skip

    return re.sub(r'<text([^>]*?)x="([\d.]+)"([^>]*?)textLength="([\d.]+)"([^>]*)>([^<]*)</text>',
                  moved, svg)  # fmt: skip


async def shoot(out: Path, name: str, size: tuple[int, int], theme: str) -> None:
    """One screen of the sample run (``ddp-…``: of the DDP one; ``held-…``: held)."""
    kind, _, screen = name.rpartition("-")
    made = {"": sample.snapshot_1f1b, "ddp": sample.snapshot_ddp}.get(
        kind, lambda: sample.held(sample.snapshot_1f1b())
    )()
    app = app_on(made, FakePort(), start=screen if screen in SCREENS else "overview",
                 live=kind != "replay")  # fmt: skip
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.main.shared.frame is not None, "first frame")
        if theme:
            app.theme = f"pardbg-{theme}"
        if screen == "help":
            await pilot.press("question_mark")
        if screen == "detail":
            await pilot.press("enter")
        await pilot.pause(0.3)
        stem = f"{name}-{size[0]}{'-' + theme if theme else ''}"
        svg = out / f"{stem}.svg"
        svg.write_text(_hard_spaces(app.export_screenshot()))
    if shutil.which("rsvg-convert"):
        subprocess.run(["rsvg-convert", svg, "-o", out / f"{stem}.png"], check=True)
        svg.unlink()


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or list(SCREENS)
    for entry in names:
        name, _, theme = entry.partition(":")
        for size in SIZES:
            asyncio.run(shoot(out, name, size, theme))


if __name__ == "__main__":
    main()
