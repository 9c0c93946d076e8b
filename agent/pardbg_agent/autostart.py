"""Zero-code start: put the hooks in place as soon as ``import torch`` has ended.

Loaded by pardbg.pth and by boot/sitecustomize.py, in every interpreter started while PARDBG is set;
the second of the two finds it loaded. It must cost next to nothing and never fail."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

from pardbg_agent import active
from pardbg_agent.life.late_imports import LateImports

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder

    from pardbg_agent.life.failures import Children
else:
    from pardbg_agent.life.late_imports import MetaPathFinder

SITE_ENDS = "sitecustomize"
"""Module that ``site`` looks for last."""
_hooked = False
"""Whether the hooks are in place."""
_children: list[Children] = []


def start() -> None:
    """Watch for ``import torch``. Does nothing without PARDBG, or a second time."""
    if not (_hooked or _late.waits_for("torch")) and os.environ.get("PARDBG"):
        if os.environ.get("PARDBG_LINES") and not getattr(sys.stdout, "write_through", True):
            # Not with -u, as torchrun sets it: a partial line must survive an os._exit then.
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        if os.getpid() != active.LAST_IN:
            active.LAST_IN = os.getpid()
            atexit.register(_leave)
        _late.when_imported("torch", lambda _: install_hooks())
        _late.when_imported("multiprocessing.process", _watch_children)
        if "RANK" not in os.environ:
            return
        if SITE_ENDS in sys.modules or not _is_in_site():
            _report()
        else:
            sys.meta_path.insert(0, _SiteEnds())


def _leave() -> None:
    """End the agent at exit. Handlers run newest first, so this one, older than the program's, is
    the last: a rank that hangs in a handler of its own is still watched."""
    leave = getattr(sys.modules.get("pardbg_agent.core"), "leave", None)
    if leave is not None:  # else no rank
        leave()


def _is_in_site() -> bool:
    """Return whether the interpreter is still starting: ``site`` is running."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "site":
            return True
    return False


class _SiteEnds(MetaPathFinder):
    """Import hook that finds no module, but notices that all .pth files are read. Before that,
    packages that the agent needs may not be found yet."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == SITE_ENDS:
            sys.meta_path.remove(self)
            _report()


def _report() -> None:
    """Report this rank from its start, whatever becomes of it."""
    try:
        from pardbg_agent.life.own_libraries import load_own_libraries

        load_own_libraries()
        from pardbg_agent import core
        from pardbg_agent.life import calls
        from pardbg_agent.settings import Refused

        try:
            if claims():
                calls.start_up(core.ensure())
        except Refused:
            pass  # reported once; a group formed later reports nothing more
    except Exception as error:  # noqa: BLE001 - the training goes on without us
        _complain(f"not seen before its group: {type(error).__name__}: {error}")


def install_hooks() -> bool:
    """Put the hooks in place now (this may import torch). Return True on success."""
    global _hooked
    _late.forget("torch")
    try:
        from pardbg_agent.life.own_libraries import load_own_libraries

        load_own_libraries()
        from pardbg_agent import core, hooks

        core.at_exit()
        hooks.install()
    except Exception as error:  # noqa: BLE001 - the training goes on without us
        _complain(f"agent is off: {type(error).__name__}: {error}")
        return False
    _hooked = True
    return True


def remove_hooks() -> None:
    """Restore all hooked attributes and end the agent in this process."""
    global _hooked
    _hooked = False
    from pardbg_agent import core
    from pardbg_agent.life import crash_file

    hooks = sys.modules.get("pardbg_agent.hooks")
    if hooks is not None:
        try:
            hooks.uninstall()
        except Exception as error:  # noqa: BLE001 - the training goes on
            _complain(f"detach: {type(error).__name__}: {error}")
    _late.stop()
    while _children:
        _children.pop().leave()
    core.UNCAUGHT.uninstall()
    crash_file.let_go()
    core.shutdown()


def _watch_children(process: ModuleType) -> None:
    from pardbg_agent.life.failures import Children

    _children.append(Children(_child_fails))
    _children[-1].watch(process)


def _child_fails(error: BaseException) -> None:
    core = sys.modules.get("pardbg_agent.core")
    if core is not None:  # else no rank
        core.UNCAUGHT.child_fails(error)


def _complain(text: str) -> None:
    """Write one line on stderr. Not core.complain: an incomplete installation may have no core."""
    if sys.stderr is not None:
        sys.stderr.write(f"pardbg: {text}"[:300].splitlines()[0] + "\n")


# -- a rank from its first moment: where the environment says RANK and WORLD_SIZE, the agent reports
# before torch is imported, so that a rank which never comes to its group is known, too. The
# environment is inherited by DataLoader workers, compilers and tools, and launchers on clusters may
# have it. A process taken for a rank by mistake costs a line and no more: it forms no group.

PROGRAMS: Final = ("torchrun", "accelerate", "deepspeed", "pip", "pardbg")
MODULES: Final = (
    "torch.distributed.run", "torch.distributed.launch", "torch._inductor.compile_worker",
    "accelerate.commands", "deepspeed.launcher", "pip", "pardbg.cli",
)  # fmt: skip
CHILDREN: Final = ("multiprocessing.resource_tracker", "multiprocessing.spawn",
                   "multiprocessing.forkserver", "compile_worker")  # fmt: skip
"""Marks of command lines that are not a rank's: programs, modules, and words in ``-c``."""
_SAME: Final = (b"RANK", b"LOCAL_RANK", b"TORCHELASTIC_RUN_ID", b"TORCHELASTIC_RESTART_COUNT")


