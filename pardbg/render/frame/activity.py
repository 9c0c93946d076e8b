"""Text for a rank's activity."""

from __future__ import annotations

from pardbg.analysis.answers.ranks import Activity
from pardbg.analysis.base.times import Times
from pardbg.render.draw.cells import clean


def now_title(times: Times) -> str:
    """Return the heading of ranks' activities; on a device the host is elsewhere than its ops."""
    return "host now" if times else "now"


def activity_text(activity: Activity) -> str:
    """Return ``0F5``, ``held before 2F4``, ``all_reduce dp #80 · ring``; empty if unknown."""
    text = f"no sign of life, last {_text(activity)}" if activity.silent else _text(activity)
    return clean(f"{text} · {activity.span}" if activity.span else text)


def _text(activity: Activity) -> str:
    what = activity.what
    if activity.kind in ("in", "lost"):
        return what
    if activity.kind in ("held at", "held before"):
        return f"{activity.kind} {what}" if what else "held"
    texts = {
        "after": f"after {what}", "terminated": f"ended by {what}", "exited": "process has ended",
        "ended": f"ended: {what}" if what else "ended",
        "stopped": "stopped (SIGSTOP)", "unknown": "",
    }  # fmt: skip
    return texts.get(activity.kind, activity.kind)
