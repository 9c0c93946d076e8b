"""DualPipeV: on a V of stages, a forward and a backward run as one action.

    rank 0  F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 F7 b3 -- f4 B0 -- b4 -- f5 .. B1 -- …
    rank 1     F0 F1 F2 F3 F4 f0 F5 f1 i0 w0 f2 i1 w1 f3 F6 b2 -- f4 B0 -- F7 b3 -- f5 B1 -- b4 -- …
    rank 2        F0 F1 F2 f0 F3 f1 F4 f2 i0 w0 f3 F5 b1 -- f4 B0 -- F6 b2 -- f5 B1 -- F7 b3 -- f6 …
    rank 3           F0 f0 F1 f1 F2 f2 F3 f3 F4 b0 -- f4 B0 -- F5 b1 -- f5 B1 -- F6 b2 -- f6 B2 -- …

    rank 0  b5 -- f6 .. B2 -- b6 -- f7 .. B3 -- b7 -- I4 W4 I5 W5 I6 W6 I7 W7
    rank 1  f6 .. B2 -- b5 -- f7 .. B3 -- b6 -- B4 -- i7 I5 w7 I6 W5 I7 W6 W7
    rank 2  B2 -- b4 -- f7 .. B3 -- b5 -- B4 -- b6 -- I5 i7 I6 W5 I7 w7 W6 W7
    rank 3  F7 b3 -- f7 B3 -- b4 -- B4 -- b5 -- B5 -- i6 I6 i7 I7 w6 W6 w7 W7

    (F0: a forward of the rank's first stage, f0: of its second; a column is as long as a forward,
    or half a backward B; I and W are its two halves where they run apart; dots: the bubble)

Stages lie on a V as in zbv.py: rank 0 has stages 0 and 7, rank 3 has 3 and 4. Microbatches go down
the ranks in one stage while gradients of others come down in the other, so in the middle of the
step each rank has a forward and a backward to do that do not need each other: F7 with b3, f4 with
B0. The schedule puts them down as one action, OVERLAP_F_B. On a GPU one could run the kernels of
either while the other communicates, as DeepSeek's DualPipe does with its all_to_alls; that takes a
model made for it and schedule.register_custom_function. Without one torch runs the two one after
the other, as drawn here and as pardbg shows it: the plan's pair and both of its actions.

The bubble is ZBV's, 3/51 = 6 %; a rank holds one half-size activation more, 2p+1 = 9; it needs as
many microbatches as stages, 2p. 6 activations of 32 KiB travel per microbatch.

The first stage has no input gradient to give: torch does nothing in its I and everything in its W.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.dualpipev
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleDualPipeV

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by, v_shape

train = by(ScheduleDualPipeV, v_shape)

if __name__ == "__main__":
    main("dualpipev", train)
