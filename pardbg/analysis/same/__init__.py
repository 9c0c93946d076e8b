"""Comparison of computations: captured tensors of two runs, or of one run's replicas."""
