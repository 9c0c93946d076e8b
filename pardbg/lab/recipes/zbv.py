"""Zero bubble on a V of stages: the rank with the first stage has the last one too.

    rank 0  F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 i3 w3 F7 I0 W0 f4 i4 w4 I1 W1 f5 i5 …
    rank 1     F0 F1 F2 F3 F4 f0 F5 f1 i0 w0 f2 i1 w1 f3 i2 w2 F6 I0 W0 f4 i3 w3 F7 I1 W1 f5 i4 w4 …
    rank 2        F0 F1 F2 f0 F3 f1 F4 f2 i0 w0 f3 i1 w1 F5 I0 W0 f4 i2 w2 F6 I1 W1 f5 i3 w3 F7 I2 …
    rank 3           F0 f0 F1 f1 F2 f2 F3 f3 i0 w0 F4 I0 W0 f4 i1 w1 F5 I1 W1 f5 i2 w2 F6 I2 W2 f6 …

    rank 0  w5 I2 W2 f6 i6 w6 I3 W3 f7 i7 w7 I4 W4 I5 W5 I6 W6 I7 W7
    rank 1  I2 W2 f6 i5 w5 I3 W3 f7 i6 w6 I4 i7 I5 W4 I6 W5 I7 W6 w7 W7
    rank 2  W2 f6 i4 w4 I3 W3 f7 i5 w5 I4 i6 I5 i7 I6 W4 I7 W5 w6 w7 W6 W7
    rank 3  i3 w3 F7 I3 W3 f7 i4 w4 I4 i5 I5 i6 I6 i7 I7 W4 w5 w6 w7 W5 W6 W7

    (F0: a forward of the rank's first stage, f0: of its second; a column is as long as a forward,
    as a backward for the input, I or i, and as one for the weights, W or w; dots: the bubble)

    rank 0: stages 0 and 7     a microbatch goes down the ranks and comes back:
    rank 1: stages 1 and 6     0 → 1 → 2 → 3 ┐
    rank 2: stages 2 and 5                   │  both on rank 3: nothing is sent
    rank 3: stages 3 and 4     0 ← 1 ← 2 ← 3 ┘

In a loop of stages the loss is on the last rank, and its first gradient has to travel back through
all others. On a V the loss is on rank 0 and the gradient comes back down the ranks while forwards
still run: the first backwards are one column apart. Backward is in two parts, and W waits where a
rank has something better to do. With F, I and W of one length the bubble is (p-1)/(6m+p-1) = 3/51
= 6 %, as in zb.py, but here no rank ever holds more than 2p = 8 half-size activations, which is
what rank 0 holds in 1F1B. One of the seven borders between stages lies within a rank, so 6
activations of 32 KiB travel per microbatch instead of 7.

The first stage has no input gradient to give: torch does nothing in its I and everything in its W.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.zbv
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleZBVZeroBubble

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by, v_shape

train = by(ScheduleZBVZeroBubble, v_shape)

if __name__ == "__main__":
    main("zbv", train)
