"""The sessions that are kept, and what each is there to show. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A recording: the demo that makes it, and what a reader should look for."""

    demo: str
    """The recipe's name and its options, as after ``pardbg demo``."""
    look: str
    finds: str = ""
    """The kind of the finding that names the fault; none in a healthy run."""
    culprits: tuple[int, ...] = ()
    """Whom it names."""
    ends_badly: bool = False
    """The job's exit code is not 0."""

    @property
    def recipe(self) -> str:
        return self.demo.split()[0]

    @property
    def file(self) -> str:
        return f"{self.recipe.replace(':', '-')}.mcap"


RECIPES = (
    Wanted("mp --steps 9", """
        One batch walks through four ranks and back: in the timeline (3) a staircase down and up,
        and while one rank computes the others wait, three quarters of the time. Compare it with
        `gpipe`, which differs in nothing but the number of pieces."""),
    Wanted("gpipe --steps 9", """
        Pipeline (2): eight forwards, then eight backwards. The bubble is close to the bound of
        3/11 = 27 %, and at the turn each rank holds the activations of all eight microbatches
        (in flight 8/8)."""),
    Wanted("1f1b --steps 9", """
        Pipeline (2): the same bubble as GPipe, but in flight 4, 3, 2, 1. The last line of torch's
        own plan leaves out 3F0; here it is put right."""),
    Wanted("interleaved --steps 9", """
        Two stages on each rank: a bound of 3/19 = 16 % instead of 27 %, paid with twice the
        messages. In the traffic (5) rank 3 sends to rank 0, so the chain has become a ring."""),
    Wanted("looped-bfs --steps 9", """
        All microbatches go through a rank's first stage before the second one begins: the bubble
        of `interleaved`, and 16 activations of half the size in flight."""),
    Wanted("zb --steps 9", """
        Backward in two: I goes to the neighbour at once, W fills what would be idle. Pipeline (2)
        draws them apart; the bubble is well below `interleaved`."""),
    Wanted("zbv --steps 9", """
        Stages on a V: rank 0 has the first and the last. The first backward begins one action after
        the first microbatch is back, and no activation crosses between stages 3 and 4: both are
        on rank 3."""),
    Wanted("dualpipev --steps 9", """
        The plan has a forward and a backward as one action (OVERLAP_F_B); observed are both, one
        after the other, which is what torch does without a function made for the pair."""),
    Wanted("ddp --steps 12", """
        Timeline (3): the buckets' all_reduces start while backward still runs. In the first step
        there is one bucket; DDP has not yet seen in which order gradients come. Collectives (4):
        the four bytes at the end of each step are the loss, for people."""),
    Wanted("ddp-accum --steps 9 --pieces 4", """
        Four backwards per step, and gradients travel in the last one alone: the first three run
        under no_sync."""),
    Wanted("ddp-syncbn --steps 9", """
        512 bytes in the middle of forward and of backward: an all_reduce per batch norm layer, too
        small to matter and in a place where everybody waits."""),
    Wanted("ddp-ring --steps 9", """
        Traffic (5): the ring, each message with its phase, step and chunk: 3 steps of
        reduce-scatter, 3 of all-gather. Each link carries 2·3/4 of the gradients."""),
    Wanted("ps --steps 9", """
        Traffic (5): all arrows begin or end at rank 0. Three workers pull and push 1.7 MB each, and
        the server's links carry six times that in every step."""),
    Wanted("ps-async --steps 12 --staleness 4", """
        No common step: the slow worker's gradients arrive for weights that are older, and the
        staleness that each push carries never passes 4."""),
    Wanted("tp --steps 9", """
        Collectives (4): 256 KiB all_reduces in the middle of each block, twice forward and twice
        backward, with nothing to hide them."""),
    Wanted("tp-sp --steps 9", """
        The same bytes as `tp`, each all_reduce as a reduce_scatter and an all_gather. Memory (6):
        activations are smaller, because norms and residuals hold a quarter of the positions."""),
    Wanted("zero1 --steps 8", """
        Memory (6): optimizer state is a quarter of `ddp`'s. Collectives: after the all_reduce each
        rank broadcasts the parameters it has updated."""),
    Wanted("zero2 --steps 9", """
        Each unit is gathered in forward and kept until its backward. Memory (6): gradients and
        optimizer state are a quarter."""),
    Wanted("zero3 --steps 9", """
        Each unit is gathered, used and thrown away, twice a step: 17 all_gathers and 9
        reduce_scatters. Memory (6): everything is a quarter, and the unsharded bytes go up and
        down with the units."""),
    Wanted("hsdp --steps 9", """
        Two groups: gathers within dp_shard (two ranks), one all_reduce per unit across
        dp_replicate."""),
    Wanted("moe --steps 9", """
        all_to_alls whose bytes differ from rank to rank and step to step: the router decides. The
        rank with a popular expert is the one the others wait for."""),
    Wanted("recompute --steps 10", """
        Every other step recomputes: F and B alternate inside backward, and activations (6) are
        many times smaller in those steps."""),
    Wanted("dp-pp --steps 9", """
        Two pipelines side by side: p2p along the rows, an all_reduce of each stage's gradients
        down the columns, out of the last microbatch's backward."""),
    Wanted("3d --steps 5", """
        Eight ranks on one mesh: three axes, each with groups of its own (dp, pp, tp). tp talks most
        often, dp in the largest pieces."""),
    Wanted("tour --steps 1", """
        Every collective, send and receive, and reduction once. Collectives (4) lists them with
        their bytes; all are matched."""),
)  # fmt: skip


