"""The sentences of all kinds of findings, as one golden file has them:
``python -m tests.unit.analysis.test_finding_words`` makes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from pardbg.analysis.findings.arbiter import in_words
from pardbg.analysis.findings.kinds.kinds_table import KINDS, ROWS
from tests.unit.analysis.finding_samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden" / "findings.txt"


def sentences() -> str:
    """Each kind with its severity, sentence and advice; what is said twice once."""
    lines: dict[str, None] = {}
    for one in sorted(SAMPLES, key=lambda one: list(KINDS).index(one.kind)):
        found = in_words(one, one.facts.severity())
        lines[f"{found.kind} ({found.severity})\n  {found.text}\n  → {found.advice}\n"] = None
    return "".join(lines)


def test_sentences_are_short() -> None:
    """Fewer than 30 words, of findings and of advice alike."""
    texts = [line.strip() for line in sentences().splitlines()]
    parts = (part for text in texts for part in re.split(r"(?<=[.!?]) (?=[A-Z0-9(`#])", text))
    assert [part for part in parts if len(part.split()) >= 30] == []


def test_sentences_are_those_of_the_golden_file() -> None:
    assert sentences() == GOLDEN.read_text(encoding="utf-8")


def test_every_kind_and_all_facts_have_a_sample() -> None:
    assert {one.kind for one in SAMPLES} == KINDS.keys()
    assert {type(one.facts) for one in SAMPLES} == {facts for row in ROWS for facts in row.facts}


if __name__ == "__main__":
    GOLDEN.write_text(sentences(), encoding="utf-8")
