"""Core of the process: how it is made, parked by detach, left at exit and dropped after fork.

A hook that runs in every process (spans, phases) does nothing where ``core.CURRENT`` is None: not a
rank (yet), a launcher, a DataLoader worker. A hook that proves the process to be a rank (a group is
formed, an op is issued) does ``c = core.CURRENT or core.ensure()``. Never keep a Core or its
``record`` across calls: after ``fork`` the child has none until it forms a group itself.

``ensure`` always returns a usable Core. If the agent is off (no run, files cannot be created, the
process ends), its ring is anonymous memory and its ``level`` 0."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

from pardbg_agent import active, clock, identity, wire
from pardbg_agent.control.watches import NO_WATCHES
from pardbg_agent.defs import Defs
from pardbg_agent.life import calls, crash_file
from pardbg_agent.life.failures import UncaughtErrors
from pardbg_agent.ring import ENV_RING, Ring, capacity_from_env
from pardbg_agent.settings import Refused, RunSettings, complain, load_run
from pardbg_agent.watched_rank import Core as Core
from pardbg_agent.wire import LEVELS, DefKind

SMALLEST_RING: Final = 1024
"""Minimum capacity in records; below it the agent stays off."""

CURRENT: Core | None = None
"""Core of this process, or None: not a rank (yet)."""

ON_START: Callable[[Core], None] | None = None
"""Called with a new Core before it is published. Set by the hooks."""

UNCAUGHT: Final = UncaughtErrors(lambda: CURRENT)
"""Hooks of the process for uncaught exceptions."""

_lock = threading.RLock()
_ended = False
_exit_registered = False
_parked: Core | None = None
"""Core that detach() ended."""
WHY_OFF: Final[list[str]] = []
"""Reason why the newest Core has no run."""
_keep: list[Core] = []
"""Cores of the parent process after a fork: kept so that they are not torn down here."""


def ensure() -> Core:
    """Return this process's Core, made now if there is none. Call at the first group or op."""
    global CURRENT
    current = CURRENT
    if current is not None:
        return current
    with _lock:
        if CURRENT is None:
            at_exit()
            made = _start()
            if ON_START is not None:
                made.guard.call("native", ON_START, made)
            CURRENT = made
            active.CORE = CURRENT if CURRENT.run is not None else None
        return CURRENT


def forget_off() -> None:
    """Forget a Core without a run: an op under way made it after detach() had ended."""
    global CURRENT
    with _lock:
        if CURRENT is not None and CURRENT.run is None:
            CURRENT = None


def resumable() -> Core | None:
    """Return the Core that detach() ended, if attach() would go on with it."""
    run_dir = os.environ.get(wire.ENV_RUN)
    try:
        return _parked if _parked and run_dir and _parked.run == load_run(run_dir) else None
    except (OSError, ValueError, KeyError):
        return None


def _start() -> Core:
    run_dir = os.environ.get(wire.ENV_RUN)
    if not run_dir or _ended:
        return _off_core()
    try:
        run = load_run(run_dir)
        if _parked is not None and _parked.run == run:
            return _resume(_parked)
        return start(run)
    except Refused:
        WHY_OFF[:] = ["the run is another user's"]
    except Exception as error:  # noqa: BLE001 - no ring, no hub, no disk: the job runs on
        WHY_OFF[:] = [f"{type(error).__name__}: {error}"]
        complain(f"agent is off: {WHY_OFF[0]}")
    return _off_core()


def start(run: RunSettings) -> Core:
    """Make ring, definitions and (if the run has a hub) the agent's thread. Raises OSError."""
    who = identity.of_this_process()
    os.makedirs(run.ring_dir, mode=0o700, exist_ok=True)
    if within := identity.above(run.ring_dir):
        who.extra["within"] = within
    ring = _make_ring(os.path.join(run.ring_dir, f"{who.proc}.ring"))
    defs = Defs(os.path.join(run.ring_dir, f"{who.proc}.defs"))
    core = Core(ring, defs, who, run)
    core.write_header()
    core.status.now(0, 0, 0, wire.NONE, wire.NONE, who.start_ns)
    core.ops.idle()
    core.status.gate(0, 0, who.start_ns)
    core.status.health(who.start_ns, 0, 0, 0, core.level, 0)
    defs.process = who.fields(LEVELS[core.level])
    defs.process["unrecorded"] = core.unrecorded.gaps
    defs.on_identify = core._identified
    defs.put(DefKind.PROCESS, **defs.process)
    if run.data and run.ctrl:
        core.guard.call("sender", _make_sender, core)
        if core.sender is not None:
            core.sender.start()
    core.guard.call("excepthook", UNCAUGHT.install)
    path = os.path.join(run.ring_dir, f"{who.proc}{crash_file.SUFFIX}")
    core.guard.call("crash file", crash_file.open_file, path)
    return core


