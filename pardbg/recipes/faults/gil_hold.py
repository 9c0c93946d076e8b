"""One rank stands in C code that keeps Python's lock (the GIL).

What is wrong: in one step one rank calls into a C extension that does not release the GIL, for
``--fault-size`` seconds: a tokenizer, an image decoder, a lock in a library.

What happens: the others wait in DDP's all_reduce. No Python runs in the rank, so whatever looks at
it from within (a profiler's thread, faulthandler's timer, a debugger that was attached) is silent
too. Then it goes on as if nothing had been.

What pardbg says: this rank holds the GIL, since when, and its stack, read from outside the process.

    pardbg demo fault:gil-hold --fault-rank 2 --fault-step 5 --fault-size 10
"""

from __future__ import annotations

import ctypes

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        if fault.now(step):
            # FAULT: PyDLL calls C without releasing the GIL, as an extension may
            ctypes.PyDLL(None).usleep(int(fault.size * 1e6))
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:gil-hold", train)
