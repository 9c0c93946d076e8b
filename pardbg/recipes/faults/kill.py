"""One rank dies without a word.

What is wrong: in one step one rank is killed with SIGKILL, as the kernel does when the host runs
out of memory.

What happens: no traceback and no last line. The others see a closed connection where they stand,
raise, and print tracebacks about it, though nothing is wrong with them.

What pardbg says: which rank died, and what it was doing: its last records lie in memory that
outlives it. The others' errors are the consequence.

    pardbg demo fault:kill --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import os
import signal

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        if fault.now(step):
            os.kill(os.getpid(), signal.SIGKILL)  # FAULT: out of memory, says the kernel
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:kill", train)