def _make_ring(path: str) -> Ring:
    """Make the ring, smaller where shared memory is short (64 MiB in a container by default)."""
    capacity = capacity_from_env()
    if ENV_RING not in os.environ:
        capacity = min(capacity, _records_for_us(os.path.dirname(path)))
    while True:
        try:
            return Ring.create(path, capacity)
        except OSError as error:
            if error.errno != errno.ENOSPC or capacity <= SMALLEST_RING:
                raise
            capacity = max(SMALLEST_RING, capacity // 4)


def _records_for_us(folder: str) -> int:
    """Return the ring's capacity with which all rings of a node (of 8 ranks, if unknown) leave
    three quarters of the file system to the job: DataLoader's batches, NCCL's buffers."""
    about = os.statvfs(folder)
    size = about.f_frsize * about.f_blocks or 1 << 40  # 0: it has no limit
    share = size // 4 // max(1, identity.env_int("LOCAL_WORLD_SIZE", 8))
    return 1 << max(SMALLEST_RING, share // wire.RECORD_BYTES).bit_length() - 1


def _make_sender(core: Core) -> None:
    # Imported here, in the caller's thread: a fork while another thread imports zmq would leave
    # the child with a module lock that is never released.
    from pardbg_agent.sender.agent_thread import Sender

    core.sender = Sender(core)


def _resume(core: Core) -> Core:
    """Resume at attach() after detach(): the same ring and the same counters, since a process is
    one stream of records and one sequence of ops for hub and other ranks."""
    core.gate.begin()
    core.guard.call("excepthook", UNCAUGHT.install)
    old, core.sender = core.sender, None
    if old is not None:
        core.guard.disabled -= {"sender", "sender end"}
        core.guard.call("sender", _make_sender, core)
        if core.sender is not None:
            core.sender.take_over(old)
            core.sender.start()
    return core


def _off_core() -> Core:
    return Core(Ring.anonymous(), Defs(None), identity.of_this_process(), None)


def shutdown(deadline_s: float = 0.9) -> None:
    """End the agent in this process within ``deadline_s``: hooks quiet, gate open, rest sent."""
    global CURRENT, _parked
    until = clock.now_ns() + int(deadline_s * 1e9)
    core = CURRENT
    if core is not None:
        calls.exited(core)
    hooks = sys.modules.get("pardbg_agent.hooks")
    quiesce = getattr(hooks, "quiesce", None)
    if core is not None:
        core.gate.end()
        core.watch(NO_WATCHES)
        if quiesce is not None:
            core.guard.call("quiesce", quiesce, deadline_s * 0.55)
    with _lock:
        CURRENT, active.CORE = None, None
    if core is not None and core.sender is not None:
        with contextlib.suppress(Exception):
            core.sender.stop(max(0.05, (until - clock.now_ns()) / 1e9))
    if core is not None and core.run is not None:
        _parked = core  # for attach(); and hooks still on their way may hold its closures


def at_exit() -> None:
    """Have the agent end before the interpreter does: ``atexit`` runs after the program's
    non-daemon threads have ended. Forked children (multiprocessing) leave by ``os._exit``: no
    ``atexit``, but they pass ``threading._shutdown``, where the ring's records are sent, and
    nothing stopped: other threads may still issue ops. Idempotent."""
    global _exit_registered
    if os.getpid() != active.LAST_IN:  # nothing of ours is older than the program's handlers
        atexit.unregister(leave)
        atexit.register(leave)
    if _exit_registered:
        return
    _exit_registered = True
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the interpreter is already leaving
            register(_main_thread_ended)


def _main_thread_ended() -> None:
    """Note that the process leaves by itself: a forked child never gets to send BYE."""
    UNCAUGHT.main_thread_ends()
    core = CURRENT
    if core is not None and core.run is not None:
        with contextlib.suppress(Exception):
            core.defs.put(
                DefKind.NOTE, key=wire.NOTE_LEAVING, value=core.identity.proc, t_ns=clock.now_ns()
            )
        calls.watch_exit(core)
    flush()


def leave() -> None:
    """End the agent as an exit handler does; a second call does nothing."""
    global _ended
    _ended = True
    core, hooks = CURRENT, sys.modules.get("pardbg_agent.hooks")
    followed = hooks.left(core) if core is not None and hooks is not None else None
    with contextlib.suppress(Exception):
        shutdown()
    if followed and hooks is not None:
        with contextlib.suppress(Exception, KeyboardInterrupt):
            hooks.outlive(followed)


def flush(timeout_s: float = 0.2) -> None:
    """Send the records in the ring now; wait for that at most ``timeout_s``."""
    core = CURRENT
    if core is not None and core.sender is not None:
        with contextlib.suppress(Exception):
            core.sender.flush(timeout_s)


def _after_fork_in_child() -> None:
    """Drop the Core in a forked child: it is no rank until it forms a group."""
    global CURRENT, _lock, _ended, _parked
    _keep.extend(core for core in (CURRENT, _parked) if core is not None)
    CURRENT, active.CORE, _parked = None, None, None
    # The handlers registered before the fork are the child's too, so nothing to do for them.
    _lock, _ended = threading.RLock(), False


os.register_at_fork(after_in_child=_after_fork_in_child)
