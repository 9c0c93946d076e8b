"""Parts of the reports' HTML pages, without network access or scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

from pardbg.render.draw.svg import escape as _e


def document(title: str, sections: Iterable[str]) -> str:
    """Return a whole HTML page; empty sections are left out."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)} · pardbg</title><style>{_file('report.css')}</style></head>\n"
        f"<body>{_file('patterns.svg')}<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def section(title: str, body: str, beside: str = "") -> str:
    small = f"<small>{_e(beside)}</small>" if beside else ""
    return f"<section><h2>{_e(title)}{small}</h2>{body}</section>"


def figure(picture: str, caption: str, keys: Sequence[str]) -> str:
    return f"<figure>{picture}<figcaption>{_e(caption)}{''.join(keys)}</figcaption></figure>"


def key(style: str, word: str) -> str:
    box = f'<svg viewBox="0 0 13 13"><rect class="{style}" width="13" height="13"/></svg>'
    return f'<span class="key">{box}{_e(word)}</span>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        opened = [f'<{tag} class="l">' if at < left else f"<{tag}>" for at in range(len(row))]
        return "".join(f"{o}{_e(cell)}</{tag}>" for o, cell in zip(opened, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", heads)}</tr>{body}</table></div>'


def more(rows: Sequence[object], most: int) -> str:
    left = len(rows) - most
    return f'<p class="dim">and {left} more (--json has all)</p>' if left > 0 else ""


def _file(name: str) -> str:
    """Return the style sheet, or the patterns that distinguish causes of idle without colour."""
    return resources.files("pardbg.render.reports").joinpath(name).read_text("utf-8")
