"""Run the fault that the command line names first."""

from __future__ import annotations

import sys

from pardbg.recipes.catalogue import find
from pardbg.recipes.launch import main

if __name__ == "__main__":
    main(sys.argv[1], find(sys.argv[1]).load())
