"""The same training with one planted fault each: what a debugger for parallel training is for.

Each fault is the healthy training of ``ddp.py`` (or of 1F1B) and the few lines that spoil it,
marked ``FAULT``. They stand in the training program, where a user's own mistake would stand, and
pardbg is told nothing of them. docs/recipes.md says what is wrong, what happens and what pardbg
reports.

Those that hang end after ``--timeout-s`` seconds: gloo then raises in the ranks that wait, and the
job ends with an exit code other than 0.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.faults fault:mismatch-op --fault-rank 2
"""
