"""Many recipes one after another in one process group: a torchrun start costs more than training.

    torchrun … recipes_in_one.py ddp,gpipe --steps 10 --pace 0
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from importlib import import_module

from pardbg.recipes.catalogue import RECIPES
from pardbg.recipes.launch import Options, World, main

NAMES = sys.argv.pop(1).split(",")


def train(world: World, options: Options) -> None:
    for name in NAMES:
        recipe = RECIPES[name]
        # Only one rank knows the loss, and which one differs: all say where they are.
        world.say(f"recipe {name}")
        module = import_module(recipe.module)
        module.train(world, replace(options, own=recipe.defaults()))
        gc.collect()  # a DDP reducer ends before the next recipe begins


if __name__ == "__main__":
    main("ddp", train)
