"""Looking into a held rank: what is answered, in whose frame, and that nothing gets out of hand."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pardbg.control.language.expr import gates, parse
from pardbg_agent.control import evaluate
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.gate import GateControl
from pardbg_agent.ctrl.agent_messages import BreakAt, NoAnswer
from pardbg_agent.tables.code_files import in_reach
from pardbg_agent.wire import GATE_ALL, LEASE_NS, Gate
from tests.unit.agent.test_gate import until

OUTER = 41


def training(step: int, *rest: int, scale: float = 0.5) -> list[dict[str, Any]]:
    """A frame with arguments and a local; answers questions about itself."""
    total = step * scale
    here = sys._getframe()
    questions = [
        ("p", "total + OUTER"), ("whatis", "rest"), ("args", ""), ("exec", "print(step)"),
        ("list", ""), ("p", "no_such"), ("exec", "1/0"), ("p", "sys.exit(3)"), ("p", "'x' * 10**6"),
    ]  # fmt: skip
    assert total == 1.5
    return [evaluate.answer(kind, expr, 0, here) for kind, expr in questions]


def test_answers_from_the_frame() -> None:
    value, kind, args, printed, source, unknown, failed, left, long = training(3, 7)
    assert value.text == "42.5" and value.number == 42.5  # 3 * 0.5 + 41
    assert value.frame is not None and value.frame[2] == "training"
    assert kind.text == "builtins.tuple"
    assert args.text.splitlines() == ["step = 3", "scale = 0.5", "rest = (7,)"]
    assert printed.text == "3"
    assert "-> " in source.text and "evaluate.answer(kind" in source.text
    assert unknown.raised and unknown.text.startswith("NameError: name 'no_such'")
    assert failed.raised and failed.text == "ZeroDivisionError: division by zero"
    assert left.raised and left.text == "SystemExit: 3", "a rank is not ended by a question"
    assert len(long.text) == evaluate.MAX_TEXT


def test_a_name_of_the_program_comes_before_one_of_the_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = SimpleNamespace(at_hand=lambda _: {"input": "i", "total": "t", "OUTER": "o"})
    monkeypatch.setitem(sys.modules, "pardbg_agent.hooks.training.pipeline", module)
    total = 3
    here = sys._getframe()
    assert total and evaluate.answer("p", "input, total, OUTER", 0, here).text == "('i', 3, 41)"
    module.at_hand = lambda _: {}["of another torch"]
    assert evaluate.answer("p", "total", 0, here).text == "3"


@pytest.mark.parametrize(
    ("typed", "near"),
    [("totl", "total"), ("OUTR + 1", "OUTER"), ("zzz", None), ("inside()", None)],
)
def test_the_nearest_name_stands_beside_one_that_is_not(typed: str, near: str | None) -> None:
    """Not beside one that a function of the program lacks."""

    def inside() -> Any:
        return eval("totl", {}, {})

    total = 3
    assert total and callable(inside)
    text = evaluate.answer("p", typed, 0, sys._getframe()).text
    assert text.startswith("NameError: name ")
    assert text.rpartition(" ")[2] == near or (near is None and "; " not in text)


@pytest.mark.parametrize(
    ("known", "lacks"),
    [({}, ["input", "output", "grad"]), ({"input": 1}, ["output", "grad"]),
     ({"input": 1, "output": 2}, ["grad"]), ({"input": 1, "output": 2, "grad": 3}, [])],
)  # fmt: skip
def test_what_an_action_has_not_is_no_python_builtin(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, int], lacks: list[str]
) -> None:
    """At a gate before a receive `input` is not there yet; Python's own would wait for a key."""
    module = SimpleNamespace(at_hand=lambda _: known)
    monkeypatch.setitem(sys.modules, "pardbg_agent.hooks.training.pipeline", module)
    here = sys._getframe()
    for name in ("input", "output", "grad"):
        found = evaluate.answer("p", f"{name}.real", 0, here)
        assert found.raised == (name in lacks)
        assert found.text.startswith(f"NameError: {name} " if name in lacks else str(known[name]))
    monkeypatch.delitem(sys.modules, "pardbg_agent.hooks.training.pipeline")
    assert "built-in" in evaluate.answer("p", "input", 0, here).text


