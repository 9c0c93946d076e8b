"""What the agent's tests run as ranks: the core without torch. ``python agent_program.py WHAT``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

from pardbg_agent import core
from pardbg_agent.wire import Gate


def write(count: int, a: int = 0) -> None:
    c = core.ensure()
    for _ in range(count):
        c.record(7, 5, 0, c.defs.name("work"), 1, 2, 0, 0, 0xFFFF, -1, -1, -1, a, 0)


def say(*words: object) -> None:
    # One write: print() makes two of it when unbuffered, and children share the pipe.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def plain() -> None:
    """Records, and an ordinary end."""
    write(500)


def paced() -> None:
    """Records until stdin closes."""
    n = 0
    say("ready")
    while not os.path.exists(os.environ["STOP_FILE"]):
        write(1, n)
        n += 1
        time.sleep(0.001)
    say(n)


def fork() -> None:
    """A child that never acts as a rank, and one that does."""
    write(10, 1)
    for acts in (False, True):
        pid = os.fork()
        if pid == 0:
            assert core.CURRENT is None
            if acts:
                write(20, 2)
                core.flush(2)
                say("child", core.ensure().identity.proc)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    write(10, 3)
    say("parent", core.ensure().identity.proc)


def _child(count: int) -> None:
    write(1, 4)
    while not os.path.exists(os.environ["STOP_FILE"]):
        time.sleep(0.001)
    write(count - 1, 4)
    say("child", core.ensure().identity.proc)


def processes() -> None:
    """multiprocessing children of the given kind, with an agent in the parent."""
    write(5)
    context = multiprocessing.get_context(sys.argv[2])
    children = [context.Process(target=_child, args=(30 + n,)) for n in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert all(child.exitcode == 0 for child in children)


def os_exit() -> None:
    """Leaves without any handler: the ring is what is left."""
    write(300)
    say(core.ensure().identity.proc)
    os._exit(3)


def killed() -> None:
    write(300)
    say(core.ensure().identity.proc)
    os.kill(os.getpid(), signal.SIGKILL)


def gates() -> None:
    """Goes through actions 0F0, 0F1, ... with an op after each, until told to stop."""
    c = core.ensure()
    c.pipeline.plan = [f"0F{n}" for n in range(4)]
    say("ready")
    n = 0
    while not os.path.exists(os.environ["STOP_FILE"]):
        if c.gate.closed:
            c.gate.wait(Gate.ACTION, lambda: f"0F{n}")  # noqa: B023 - asked at once
        c.pipeline.done.append(f"0F{n}")
        if c.gate.closed:
            c.gate.wait(Gate.COLLECTIVE, f"all_reduce dp #{n}")
        name_id = c.defs.op("all_reduce", "float32", "sum")
        seq = c.ops.next_seq("dp")
        token = c.ops.issued("dp", 1, "all_reduce", seq, False, False, -1, 0, name_id, 5)
        time.sleep(0.002)
        c.ops.completed(token)
        n += 1
    say(n)


def thread_at_end() -> None:
    """The main thread ends first; a thread still writes: its records count too."""
    import threading

    def late() -> None:
        threading.main_thread().join()
        write(100)

    write(1)
    threading.Thread(target=late).start()


def big() -> None:
    """Much more than the ring holds, faster than anybody can take it."""
    write(200_000)


if __name__ == "__main__":
    {f.__name__: f for f in (plain, paced, fork, processes, os_exit, killed, gates, thread_at_end,
                             big)}[sys.argv[1]]()  # fmt: skip
