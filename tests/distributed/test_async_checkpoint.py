"""An asynchronous checkpoint of torch's own that one rank cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.session.reader import load
from tests.distributed.owned import PARDBG
from tests.processes import rank_env, run_argv, torchrun_argv
from tests.unit.facts import facts


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("words", "kind", "code"), [((), "thread-exception", 0), (("asks",), "exception", 1)]
)
def test_the_rank_that_could_not_write_is_named_whether_anybody_asks_or_not(
    tmp_path: Path, words: tuple[str, ...], kind: str, code: int
) -> None:
    session = tmp_path / "s.mcap"
    program = torchrun_argv(
        "-m", "tests.distributed.programs.saves", str(tmp_path), *words, nproc=2
    )
    argv = [*PARDBG, "run", "-o", str(session), "--", *program]
    done = run_argv(argv, env=rank_env(), timeout_s=120)
    assert done.code == code, done.err
    (one,) = (of for of in findings(View(load(session), None)) if of.severity != "info")
    assert (one.kind, one.culprits) == (kind, (1,))
    assert set(one.ranks) <= {0, 1} and "saves.py" in (one.where or "")
    cause = facts(one, "cause")
    assert (cause.type, cause.ranks, facts(one, "also")) == ("OSError", (1,), ())