def test_a_large_tensor_is_printed_in_a_line_and_a_small_one_as_it_is() -> None:
    """0 … 16: mean 8, norm the root of 16·17·33/6 = 1496. ``pp`` prints all."""
    torch = pytest.importorskip("torch")
    large, small = torch.arange(17.0), torch.arange(16.0)
    here = sys._getframe()
    printed = evaluate.answer("p", "large", 0, here)
    numbers = "min 0 mean 8 max 16 norm 38.6782"
    assert printed.text.split() == f"(17,) float32 cpu {numbers}".split()
    assert printed.hash and not printed.raised
    assert evaluate.answer("p", "small", 0, here).text == repr(small)
    assert evaluate.answer("pp", "large", 0, here).text == repr(large)


def test_the_whole_of_a_function_has_the_line_it_is_at_however_long_it_is(tmp_path: Path) -> None:
    """400 lines of 40 characters, held in the 300th: 60 before and after. Of 20, all."""
    for length, at, first, last in ((400, 300, 240, 360), (20, 10, 1, 20)):
        rows = ["def work():", *(f"    x{n} = {n}  # {'.' * 26}" for n in range(2, length + 1))]
        rows[at - 1] = "    seen.append(sys._getframe())"
        path = tmp_path / f"long{length}.py"
        path.write_text("\n".join(rows) + "\n")
        known: dict[str, Any] = {"seen": [], "sys": sys}
        exec(compile(path.read_text(), str(path), "exec"), known)
        known["work"]()
        seen = known["seen"][0]
        shown = evaluate._source(evaluate.Place(seen, at), whole=True).text.splitlines()
        assert (shown[0].split()[0], shown[-1].split()[0]) == (str(first), str(last))
        assert [row.split()[0] for row in shown if "->" in row] == [str(at)]


def test_frames_go_up_to_the_callers() -> None:
    def inner() -> list[str]:
        mine = "inner's"
        here = sys._getframe()
        found = [evaluate.answer("p", "mine", n, here).text for n in (0, 1)]
        assert mine
        return found

    mine = "outer's"
    assert inner() == ['"inner\'s"', '"outer\'s"'] and mine
    assert evaluate.answer("p", "1", 999, sys._getframe()).refusal is NoAnswer.NO_FRAME
    assert evaluate.answer("import", "os", 0, sys._getframe()).refusal is NoAnswer.NO_QUESTION


def test_frames_of_libraries_are_on_request() -> None:
    """The program -> a library's function -> the program's function, where it is held."""
    code = compile("def call(held):\n    library = 'its own'\n    return held()\n",
                   "/usr/lib/site-packages/frame/call.py", "exec")  # fmt: skip
    known: dict[str, Any] = {}
    exec(code, known)
    seen = []

    def held() -> None:
        seen.append(sys._getframe())

    known["call"](held)
    for every, functions in (
        (False, ["held", "test_frames_of_libraries_are_on_request"]),
        (True, ["held", "call", "test_frames_of_libraries_are_on_request"]),
    ):
        found = [at.frame.f_code.co_name for at in evaluate.frames(seen[0], every)]
        assert found[: len(functions)] == functions
    assert evaluate.answer("p", "library", 1, seen[0], every=True).text == "'its own'"
    assert evaluate.answer("p", "library", 1, seen[0]).raised
    library = seen[0].f_back  # a stack whose innermost frames are a library's
    assert evaluate.frames(library)[0].frame.f_code.co_name.startswith("test_frames")


@pytest.mark.parametrize(
    ("files", "own", "every"),
    [
        (["/x/torch/f.py", "/x/site-packages/hf/g.py", "/w/train.py", "<frozen runpy>"],
         [2], [0, 1, 2]),
        (["/x/torch/f.py", "/x/site-packages/hf/g.py", "<frozen runpy>"], [1], [0, 1]),
        (["/x/torch/f.py", "/x/torch/g.py"], [0, 1], [0, 1]),  # a program of torch's own
        ([], [], []),
    ],
)  # fmt: skip
def test_what_a_debugger_walks_through(files: list[str], own: list[int], every: list[int]) -> None:
    assert (in_reach(files), in_reach(files, every=True)) == (own, every)


