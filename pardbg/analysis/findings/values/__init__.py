"""Findings about numbers that are wrong: gradients, replicas, what ranks exchange."""
