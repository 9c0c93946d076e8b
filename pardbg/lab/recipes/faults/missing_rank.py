"""A rank that does not come.

The recorded session ``fault-missing-rank`` names lines of this file, and who looks at it is shown
them from here: ``wait_for(RESULT)`` stays in line 39, ``time.sleep`` in line 45, as they were when
it was recorded.
"""

from __future__ import annotations

import time
from pathlib import Path

from torch import Tensor

from pardbg.lab.recipes.faults.planted import Training

RESULT = Path("validation-result.json")


class MissingRank(Training):
    """One rank does not come to a collective that all the others wait in.

    What is wrong: in one step, one rank waits for a file before it goes on: the result of a
    validation that, so it believes, another job writes. Nobody does. Whatever a rank may wait for
    alone (a file, a lock, a slow disk, a person) holds up all of them.

    What happens: the others have issued the step's last all_reduce and stand in it. Gloo raises
    there after ``--timeout-s`` and blames the connection; NCCL would sit until its watchdog ends
    the job, by default after ten minutes. Neither says which rank is missing.

    What pardbg says: which rank is missing, in which all_reduce, and where in the program it is
    instead. The ranks that wait are not blamed.

        pardbg demo fault:missing-rank --fault-rank 2 --fault-step 5
    """

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.now(step):
            wait_for(RESULT)  # FAULT: this rank alone, and the file never comes
        self.world.report_mean(step, error)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)
