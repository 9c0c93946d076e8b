"""Stacks in words: the place in the user's code, and the activity of a rank there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from pardbg.store.definitions import Frame
from pardbg_agent.tables.code_files import AGENT, is_framework, is_program

_PACKAGES: Final = "-packages/"
_DISTRIBUTED: Final = re.compile(r"/torch/(distributed/|_C/_distributed)")
_NO_LIBRARY: Final = ("torch/", "typing_extensions.py")
"""Library paths left out of places: torch, and the module that wraps its deprecated functions."""
_TOP: Final = ("<module>", "main", "_main")
_BACKWARD: Final = ("_engine_run_backward",)
Activity = Literal[
    "pdb", "prompt", "compiling", "importing", "checkpoint", "loading", "torch.distributed"
]
_DEVICE_WAIT: Final = re.compile(r"/torch/(cuda|xpu|mtia|accelerator)/[^:]*$")
_READS: Final = re.compile(r"\.(item|tolist|cpu|numpy|nonzero)\(|\b(synchronize|float)\(")
"""Code that needs a value which a device computes."""
_ACTIVITIES: Final[tuple[tuple[str, Activity], ...]] = (
    (r"/(pdb|bdb)\.py$", "pdb"),
    (r"/IPython/|/code\.py$", "prompt"),
    (r"/torch/(_dynamo|_inductor)/", "compiling"),
    (r"^<frozen importlib", "importing"),
    (r"/torch/distributed/checkpoint/|/torch/serialization\.py$|/safetensors/", "checkpoint"),
    (r"/torch/utils/data/|/datasets/|/webdataset/", "loading"),
    (r"/torch/distributed/(rendezvous|elastic|distributed_c10d)", "torch.distributed"),
)


def is_user(frame: Frame) -> bool:
    """Return whether a frame is of the program's own files, not of a library."""
    return is_program(frame[0])


def program(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames without the agent's own."""
    return tuple(frame for frame in frames if AGENT not in frame[0])


def thread_title(name: str, task_of: str) -> str:
    """Return ``asyncio task Task-7`` for a task (``Thread.task_of``), a thread's name as it is."""
    return f"{task_of} task {name}" if task_of else name


def thread_text(name: str, task_of: str) -> str:
    """Return ``asyncio task Task-7``, or ``thread writer``."""
    return thread_title(name, task_of) if task_of else f"thread {name}"


def place(frames: Sequence[Frame]) -> str | None:
    """Return ``train.py:88 in forward``: the innermost frame of the user's code, else of all."""
    shown = program(frames)
    if not shown:
        return None
    file, number, function = next((f for f in reversed(shown) if is_user(f)), shown[-1])
    name = file.rpartition("/")[2] or file
    return f"{name}:{number}" if function.startswith("<") else f"{name}:{number} in {function}"


def whole_place(frames: Sequence[Frame]) -> str | None:
    """Return ``place`` with the library code that the program called there: a program built on a
    trainer has one line, the trainer's, whatever its ranks do."""
    at, within = place(frames), _library(frames)
    return at and (f"{at}, inside {within}" if within else at)


def _library(frames: Sequence[Frame]) -> str:
    """Return ``skorch/net.py:88 in fit``: the innermost frame below the program's that is of a
    package other than torch; empty: there is none."""
    shown = program(frames)
    users = [at for at, frame in enumerate(shown) if is_user(frame)]
    for file, number, function in reversed(shown[users[-1] + 1 :] if users else ()):
        name = file.rpartition(_PACKAGES)[2]
        if _PACKAGES in file and not name.startswith(_NO_LIBRARY):
            return (
                f"{name}:{number}" if function.startswith("<") else f"{name}:{number} in {function}"
            )
    return ""


def caller(frames: Sequence[Frame]) -> str | None:
    """Return ``step (train.py:88)``, the program's function that called the one of ``place``; None
    if there is none that tells anything."""
    users = [frame for frame in program(frames) if is_user(frame)]
    inner = users[-1][2] if users else ""
    for file, number, function in reversed(users[:-1]):
        if function != inner:
            name = file.rpartition("/")[2] or file
            return None if function in _TOP else f"{function} ({name}:{number})"
    return None


def called_place(frames: Sequence[Frame]) -> str | None:
    """Return ``whole_place`` with its ``caller``: ranks may stand in one helper for unlike ops."""
    at, by = whole_place(frames), caller(frames)
    return f"{at}, called from {by}" if at and by else at


def kept(frames: Sequence[Frame], most: int) -> tuple[Frame, ...]:
    """Return at most ``most`` frames: the innermost, preceded by the program's of a deep stack."""
    if len(frames) <= most:
        return tuple(frames)
    inner = frames[-most // 2 :]
    users = [frame for frame in frames[: -most // 2] if is_user(frame)]
    return (*users[-(most - len(inner)) :], *inner)


def activity(frames: Sequence[Frame]) -> Activity | None:
    """Return the activity of the innermost library frames; None where the user's code runs. An
    import of torch's compiler, as by DDP, is no compilation."""
    compiles: Activity | None = None
    for frame in reversed(program(frames)):
        if is_user(frame):
            break
        found = next((of for pattern, of in _ACTIVITIES if re.search(pattern, frame[0])), None)
        if found == "compiling":
            compiles = found
        elif found is not None and (compiles is None or found == "importing"):
            return found
    return compiles


def waits_in_op(frames: Sequence[Frame], inside: str, idle: bool = False) -> bool:
    """Return whether a rank with an open op stands in it: the agent says so (``inside``: what its
    own frames were around), or the stack ends where torch issues ops and waits for them. A backward
    may do so in C++, and so may any place in torch or a framework, if the thread runs on no core
    (``idle``) and does nothing else that is known to take time."""
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
    return idle and is_framework(file) and activity(shown) is None


def waits_for_device(frames: Sequence[Frame], source: str) -> bool:
    """Return whether a rank with a device waits for it: in ``synchronize`` or, by the ``source`` of
    its innermost line, for a value that the device has yet to compute."""
    shown = program(frames)
    if not shown:
        return False
    file, _, function = shown[-1]
    called = function == "synchronize" and _DEVICE_WAIT.search(file) is not None
    return called or _READS.search(source) is not None
