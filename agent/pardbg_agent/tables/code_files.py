"""Which files are the program's own, and which are a library's or a framework's.

One list for stacks in the viewer, call sites in the agent, and C++, which gets ``LIBRARIES`` when
the hooks are installed. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

AGENT: Final = "/pardbg_agent/"
LIBRARIES: Final = ("-packages/", "/lib/python3", "/torch/", AGENT)
"""Parts of the path of a file that is no program's."""
PROGRAMS: Final = ("/pardbg/lab/recipes/", "/pardbg/recipes/")
"""Parts of paths of programs, wherever they are installed: the recipes (in old recordings too)."""
_FRAMEWORK: Final = re.compile(
    r"/(torch|torchtitan|deepspeed|megatron|nanotron|picotron|colossalai|fairscale|accelerate"
    r"|lightning|pytorch_lightning|transformers|horovod)/"
)


def is_program(file: str) -> bool:
    """Return whether a file is of the program, not of a library or of Python itself."""
    if file.startswith("<"):
        return False
    return any(part in file for part in PROGRAMS) or not any(part in file for part in LIBRARIES)


def in_reach(files: Sequence[str], every: bool = False) -> list[int]:
    """Return the places of a stack's files that a debugger walks through: the program's; in a stack
    without any those outside of torch, else all; with ``every`` all but Python's start."""
    both = [at for at, file in enumerate(files) if not file.startswith("<frozen")]
    if every:
        return both
    own = [at for at in both if is_program(files[at])]
    return own or [at for at in both if "/torch/" not in files[at]] or both


def is_framework(file: str) -> bool:
    """Return whether a file stands between a program and its ops: torch, or what is built on it."""
    return _FRAMEWORK.search(file) is not None
