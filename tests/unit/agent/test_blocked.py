"""What the main thread is seen in, of real system calls: the agent's thread looks from beside."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pardbg_agent.control import inspect
from pardbg_agent.sender import blocked
from pardbg_agent.sender.blocked import Blocked
from pardbg_agent.wire import Kind

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64")
    or not Path("/proc/self/syscall").exists(),
    reason="/proc shows no system calls here",
)  # fmt: skip


@pytest.fixture(autouse=True)
def a_program_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In programs without torch nothing is looked at."""
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", sys))


class Seen:
    """Names that a Core was given records of."""

    def __init__(self) -> None:
        self.level, self.step, self.loader = 2, 0, None
        self.context: Any = SimpleNamespace(loop=SimpleNamespace(phase=1))
        self.guard = SimpleNamespace(call=lambda _, look: look())
        self.records = 0
        self.more: list[int] = []
        """What each record adds to the one before it."""
        self.told: list[str] = []
        """Name of each record."""

    def mark(self, kind: Kind, name: str, t: int, more: int) -> None:
        assert kind is Kind.PROBE
        self.records += 1
        self.more.append(more)
        self.told.append(name)


def seen_in(call: Callable[[], object], ends: Callable[[], object], sent: int = 0) -> Seen:
    """Look until something is seen of a call of the main thread, then end it."""
    core: Any = Seen()
    looks_at = Blocked(core)

    def look() -> None:
        until = time.monotonic() + 20
        while not core.records and time.monotonic() < until:
            looks_at._due_ns = 0
            looks_at.look(sent)
        looks_at._due_ns = 0
        looks_at.look(sent + core.records)  # nothing has moved: no second record
        ends()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        call()
    finally:
        thread.join()
        looks_at.close()
    return core


def kind_and_place(core: Seen) -> tuple[str, str, str]:
    head, kind, detail, place = core.told[0].split("\n")
    assert head == "blocked" and core.records == 1
    return kind, detail, place.split(" in ")[-1]


def test_a_socket_a_pipe_and_a_select_of_nothing() -> None:
    def on_socket() -> None:
        one.recv(1)

    one, other = socket.socketpair()
    with one, other:
        core = seen_in(on_socket, lambda: other.send(b"x"))
    assert kind_and_place(core) == ("socket", "\t\t", "on_socket")
    reader, writer = os.pipe()

    def at_pipe() -> None:
        os.read(reader, 1)

    core = seen_in(at_pipe, lambda: os.write(writer, b"x"))
    os.close(reader), os.close(writer)
    assert kind_and_place(core) == ("pipe", "", "at_pipe")
    core = seen_in(lambda: select.select([], [], [], 3), lambda: None)  # time.sleep before 3.11
    assert kind_and_place(core)[0] == "sleep"


@pytest.mark.parametrize("timeout", [None, 30])
def test_a_socket_is_told_with_its_other_end(timeout: float | None) -> None:
    """With a timeout the socket is polled."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()
        with socket.create_connection(at, timeout=timeout) as client, server.accept()[0] as other:

            def receives() -> None:
                client.recv(1)

            core = seen_in(receives, lambda: other.send(b"x"))
    assert kind_and_place(core) == ("socket", f"127.0.0.1:{at[1]}\t\t", "receives")


def test_the_process_beside_this_one_that_has_a_sockets_other_end() -> None:
    """Of two children of one process the first serves; the second asks who does."""
    program = """if True:
        import os, socket
        from pardbg_agent.sender.blocked import _process_at
        server = socket.create_server(("127.0.0.1", 0))
        if not (serves := os.fork()):
            server.accept()[0].recv(1)
            os._exit(0)
        if not (asks := os.fork()):
            at = server.getsockname()
            server.close()
            client = socket.create_connection(at)
            while not (found := _process_at(at, client.getsockname())):
                _process_at.cache_clear()
            os._exit(found != str(serves))
        assert os.waitpid(asks, 0)[1] == os.waitpid(serves, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_a_look_at_a_socket_leaves_it_blocking() -> None:
    """As it was made, though sockets that Python makes now have a timeout: this one may be of a
    library in C."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        socket.setdefaulttimeout(30)
        try:
            core = seen_in(lambda: client.recv(1), lambda: other.send(b"x"))
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(client.fileno())
    assert kind_and_place(core)[0] == "socket"


def test_a_connection_that_nobody_accepts_is_told_with_its_address() -> None:
    """The queue of a listening socket is full: the next one's SYN gets no answer."""
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        at = server.getsockname()
        for _ in range(2):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(at)

        def connects() -> None:
            with contextlib.suppress(OSError), socket.socket() as client:
                client.connect(at)

        core = seen_in(connects, server.close)
    assert kind_and_place(core) == ("socket", f"127.0.0.1:{at[1]}\t\t", "connects")


def test_a_pipe_that_is_stdin_is_waited_at_for_input() -> None:
    kept, (reader, writer) = os.dup(0), os.pipe()

    def asks() -> None:
        os.read(0, 1)

    try:
        os.dup2(reader, 0)
        core = seen_in(asks, lambda: os.write(writer, b"y"))
    finally:
        os.dup2(kept, 0)
        for fd in (kept, reader, writer):
            os.close(fd)
    assert kind_and_place(core) == ("terminal", "", "asks")


@pytest.mark.parametrize("way", ["pipe", "terminal"])
def test_a_full_pipe_and_a_stopped_terminal_are_not_what_waits_for_input(way: str) -> None:
    """The other end has to read, not to write."""
    reader, writer = os.pipe() if way == "pipe" else os.openpty()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)

    def writes() -> None:
        os.write(writer, b"x" * 4096)

    def empty() -> None:
        while select.select([reader], [], [], 0.2)[0]:
            os.read(reader, 1 << 16)

    core = seen_in(writes, empty)
    os.close(reader), os.close(writer)
    kind, _, place = kind_and_place(core)
    assert (kind, place) == (f"full {way}", "writes")


