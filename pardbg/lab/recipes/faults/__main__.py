"""Run the fault that the command line names first."""

from __future__ import annotations

import sys

from pardbg.lab.recipes.catalogue import RecipeError, find
from pardbg.lab.recipes.launch import main

if __name__ == "__main__":
    try:
        recipe = find(sys.argv[1] if len(sys.argv) > 1 else "fault:")
    except RecipeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    main(recipe.name, recipe.load())
