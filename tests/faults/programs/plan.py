"""Where the faults that run in turn strike. Imports no torch."""

from __future__ import annotations

STEP, RANK = 3, 1
SIZES = {
    "straggler": "30", "slow-loader": "20", "gil-hold": "0.3", "memory-creep": "8",
    "memory-imbalance": "64", "exposed-comm": "1", "stage-imbalance": "2",
    "diverge": "2", "nan": "", "mismatch-dtype": "", "small-messages": "",
    "slow-link": "500",  # last: the connection stays slow
}  # fmt: skip
