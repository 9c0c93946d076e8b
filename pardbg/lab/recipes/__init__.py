"""Small, real training programs, one kind of parallelism each, to watch and to learn from.

docs/recipes.md explains each: what travels between the ranks, and what it costs. All train the same
GPT on the same text with the same seed, so their losses can be laid beside the single process's
(``python -m pardbg.lab.recipes.single``). ``catalogue`` lists them without torch.
"""
