"""Stacks in words: the place in the user's code, and what a rank is busy with there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pardbg.store.definitions import Frame
from pardbg_agent.tables.code_files import AGENT, is_framework, is_program

_DISTRIBUTED: Final = re.compile(r"/torch/(distributed/|_C/_distributed)")
_TOP: Final = ("<module>", "main", "_main")
_BACKWARD: Final = ("_engine_run_backward",)
_COMPILES: Final = "is compiling"
_IMPORTS: Final = "imports modules"
_BUSY: Final[tuple[tuple[str, str], ...]] = (
    (r"/(pdb|bdb)\.py$", "is in pdb"),
    (r"/IPython/|/code\.py$", "is in an interactive prompt"),
    (r"/torch/(_dynamo|_inductor)/", _COMPILES),
    (r"^<frozen importlib", _IMPORTS),
    (r"/torch/distributed/checkpoint/|/torch/serialization\.py$|/safetensors/",
     "is at a checkpoint"),
    (r"/torch/utils/data/|/datasets/|/webdataset/", "loads data"),
    (r"/torch/distributed/(rendezvous|elastic|distributed_c10d)", "is in torch.distributed"),
)  # fmt: skip


def is_user(frame: Frame) -> bool:
    """Return whether a frame is of the program's own files, not of a library."""
    return is_program(frame[0])


def program(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Without the agent's own frames."""
    return tuple(frame for frame in frames if AGENT not in frame[0])


def place(frames: Sequence[Frame]) -> str | None:
    """``train.py:88 in forward``: the innermost frame of the user's code, else the innermost."""
    shown = program(frames)
    if not shown:
        return None
    file, number, function = next((f for f in reversed(shown) if is_user(f)), shown[-1])
    name = file.rpartition("/")[2] or file
    return f"{name}:{number}" if function.startswith("<") else f"{name}:{number} in {function}"


def caller(frames: Sequence[Frame]) -> str | None:
    """The program's function that called the one of ``place``, where there is a telling one."""
    users = [frame for frame in program(frames) if is_user(frame)]
    inner = users[-1][2] if users else ""
    for file, number, function in reversed(users[:-1]):
        if function != inner:
            name = file.rpartition("/")[2] or file
            return None if function in _TOP else f"{function} at {name}:{number}"
    return None


def kept(frames: Sequence[Frame], most: int) -> tuple[Frame, ...]:
    """Return at most ``most`` frames: the innermost ones, and before them those of the program,
    which a deep stack of a library would push out."""
    if len(frames) <= most:
        return tuple(frames)
    inner = frames[-most // 2 :]
    users = [frame for frame in frames[: -most // 2] if is_user(frame)]
    return (*users[-(most - len(inner)) :], *inner)


def busy(frames: Sequence[Frame]) -> str | None:
    """Return what the innermost library frames are for, in words; None where the user's code runs.
    torch's compiler that is being imported, as DDP does, compiles nothing."""
    compiles = None
    for frame in reversed(program(frames)):
        if is_user(frame):
            break
        words = next((words for pattern, words in _BUSY if re.search(pattern, frame[0])), None)
        if words == _COMPILES:
            compiles = words
        elif words is not None and (compiles is None or words == _IMPORTS):
            return words
    return compiles


def at_files(frames: Sequence[Frame]) -> bool:
    """Return whether it writes or reads a checkpoint."""
    return busy(frames) == "is at a checkpoint"


def in_pdb(frames: Sequence[Frame]) -> bool:
    """Return whether the thread stands at a debugger's prompt."""
    return busy(frames) in ("is in pdb", "is in an interactive prompt")


def waits_in_op(frames: Sequence[Frame], inside: str, idle: bool = False) -> bool:
    """Return whether a rank that has an op open stands in it: so the agent says (``inside``: what
    its own frames were around), or the stack ends where torch issues ops and waits for them. A
    backward may do so in C++; and so may any other place in torch or a framework, if the thread
    runs on no core there (``idle``) and is not at something else that is known to take time."""
    if inside in ("wait", "op", "call"):
        return True
    if not frames:
        return False
    if "/pardbg_agent/hooks/" in frames[-1][0]:  # read from outside, with the agent's frames
        return True
    shown = program(frames)
    if not shown:
        return False
    file, _, function = shown[-1]
    if function in _BACKWARD or _DISTRIBUTED.search(file) is not None:
        return True
    return idle and is_framework(file) and busy(shown) is None