@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY])
def test_a_fifo_that_nobody_opens_at_its_other_end(tmp_path: Path, mode: int) -> None:
    """To open it waits there; it is no disk that is slow."""
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def opens() -> None:
        os.close(os.open(path, mode))

    core = seen_in(opens, lambda: os.close(os.open(path, os.O_RDWR)))
    assert kind_and_place(core) == ("file", f"{path}\t\tfifo", "opens")


def test_a_fifo_that_nobody_writes_into_is_a_pipe_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    fifo = os.open(path, os.O_RDWR)

    def reads() -> None:
        os.read(fifo, 1)

    core = seen_in(reads, lambda: os.write(fifo, b"x"))
    os.close(fifo)
    assert kind_and_place(core) == ("pipe", str(path), "reads")


def test_an_event_loop_with_nothing_to_run_is_where_its_main_task_awaits() -> None:
    """Through the task that it waits for, and one of several that it gathers: what ended is not
    waited for. Further tasks are told beside it: of three at one place one."""
    loop, ends = asyncio.new_event_loop(), asyncio.Event()
    told: list[tuple[str, str]] = []

    async def ended() -> None:
        await asyncio.sleep(0)

    async def stands() -> None:
        await ends.wait()

    async def beside() -> None:
        await stands()

    async def gathers() -> None:
        others = [asyncio.create_task(beside(), name=f"other-{i}") for i in (10, 9, 8)]
        await asyncio.gather(ended(), asyncio.create_task(stands(), name="gathered"))
        await asyncio.gather(*others)

    def wake() -> None:
        found = [one for one in inspect.stacks() if one.task_of == "asyncio"]
        told.extend((one.thread, one.frames[0][2]) for one in found)
        loop.call_soon_threadsafe(ends.set)

    core = seen_in(lambda: loop.run_until_complete(gathers()), wake)
    loop.close()
    assert kind_and_place(core) == ("poll", "\t\ttask", "stands")
    assert told == [("other-8", "beside")]


def test_a_lock_of_the_process_and_a_queue() -> None:
    lock, items = threading.Lock(), queue.Queue[int](1)
    lock.acquire()
    for ends, does, takes in (
        (lock.release, "", lambda: lock.acquire()),
        (lambda: items.put(1), "\t\tqueue", lambda: items.get(timeout=20)),
        (items.get, "\t\tfull queue", lambda: (items.put(0), items.put(1))),
    ):
        assert kind_and_place(seen_in(takes, ends))[:2] == ("lock", does)


def test_each_look_at_one_stay_counts_once_it_is_over() -> None:
    """Seven looks while nothing is sent but the first one's record, then others have been."""
    lock, core = threading.Lock(), Seen()
    lock.acquire()
    looks_at = Blocked(core)  # type: ignore[arg-type]

    def look(sent: int) -> None:
        looks_at._due_ns = 0
        looks_at.look(sent)

    def looks() -> None:
        until = time.monotonic() + 20
        while not core.records and time.monotonic() < until:
            look(5)
        for _ in range(6):
            look(6)
        assert core.more == [0]
        look(9)  # it has moved, and is there again
        look(11)
        lock.release()

    thread = threading.Thread(target=looks)
    thread.start()
    lock.acquire()
    thread.join()
    look(12)
    looks_at.close()
    assert core.more[:4] == [0, 6, 0, 1]


