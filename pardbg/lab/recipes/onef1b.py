"""1F1B: after a warm-up each rank alternates one forward and one backward.

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 -- F4 B1 -- F5 B2 -- F6 B3 -- F7 B4 -- …
    rank 1     F0 F1 F2 .. .. .. .. B0 -- F3 B1 -- F4 B2 -- F5 B3 -- F6 B4 -- F7 B5 …
    rank 2        F0 F1 .. .. B0 -- F2 B1 -- F3 B2 -- F4 B3 -- F5 B4 -- F6 B5 -- F7 …
    rank 3           F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- F4 B4 -- F5 B5 -- F6 B6 -- …

    (time to the right; a backward takes two columns; dots: the bubble)

    warm-up      p - 1 - rank forwards
    steady       F, B, F, B, …
    cool-down    the backwards that are left

The bubble is GPipe's, (p-1)/(m+p-1) = 27 %: the same work waits for the same neighbours. What is
gained is memory. A rank starts a new microbatch only when one has come back, so it holds the
activations of p - rank microbatches (4, 3, 2, 1) instead of all 8, however many there are: so m
can grow, and the bubble shrink, at no cost in memory.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.onef1b
"""

from __future__ import annotations

from torch.distributed.pipelining import Schedule1F1B

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by

train = by(Schedule1F1B)

if __name__ == "__main__":
    main("1f1b", train)
