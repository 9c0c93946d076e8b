"""A program at gates, without torch, and three clients one after the other; prints as JSON what
they saw. In a process of its own: debugpy stays in one."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from pardbg_agent.control.debugger import Debugger
from pardbg_agent.control.gate import GateControl
from pardbg_agent.wire import GATE_ALL, LEASE_NS, Gate
from tests.dap_client import DapClient

# Built in, as no line of this file is to run inside the gate.
gate = GateControl(record=max, name=hash, status=max)
ended = threading.Event()
seen: list[dict[str, Any]] = []


def program() -> None:
    step = 0
    while not ended.is_set():
        gate.wait(Gate.STEP, "step")
        step += 1
        in_child()


def in_child() -> None:
    """As a loader starts a worker: nobody answers for a breakpoint there."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def work() -> None:
    time.sleep(0.001)


def hold() -> None:
    deadline = time.monotonic() + 10
    while not gate.state().held or gate.state().led:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def clients() -> None:
    before = None
    gate.permit(1, 0, 0, GATE_ALL, LEASE_NS)
    for breaks in (False, True, False):
        hold()
        before = Debugger(gate, before)
        before.start()
        with DapClient(before.port, 10) as client:
            client.attach()
            start = program.__code__.co_firstlineno
            lines = [client.frames()[0]["line"] - start]
            lines += [client.step()["line"] - start for _ in range(5)]
            if breaks:
                places = [{"line": start + 5}, {"line": work.__code__.co_firstlineno + 1}]
                client.ask("setBreakpoints", source={"path": __file__}, breakpoints=places)
                client.ask("continue", threadId=client.thread)
                lines.append(client.stopped()["line"] - start)
            seen.append({"lines": lines, "step": client.value("step"), "led": gate.state().led})
            client.detach()
    if before is not None:
        before.join(10)


def guarded() -> None:
    try:
        clients()
    finally:
        ended.set()
        gate.run(2)


if __name__ == "__main__":
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    program()
    thread.join()
    tools = getattr(sys, "monitoring", None)
    left = [t for t in map(tools.get_tool, range(6)) if t] if tools is not None else []
    print(json.dumps({"seen": seen, "trace": sys.gettrace() is not None, "tools": left}))
