"""What CPython's faulthandler writes of a crash, as of 3.11 and 3.14."""

from __future__ import annotations

import pytest

from pardbg.events.crash_text import crashed_at

OLD = """Fatal Python error: Segmentation fault

Thread 0x00007f1c7a7fc700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f1d4c0d9740 (most recent call first):
  File "/job/a ", line 3 in b/kernels.py", line 12 in fused
  File "/job/train.py", line 40 in main
  File "/job/train.py", line 44 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)"""
NEW = """Fatal Python error: Aborted

Thread 0x00007f1c7a7fc700 [Thread-1] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 331 in wait

Thread 0x00007f1d4c0d9740 [python] (most recent call first):
  File "/job/train.py", line 9 in backward
  File "/job/train.py", line 44 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/lib/libc.so.6", at abort+0xd3 [0x7f1d4c1]"""


@pytest.mark.parametrize(
    ("text", "frames", "current"),
    [
        (OLD, [("/job/train.py", 44, "<module>"), ("/job/train.py", 40, "main"),
               ('/job/a ", line 3 in b/kernels.py', 12, "fused")], True),
        (NEW, [("/job/train.py", 44, "<module>"), ("/job/train.py", 9, "backward")], False),
        ("", [], False),
        ("Fatal Python error: Aborted\n\nCurrent thread 0x7 (most recent call first):", [], False),
        (OLD[:100], [], False),
    ],
)  # fmt: skip
def test_the_thread_that_crashed_is_read_else_the_main_one(
    text: str, frames: list[tuple[str, int, str]], current: bool
) -> None:
    assert crashed_at(text.splitlines()) == (frames, current)
