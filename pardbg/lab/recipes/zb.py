"""Zero bubble, interleaved: backward in two parts, and the part nobody waits for fills the idle.

    rank 0  F0 F1 F2 F3 f0 f1 f2 f3 .. .. .. i0 w0 F4 i1 w1 F5 i2 w2 F6 i3 w3 F7 I0 W0 f4 I1 W1 f5 …
    rank 1     F0 F1 F2 F3 f0 f1 f2 .. .. i0 f3 i1 w0 F4 i2 w1 F5 i3 w2 F6 I0 w3 F7 I1 W0 f4 I2 W1 …
    rank 2        F0 F1 F2 F3 f0 f1 .. i0 f2 i1 f3 i2 w0 F4 i3 w1 F5 I0 w2 F6 I1 w3 F7 I2 W0 f4 I3 …
    rank 3           F0 F1 F2 F3 f0 i0 f1 i1 f2 i2 f3 i3 w0 F4 I0 w1 F5 I1 w2 F6 I2 w3 F7 I3 W0 f4 …

    rank 0  I2 W2 f6 I3 W3 f7 i4 w4 i5 w5 i6 w6 i7 w7 I4 W4 I5 W5 I6 W6 I7 W7
    rank 1  f5 I3 W2 f6 i4 W3 f7 i5 w4 i6 w5 i7 w6 I4 w7 I5 W4 I6 W5 I7 W6 W7
    rank 2  W1 f5 i4 W2 f6 i5 W3 f7 i6 w4 i7 w5 I4 w6 I5 w7 I6 W4 I7 W5 W6 W7
    rank 3  i4 W1 f5 i5 W2 f6 i6 W3 f7 i7 w4 I4 w5 I5 w6 I6 w7 I7 W4 W5 W6 W7

    (F0: a forward of the rank's first stage, f0: of its second; a column is as long as a forward,
    as a backward for the input, I or i, and as one for the weights, W or w; dots: the bubble)

A backward computes two things. The gradient of the stage's input is what the stage before waits
for: I goes first. The gradient of the weights is for the optimizer, which has time until the end of
the step: W goes where the rank would wait. So the backward that travels up the ranks is half as
long, and in the cool-down there is work left. With F, I and W of one length the bubble is
(p-1)/(3·v·m+p-1) = 3/51 = 6 %, where interleaved 1F1B has 16 %. Stages lie as in interleaved.py and
the traffic is the same. At the turn the ranks hold 8 half-size activations each.

The first stage has no input gradient to give: torch does nothing in its I and everything in its W.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.zb
"""

from __future__ import annotations

from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

from pardbg.lab.recipes.launch import main
from pardbg.lab.recipes.pipeline import by, loop

train = by(ScheduleInterleavedZeroBubble, loop)

if __name__ == "__main__":
    main("zb", train)
