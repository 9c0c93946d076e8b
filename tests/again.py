"""Tests that just failed beside others, once more alone: ``python -m tests.again``, after pytest.

Thousands of tests of real processes share two cores, and a condition may be waited for in vain
there. What passes alone is named, to be mended; failures in more than a few files are a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MOST: Final = 3
FAILED: Final = Path(__file__).parents[1] / ".pytest_cache/v/cache/lastfailed"


def main() -> int:
    """Run them; return 0 if all pass."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    files = {test.partition("::")[0] for test in failed}  # a file's tests may share one job
    if not 0 < len(files) <= MOST:
        print(f"tests of {len(files)} files failed: more than {MOST} are not tried again")
        return 1
    print(f"\nagain, alone: {len(failed)} tests of {len(files)} files; {MOST} may be")
    again = subprocess.run([sys.executable, "-m", "pytest", "-m", "", *failed], check=False)
    if again.returncode == 0:
        print("passed alone, failed beside others; to be mended:", *failed, sep="\n  ")
    return again.returncode


if __name__ == "__main__":
    sys.exit(main())
