"""The same computation: captured tensors of two runs, or of one run's replicas, compared."""
