"""A recording for scripts and notebooks: frozen values, and columns for numpy and data frames."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.answers.moments import moments
from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.report import report as make_report
from pardbg.analysis.answers.report_pipeline import PipelineReport
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.cli.common import load_session
from pardbg.errors import UserError
from pardbg.render.reports.html import page
from pardbg.session.export.tables import kinds, records
from pardbg.store.store import Store

_TYPES: Final[dict[str, type]] = {
    "int": np.int64, "int | None": np.float64, "float | None": np.float64, "str": object,
    "str | None": object, "Verdict": object,
}  # fmt: skip
"""Annotated type of a row's field -> dtype of its column; fields of other types have no column."""


class Columns(dict[str, NDArray[Any]]):
    """Read-only columns of one length by name: ``pandas.DataFrame(c)``, ``polars.DataFrame(c)`` and
    ``pyarrow.table(c)`` accept them. NaN: not known."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the columns as one structured array."""
        made = np.rec.fromarrays(list(self.values()), names=list(self))  # type: ignore[call-overload]
        return np.asarray(made, dtype)


@dataclass(frozen=True)
class Session:
    """A loaded recording: the data of the screens and of ``pardbg report``, as values."""

    name: str
    store: Store = field(repr=False)

    @cached_property
    def _report(self) -> Report:
        return make_report(self.store)

    def report(self) -> Report:
        """Return the whole report, as in ``pardbg report``."""
        return self._report

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, the worst first."""
        return self._report.findings

    def pipeline(self) -> PipelineReport | None:
        """Return the pipeline's steps, bubble and stages; None: the run has no pipeline."""
        return self._report.pipeline

    def steps(self) -> Columns:
        """Return step, duration_ns, loss and ns per phase (mean over ranks)."""
        rows = self._report.steps
        found = _columns(StepRow, rows)
        for phase in dict.fromkeys(name for row in rows for name in row.phases):
            found[f"{phase}_ns"] = _fixed([row.phases.get(phase, np.nan) for row in rows], float)
        return found

    def collectives(self) -> Columns:
        """Return the newest 10,000 collectives, matched over their ranks."""
        return _columns(CollectiveRow, self._report.collectives)

    def memory(self) -> Columns:
        """Return bytes per rank."""
        return _columns(MemoryRow, self._report.memory)

    def records(self, kind: str, rank: int | None = None) -> Columns:
        """Return records, such as ``step`` or ``op_done``: the columns of docs/export.md; -1: not
        known. For one rank, times and other int64 are the store's own memory."""
        if kind not in kinds():
            raise UserError(f"no records {kind!r}: {', '.join(kinds())}")
        return Columns({
            one.column.name: _fixed(np.array([*one.texts, ""], object)[one.data], object)
            if one.column.type == "text" else _fixed(one.data, one.data.dtype)
            for one in records(self.store, kind, rank).columns
        })  # fmt: skip

    def _repr_html_(self) -> str:
        drawn = page(self._report, self.name, moments(self.store, self._report))
        shown = escape(drawn, quote=True)
        return f'<iframe srcdoc="{shown}" style="width:100%;height:40em;border:0"></iframe>'


def opened(session: str | os.PathLike[str], part: int | None = None) -> Session:
    """Open a session; see ``pardbg.open``."""
    return Session(Path(session).name, load_session(os.fspath(session), part))


def _columns(row: type, rows: Iterable[Any]) -> Columns:
    rows = list(rows)
    known = ((one.name, _TYPES[str(one.type)]) for one in fields(row) if str(one.type) in _TYPES)
    return Columns({name: _fixed([getattr(r, name) for r in rows], kind) for name, kind in known})


def _fixed(cells: Any, dtype: Any) -> NDArray[Any]:
    found = np.asarray(cells, dtype).view()
    found.flags.writeable = False
    return found
