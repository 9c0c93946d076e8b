"""Hooks into training: steps and phases, pipelines, FSDP, recomputation."""
