"""Many recipes one after another in one process group: a start costs more than the training.

torchrun … -m tests.distributed.programs.recipes_in_one ddp,gpipe --steps 10 --pace 0
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

from pardbg.lab.recipes.catalogue import RECIPES, Kind
from pardbg.lab.recipes.launch import Options, World, main

# All of them, so that forked ranks need not.
TRAIN = {name: recipe.load() for name, recipe in RECIPES.items() if recipe.kind is not Kind.FAULT}


def train(names: list[str], world: World, options: Options) -> None:
    for name in names:
        # Only one rank knows the loss, and which one differs: all say where they are.
        world.say(f"recipe {name}")
        TRAIN[name](world, replace(options, own=RECIPES[name].defaults()))
        gc.collect()  # a DDP reducer ends before the next recipe begins


if __name__ == "__main__":
    chosen = sys.argv.pop(1).split(",")
    main("ddp", lambda world, options: train(chosen, world, options))
