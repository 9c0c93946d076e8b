"""What ``pardbg ctl`` prints of an answer."""

from __future__ import annotations

from pardbg.events.commands import Reply
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg.events.control_events import Status
from pardbg.events.control_facts import Breakpoint, Cut, Edited, Hit, Left, Refusal, Waits
from pardbg.render.frame.control_words import done_text, error_text, fact_text
from pardbg.render.reports.replies import text
from pardbg_agent.ctrl.agent_messages import OpenOp


def test_who_waits_for_a_rank_that_is_held_alone_and_for_how_long() -> None:
    waiting = {
        3: Waits(3, OpenOp("pp", "recv", 0, 2), 2),
        1: Waits(1, OpenOp("pp", "send", 0, 2, True), 2),
    }  # fmt: skip
    status = Status(
        Mode.HELD, lease_ns=59_000_000_000, pending=2, timeout_ns=25_400_000_000,
        held={2: "send F0 to r3"}, waiting=waiting,
    )  # fmt: skip
    assert text(Verb.STATUS, Reply(status=status)).splitlines() == [
        "held · lease 59 s · 2 ops pending · an op times out in 26 s",
        "    1  waits in send to r2 for rank 2",
        "    2  send F0 to r3",
        "    3  waits in recv from r2 for rank 2",
    ]


def test_why_ranks_are_held_goes_with_a_cut_and_with_no_other_answer() -> None:
    status = Status(Mode.HELD, why=(Hit(1, 2, "mb==3", next="1B3"),))
    cut = done_text(Reply(answer=Cut(), status=status))
    assert cut == fact_text(status.why[0])
    left = fact_text(Left("view-ada@pts:3-fa6c004d81f5"))
    assert "ada on pts/3" in left and "fa6c" not in left
    edited = Edited(Verb.IGNORE, (Breakpoint(2, "mb==3", ignore=5),))
    assert done_text(Reply(answer=edited, status=status)) == fact_text(edited)


def test_one_is_not_told_that_oneself_has_control() -> None:
    """A viewer that was killed keeps its lease for a while; the next one there is another one."""
    holder, you = (f"view-ada@pts:3-{tail}" for tail in ("fa6c004d81f5", "0123456789ab"))
    refused = Reply(refusal=Refusal(Why.TAKEN, holder=holder, ns=9_000_000_000))
    others = {name: error_text(refused, name) for name in ("", "view-ada@pts:4-0123456789ab")}
    assert len(set(others.values())) == 1 and error_text(refused, you) not in others.values()
    assert all(text.startswith("ada on pts/3 ") for text in others.values())
    assert not error_text(refused, you).startswith("ada on pts/3 ")
