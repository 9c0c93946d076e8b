"""Every recipe, twice, in one process group: a torchrun start costs more than the training."""

from __future__ import annotations

from pardbg.recipes import ddp, gpipe, interleaved, onef1b
from pardbg.recipes.launch import Options, World, main

TRAIN = {"ddp": ddp, "gpipe": gpipe, "1f1b": onef1b, "interleaved": interleaved}


def train(world: World, options: Options) -> None:
    for turn in ("first", "again"):
        for name, module in TRAIN.items():
            # Only one rank knows the loss, and which one differs: all say where they are.
            world.say(f"{name} {turn}")
            module.train(world, options)


if __name__ == "__main__":
    main("ddp", train)