def test_tensors_in_words() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    assert x.shape == (2, 2)
    model = torch.nn.Linear(2, 2)
    here = sys._getframe()
    described = evaluate.answer("tensor", "x", 0, here)
    lines = described.text.splitlines()
    assert lines[0] == "(2, 2) float32 cpu"
    # Of 1, 2, 3: mean 2, norm sqrt(1 + 4 + 9) = 3.74166.
    assert lines[1] == "min 1  mean 2  max 3  norm 3.74166"
    assert lines[3] == "1 NaN, 0 infinite of 4"
    assert evaluate.answer("p", "x[0, 1]", 0, here).number == 2.0
    first = evaluate.answer("hash", "model", 0, here).hashes
    assert sorted(first) == ["bias", "weight"]
    with torch.no_grad():
        model.bias[1] += 1
    second = evaluate.answer("hash", "model", 0, here).hashes
    assert first["weight"] == second["weight"] and first["bias"] != second["bias"]
    assert evaluate.answer("tensor", "here", 0, here).text == "frame is no tensor"


def _gate() -> GateControl:
    return GateControl(record=lambda *_: None, name=lambda _: 1, status=lambda *_: None)


def test_the_held_thread_itself_runs_it_and_stays_held() -> None:
    gate = _gate()
    gate.permit(1, 0, 0, GATE_ALL, LEASE_NS)
    assert not gate.ask(lambda _: None), "nobody is held"
    tree = parse("action==B")
    gate.set_breaks(breaks_of([BreakAt(1, gates(tree), tree)]))
    thread = threading.Thread(target=gate.wait, args=(Gate.STEP, "step 1"), daemon=True)
    thread.start()
    until(lambda: gate.state().held)
    seen: list[tuple[int | None, int]] = []

    def work(innermost: Any) -> None:
        # What was typed may meet gates of its own: they let it through.
        seen.append((threading.get_ident(), gate.wait(Gate.ACTION, "2B1", lambda: {"action": "B"})))
        assert innermost is not None

    assert gate.ask(work)
    until(lambda: seen)
    assert seen == [(thread.ident, 0)]
    assert gate.state().held == Gate.STEP and gate.state().hit is None
    gate.run(2)
    thread.join(5)
    assert not thread.is_alive()


def _held() -> tuple[GateControl, threading.Thread]:
    """Return a gate and the thread that it holds."""
    gate = _gate()
    gate.permit(1, 0, 0, GATE_ALL, LEASE_NS)
    thread = threading.Thread(target=gate.wait, args=(Gate.STEP, "step 1"), daemon=True)
    thread.start()
    until(lambda: gate.state().held)
    return gate, thread


def test_questions_that_come_together_are_answered_in_turn() -> None:
    """A display and a breakpoint's command are; one of them was told that nobody is held."""
    gate, thread = _held()
    seen: list[int] = []

    def first(_: Any) -> None:
        assert gate.ask(lambda _: seen.append(1)) and gate.ask(lambda _: seen.append(2))

    assert gate.ask(first)
    until(lambda: len(seen) == 2)
    assert seen == [1, 2]
    gate.run(2)
    thread.join(5)


def test_what_was_asked_cannot_keep_a_released_rank_for_longer_than_itself() -> None:
    gate, thread = _held()
    begun, go_on = threading.Event(), threading.Event()

    def work(_: Any) -> None:
        begun.set()
        go_on.wait(5)

    assert gate.ask(work)
    assert begun.wait(5)
    gate.run(2)
    assert gate.state().held == 0, "permits count while it still runs"
    go_on.set()
    thread.join(5)
    assert not thread.is_alive()


def test_what_other_threads_print_meanwhile_is_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    """The statement has another thread print, and prints itself."""

    def prints() -> None:
        print("of the program", flush=True)

    def both() -> None:
        other = threading.Thread(target=prints)
        other.start()
        other.join()
        print("of the question")

    assert both is not None
    answer = evaluate.answer("exec", "both()", 0, sys._getframe())
    assert answer.text == "of the question"
    assert capsys.readouterr().out == "of the program\n"
