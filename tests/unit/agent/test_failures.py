"""What nobody caught is told, and the program's own hooks run as before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pardbg_agent.defs import read_file
from pardbg_agent.life.failures import UncaughtErrors, _last_line

PROGRAM = """
import json, os, sys, threading
sys.excepthook = lambda kind, value, trace: print("mine:", kind.__name__, flush=True)
from pardbg_agent import core
c = core.ensure()
assert c.run is not None
c.step = 5
{body}
"""


def run(tmp_path: Path, body: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A process with an agent and no hub; what it told of exceptions."""
    (tmp_path / "run.json").write_text(f'{{"run": "r", "ring_dir": "{tmp_path}/rings"}}')
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(body=textwrap.dedent(body)))
    done = subprocess.run(
        [sys.executable, str(program)], env={"PARDBG": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    (file,) = (tmp_path / "rings").glob("*.defs")
    maps = [msgpack.unpackb(payload) for payload in read_file(str(file))]
    return done, [m for m in maps if m["k"] == "exception"]


def test_an_exception_is_told_with_its_place_and_the_programs_own_hook_runs(tmp_path: Path) -> None:
    done, (told,) = run(
        tmp_path,
        """
        def batch():
            raise ValueError("no labels\\nin batch 17")
        batch()
        """,
    )
    assert done.returncode == 1 and done.stdout == "mine: ValueError\n"
    assert (told["type"], told["text"], told["step"]) == ("ValueError", "ValueError: no labels", 5)
    assert "cause" not in told and "kept" not in told
    assert [frame[2] for frame in told["frames"]] == ["<module>", "batch"]
    assert told["frames"][-1][0].endswith("train.py") and told["thread"] == "MainThread"


@pytest.mark.parametrize("text", ["\n  in batch 17\nmore", "in batch 17\n", "\n\n", ""])
def test_a_text_that_begins_with_a_new_line_is_told(text: str) -> None:
    said = "ValueError: in batch 17" if text.strip() else "ValueError"
    assert _last_line(ValueError(text)).rstrip(":") == said


def test_what_an_exception_came_from_is_told_beside_it(tmp_path: Path) -> None:
    done, (told,) = run(
        tmp_path,
        """
        def forward():
            raise ValueError("mask")
        try:
            forward()
        except ValueError as error:
            raise RuntimeError("stage") from error
        """,
    )
    cause = told["cause"]
    assert (told["text"], cause["text"]) == ("RuntimeError: stage", "ValueError: mask")
    assert (cause["type"], "implicit" in cause) == ("ValueError", False)
    assert [frame[2] for frame in cause["frames"]] == ["<module>", "forward"]
    assert "mine: RuntimeError" in done.stdout


def test_a_threads_exception_is_told_as_the_threads(tmp_path: Path) -> None:
    done, (told,) = run(
        tmp_path,
        """
        def fails():
            raise OSError("disk")
        thread = threading.Thread(target=fails, name="writer")
        thread.start()
        thread.join()
        """,
    )
    assert done.returncode == 0 and "OSError: disk" in done.stderr
    assert (told["thread"], told["text"]) == ("writer", "OSError: disk")


def test_an_audit_hook_that_asks_for_the_current_thread_comes_to_its_end(tmp_path: Path) -> None:
    """Of a thread that Python did not start it makes one: nothing there may raise another event."""
    done, told = run(
        tmp_path,
        """
        import _thread
        asked, ended = [0], threading.Lock()
        ended.acquire()
        def audit(event, args):
            asked[0] += 1
            threading.current_thread()
        def foreign():
            sys.audit("a program's own")
            ended.release()
        sys.addaudithook(audit)
        before = asked[0]
        _thread.start_new_thread(foreign, ())
        print(ended.acquire(timeout=10), asked[0] - before < 20, flush=True)
        """,
    )
    assert (done.stdout, done.stderr, told) == ("True True\n", "", [])


def test_a_child_of_multiprocessing_tells_what_its_parent_prints(tmp_path: Path) -> None:
    """As mp.spawn does it: the exception is caught below, and the child leaves with SystemExit."""
    (tmp_path / "run.json").write_text(f'{{"run": "r", "ring_dir": "{tmp_path}/rings"}}')
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(
        """
        import multiprocessing, sys

        def rank(wrapped):
            from pardbg_agent import core
            core.ensure()
            try:
                raise KeyError("batch")
            except KeyError:
                if not wrapped:
                    raise
                sys.exit(1)

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            for wrapped in (False, True):
                child = context.Process(target=rank, args=(wrapped,))
                child.start()
                child.join()
        """
    ))  # fmt: skip
    subprocess.run(
        [sys.executable, str(program)], env={"PARDBG": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    files = sorted((tmp_path / "rings").glob("*.defs"))
    told = [msgpack.unpackb(p) for file in files for p in read_file(str(file))]
    texts = [m["text"] for m in told if m["k"] == "exception"]
    assert texts == ["KeyError: 'batch'"] * 2


def test_an_exception_that_cannot_be_shown_is_told_all_the_same(tmp_path: Path) -> None:
    done, (told,) = run(
        tmp_path,
        """
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError
        raise Odd
        """,
    )
    assert done.returncode == 1 and "mine: Odd" in done.stdout
    assert told["type"] == "Odd" and "Odd" in told["text"]


def test_a_caught_exception_and_a_plain_exit_are_nobodys_business(tmp_path: Path) -> None:
    done, told = run(tmp_path, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)\n")
    assert (done.returncode, told) == (3, [])


LATE_HOOKS = {
    "main": """
        sys.excepthook = lambda kind, value, trace: print("late:", kind.__name__, flush=True)
        raise LookupError("no rank")
        """,
    "thread": """
        threading.excepthook = lambda args: print("late:", args.exc_type.__name__, flush=True)
        thread = threading.Thread(target=lambda: {}["no rank"], name="t")
        thread.start()
        thread.join()
        """,
    "chained": """
        before = sys.excepthook
        sys.excepthook = lambda *args: (print("late:", args[0].__name__, flush=True), before(*args))
        core.UNCAUGHT.install()
        raise LookupError("no rank")
        """,
    "left": """
        import atexit
        sys.excepthook = lambda kind, value, trace: print("late:", kind.__name__, flush=True)
        atexit.register(print, "left", flush=True)
        def f():
            raise LookupError("no rank")
        f()
        """,
}


@pytest.mark.parametrize("which", LATE_HOOKS)
def test_a_hook_that_the_program_sets_later_does_not_hide_its_exception(
    tmp_path: Path, which: str
) -> None:
    """As rich, Lightning and OLMo-core do; it runs once, as it would without us."""
    done, told = run(tmp_path, LATE_HOOKS[which])
    assert [one["type"] for one in told] == ["KeyError" if which == "thread" else "LookupError"]
    assert done.stdout.count("late:") == 1 and done.stderr == ""
    assert done.stdout.count("mine:") == (which == "chained")


def test_an_error_shown_at_a_prompt_ended_nothing(tmp_path: Path) -> None:
    done, told = run(
        tmp_path,
        """
        import code
        sys.excepthook = sys.__excepthook__
        console = code.InteractiveConsole()
        console.write = lambda text: None
        console.push("1 / 0")
        assert sys.last_value is not None
        """,
    )
    assert (done.returncode, told) == (0, [])


def test_what_rpc_takes_over_is_told_down_to_what_a_worker_raised() -> None:
    text = "On WorkerInfo(id=0, name=a):\nTypeError('On WorkerInfo(id=2, name=b):\nno model')\n..."
    said = (
        "TypeError: On WorkerInfo(id=0, name=a): TypeError('On WorkerInfo(id=2, name=b): no model')"
    )
    assert _last_line(TypeError(text)) == said


def test_what_a_thread_of_a_pool_raises_is_told_and_stays_in_its_future(tmp_path: Path) -> None:
    """Another one's exception is its own, and a future's that no pool has nobody's."""
    done, told = run(
        tmp_path,
        """
        from concurrent.futures import Future, ThreadPoolExecutor
        def load(shard):
            raise OSError(f"no shard {shard}")
        with ThreadPoolExecutor(1, "loader") as pool:
            future = pool.submit(load, 3)
        print(type(future.exception()).__name__)
        Future().set_exception(ValueError())
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "OSError\n", "")
    (one,) = told
    assert (one["text"], one["thread"], one["step"]) == ("OSError: no shard 3", "loader_0", 5)
    assert one["kept"] is True and one["frames"][-1][2] == "load"


def test_what_a_task_of_asyncio_raises_is_told_and_stays_the_programs(tmp_path: Path) -> None:
    """asyncio says itself at the end that nobody asked for the first; the second was asked for, the
    third was cancelled."""
    done, told = run(
        tmp_path,
        """
        import asyncio
        core.UNCAUGHT.install()
        async def feed(shard):
            await asyncio.sleep(0)
            raise OSError(f"no shard {shard}")
        async def main():
            task = asyncio.create_task(feed(3))
            await asyncio.sleep(0.05)
            print(task._log_traceback)
            try:
                await asyncio.create_task(feed(4))
            except OSError as error:
                print(error)
            waits = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            waits.cancel()
        asyncio.run(main())
        """,
    )
    assert (done.returncode, done.stdout) == (0, "True\nno shard 4\n")
    assert "Task exception was never retrieved" in done.stderr
    assert [one["text"] for one in told] == ["OSError: no shard 3", "OSError: no shard 4"]
    assert {(one["thread"], one["task_of"], one["kept"]) for one in told} == {
        ("feed", "asyncio", True)
    }
    assert told[0]["frames"][-1][2] == "feed"


@pytest.fixture
def uncaught(monkeypatch: pytest.MonkeyPatch) -> UncaughtErrors:
    """As in a process that no agent has been in: earlier tests may have installed ours."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    plain = threading._make_invoke_excepthook  # type: ignore[attr-defined]
    if isinstance(owner := getattr(plain, "__self__", None), UncaughtErrors):
        plain = owner._make_invoke
    monkeypatch.setattr(threading, "_make_invoke_excepthook", plain)
    return UncaughtErrors(lambda: None)


def test_detach_gives_the_hooks_back(uncaught: UncaughtErrors) -> None:
    before = sys.excepthook, threading.excepthook, Future.set_exception
    uncaught.install()
    uncaught.install()
    assert sys.excepthook is not before[0] and Future.set_exception is not before[2]
    uncaught.uninstall()
    assert (sys.excepthook, threading.excepthook, Future.set_exception) == before


def test_a_hook_that_somebody_chained_onto_ours_stays(uncaught: UncaughtErrors) -> None:
    before = sys.excepthook, threading.excepthook
    uncaught.install()
    ours = sys.excepthook

    def theirs(*args: Any) -> None:
        ours(*args)

    sys.excepthook = theirs
    uncaught.uninstall()
    assert sys.excepthook is theirs  # taking ours out would cut the chain
    sys.excepthook = ours
    uncaught.uninstall()
    assert (sys.excepthook, threading.excepthook) == before


def test_what_is_printed_of_an_uncaught_exception_has_no_frame_of_the_agents(
    tmp_path: Path,
) -> None:
    """Here one of the agent's own functions calls the program's, as a wrapper does."""
    program = tmp_path / "train.py"
    program.write_text(
        "from pardbg_agent import core\n"
        "c = core.ensure()\n"
        "def fails(*_): raise LookupError\n"
        "c.gate.wait(1, '', look=fails)\n"
    )
    (tmp_path / "run.json").write_text(f'{{"run": "r", "ring_dir": "{tmp_path}/rings"}}')
    done = subprocess.run(
        [sys.executable, str(program)], env={"PARDBG": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stderr.count("  File ") == 2 and "gate.py" not in done.stderr
    assert done.stderr.rstrip().endswith("LookupError")


def test_no_code_of_the_class_of_what_a_future_keeps_runs(tmp_path: Path) -> None:
    """Its text may take a device's values, or block; nobody may ever print it."""
    done, (told,) = run(
        tmp_path,
        """
        from concurrent.futures import ThreadPoolExecutor
        class Odd(Exception):
            def __str__(self):
                print("asked")
                return ""
        def load():
            raise Odd("shard", 3) from Odd()
        with ThreadPoolExecutor(1, "loader") as pool:
            pool.submit(load)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (told["text"], told["cause"]["text"]) == ("Odd", "Odd")
