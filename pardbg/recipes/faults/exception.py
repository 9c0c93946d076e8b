"""One rank raises.

What is wrong: in one step one rank's data has a token that the vocabulary does not know: a damaged
file, another tokenizer.

What happens: that rank ends with IndexError. The others wait for it in DDP's all_reduce and see a
closed connection, or nothing until the launcher ends them. So several ranks print tracebacks, and
the launcher names the one whose end it saw first.

What pardbg says: which rank raised first, what, and where; the other ranks' errors are its
consequence.

    pardbg demo fault:exception --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss
from pardbg.recipes.shape import VOCABULARY


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        if fault.now(step):
            tokens = tokens + VOCABULARY  # FAULT: no such token; Embedding raises IndexError
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:exception", train)
