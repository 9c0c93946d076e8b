"""One replica's weights drift away from the others'.

What is wrong: replicas stay equal because they start equal and take equal updates; DDP sees to the
gradients and never compares weights. From one step on, one rank updates with another learning rate
(times ``--fault-size``), as a scheduler does that looks at the rank's own loss.

What happens: no error. Each rank trains its own model a little more each step, on gradients that
belong to several; the mean loss looks well enough; the checkpoint that rank 0 writes is one of
them.

What pardbg says: the replicas of the model differ, since which step, and which rank's differs from
the rest.

    pardbg demo fault:diverge --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        if fault.now(step):
            optimizer.param_groups[0]["lr"] *= fault.size  # FAULT: on this rank alone
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:diverge", train)