def test_looks_at_one_place_are_not_the_next_ones() -> None:
    """From one lock straight into another: nothing is sent between the two."""
    first, second, core = threading.Lock(), threading.Lock(), Seen()
    first.acquire(), second.acquire()
    looks_at = Blocked(core)  # type: ignore[arg-type]

    def look_until(enough: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not enough() and time.monotonic() < until:
            looks_at._due_ns = 0
            looks_at.look(core.records)

    def looks() -> None:
        look_until(lambda: looks_at._more == 3)
        first.release()
        look_until(lambda: core.records == 3)
        second.release()

    def into_both() -> None:
        first.acquire()
        second.acquire()

    thread = threading.Thread(target=looks)
    thread.start()
    into_both()
    thread.join()
    looks_at.close()
    assert core.more[0] == core.more[2] == 0 and core.more[1] >= 3
    assert core.told[0] == core.told[1] != core.told[2]


def test_long_turns_of_the_interpreter_hold_no_heartbeat_up() -> None:
    """Whether it waits for the interpreter would show in 25 s: then it is not looked for."""
    lock, core = threading.Lock(), Seen()
    lock.acquire()
    looks_at = Blocked(core)  # type: ignore[arg-type]
    took: list[float] = []

    def looks() -> None:
        begun = time.monotonic()
        for _ in range(20):
            looks_at._due_ns = 0
            looks_at.look(0)
        took.append(time.monotonic() - begun)
        lock.release()

    before = sys.getswitchinterval()
    thread = threading.Thread(target=looks)
    thread.start()
    sys.setswitchinterval(1)
    try:
        lock.acquire()
        thread.join()
    finally:
        sys.setswitchinterval(before)
        looks_at.close()
    assert core.records == 0 and took[0] < 1


def test_a_thread_that_waits_for_the_interpreter_is_in_no_lock() -> None:
    """Four others compute; the main thread computes too, and mostly waits for its turn."""
    core, over = Seen(), threading.Event()
    looks_at = Blocked(core)  # type: ignore[arg-type]

    def compute() -> None:
        while not over.is_set():
            sum(range(2000))

    def look() -> None:
        for _ in range(12):
            time.sleep(0.02)  # as between heartbeats, others go on
            looks_at._due_ns = 0
            looks_at.look(0)
        over.set()

    threads = [threading.Thread(target=of) for of in (*[compute] * 4, look)]
    for thread in threads:
        thread.start()
    compute()
    for thread in threads:
        thread.join()
    looks_at.close()
    assert core.told == []


@pytest.mark.parametrize("phase", [0, 3])
def test_where_the_thread_computes_outside_of_phases_is_told_once_it_has_moved(phase: int) -> None:
    """Else a rank that spins would seem to go on, record by record."""
    core, over = Seen(), threading.Event()
    core.context = SimpleNamespace(loop=SimpleNamespace(phase=phase))
    looks_at = Blocked(core)  # type: ignore[arg-type]
    told: list[int] = []

    def compute() -> None:
        while not over.is_set():
            sum(range(2000))

    def look() -> None:
        for made in (*[7] * 12, 8):
            time.sleep(0.02)  # as between heartbeats
            looks_at._due_ns = 0
            looks_at.look(made)
            told.append(core.records)
        over.set()

    thread = threading.Thread(target=look)
    thread.start()
    compute()
    thread.join()
    looks_at.close()
    assert told[:12] == [0] * 12
    heads = {name.rpartition(" in ")[2] for name in core.told if name.startswith("busy\nbusy\n\n")}
    assert heads == (set() if phase else {"compute"})
    assert sum(core.more) == (0 if phase else pytest.approx(12, abs=3))


def test_a_lock_on_a_file_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its holder has to be looked for, as of a lock that is polled: who has the file
    open without a lock on it is none."""
    path = tmp_path / "shared"
    ready, go_on = os.pipe(), os.pipe()
    path.touch()
    child = os.fork()
    if not child:
        with path.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with path.open() as file:
        monkeypatch.setattr(blocked, "_siblings", lambda: [str(os.getpid()), str(child)])
        assert blocked._locked_by(str(path)) == str(child)

        def wants() -> None:
            fcntl.flock(file, fcntl.LOCK_EX)

        core = seen_in(wants, lambda: os.write(go_on[1], b"x"))
    os.waitpid(child, 0)
    for fd in (*ready, *go_on):
        os.close(fd)
    assert kind_and_place(core) == ("file lock", f"{path}\t{child}\t", "wants")


@pytest.mark.parametrize("stops", [True, False])
def test_a_loader_that_waits_at_a_workers_socket_names_the_worker(stops: bool) -> None:
    """The first of two workers sleeps. A tensor's descriptor comes over a socket; one that is
    stopped is told before one that works."""
    workers = [fork_asleep() for _ in range(2)]
    if stops:
        os.kill(workers[1], signal.SIGSTOP)
        os.waitpid(workers[1], os.WUNTRACED)
    one, other = socket.socketpair()
    loader: dict[str, Any] = {}
    code = "def _try_get_data(take):\n    take()\n"
    exec(compile(code, "/x/torch/utils/data/dataloader.py", "exec"), loader)
    try:
        with one, other:
            for take in (lambda: one.recv(1), lambda: os.read(one.fileno(), 1)):
                core = seen_in(lambda: loader["_try_get_data"](take), lambda: other.send(b"x"))  # noqa: B023
                does = f"{workers[1]}\tstopped" if stops else f"{workers[0]}\tsleep"
                assert kind_and_place(core)[:2] == ("worker", f"\t{does}")
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def fork_asleep() -> int:
    """Return a child that has come to its sleep."""
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(0)
    while (
        not Path(f"/proc/{child}/syscall").read_text().startswith(("35 ", "230 ", "101 ", "115 "))
    ):
        time.sleep(0.01)
    return child
