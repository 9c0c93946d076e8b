"""The pictures of docs/, anew: ``python -m tests.ui.pictures [FOLDER [NAME…]]``.

Screens of recorded sessions as SVG, and those of a run that is held and stepped meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.ui import live_pictures
from tests.ui.recorded import VIEWS, View, app_of, drive, fixed_surroundings

ROOT = Path(__file__).parents[2]
SIZE = (120, 40)
SCREENS = ("overview", "pipeline", "timeline", "collectives", "traffic", "memory", "findings",
           "hang")  # fmt: skip


async def picture(view: View, path: Path) -> None:
    with app_of(view.session) as app:
        async with app.run_test(size=SIZE) as pilot:
            await drive(pilot, view)
            path.write_text(app.export_screenshot(title=f"pardbg replay {view.session}.mcap"))


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    fixed_surroundings(os.environ.__setitem__, setattr)
    for view in VIEWS:
        if view.name in (sys.argv[2:] or SCREENS):
            asyncio.run(picture(view, folder / f"{view.name}.svg"))
            print(folder / f"{view.name}.svg")
    if set(sys.argv[2:] or live_pictures.NAMES) & set(live_pictures.NAMES):
        asyncio.run(live_pictures.pictures(folder))


if __name__ == "__main__":
    main()
