"""Interleaved 1F1B: two smaller stages on each rank instead of one large one.

    rank 0  F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 F6 .. .. .. b0 -- F7 b1 -- .. f4 b2 -- f5 b3 -- f6 B0 -- …
    rank 1     F0 F1 F2 F3 f0 f1 f2 f3 F4 .. .. b0 -- F5 b1 -- F6 b2 -- F7 b3 -- f4 B0 -- f5 B1 -- …
    rank 2        F0 F1 F2 F3 f0 f1 f2 .. b0 -- f3 b1 -- F4 b2 -- F5 b3 -- F6 B0 -- F7 B1 -- f4 B2 …
    rank 3           F0 F1 F2 F3 f0 b0 -- f1 b1 -- f2 b2 -- f3 b3 -- F4 B0 -- F5 B1 -- F6 B2 -- F7 …

    rank 0  f7 B1 -- B2 -- .. B3 -- .. b4 -- .. b5 -- .. b6 -- .. b7 -- B4 -- B5 -- B6 -- B7 --
    rank 1  f6 B2 -- f7 B3 -- .. b4 -- .. b5 -- .. b6 -- .. b7 -- B4 -- B5 -- B6 -- B7 --
    rank 2  -- f5 B3 -- f6 b4 -- f7 b5 -- .. b6 -- .. b7 -- B4 -- B5 -- B6 -- B7 --
    rank 3  B3 -- f4 b4 -- f5 b5 -- f6 b6 -- f7 b7 -- B4 -- B5 -- B6 -- B7 --

    (F0: a forward of the rank's first stage, f0: of its second; a column is as long as a forward,
    a backward takes two columns; dots: the bubble)

    rank 0: stages 0 and 4     a microbatch passes the ranks twice:
    rank 1: stages 1 and 5     0 → 1 → 2 → 3 → 0 → 1 → 2 → 3 → loss
    rank 2: stages 2 and 6
    rank 3: stages 3 and 7     rank 3 sends to rank 0: the pipeline closes to a ring

Each stage takes half the time, so the first microbatch is at the last rank after half the time and
the bubble is (p-1)/(v·m+p-1) = 3/19 = 16 % instead of 27 %. It is paid for in traffic: v times as
many activations and gradients travel, of the same 32 KiB each: 7 per microbatch where 1F1B has 3.
And more is in flight: rank 0 holds 11 half-size activations at the turn, where 1F1B has 4 whole.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.interleaved
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleInterleaved1F1B

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by, loop

train = by(ScheduleInterleaved1F1B, loop)

if __name__ == "__main__":
    main("interleaved", train)
