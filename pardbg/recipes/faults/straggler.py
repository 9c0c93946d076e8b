"""One rank computes more slowly than the others.

What is wrong: from one step on, one rank's forward and backward take longer, together by
``--fault-size`` milliseconds a step: a device that got hot, shares its host, or sits in a slow
slot.

What happens: no error. Every step takes as long as the slowest rank does. The others are as busy as
before and wait longer in their all_reduces, so each of them looks as if communication was slow.

What pardbg says: straggler: this rank is last to the collectives again and again, by how much, that
compute is what takes longer, and what it costs per step.

    pardbg demo fault:straggler --fault-rank 2 --fault-step 5 --fault-size 80
"""

from __future__ import annotations

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss
from pardbg.recipes.paced import Paced


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        if fault.now(step):
            # FAULT: the model takes longer from now on, a third of it in forward and the rest in
            # backward
            model.module.append(Paced(fault.size / 3))
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:straggler", train)
