"""GPipe: all forwards of a step, then all backwards.

    rank 0  F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. .. .. B0 B1 B2 B3 B4 B5 B6 B7
    rank 1     F0 F1 F2 F3 F4 F5 F6 F7 .. .. .. .. B0 B1 B2 B3 B4 B5 B6 B7
    rank 2        F0 F1 F2 F3 F4 F5 F6 F7 .. .. B0 B1 B2 B3 B4 B5 B6 B7
    rank 3           F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7

    (time to the right, a column each; dots: the bubble)

With p ranks and m microbatches each rank is idle (p-1)/(m+p-1) of the time: 3/11 = 27 % here, less
with more microbatches. But each rank holds the activations of all m microbatches at the turn.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.gpipe
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleGPipe

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by

train = by(ScheduleGPipe)

if __name__ == "__main__":
    main("gpipe", train)
