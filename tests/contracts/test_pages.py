"""The pages that a reader opens: links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.exists()] or [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
    ]


def test_links_between_pages_lead_to_files() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in LINK.findall(page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
