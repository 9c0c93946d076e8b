"""Classification of files: the program's own, a library's, or a framework's.

One list for stacks in the viewer, call sites in the agent, and C++, which gets ``LIBRARIES`` when
the hooks are installed. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

AGENT: Final = "/pardbg_agent/"
LIBRARIES: Final = ("-packages/", "/lib/python3", "/torch/", AGENT)
"""Path parts of files that do not belong to the program."""
PROGRAMS: Final = ("/pardbg/lab/recipes/", "/pardbg/recipes/")
"""Path parts of programs, wherever they are installed: the recipes (in old recordings too)."""
_FRAMEWORK: Final = re.compile(
    r"/(torch|torchtitan|deepspeed|megatron|nanotron|picotron|colossalai|fairscale|accelerate"
    r"|lightning|pytorch_lightning|transformers|horovod)/"
)


def is_program(file: str) -> bool:
    """Return whether a file belongs to the program, not to a library or Python itself."""
    if file.startswith("<"):
        return False
    return any(part in file for part in PROGRAMS) or not any(part in file for part in LIBRARIES)


def in_reach(files: Sequence[str], every: bool = False) -> list[int]:
    """Return the indices of a stack's files that a debugger walks through: the program's; without
    any, those outside of torch, else all; with ``every`` all but Python's start."""
    both = [at for at, file in enumerate(files) if not file.startswith("<frozen")]
    if every:
        return both
    own = [at for at in both if is_program(files[at])]
    return own or [at for at in both if "/torch/" not in files[at]] or both


def is_framework(file: str) -> bool:
    """Return whether a file is between a program and its ops: torch, or a framework above it."""
    return _FRAMEWORK.search(file) is not None
