"""Sessions whose CRCs are right and whose fields are not: everything is computed of each."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

from pardbg.analysis.answers.diff import diff
from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.plain_text import plain_lines
from pardbg.render.reports.html import page
from pardbg.render.reports.text import text
from pardbg.session.writer import whole_messages
from pardbg.store import Store
from pardbg.store.source import Message
from tests.siege.values import mutated_message

MAX_S = 10.0
MEMORY_BYTES = 3 << 30
KEEP = 4000
"""Messages of a session: enough for every screen, few enough to be fast."""


def messages_of(path: Path) -> list[Message]:
    return list(whole_messages(path))[:KEEP]


def case(messages: list[Message], seed: int) -> int:
    """Mutate, apply, compute; how many inputs were odd. What it raises is a bug."""
    rng = random.Random(seed)
    share = rng.choice((0.002, 0.02, 0.2))
    store, odd = Store(), 0
    for message in messages:
        payload = message.payload
        if rng.random() < share:
            payload, odd = mutated_message(message.key, payload, rng), odd + 1
        store.apply(Message(message.key, payload, message.received_ns))
    begin, end = store.begin_ns, store.end_ns
    snapshot(store, None)
    snapshot(store, begin + rng.randrange(max(1, min(end - begin, 1 << 60))))
    said = report(store)
    shown = plain_lines(text(said)) + page(said, "s.mcap")
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown), (
        "a control character is shown"
    )
    if seed % 5 == 0:
        diff(store, store)
    return odd


def run(paths: list[Path], seed: int, cases: int) -> tuple[int, list[str], float]:
    """(odd inputs, what went wrong, slowest case in s)"""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sessions = [messages_of(path) for path in paths]
    odd, bad, slowest = 0, [], 0.0
    for number in range(seed, seed + cases):
        begun = time.process_time()
        try:
            odd += case(sessions[number % len(sessions)], number)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            bad.append(f"seed {number}: {where(error)}")
        took = time.process_time() - begun
        slowest = max(slowest, took)
        if took > MAX_S:
            bad.append(f"seed {number}: {took:.0f} s")
    return odd, bad, slowest


def where(error: BaseException) -> str:
    """An exception and its innermost place of ours."""
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if "pardbg" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__}: {str(error)[:200]} at {place}"
