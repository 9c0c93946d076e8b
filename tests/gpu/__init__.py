"""Proof on an accelerator, row by row: ``make gpu``, or ``python -m tests.gpu --device sim``."""
