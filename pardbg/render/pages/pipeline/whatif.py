"""The what-if pane: other schedules, numbers of microbatches and splits compared to the run, the
fastest first."""

from __future__ import annotations

from pardbg import words
from pardbg.analysis.whatif.answer import Option, WhatIf
from pardbg.render.draw.bars import thin
from pardbg.render.draw.cells import Line, Picture, Segment, crop, left, line, right
from pardbg.render.frame.panels import empty

_NAME = 28
_BAR = 24


def whatif(answer: WhatIf | str | None, cells: int, rows: int, coming: bool = False) -> Picture:
    """Draw the pane at ``cells`` x ``rows``. ``coming``: a step is complete, an answer follows."""
    if answer is None and coming:
        return empty(cells, rows, "Trying the other schedules …", "p: back to the schedule")
    if answer is None:
        return empty(cells, rows, "No pipeline step is complete yet.", "p: back to the schedule")
    if isinstance(answer, str):
        return empty(cells, rows, answer[:1].upper() + answer[1:] + ".", "p: back to the schedule")
    head = (*_verdict(answer, cells), (), _heading(cells))
    foot = tuple(crop(note, cells) for note in _notes(answer))
    return Picture(head=head, body=_table(answer, cells), foot=((), *foot))


def text(answer: WhatIf) -> str:
    """Return the pane as plain text for a pipe: 80 columns, no colour."""
    cells = 80
    lines = (*_verdict(answer, cells), (), _heading(cells), *_table(answer, cells), (),
             *_notes(answer))  # fmt: skip
    return "\n".join("".join(run.text for run in row).rstrip() for row in lines)


def shape(option: Option) -> str:
    """Return text such as ``Interleaved1F1B v=2 m=8``."""
    virtual = f" v={option.num_virtual}" if option.num_virtual > 1 else ""
    return f"{option.schedule}{virtual} m={option.num_microbatches}"


def _verdict(answer: WhatIf, cells: int) -> tuple[Line, ...]:
    took = words.duration(answer.step_ns)
    ran = line(
        Segment(" now  ", "dim"), Segment(answer.schedule, "strong"),
        Segment(f" p={answer.num_ranks} m={answer.num_microbatches}  "), Segment(took, "strong"),
        Segment(f"/step over {answer.num_steps} steps, ±{words.percent(answer.spread)}"),
    )  # fmt: skip
    model = line(
        Segment(" model ", "dim"),
        Segment(f"says {words.duration(answer.predicted_ns)} of that run "),
        Segment(f"({words.change(answer.error)})", "strong"),
        Segment("; a win must be more than "),
        Segment(words.percent(answer.margin), "strong"),
    )
    return tuple(crop(text, cells) for text in (ran, model, _advice(answer), _more(answer)) if text)


def _advice(answer: WhatIf) -> Line:
    best = answer.best
    if best is None:
        return line(
            Segment(" best ", "dim"),
            Segment("what runs now: nothing else wins by more than the model's error"),
        )  # fmt: skip
    return _winner(
        "best", best, f", {words.percent(1 - best.step_ns / answer.predicted_ns, 0)} less"
    )


def _more(answer: WhatIf) -> Line:
    best = answer.best_microbatches
    text = " at best: if smaller microbatches cost no efficiency"
    return () if best is None else _winner("more", best, text)


def _winner(name: str, best: Option, text: str) -> Line:
    return line(
        Segment(f" {name} ", "dim"), Segment(shape(best), "good"), Segment("  "),
        Segment(words.duration(best.step_ns), "strong"), Segment(f"/step{text}"),
    )  # fmt: skip


def _heading(cells: int) -> Line:
    wide = f"  {left('', _BAR)}" if cells >= 110 else ""
    names = f"   {left('schedule', _NAME)}{right('v', 2)}{right('m', 4)}{right('step', 9)}{wide}"
    names += right("", 6) + right("bubble", 8) + right("flight", 8) + right("kept", 10)
    return line(Segment(names, "dim"))


def _table(answer: WhatIf, cells: int) -> tuple[Line, ...]:
    slowest = max(option.step_ns for option in answer.options)
    return tuple(_row(answer, option, slowest, cells) for option in answer.options)


def _row(answer: WhatIf, option: Option, slowest: float, cells: int) -> Line:
    best = option in (answer.best, answer.best_microbatches)
    mark = "▶" if option.runs_now else "★" if best else " "
    style = "strong" if option.runs_now else "good" if mark == "★" else ""
    name = option.schedule + (" equal" if option.equal else "")
    change = option.step_ns / answer.predicted_ns - 1
    text = "now" if option.runs_now else words.change(change, 0)
    step = ("~" if option.assumed else "") + words.duration(option.step_ns)
    drawn: Line = ()
    if cells >= 110:
        drawn = (Segment("  "), Segment(thin(option.step_ns / slowest, _BAR), "busy"))
    return line(
        Segment(f" {mark} ", "accent" if mark != " " else ""), Segment(left(name, _NAME), style),
        Segment(right(str(option.num_virtual), 2), "dim"),
        Segment(right(str(option.num_microbatches), 4), "dim"),
        Segment(right(step, 9), "strong"), drawn, Segment(right(text, 6), style or "dim"),
        Segment(right(words.percent(option.bubble_fraction), 8), "warn"),
        Segment(right(str(option.in_flight), 8)),
        Segment(right(words.binary_size(option.activation_bytes), 10)),
    )  # fmt: skip


def _notes(answer: WhatIf) -> list[Line]:
    notes = [
        "v: stages per rank, m: microbatches; flight and what it keeps: most on any rank",
        answer.split,
        "another number of stages: time spread evenly within a measured stage",
    ]
    if any(option.equal for option in answer.options):
        notes.append("equal: with the model cut so that all stages take the same time")
    if any(o.num_microbatches != answer.num_microbatches for o in answer.options):
        notes.append("other microbatches: the same batch, time in proportion to their size")
    notes += [f"{schedule}: {why}" for schedule, why in answer.left_out]
    return [line(Segment(f"   {note}", "dim")) for note in notes]
