"""One rank does not come to a collective that all the others wait in.

What is wrong: in one step, one rank waits for a file before it goes on: the result of a validation
that, so it believes, another job writes. Nobody does. Whatever a rank may wait for alone (a file, a
lock, a slow disk, a person) holds up all of them.

What happens: the others have issued the step's last all_reduce and stand in it. Gloo raises there
after ``--timeout-s`` and blames the connection; NCCL would sit until its watchdog ends the job, by
default after ten minutes. Neither says which rank is missing.

What pardbg says: which rank is missing, in which all_reduce, and where in the program it is
instead. The ranks that wait are not blamed.

    pardbg demo fault:missing-rank --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import time
from pathlib import Path

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss

RESULT = Path("validation-result.json")


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if fault.now(step):
            wait_for(RESULT)  # FAULT: this rank alone, and the file never comes
        report_mean(world, step, error)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main("fault:missing-rank", train)
