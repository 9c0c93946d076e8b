"""Looped BFS: the stages of interleaved 1F1B, taken one at a time with all microbatches.

    rank 0  F0 F1 F2 F3 F4 F5 F6 F7 f0 f1 f2 f3 f4 f5 f6 f7 .. .. .. .. .. .. .. .. .. b7 -- b6 -- …
    rank 1     F0 F1 F2 F3 F4 F5 F6 F7 f0 f1 f2 f3 f4 f5 f6 f7 .. .. .. .. .. .. b7 -- b6 -- b5 -- …
    rank 2        F0 F1 F2 F3 F4 F5 F6 F7 f0 f1 f2 f3 f4 f5 f6 f7 .. .. .. b7 -- b6 -- b5 -- b4 -- …
    rank 3           F0 F1 F2 F3 F4 F5 F6 F7 f0 f1 f2 f3 f4 f5 f6 f7 b7 -- b6 -- b5 -- b4 -- b3 -- …

    rank 0  b5 -- b4 -- b3 -- b2 -- b1 -- b0 -- B7 -- B6 -- B5 -- B4 -- B3 -- B2 -- B1 -- B0 --
    rank 1  b4 -- b3 -- b2 -- b1 -- b0 -- B7 -- B6 -- B5 -- B4 -- B3 -- B2 -- B1 -- B0 --
    rank 2  b3 -- b2 -- b1 -- b0 -- B7 -- B6 -- B5 -- B4 -- B3 -- B2 -- B1 -- B0 --
    rank 3  b2 -- b1 -- b0 -- B7 -- B6 -- B5 -- B4 -- B3 -- B2 -- B1 -- B0 --

    (F0: a forward of the rank's first stage, f0: of its second; a column is as long as a forward,
    a backward takes two columns; dots: the bubble)

Breadth first: rank 0 runs every microbatch through stage 0 before it touches stage 4, where
interleaved 1F1B sends the first four on at once; then backward, the last microbatch first. The
bubble is the same, (p-1)/(v·m+p-1) = 3/19 = 16 %, and so is the traffic; but as in GPipe a rank
holds the activations of all microbatches at the turn, of both its stages: 16 of half the size. It
pays where a stage's weights must be fetched first (FSDP): that is done twice a step here, and once
for each run of four microbatches there.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.looped_bfs
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleLoopedBFS

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by, loop

train = by(ScheduleLoopedBFS, loop)

if __name__ == "__main__":
    main("looped-bfs", train)