def _fault(
    demo: str, finds: str, culprits: tuple[int, ...], look: str, ends_badly: bool = False
) -> Wanted:
    return Wanted(demo, look, finds, culprits, ends_badly)


FAULTS = (
    _fault("fault:missing-rank --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "missing-rank", (2,), """
        Findings (8) about three seconds after the last progress: rank 2 is missing from the
        all_reduce, and is in `wait_for`. Ranks 0, 1 and 3 only wait.""", True),
    _fault("fault:mismatch-op --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "op-mismatch", (2,), """
        Ranks 0, 1 and 3 are in all_reduce, rank 2 in reduce, at the same place of the group's
        order.""", True),
    _fault("fault:mismatch-shape --steps 8 --fault-rank 2 --fault-step 3",
        "size-mismatch", (2,), """
        Rank 2 brings 12 bytes to an all_gather of 16. Another rank dies of it: see who is named,
        and who is not.""", True),
    _fault("fault:mismatch-dtype --steps 12 --fault-rank 2 --fault-step 6",
        "dtype-mismatch", (2,), """
        Nothing fails, the exit code is 0, and the printed loss is a third too high from step 6 on.
        Only the types tell: int32 on rank 2."""),
    _fault("fault:mismatch-root --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "root-mismatch", (2,), """
        Rank 2 broadcasts from itself, the others from rank 0.""", True),
    _fault("fault:group-order --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "deadlock", (2,), """
        Deadlock over two groups: rank 2 waits in guesses for the others, the others in losses for
        rank 2. Neither group alone shows it.""", True),
    _fault("fault:p2p-cycle --steps 8 --fault-rank 1 --fault-size 3 --fault-step 3 --timeout-s 8",
        "p2p-cycle", (1, 2, 3), """
        Ranks 1, 2 and 3 each wait for a send of the one before; rank 0 waits in the next
        all_reduce and is no part of it.""", True),
    _fault("fault:unpaired-send --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "unpaired-send", (2,), """
        Rank 2 sends to rank 3, which is in the all_reduce with everybody else.""", True),
    _fault("fault:unpaired-recv --steps 8 --fault-rank 2 --fault-step 3 --timeout-s 8",
        "unpaired-recv", (2,), """
        Rank 2 receives from rank 3, which never sends.""", True),
    _fault("fault:straggler --steps 20 --fault-rank 2 --fault-step 6",
        "straggler", (2,), """
        From step 6 on steps take 60 ms longer. The others' wait grows, rank 2's forward and
        backward grow: the finding names rank 2 and compute."""),
    _fault("fault:slow-loader --steps 20 --fault-rank 2 --fault-step 6",
        "straggler", (2,), """
        The same steps as `fault:straggler` to look at from afar; here it is rank 2's data phase
        that grows."""),
    _fault("fault:slow-link --steps 14 --fault-rank 2 --fault-step 6",
        "slow-link", (2, 3), """
        Traffic (5): from step 6 on the edge from rank 2 to rank 3 is many times slower than the
        others, with the same messages."""),
    _fault("fault:stage-imbalance --steps 12 --fault-rank 1",
        "stage-imbalance", (1,), """
        Stage 1 has four blocks of eight. Pipeline (2): the implied bubble of these stage times is
        far above the 27 % of equal ones, and every other rank waits for rank 1."""),
    _fault("fault:small-messages --steps 12",
        "small-messages", (), """
        More than a hundred all_reduces a step behind backward, many of 256 bytes. Compare the step
        with `ddp`."""),
    _fault("fault:exposed-comm --steps 12",
        "exposed-communication", (), """
        An all_gather of 16 MiB per rank at the beginning of each step, which nothing hides."""),
    _fault("fault:nan --steps 10 --fault-rank 2 --fault-step 5",
        "nan", (2,), """
        Rank 2's loss is NaN in step 5; a step later every rank's is."""),
    _fault("fault:diverge --steps 20 --fault-rank 2 --fault-step 6",
        "replica-divergence", (2,), """
        The losses look well. From step 6 on rank 2's weights are not the others'."""),
    _fault("fault:memory-creep --steps 40 --fault-rank 2 --fault-step 6",
        "memory-creep", (2,), """
        Memory (6): rank 2's total grows by 4 MiB a step; parameters, gradients and optimizer state
        do not."""),
    _fault("fault:memory-imbalance --steps 12 --fault-rank 2 --fault-step 4",
        "memory-imbalance", (2,), """
        Memory (6): from step 4 on rank 2 has 256 MiB more than the others, in no category that the
        parallelism explains."""),
    _fault("fault:exception --steps 8 --fault-rank 2 --fault-step 4",
        "exception", (2,), """
        Rank 2 raises IndexError. Output (9) has tracebacks of several ranks; the finding names the
        first failure.""", True),
    _fault("fault:kill --steps 8 --fault-rank 2 --fault-step 4",
        "rank-lost", (2,), """
        Rank 2 dies of SIGKILL; its last records are there, read from memory that outlived it.
        """, True),
    _fault("fault:gil-hold --steps 8 --fault-rank 2 --fault-step 4 --fault-size 6",
        "late-rank", (2,), """
        For six seconds no Python runs in rank 2. Go to the middle of them: the finding says that it
        is in C code that holds the GIL. At the end it says that rank 2 came six seconds late."""),
)  # fmt: skip

ALL = RECIPES + FAULTS
