"""What each word of control means, at length: ``:help WORD``, ``pardbg ctl WORD --help`` and
docs/debugger.md say this. The line above it (usage and one sentence) is the registry's
(``pardbg.ui.commands.actions``).
"""

from __future__ import annotations

import textwrap
from typing import Final

from pardbg.control.language.arguments import PDB

_TEXTS: Final = {
    "pause": """
        Every rank stops at its next gate: before a collective, a send or a receive, a pipeline
        action, the optimizer, a step. Ranks that others wait for inside an op go on until nobody
        waits: a consistent cut, in which no timeout runs.
        With RANKS only these stop, where they are; who waits for them is shown with the time to the
        nearest timeout, and they are let go before it. `hold`: they are not.
        --
        pause | pause 2 | pause stage=1 | pause 2 hold""",
    "continue": "Every gate opens. A rank that is held at an exception dies of it.",
    "step": """
        The chosen ranks pass one gate: one action, send, receive or collective. Others move only
        where a chosen one waits for them.
        --
        step | step 2 | step 0-1""",
    "tick": """
        The wavefront moves: each rank of a pipeline whose input has been produced runs one compute
        action of its plan; sends and receives flow.""",
    "next": "Every rank runs to the begin of its next training step.",
    "op": "Every rank runs to its next collective.",
    "where": """
        The stacks of all ranks, merged: ranks that stand in the same place share a line. Works
        also while a rank is inside a collective; one that does not answer is looked at from outside
        (py-spy). A rank that is held at an exception shows the exception's traceback.
        --
        where | where 0-3""",
    "break": """
        Stop everybody to a cut when what a rank is about to do makes EXPR true. Without EXPR: list
        the breakpoints. EXPR is a condition on these fields: rank, local_rank, host, step, stage,
        mb, action, op, pg, axis, seq, bytes, peer, dtype, loss, name; with == != < <= > >= in,
        and or not, + - * / %, units (64MiB, 50ms). 2B3 is action==B and stage==2 and mb==3.
        --
        break action==B and mb==3 and stage==2
        break op==all_reduce and bytes>1e6 and axis==dp on 0-3""",
    "tbreak": "A breakpoint that stops once and is gone.",
    "until": """
        A breakpoint that stops once, and run on now; answered when it has stopped.
        --
        until step==100 | until action==2B3""",
    "watch": """
        Stop everybody where something goes wrong, and say rank, place, number and limit. nan: a
        value that is not finite in what a rank puts into a collective or a send (host memory only;
        held before it is issued), the loss, a logged number, or a gradient, by its name; at most
        once in a step on each rank. mismatch: op, size, dtype or root differ; held before it is
        issued. diverge: replicas differ. slow>K: a step, an op, a pipeline action, or the time a
        rank takes by itself before one, longer than K times this rank's median of the same thing,
        once it has five (less than 10 ms, or than a tenth of a step, is never slow). skew>T: so
        long after the first rank. memory>X: the rank passes it; allocated on a GPU, else
        parameters, gradients, optimizer state and activations as counted. Watches are in one table
        with the breakpoints: breaks, condition, ignore and delete are for both.
        --
        watch nan | watch mismatch | watch diverge
        watch slow>5 on 0-3 | watch skew>20ms | watch memory>2GiB""",
    "condition": "Give breakpoint N another condition.\n--\ncondition 1 mb==2",
    "ignore": """
        Let the next COUNT matches of breakpoint N pass, on each rank.
        --
        ignore 1 10""",
    "delete": "Remove breakpoints by number; without one all.\n--\ndelete | delete 1 3",
    "breaks": "All breakpoints and watches, with how often each matched.",
    "delay": """
        Make RANKS later by TIME in each step: a straggler to try things with. 0ms: no more.
        --
        delay 2 50ms | delay stage=1 0.2s""",
    "level": """
        How much ranks record: off, summary (sums per step) or full; for a while where a time is
        given. Nobody is held, so it needs no control.
        --
        level summary | level full 0-3 30s""",
    "mark": "A bookmark in the recording, at this moment.\n--\nmark the loss jumps here",
    "ranks": "Where each rank is: its step, and what it does or is held before.",
    "status": "Who holds control, for how long, what is held and why.",
    "kill": """
        End the job for everybody: SIGTERM, and SIGKILL to what is left. In the console `kill yes`,
        from a script `pardbg ctl RUN kill`.""",
    "p": """
        The value of a Python expression in the frame where the rank is held (see up, down). It
        runs in the training's own thread, so only where the job was started with --allow-eval.
        --
        p loss | p model.head.weight.norm() on 0-1""",
    "pp": "As p, spread over lines.",
    "whatis": "The type of an expression's value.",
    "tensor": """
        Shape, dtype, device, min, mean, max, norm, how many values are NaN or infinite, and a
        histogram of a tensor.
        --
        tensor loss | tensor model.head.weight.grad on all""",
    "compare": """
        An expression on every held rank, side by side, with the first that differs; --hash finds
        the first tensor whose replicas differ, of params, grads, optimizer or an expression.
        --
        compare loss | compare --hash grads on 0,2""",
    "list": "The source around the place where the rank is held, or was when it raised.",
    "args": "The arguments of the function the rank is held in (--allow-eval).",
    "locals": "All local variables there (--allow-eval).",
    "exec": """
        Run a statement in the held frame (--allow-eval); what it prints is the answer. It changes
        the training, and the audit trail says so.
        --
        exec lr = 0.1 | !optimizer.param_groups[0]['lr'] = 0.1""",
    "up": "Look at the caller's frame. From a script: p EXPR --frame 1.",
    "down": "Look at the frame below again.",
    "take": "Take control over from another viewer or script; ranks stay as they are.",
    "leave": "Give control up: every rank runs on, and one at an exception dies.",
    "help": "What a word means: help break. Without a word: everything there is.",
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
    """A word or pdb's abbreviation of it -> the word."""
    word = text.strip().lower()
    return PDB.get(word, word)


def manual(text: str) -> tuple[str, ...]:
    """What a word (or pdb's abbreviation of it) means, and examples; nothing: no more to say."""
    return MANUAL.get(word_of(text), ())
