"""Long help of each verb, for ``:help VERB`` and ``pardbg ctl VERB --help``."""

from __future__ import annotations

import textwrap
from typing import Final

from pardbg.control.language.arguments import PDB

_TEXTS: Final = {
    "pause": """
        Every rank stops at its next gate: before a collective, a send or a receive, a pipeline
        action, the optimizer, a step. Ranks that others wait for inside an op move on until no
        rank waits: a consistent cut, in which no timeout runs.
        With RANKS, only these stop, where they are. The ranks that wait for them are shown with the
        time to the nearest timeout; the held ones are released before it, unless you add `hold`.
        --
        pause | pause 2 | pause stage=1 | pause 2 hold""",
    "continue": "Open every gate. A rank held at an exception dies of it.",
    "step": """
        Each chosen rank passes one gate: one action, send, receive or collective. Others move only
        where a chosen one waits for them.
        --
        step | step 2 | step 0-1""",
    "tick": """
        Advance the wavefront: each pipeline rank whose input has been produced runs one compute
        action of its plan; sends and receives flow.""",
    "next": "Run every rank to the start of its next training step.",
    "op": "Run every rank to its next collective.",
    "where": """
        Show the stacks of all ranks, merged: ranks in the same place share a line. Works even while
        a rank is inside a collective; py-spy reads the stack of one that does not answer. A rank
        held at an exception shows its traceback.
        --
        where | where 0-3""",
    "break": """
        Pause all ranks to a cut when EXPR is true of what a rank is about to do. Without EXPR, list
        the breakpoints. EXPR is a condition on these fields: rank, local_rank, host, step, stage,
        mb, action, op, pg, axis, seq, bytes, peer, dtype, loss, name; with == != < <= > >= in,
        and or not, + - * / %, units (64MiB, 50ms). 2B3 is action==B and stage==2 and mb==3.
        --
        break action==B and mb==3 and stage==2
        break op==all_reduce and bytes>1e6 and axis==dp on 0-3""",
    "tbreak": "Set a breakpoint that is deleted at its first hit.",
    "until": """
        Set a breakpoint for one hit and continue; answers once it has stopped.
        --
        until step==100 | until action==2B3""",
    "watch": """
        Pause all ranks where something goes wrong, and report rank, place, value and limit. nan: a
        value that is not finite in what a rank puts into a collective or a send (host memory only;
        held before it is issued), the loss, a logged number, or a gradient, by its name; at most
        once in a step on each rank. mismatch: op, size, dtype or root differ; held before it is
        issued. diverge: replicas differ. slow>K: a step, an op, a pipeline action, or the time a
        rank spends by itself before one, longer than K times this rank's median of the same thing,
        once it has five (less than 10 ms, or than a tenth of a step, is never slow). skew>T: a
        rank comes that long after the first. memory>X: a rank exceeds it; allocated on a GPU, else
        parameters, gradients, optimizer state and activations as counted. Watches share one table
        with the breakpoints: breaks, condition, ignore and delete apply to both.
        --
        watch nan | watch mismatch | watch diverge
        watch slow>5 on 0-3 | watch skew>20ms | watch memory>2GiB""",
    "condition": "Change the condition of breakpoint N.\n--\ncondition 1 mb==2",
    "ignore": """
        Skip the next COUNT matches of breakpoint N on each rank.
        --
        ignore 1 10""",
    "delete": "Delete breakpoints by number; without a number, all.\n--\ndelete | delete 1 3",
    "breaks": "List breakpoints and watches with their hit counts.",
    "delay": """
        Delay RANKS by TIME in each step, to plant a straggler. 0ms ends it.
        --
        delay 2 50ms | delay stage=1 0.2s""",
    "level": """
        Set how much ranks record: off, summary (totals per step) or full; with a time, for that
        long. Holds no rank, so it does not take control.
        --
        level summary | level full 0-3 30s""",
    "mark": "Bookmark this moment in the recording.\n--\nmark the loss jumps here",
    "ranks": "Show where each rank is: its step, and what it does or is held before.",
    "status": "Show who has control, for how long, which ranks are held and why.",
    "kill": """
        End the job: SIGTERM, then SIGKILL to what is left. In the console `kill yes`, from a script
        `pardbg ctl RUN kill`.""",
    "p": """
        Print a Python expression in the frame where the rank is held (see up, down). It runs in the
        training thread, so it needs --allow-eval at the start of the job.
        --
        p loss | p model.head.weight.norm() on 0-1""",
    "pp": "Pretty-print, as p does.",
    "whatis": "Print the type of an expression's value.",
    "tensor": """
        Describe a tensor: shape, dtype, device, min, mean, max, norm, number of NaN and infinite
        values, histogram.
        --
        tensor loss | tensor model.head.weight.grad on all""",
    "compare": """
        Evaluate on every held rank, side by side, and mark the first difference; --hash finds the
        first tensor whose replicas differ, of params, grads, optimizer or an expression.
        --
        compare loss | compare --hash grads on 0,2""",
    "list": "Show the source around the place where the rank is held, or raised.",
    "args": "Print the arguments of the function in which the rank is held (--allow-eval).",
    "locals": "Print the local variables there (--allow-eval).",
    "exec": """
        Run a statement in the held frame (--allow-eval) and show what it prints. It may change the
        training; the audit trail has it.
        --
        exec lr = 0.1 | !optimizer.param_groups[0]['lr'] = 0.1""",
    "up": "Select the caller's frame. From a script: p EXPR --frame 1.",
    "down": "Select the frame below again.",
    "take": "Take control from another viewer or script; ranks stay as they are.",
    "leave": "Give up control: every rank runs on, and one held at an exception dies.",
    "help": "Explain a verb: help break. Without one, list everything.",
}

RANKS_TEXT: Final = (
    "RANKS is a rank set: 0, 0-3, 0,2, stage=2, host=n1, rank=3, held, waiting, all, or an axis as "
    "in tp=0 (the first of each tp group)."
)


def _made(text: str) -> tuple[str, ...]:
    """The text in one line, then the examples (what follows ``--``)."""
    said, _, examples = textwrap.dedent(text).strip().partition("--\n")
    return (" ".join(said.split()), *examples.splitlines())


MANUAL: Final[dict[str, tuple[str, ...]]] = {word: _made(text) for word, text in _TEXTS.items()}
"""word -> what it means, and examples, a line each."""


def word_of(text: str) -> str:
    """Return the verb for a word or pdb's abbreviation of it."""
    word = text.strip().lower()
    return PDB.get(word, word)


def manual(text: str) -> tuple[str, ...]:
    """Return a verb's help (or that of pdb's abbreviation) and examples; empty: none."""
    return MANUAL.get(word_of(text), ())