def claims() -> bool:
    """Return whether this process is a rank, judging by its environment and its parents."""
    if not (_is_number("RANK") and _is_number("WORLD_SIZE")):
        return False
    words = sys.orig_argv[1:8]
    return bool(words) and not _is_no_rank(words) and not _of_a_rank()


def _is_number(name: str) -> bool:
    return os.environ.get(name, "").isdigit()


def _is_no_rank(words: list[str]) -> bool:
    """Return whether the command line is a launcher's, or a multiprocessing or compiler child's."""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-c":
            return any(name in word for name in CHILDREN)
        if before == "-m":
            return any(word == name or word.startswith(f"{name}.") for name in MODULES)
        if not word.startswith("-"):
            return os.path.basename(word) in PROGRAMS or "compile_worker" in word
    return False


def _of_a_rank() -> bool:
    """Return whether an ancestor process is the rank: it has a ring and the same place in the
    job."""
    from pardbg_agent.identity import above
    from pardbg_agent.settings import load_run

    run_dir = os.environ.get("PARDBG", "")
    own = {name: os.environb.get(name) for name in _SAME}
    if not run_dir:
        return False
    rings = load_run(run_dir).ring_dir
    for proc in above(rings):
        place = _environment(proc.rpartition(".")[2])
        if place == own:
            return True
        # A rank that a program forked, or that set its own environment, began without it.
        ring = os.path.join(rings, f"{proc}.ring")
        if place.get(b"RANK") is None and _rank_of(ring) == own[b"RANK"]:
            return True
    return False


def _rank_of(ring: str) -> bytes:
    """Return the rank in a ring's header, as text; empty if unreadable."""
    from pardbg_agent.wire import RING_HEADER

    try:
        with open(ring, "rb") as file:
            return b"%d" % RING_HEADER.unpack(file.read(RING_HEADER.size))[6]
    except (OSError, ValueError):
        return b""


def _environment(pid: str) -> dict[bytes, bytes | None]:
    """Return the variables that give a process's place in the job, as they were at its start."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = dict(part.partition(b"=")[::2] for part in file.read().split(b"\0") if part)
    except OSError:
        return {}
    return {name: pairs.get(name) for name in _SAME}


_late = LateImports(_complain)
start()
