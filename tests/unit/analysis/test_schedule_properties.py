"""Schedules as CSV under drawn cells: what is read is written and read again the same."""

from __future__ import annotations

import csv
import io

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pardbg.errors import UserError
from pardbg.lab.schedules.lint import lint
from pardbg.lab.schedules.schedule_table import dump, parse
from pardbg.lab.schedules.schedule_text import grid, verdict

actions = st.from_regex(
    r"[0-3](SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W|UNSHARD|RESHARD|REDUCE_GRAD)[0-3]", fullmatch=True
)
pairs = st.tuples(actions, actions).map(lambda two: f"({two[0]};{two[1]})OVERLAP_F_B")
cells = st.one_of(
    actions, actions, pairs, st.sampled_from(("", " ", " 0F0 ", "999999F0")), st.text(max_size=9)
)
tables = st.lists(st.lists(cells, max_size=6), max_size=5)


@settings(max_examples=100, phases=(Phase.generate, Phase.shrink))
@given(tables)
def test_a_table_is_read_as_it_was_written_or_refused_in_one_line(rows: list[list[str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    try:
        table = parse(out.getvalue())
    except UserError as error:
        assert "\n" not in str(error)
        return
    written = [[cell.text for cell in row] for row in table.rows]
    given_ = [[word.strip() for word in row if word.strip()] for row in rows]
    while given_ and not given_[-1]:
        given_.pop()
    assert written == given_
    assert [[cell.ops for cell in row] for row in parse(dump(table)).rows] == [
        [cell.ops for cell in row] for row in table.rows
    ]
    if table.num_stages < 100:  # a large one takes its time
        verdict("x.csv", lint(table))
        grid(table)
