"""Pictures of a real run: a pipeline that is watched, held and stepped, still and moving."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot

from pardbg.hub.client import HubControl, LiveSource
from pardbg.lab.recipes import catalogue
from pardbg.ui.app import PardbgApp
from tests.distributed.runs import started
from tests.processes import rank_env
from tests.ui.fakes import until
from tests.ui.moving import moving
from tests.ui.recorded import type_

NAMES = ("held", "moving")
RANKS, STEPS, TICKS = 4, 4000, 14
SIZE = (120, 40)
WAIT_S = 180
ASKED = ("p input", "p grad")


class Film:
    """Screens of an app, each with how long it is shown."""

    def __init__(self, app: PardbgApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.screens: list[str] = []
        self.seconds: list[float] = []

    async def take(self, seconds: float) -> str:
        await self.pilot.pause()
        screen = self.app.export_screenshot(title="pardbg demo 1f1b --allow-eval")
        self.screens.append(screen)
        self.seconds.append(seconds)
        return screen

    def held(self) -> dict[int, str]:
        frame = self.app.main.shared.frame
        return {} if frame is None else dict(frame.snapshot.control.held)

    def num_steps(self) -> int:
        frame = self.app.main.shared.frame
        pipeline = None if frame is None else frame.snapshot.pipeline
        return 0 if pipeline is None else len(pipeline.bubble_history)

    async def runs(self) -> None:
        """Some steps of the running pipeline."""
        await until(lambda: self.num_steps() >= 3, "steps", WAIT_S)
        for _ in range(6):
            await asyncio.sleep(0.4)
            await self.take(0.4)

    async def hold(self) -> None:
        """Hold it where the next step begins."""
        await self.pilot.press("space")
        await until(lambda: len(self.held()) == RANKS, "the cut", WAIT_S)
        await asyncio.sleep(1)
        await self.take(1.2)
        await self.pilot.press("n")
        await until(lambda: len(self.held()) == RANKS
                    and all(text.startswith("step ") for text in self.held().values()),
                    "a step's begin", WAIT_S)  # fmt: skip
        await asyncio.sleep(1)
        await self.take(1)

    async def ticks(self) -> None:
        """One tick after the other."""
        for _ in range(TICKS):
            before = self.held()
            await self.pilot.press("t")
            await until(lambda before=before: len(self.held()) == RANKS  # type: ignore[misc]
                        and self.held() != before, "a tick", WAIT_S)  # fmt: skip
            await asyncio.sleep(0.6)
            await self.take(0.6)

    async def ask(self, lines: Sequence[str]) -> str:
        """Run on to a breakpoint, and ask there."""
        await type_(self.pilot, "break 2B3")
        await type_(self.pilot, "c")
        await until(lambda: "2B3" in self.held().get(2, ""), "the breakpoint", WAIT_S)
        await asyncio.sleep(1)
        await self.take(1.5)
        for line in lines:
            await type_(self.pilot, line)
            await asyncio.sleep(1)
            await self.take(1.5)
        return await self.take(2)


async def pictures(folder: Path) -> None:
    """Write held.svg and moving.svg."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = catalogue.command("1f1b", RANKS, STEPS)
        session = Path(scratch, "s.mcap")
        with started(argv, session, env=rank_env(), allow_eval=True) as handle:
            source, control = LiveSource(handle.run_dir), HubControl(handle.run_dir)
            app = PardbgApp(source, control, title="1f1b", start_screen="pipeline")
            async with app.run_test(size=SIZE) as pilot:
                film = Film(app, pilot)
                await film.runs()
                await film.hold()
                await film.ticks()
                (folder / "held.svg").write_text(await film.ask(ASKED))
            control.close()
            source.close()
    (folder / "moving.svg").write_text(moving(film.screens, film.seconds))
    print(*(folder / f"{name}.svg" for name in NAMES), sep="\n")
